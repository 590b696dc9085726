"""Whether Slurm has the nodes that a restart needs is said before what runs is stopped for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.remediation.models import SchedulerJob
from apps.remediation.selectors import Preview, restart_preview
from apps.remediation.services import ConfirmationNeeded
from apps.runs.selectors import run_by_id
from apps.runs.services import attempt_open
from tests.remediation.conftest import is_watched
from tests.remediation.slurm.conftest import FOREVER
from tests.remediation.slurm.test_submit import is_started, job_of, running
from tests.slurm import Slurm, wait_for

pytestmark = pytest.mark.django_db


def preview_of(run: Any, *exclude: str, **more: Any) -> Preview:
    return restart_preview(run.id, now=datetime.now(UTC), exclude_nodes=exclude, **more)


def told(preview: Preview) -> list[tuple[str, str]]:
    """What the preview says of room, with its small print."""
    return [(row.text, row.small) for row in preview.happens if "Slurm" in row.text]


@pytest.fixture
def foreign(
    make_run: Callable[..., Any], set_slurm: Slurm, nodes: Callable[..., list[int]], read: Any, reports: Any
) -> Callable[..., tuple[Any, int]]:
    """Make a run of somebody else's job that runs and was read: `foreign("--nodes=4")`."""

    def make(*words: str, ready: Callable[[int], Any] = lambda job_id: None) -> tuple[Any, int]:
        nodes(*set_slurm.names)
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        job_id = set_slurm.submit(FOREVER, "--exclusive", *words)
        running(set_slurm, job_id)
        key = f"slurm:{job_id}.0.batch"
        moment = datetime.now(UTC)
        attempt_open(
            run_id=run.id, key=key, external_id=f"slurm:{job_id}", world_size=2, by="t", source="API", now=moment
        )
        reports(run)
        read()
        return run_by_id(run.id), job_id

    return make


class TestSomebodysJob:
    def test_that_fills_its_partition_would_wait_and_its_run_s_name_is_asked_for(
        self, foreign: Any, set_slurm: Slurm, ask: Callable[..., Any]
    ) -> None:
        run, job_id = foreign("--nodes=4")
        assert SchedulerJob.objects.get(job_id=job_id).nodes_asked == 4

        preview = preview_of(run, "node1")

        short = "the job asks for 4 nodes and Slurm has 3 for it without node1: it would wait in the queue until one comes back"
        assert (preview.short, preview.confirm, preview.confirm_why) == (short, "dense-7b", short)
        assert told(preview) == [("Wait in Slurm's queue", short)]
        with pytest.raises(ConfirmationNeeded, match="The job asks for 4 nodes and Slurm has 3"):
            ask("RESTART_RUN", run, options={"exclude_nodes": ["node1"]})
        assert set_slurm.job(job_id).state == "RUNNING"

    def test_what_is_said_is_what_slurm_does(
        self, foreign: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], read: Any
    ) -> None:
        run, job_id = foreign("--nodes=4")
        options = {"exclude_nodes": ["node1"], "confirm": "dense-7b"}

        work(ask("RESTART_RUN", run, options=options).id, until=is_started, seconds=40)

        job = wait_for(
            lambda: (seen := set_slurm.job(job_id)).state == "PENDING" and not seen.is_held and seen, "it to wait", 40
        )
        assert (job.nodes_asked, job.exc_nodes) == (4, "node1")
        read()
        waiting = preview_of(run_by_id(run.id))
        assert waiting.short.startswith("the job asks for 4 nodes and Slurm has 3 for it without node1:")
        assert waiting.confirm is None  # nothing runs that would be lost by it

    def test_with_enough_nodes_says_so_and_asks_nothing(self, foreign: Any) -> None:
        run, _ = foreign("--nodes=3")

        preview = preview_of(run, "node1")

        assert told(preview) == [("Slurm has 3 nodes for it without those that are out; it asks for 3", "")]
        assert (preview.short, preview.confirm, preview.confirm_why) == ("", None, "")

    def test_that_was_seen_to_ask_for_fewer_than_it_has_can_do_with_fewer(
        self, foreign: Any, set_slurm: Slurm, read: Any
    ) -> None:
        run, job_id = foreign("--nodes=2-4")
        set_slurm.scontrol("requeuehold", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).is_held, "it to be held")
        assert set_slurm.job(job_id).nodes_asked == 2
        read()
        set_slurm.scontrol("release", str(job_id))
        set_slurm.let_go(job_id)
        assert running(set_slurm, job_id).nodes == "node[1-4]"
        read()

        assert SchedulerJob.objects.get(job_id=job_id).nodes_asked == 2
        assert preview_of(run_by_id(run.id), "node1", "node2").short == ""

    def test_keeps_off_the_nodes_that_others_put_on_its_list(self, foreign: Any) -> None:
        run, _ = foreign("--nodes=3", "--exclude=node4")

        assert "Slurm has 2 for it without node1 and node4" in preview_of(run, "node1").short

    def test_nodes_that_work_for_others_are_said_to(self, foreign: Any, set_slurm: Slurm, read: Any) -> None:
        run, _ = foreign("--nodes=3")
        other = set_slurm.submit(FOREVER, "--exclusive", "--nodes=1", name="other")
        running(set_slurm, other)
        read()

        ((_, small),) = told(preview_of(run, "node1"))

        assert small == "1 of them works for others now, so it may wait in the queue"

    def test_a_node_that_is_drained_or_down_is_none(self, foreign: Any, set_slurm: Slurm, read: Any) -> None:
        run, _ = foreign("--nodes=3")
        set_slurm.scontrol("update", "nodename=node4", "state=drain", "reason=fan")
        read()

        assert "Slurm has 2 for it without node1 and node4" in preview_of(run, "node1").short


class TestSubmission:
    def test_is_judged_by_its_own_words(
        self, submitted_run: Any, set_slurm: Slurm, nodes: Any, ask: Any, work: Any, reports: Any, read: Any
    ) -> None:
        nodes(*set_slurm.names)
        job_id = job_of(work(ask("RESTART_RUN", submitted_run).id, until=is_watched))
        running(set_slurm, job_id)
        reports(submitted_run)
        read()
        run = run_by_id(submitted_run.id)

        enough, few = preview_of(run, "node1"), preview_of(run, "node1", "node2")

        assert told(enough)[0][0] == "Slurm has 3 nodes for it without those that are out; it asks for 3"
        assert "asks for 3 nodes and Slurm has 2 for it without node1 and node2" in few.short
        assert few.confirm == "dense-7b"
