"""What only Slurm's accounting still knows: why a job was put back, how a forgotten one ended, that one has run before.

The accounting needs a database of its own that no test has, so its program is a script here; its columns are those that
Paceline asks for.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.remediation.launchers.slurm_cli import SlurmCli
from apps.remediation.launching import LaunchUnavailable
from apps.remediation.models import SchedulerSetting
from apps.remediation.selectors.schedulers import SchedulerRow
from apps.remediation.services import SchedulerFields, scheduler_set
from apps.remediation.tasks import scheduler_read
from apps.runs.selectors import attempts_of, run_by_id
from apps.runs.services import attempt_open

HEAD = "JobIDRaw|State|ExitCode|Start|End|Submit|NodeList"
NODE = "NodeName=n1 State=IDLE"
NO_JOB = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def site(tmp_path: Path, cluster: int, boss: Any) -> Callable[..., None]:
    """A cluster whose Slurm's programs say what a test wants: `site(job="JobId=7 …", accounted=["7|…"])`."""

    def say(*, job: str, accounted: list[str]) -> None:
        show = f"cat <<'E'\n{job}\nE" if job else NO_JOB
        rows = "\n".join([HEAD, *accounted])
        scripts = {
            "scontrol": f'case "$*" in *node*) echo "{NODE}";; *) {show}\n;; esac',
            "sacct": f"cat <<'E'\n{rows}\nE",
        }
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(stat.S_IRWXU)
        fields = SchedulerFields(conf="", programs=str(tmp_path))
        now = datetime.now(UTC)
        scheduler_set(principal=boss, cluster_id=cluster, fields=fields, source="API", now=now)

    return say


@pytest.fixture
def followed(make_run: Callable[..., Any]) -> Any:
    """A run whose reporter said minutes ago that it is job 7."""
    run = make_run("dense-7b", launcher={"kind": "SLURM"})
    began = datetime.now(UTC) - timedelta(minutes=5)
    attempt_open(
        run_id=run.id, key="slurm:7.0.batch", external_id="slurm:7", world_size=2, by="t", source="API", now=began
    )
    return run


def read(cluster: int) -> None:
    SchedulerSetting.objects.filter(pk=cluster).update(next_read_at=datetime.now(UTC))
    scheduler_read(cluster_id=cluster)


def ended(run: Any) -> tuple[str, str]:
    first = min(attempts_of(run.id), key=lambda attempt: attempt.number)
    return first.reason, first.authority


@pytest.mark.django_db
class TestPutBack:
    @pytest.mark.parametrize(
        ("state", "reason"), [("PREEMPTED", "PREEMPTED"), ("NODE_FAIL", "NODE_FAILURE"), ("REQUEUED", "UNKNOWN")]
    )
    def test_why_is_taken_from_the_start_before(
        self, site: Callable[..., None], followed: Any, cluster: int, state: str, reason: str
    ) -> None:
        waits = "JobId=7 JobName=train\n   JobState=PENDING Reason=BeginTime Restarts=1"
        before = f"7|{state}|0:0|2026-12-01T10:00:00|2026-12-01T10:30:00|2026-12-01T09:00:00|n[1-2]"
        site(job=waits, accounted=[before, "7|PENDING|0:0|Unknown|Unknown|2026-12-01T10:30:00|None assigned"])

        read(cluster)

        assert ended(followed) == (reason, "SCHEDULER")
        assert run_by_id(followed.id).state == "QUEUED"


@pytest.mark.django_db
class TestForgotten:
    @pytest.mark.parametrize(
        ("row", "end"),
        [
            ("7|FAILED|3:0|2026-12-01T10:00:00|2026-12-01T10:30:00|2026-12-01T09:00:00|n1", ("CRASHED", "SCHEDULER")),
            (
                "7|TIMEOUT|0:0|2026-12-01T10:00:00|2026-12-01T10:30:00|2026-12-01T09:00:00|n1",
                ("TIME_LIMIT", "SCHEDULER"),
            ),
            (
                "7|CANCELLED by 0|0:15|2026-12-01T10:00:00|2026-12-01T10:30:00|2026-12-01T09:00:00|n1",
                ("CANCELLED", "SCHEDULER"),
            ),
        ],
    )
    def test_a_job_that_the_controller_forgot_ended_as_its_accounting_says(
        self, site: Callable[..., None], followed: Any, cluster: int, row: str, end: tuple[str, str]
    ) -> None:
        site(job="", accounted=[row])

        read(cluster)

        assert ended(followed) == end

    def test_one_is_left_as_it_is_while_its_accounting_does_not_answer(
        self, site: Callable[..., None], followed: Any, cluster: int, tmp_path: Path
    ) -> None:
        site(job="", accounted=[])
        (tmp_path / "sacct").write_text("#!/bin/sh\necho 'Connection refused' >&2; exit 1\n")

        read(cluster)

        assert run_by_id(followed.id).attempt_state == "OPEN"

    def test_one_that_nobody_knows_is_over_and_nobody_saw_how(
        self, site: Callable[..., None], followed: Any, cluster: int
    ) -> None:
        site(job="", accounted=[])

        read(cluster)

        assert ended(followed) == ("UNKNOWN", "SILENCE")


class TestHasRun:
    @pytest.mark.parametrize(
        ("rows", "job"),
        [(["41|None assigned", "42|n[1-2]"], 42), (["41|None assigned"], None), (["41.batch|n1"], None), ([], None)],
    )
    def test_only_a_job_that_had_nodes_counts(self, tmp_path: Path, rows: list[str], job: int | None) -> None:
        said = "\n".join(rows)
        (tmp_path / "sacct").write_text(f"#!/bin/sh\ncat <<'E'\n{said}\nE\n")
        (tmp_path / "sacct").chmod(stat.S_IRWXU)
        cli = SlurmCli(SchedulerRow(cluster_id=1, cluster="north", kind="SLURM", programs=str(tmp_path)))

        assert cli.accounted_named("dense-7b.ord_1", since=datetime.now(UTC)) == job

    @pytest.mark.parametrize(
        "said", ["Connection refused: failed to open persistent connection", "No idea what is wrong"]
    )
    def test_an_accounting_that_does_not_answer_says_nothing(self, tmp_path: Path, said: str) -> None:
        (tmp_path / "sacct").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
        (tmp_path / "sacct").chmod(stat.S_IRWXU)
        cli = SlurmCli(SchedulerRow(cluster_id=1, cluster="north", kind="SLURM", programs=str(tmp_path)))

        with pytest.raises(LaunchUnavailable):
            cli.accounted_named("dense-7b.ord_1", since=datetime.now(UTC))
        assert cli.accounted(7) == {}

    def test_without_accounting_nothing_is_known(self, tmp_path: Path) -> None:
        (tmp_path / "sacct").write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2; exit 1\n")
        (tmp_path / "sacct").chmod(stat.S_IRWXU)
        cli = SlurmCli(SchedulerRow(cluster_id=1, cluster="north", kind="SLURM", programs=str(tmp_path)))

        assert cli.accounted_named("dense-7b.ord_1", since=datetime.now(UTC)) is None
        assert cli.accounted(7) == {7: []}
