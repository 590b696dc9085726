"""An order in doubt says what to look at: the stop of a local program, words that stay one word, a job that is not known."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.common.ids import id_write
from apps.remediation import selectors, services
from apps.remediation.models import Launch, Order
from apps.remediation.selectors import look_lines

pytestmark = pytest.mark.django_db


@pytest.fixture
def doubt(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for an action of whose first order nobody came back: `doubt("STOP_RUN", run)` gives it as it stands then."""

    def make(kind: str, run: Any) -> Any:
        action = ask(kind, run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        assert services.order_claim(order_id=order_id, now=datetime.now(UTC)) is not None
        services.order_doubt(order_id=order_id, now=datetime.now(UTC))
        return selectors.action_by_id(action.id)

    return make


@pytest.fixture
def launched(local_run: Any, make_attempt: Callable[..., Any], now: datetime) -> Callable[..., Any]:
    """Let the run's attempt be one that Paceline launched, as pid 4711 in a folder: `launched("/srv/a")`."""

    def make(folder: str) -> None:
        from apps.remediation.models import Action

        attempt = make_attempt(local_run, key="order:ord_1")
        times = {"requested_at": now, "expires_at": now}
        action = Action.objects.create(kind="RESTART_RUN", state="SUCCEEDED", run_id=local_run.id, **times)
        order = Order.objects.create(action=action, kind="LAUNCH", launcher="LOCAL", state="DONE", not_before=now)
        known = {"state": "ALIVE", "started_at": now, "pid": 4711, "start_ticks": 1, "directory": folder}
        Launch.objects.create(order=order, run_id=local_run.id, attempt_id=attempt.id, launcher="LOCAL", **known)

    return make


class TestLookLines:
    def test_a_stop_of_a_local_program_names_its_pid_and_its_folder_as_one_word(
        self, local_run: Any, launched: Callable[[str], None], doubt: Callable[..., Any]
    ) -> None:
        launched("/srv/a b; touch gone")

        alive, files = look_lines(doubt("STOP_RUN", local_run))

        assert alive == "ps -fp 4711"
        assert shlex.split(files) == ["ls", "-l", "/srv/a b; touch gone"]

    def test_a_start_s_folder_stays_one_word(
        self, local_run: Any, doubt: Callable[..., Any], settings: Any, tmp_path: Path
    ) -> None:
        row = doubt("RESTART_RUN", local_run)

        settings.DATA_DIR = tmp_path / "a b; touch gone"
        (line,) = look_lines(row)

        folder = tmp_path / "a b; touch gone" / "launches" / id_write("ord", row.orders[0].id)
        assert shlex.split(line) == ["ls", "-l", str(folder)]

    @pytest.mark.parametrize("kind", ["STOP_RUN", "RESTART_RUN"])
    def test_somebody_s_own_job_is_looked_for_by_its_number(
        self,
        make_run: Callable[..., Any],
        make_attempt: Callable[..., Any],
        doubt: Callable[..., Any],
        boss: Any,
        cluster: int,
        now: datetime,
        kind: str,
    ) -> None:
        fields = services.SchedulerFields(conf="/etc/slurm/slurm.conf")
        services.scheduler_set(principal=boss, cluster_id=cluster, fields=fields, source="API", now=now)
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        make_attempt(run, key="slurm:41.2")

        assert look_lines(doubt(kind, run))[0] == "scontrol show job 41"
