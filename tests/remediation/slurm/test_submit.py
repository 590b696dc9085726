"""A run that Paceline submits: started once, stopped, found again, without the nodes that are out."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.accounts.models import ApiToken
from apps.remediation import launchers, services
from apps.remediation.launchers import slurm_submit
from apps.remediation.models import Launch, Order
from apps.remediation.selectors.jobs import something_awaited
from apps.runs.selectors import attempt_by_id, attempts_of, run_by_id
from tests.remediation.conftest import is_watched
from tests.slurm import Slurm, wait_for

pytestmark = pytest.mark.django_db


def job_of(row: Any) -> int:
    """The number of the job that an action's launch started."""
    return int(next(order for order in reversed(row.orders) if order.kind == "LAUNCH").receipt["receipt"])


def running(slurm: Slurm, job_id: int) -> Any:
    """The job, once it runs."""
    found = wait_for(lambda: (job := slurm.job(job_id)).runs and job, f"job {job_id} to run", 40, or_else=False)
    assert found, slurm.scontrol("show", "job", str(job_id))
    return found


class TestSubmit:
    def test_runs_on_the_nodes_that_remain(
        self,
        submitted_run: Any,
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
    ) -> None:
        nodes(*set_slurm.names)

        row = work(ask("RESTART_RUN", submitted_run, options={"exclude_nodes": ["node2"]}).id, until=is_started)

        job = running(set_slurm, job_of(row))
        assert job.nodes == "node[1,3-4]"
        assert job.exc_nodes == "node2"
        attempt = attempt_by_id(row.attempt_id)
        assert (attempt.key, attempt.external_id) == (f"slurm:{job.id}.0", f"slurm:{job.id}")
        assert set_slurm.node("node2").is_out

    def test_tells_the_program_what_it_needs_and_shows_its_token_to_nobody(
        self,
        make_run: Callable[..., Any],
        set_slurm: Slurm,
        tmp_path: Path,
        ask: Callable[..., Any],
        work: Callable[..., Any],
    ) -> None:
        told = tmp_path / "told"
        command = ["/bin/sh", "-c", f"env > {told}.new; mv {told}.new {told}; sleep 600"]
        environment = {"RECIPE": "a b'c\"d $HOME", "PACELINE_URL": "http://paceline.site"}
        launcher = {"kind": "SLURM", "command": command, "environment": environment, "directory": str(tmp_path)}

        row = work(
            ask(
                "RESTART_RUN", make_run("dense-7b", launcher=launcher), options={"from_step": 40, "confirm": "dense-7b"}
            ).id,
            until=is_watched,
        )

        wait_for(told.exists, "the program to write what it was told")
        got = dict(line.split("=", 1) for line in told.read_text().splitlines() if "=" in line)
        job = set_slurm.job(job_of(row))
        assert got["RECIPE"] == environment["RECIPE"]
        assert got["PACELINE_URL"] == "http://paceline.site"
        assert got["PACELINE_RUN"] == "dense-7b"
        assert got["PACELINE_RESUME_STEP"] == "40"
        assert got["PACELINE_ATTEMPT_KEY"] == f"slurm:{job.id}.0"
        assert "DATABASE_URL" not in got
        assert got["PACELINE_TOKEN"]
        assert got["PACELINE_TOKEN"] not in set_slurm.scontrol("show", "job", str(job.id))
        assert got["PACELINE_TOKEN"] not in set_slurm.scontrol("write", "batch_script", str(job.id), "-")

    def test_a_second_try_of_an_order_finds_the_job_of_the_first(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any]
    ) -> None:
        order = claimed(ask("RESTART_RUN", submitted_run))

        first, again = (launchers.order_carry_out(order) for _ in range(2))

        assert first.kind == again.kind == "DONE"
        assert first.facts["receipt"] == again.facts["receipt"]
        assert len(set_slurm.queue()) == 1

    def test_a_worker_that_died_after_the_submission_is_followed_by_one_that_releases_a_single_job(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order = claimed(ask("RESTART_RUN", submitted_run))

        def dies(*_: Any) -> None:
            raise SystemExit

        monkeypatch.setattr(slurm_submit, "_released", dies)
        with pytest.raises(SystemExit):
            launchers.order_carry_out(order)
        monkeypatch.undo()
        left = set_slurm.job(int(set_slurm.queue()[0]))
        read_back = launchers.order_read_back(order)
        outcome = launchers.order_carry_out(order)

        assert left.is_held
        assert read_back.kind == "NOT_DONE"
        assert outcome.kind == "DONE"
        assert set_slurm.job(left.id).state == "CANCELLED"
        assert set_slurm.queue() == [outcome.facts["receipt"]]

    def test_what_was_released_is_read_back_after_the_worker_died(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        asked = ask("RESTART_RUN", submitted_run)
        order = claimed(asked)
        launchers.order_carry_out(order)
        services.order_doubt(order_id=order.id, now=datetime.now(UTC))
        assert Order.objects.get(pk=order.id).state == "UNCERTAIN"

        row = work(asked.id, until=is_watched)

        assert len(set_slurm.queue()) == 1
        assert attempt_by_id(row.attempt_id).key == f"slurm:{job_of(row)}.0"

    @pytest.mark.parametrize(
        ("launcher", "why"),
        [
            ({"command": ["--array=0-9", "/bin/true"]}, "--array"),
            ({"command": ["--comment=mine", "/bin/true"]}, "--comment"),
            ({"command": ["--nodes=1"]}, "no program"),
            ({"script": "#!/bin/sh\n#SBATCH --array=0-9\necho"}, "--array"),
            ({"command": ["/bin/true"], "environment": {"A,B": "1"}}, "A,B"),
            ({"command": ["--partition=none", "/bin/true"]}, "partition"),
        ],
    )
    def test_what_cannot_be_is_refused_with_a_sentence_and_leaves_no_job(
        self, make_run: Callable[..., Any], set_slurm: Slurm, ask: Callable[..., Any], launcher: Any, why: str
    ) -> None:
        run = make_run("dense-7b", launcher={"kind": "SLURM", **launcher})
        order = claimed(ask("RESTART_RUN", run))

        outcome = launchers.order_carry_out(order)

        assert outcome.kind == "REFUSED"
        assert why in outcome.text
        assert set_slurm.queue() == []

    def test_words_for_a_shell_stay_words(
        self,
        make_run: Callable[..., Any],
        set_slurm: Slurm,
        tmp_path: Path,
        ask: Callable[..., Any],
        work: Callable[..., Any],
    ) -> None:
        words = ["; touch pwned", "$(touch pwned)", "`touch pwned`", "a b", "'"]
        command = ["/bin/sh", "-c", 'printf "%s\\n" "$@" > got.new; mv got.new got; sleep 600', "sh", *words]
        run = make_run("dense-7b", launcher={"kind": "SLURM", "command": command, "directory": str(tmp_path)})

        work(ask("RESTART_RUN", run).id, until=is_watched)

        got = tmp_path / "got"
        wait_for(got.exists, "the program to write its words")
        assert got.read_text().splitlines() == words
        assert not [name for name in os.listdir(tmp_path) if "pwned" in name]


class TestStop:
    def test_asks_the_program_to_leave_and_waits_until_the_job_is_gone(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], reports: Any
    ) -> None:
        job = running(set_slurm, started(submitted_run, ask, work, reports))

        row = work(ask("STOP_RUN", run_by_id(submitted_run.id)).id, seconds=40)

        assert row.state == "SUCCEEDED"
        assert set_slurm.job(job.id).is_over
        assert run_by_id(submitted_run.id).attempt_ended_reason == "PLANNED"

    def test_a_job_that_waits_in_the_queue_is_cancelled_at_once(
        self, make_run: Callable[..., Any], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        set_slurm.submit("sleep 600", "--nodes=4", "--exclusive")
        launcher = {"kind": "SLURM", "command": ["--nodes=4", "/bin/sleep", "600"], "stop_grace_s": 600}
        run = make_run("dense-7b", launcher=launcher)
        asked = ask("RESTART_RUN", run)
        job_id = job_of(work(asked.id, until=is_watched))
        settled = services.action_settle(
            principal=boss_of(),
            action_id=asked.id,
            outcome="SUCCEEDED",
            reason="it waits in the queue",
            now=datetime.now(UTC),
        )

        row = work(ask("STOP_RUN", run_by_id(run.id)).id)

        assert settled.state == row.state == "SUCCEEDED"
        assert set_slurm.job(job_id).state == "CANCELLED"

    def test_a_job_that_was_cancelled_while_it_waited_is_waited_for_no_more(
        self,
        submitted_run: Any,
        set_slurm: Slurm,
        ask: Callable[..., Any],
        work: Callable[..., Any],
        reports: Any,
        read: Callable[..., Any],
    ) -> None:
        first = started(submitted_run, ask, work, reports)
        running(set_slurm, first)
        set_slurm.scontrol("requeue", str(first))
        wait_for(lambda: set_slurm.job(first).state == "PENDING", "the job to be put back")
        read()
        waited = something_awaited(submitted_run.cluster_id)

        second = job_of(work(ask("RESTART_RUN", run_by_id(submitted_run.id)).id, until=is_watched, seconds=40))
        running(set_slurm, second)
        read()
        read()

        assert waited
        assert not something_awaited(submitted_run.cluster_id)

    def test_a_restart_stops_the_old_job_and_submits_another(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], reports: Any
    ) -> None:
        first = started(submitted_run, ask, work, reports)
        running(set_slurm, first)

        row = work(ask("RESTART_RUN", run_by_id(submitted_run.id)).id, until=is_watched, seconds=40)

        assert job_of(row) != first
        assert set_slurm.job(first).is_over
        assert running(set_slurm, job_of(row)).nodes

    def test_the_job_before_a_restart_is_seen_to_be_over_and_loses_its_token(
        self,
        submitted_run: Any,
        set_slurm: Slurm,
        ask: Callable[..., Any],
        work: Callable[..., Any],
        reports: Any,
        read: Callable[..., Any],
    ) -> None:
        first = started(submitted_run, ask, work, reports)
        running(set_slurm, first)
        second = job_of(work(ask("RESTART_RUN", run_by_id(submitted_run.id)).id, until=is_watched, seconds=40))

        read()

        states = dict(Launch.objects.values_list("external_id", "state"))
        assert states == {str(first): "GONE", str(second): "ALIVE"}
        revoked = {
            launch.external_id: ApiToken.objects.get(pk=launch.token_id).revoked_at is not None
            for launch in Launch.objects.all()
        }
        assert revoked == {str(first): True, str(second): False}
        attempts = [(row.state, row.reason, row.authority) for row in reversed(attempts_of(submitted_run.id))]
        assert attempts == [("ENDED", "PLANNED", "ORDER"), ("OPEN", "", "")]

    def test_a_job_that_is_over_needs_no_stop(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], reports: Any
    ) -> None:
        job_id = started(submitted_run, ask, work, reports)
        running(set_slurm, job_id)
        set_slurm._run("scancel", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).is_over, "the job to end")

        row = work(ask("STOP_RUN", run_by_id(submitted_run.id)).id)

        assert row.state == "SUCCEEDED"


def boss_of() -> Any:
    """Paceline itself as a caller."""
    from apps.common.access import SYSTEM

    return SYSTEM


def claimed(row: Any) -> Any:
    """The action's order as a worker has it in hand."""
    order = services.order_claim(order_id=row.orders[0].id, now=datetime.now(UTC))
    assert order is not None
    return order


def is_started(row: Any) -> bool:
    """Whether an action's launch is done, and so is what follows it: telling the scheduler about its nodes."""
    states = {order.kind: order.state for order in row.orders}
    return states.pop("LAUNCH", "") == "DONE" and "WAITING" not in states.values()


def started(run: Any, ask: Callable[..., Any], work: Callable[..., Any], reports: Any) -> int:
    """Start a run and let it report; gives its job."""
    asked = ask("RESTART_RUN", run_by_id(run.id))
    work(asked.id, until=is_watched, seconds=40)
    reports(run)
    return job_of(work(asked.id))
