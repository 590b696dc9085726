"""What is said of room for a start follows what the scheduler told, of the right nodes and of late. No Slurm needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from apps.engine.readers.slurm import SlurmJob, SlurmNode
from apps.fleet.models import NodeStatus
from apps.remediation.models import SchedulerJob
from apps.remediation.selectors import Preview, restart_preview
from apps.remediation.services import jobs_seen, nodes_seen
from apps.runs.services import attempt_open

pytestmark = pytest.mark.django_db

COMMAND = ["--nodes=4", "--partition=train", "srun", "python", "train.py"]


def of_train(*names: str, base: str = "ALLOCATED") -> list[SlurmNode]:
    return [SlurmNode(name, base, partitions=("train",)) for name in names]


@pytest.fixture
def listed(cluster: int) -> Callable[..., None]:
    """Take in nodes as a scheduler lists them: `listed(*nodes, age_s=0)`."""
    call_command("scheduler_set", "north")

    def see(*nodes: SlurmNode, age_s: float = 0.0) -> None:
        at = datetime.now(UTC) - timedelta(seconds=age_s)
        nodes_seen(cluster_id=cluster, nodes=nodes, at=at, now=datetime.now(UTC))

    return see


@pytest.fixture
def running(make_run: Callable[..., Any], cluster: int) -> Callable[..., Any]:
    """Make a run whose job 7 runs: `running({"kind": "SLURM"}, nodes_asked=4)`."""

    def make(launcher: dict[str, Any], **more: Any) -> Any:
        run, moment = make_run("dense-7b", launcher=launcher), datetime.now(UTC)
        attempt_open(
            run_id=run.id, key="slurm:7.0", external_id="slurm:7", world_size=8, by="t", source="API", now=moment
        )
        job = SlurmJob(7, "RUNNING", restarts=0, nodes="n[1-4]", **more)
        jobs_seen(cluster_id=cluster, jobs=[job], at=moment, now=moment)
        return run

    return make


def preview_of(run: Any, *exclude: str) -> Preview:
    return restart_preview(run.id, now=datetime.now(UTC), exclude_nodes=exclude)


def texts(preview: Preview) -> str:
    return " ".join(row.text for row in preview.happens)


class TestRoom:
    def test_of_other_partitions_there_is_none(self, listed: Any, running: Any) -> None:
        listed(*of_train("n1", "n2", "n3", "n4"), SlurmNode("c1", "IDLE", partitions=("cpu",)))

        preview = preview_of(running({"kind": "SLURM", "command": COMMAND}), "n1")

        assert preview.short == (
            "the job asks for 4 nodes and Slurm has 3 for it without n1: it would wait in the queue until one comes back"
        )

    def test_an_idle_node_of_its_partition_makes_up_for_one_that_is_out(self, listed: Any, running: Any) -> None:
        listed(*of_train("n1", "n2", "n3", "n4"), *of_train("n5", base="IDLE"))

        preview = preview_of(running({"kind": "SLURM", "command": COMMAND}), "n1")

        assert "Slurm has 4 nodes for it without those that are out; it asks for 4" in texts(preview)
        assert (preview.short, preview.spares) == ("", ("n5",))

    @pytest.mark.parametrize("state", [("DOWN", ""), ("IDLE", "NOT_RESPONDING"), ("IDLE", "DRAIN")])
    def test_a_node_that_is_down_or_drained_is_none(self, listed: Any, running: Any, state: tuple[str, str]) -> None:
        base, flag = state
        flags = frozenset({flag} - {""})
        listed(*of_train("n1", "n2", "n3"), SlurmNode("n4", base, flags, "fan", partitions=("train",)))

        assert (
            "asks for 4 nodes and Slurm has 3 for it"
            in preview_of(running({"kind": "SLURM", "command": COMMAND})).short
        )

    def test_of_somebody_s_job_is_what_slurm_told_of_it(self, listed: Any, running: Any) -> None:
        listed(*of_train("n1", "n2", "n3", "n4"), SlurmNode("c1", "IDLE", partitions=("cpu",)))

        preview = preview_of(running({"kind": "SLURM"}, nodes_asked=3, partitions=("train",)), "n1", "n2")

        assert "asks for 3 nodes and Slurm has 2 for it without n1 and n2" in preview.short
        assert preview.confirm == "dense-7b"

    @pytest.mark.parametrize(
        ("launcher", "told"),
        [
            ({"kind": "SLURM"}, {}),
            ({"kind": "SLURM", "command": ["srun", "python"]}, {"nodes_asked": 4}),
            ({"kind": "LOCAL", "command": ["--nodes=4", "python"]}, {"nodes_asked": 4}),
        ],
    )
    def test_where_nobody_told_of_a_number_nothing_is_said(
        self, listed: Any, running: Any, launcher: dict[str, Any], told: dict[str, Any]
    ) -> None:
        listed(*of_train("n1"))

        preview = preview_of(running(launcher, **told))

        assert (preview.short, preview.confirm) == ("", None)
        assert "Slurm has" not in texts(preview)

    @pytest.mark.parametrize("age_s", [None, 901.0])
    def test_where_no_node_was_told_of_late_nothing_is_said(
        self, listed: Any, running: Any, cluster: int, age_s: float | None
    ) -> None:
        [listed(*of_train("n1"), age_s=age) for age in (age_s,) if age is not None]

        preview = preview_of(running({"kind": "SLURM", "command": COMMAND}))

        assert (preview.short, preview.confirm) == ("", None)
        assert "Slurm has" not in texts(preview)

    def test_many_that_are_out_are_counted_and_not_named(self, listed: Any, running: Any) -> None:
        out = [f"n{number}" for number in range(1, 10)]
        listed(*of_train(*out))

        preview = preview_of(running({"kind": "SLURM", "command": COMMAND}), *out[:7])

        assert "Slurm has 2 for it without the 7 nodes that are out: it would wait in the queue until 2 come back" in (
            preview.short
        )

    def test_a_start_of_a_run_that_stands_says_it_and_asks_for_no_name(
        self, listed: Any, make_run: Callable[..., Any]
    ) -> None:
        listed(*of_train("n1", base="IDLE"))

        preview = preview_of(make_run("dense-7b", launcher={"kind": "SLURM", "command": COMMAND}))

        assert preview.short.endswith("until 3 come back")
        assert preview.confirm is None

    def test_rest_says_it(self, listed: Any, running: Any, api: Callable[..., Any]) -> None:
        listed(*of_train("n1", "n2", "n3", "n4"))
        running({"kind": "SLURM", "command": COMMAND})

        got = api("read").get("/api/v1/runs/dense-7b/restart-preview?exclude_nodes=n1").json()
        enough = api("read").get("/api/v1/runs/dense-7b/restart-preview").json()

        assert "Slurm has 3 for it without n1" in got["short"]
        assert (got["confirm"], enough["short"], enough["confirm"]) == ("dense-7b", None, None)


class TestWhatIsKept:
    def test_a_node_s_partitions_are_those_that_were_told_last(self, listed: Any) -> None:
        listed(SlurmNode("n1", "IDLE", partitions=("train",)), age_s=5)
        listed(SlurmNode("n1", "IDLE", partitions=("cpu", "debug")))

        assert NodeStatus.objects.get(node__name="n1").partitions == ["cpu", "debug"]

    def test_a_job_with_nodes_has_not_asked_for_more_than_in_the_queue(
        self, running: Any, listed: Any, cluster: int
    ) -> None:
        running({"kind": "SLURM"}, nodes_asked=2, partitions=("train", "spare"))
        later = datetime.now(UTC)
        more = SlurmJob(7, "RUNNING", restarts=0, nodes_asked=4, partitions=("spare",))

        jobs_seen(cluster_id=cluster, jobs=[more], at=later, now=later)

        job = SchedulerJob.objects.get(job_id=7)
        assert (job.nodes_asked, job.partitions) == (2, ["train", "spare"])

    def test_a_listing_that_does_not_say_takes_nothing_away(self, running: Any, listed: Any, cluster: int) -> None:
        running({"kind": "SLURM"}, nodes_asked=2, partitions=("train",))
        later = datetime.now(UTC)

        jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, "FAILED", restarts=0)], at=later, now=later)

        job = SchedulerJob.objects.get(job_id=7)
        assert (job.nodes_asked, job.partitions) == (2, ["train"])
