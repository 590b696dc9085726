"""A run whose job somebody else submitted: requeued without a node, what others said about it kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.remediation import launchers, services
from apps.runs.selectors import attempt_by_id, attempts_of, run_by_id
from apps.runs.services import attempt_open
from tests.remediation.slurm.conftest import FOREVER
from tests.remediation.slurm.test_submit import claimed, is_started, job_of, running
from tests.slurm import Slurm

pytestmark = pytest.mark.django_db


@pytest.fixture
def foreign(
    make_run: Callable[..., Any], set_slurm: Slurm, nodes: Callable[..., list[int]], reports: Any
) -> tuple[Any, int]:
    """A run and the job of somebody else that it is; it reports under its job's own key."""
    nodes(*set_slurm.names)
    run = make_run("dense-7b", launcher={"kind": "SLURM"})
    job_id = set_slurm.submit(FOREVER, "--nodes=2", "--exclusive", "--exclude=node4")
    running(set_slurm, job_id)
    attempt_open(
        run_id=run.id,
        key=f"slurm:{job_id}.0.batch",
        external_id=f"slurm:{job_id}",
        world_size=2,
        by="test",
        source="API",
        now=datetime.now(UTC),
    )
    reports(run)
    return run_by_id(run.id), job_id


class TestRequeue:
    def test_begins_again_without_the_node_and_keeps_the_names_that_others_put_there(
        self, foreign: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = foreign
        assert set_slurm.job(job_id).nodes == "node[1-2]"

        row = work(ask("RESTART_RUN", run, options={"exclude_nodes": ["node1"]}).id, until=is_started, seconds=40)

        job = running(set_slurm, job_id)
        assert job_of(row) == job_id
        assert job.restarts == 1
        assert job.nodes == "node[2-3]"
        assert job.exc_nodes == "node[1,4]"
        old, new = sorted(attempts_of(run.id), key=lambda attempt: attempt.number)
        assert (old.state, old.reason) == ("ENDED", "PLANNED")
        assert (new.state, new.key) == ("OPEN", f"slurm:{job_id}.1")

    def test_the_reporter_of_the_new_start_finds_the_attempt_that_was_opened_for_it(
        self, foreign: tuple[Any, int], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = foreign
        row = work(ask("RESTART_RUN", run).id, until=is_started, seconds=40)

        found, is_new = attempt_open(
            run_id=run.id,
            key=f"slurm:{job_id}.1.batch/abc",
            external_id=f"slurm:{job_id}",
            world_size=2,
            by="rank 0",
            source="API",
            now=datetime.now(UTC),
        )

        assert (found.id, is_new) == (row.attempt_id, False)

    def test_what_slurm_has_put_back_by_itself_is_released_and_not_started_twice(
        self, foreign: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = foreign
        set_slurm.scontrol("requeue", str(job_id))

        row = work(ask("RESTART_RUN", run, options={"exclude_nodes": ["node1"]}).id, until=is_started, seconds=40)

        job = running(set_slurm, job_id)
        assert job_of(row) == job_id
        assert job.restarts == 1
        assert job.nodes == "node[2-3]"
        assert set_slurm.queue() == [str(job_id)]

    def test_a_node_that_is_back_in_service_leaves_the_list_and_those_of_others_stay(
        self,
        foreign: tuple[Any, int],
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        reports: Any,
    ) -> None:
        run, job_id = foreign
        asked = ask("RESTART_RUN", run, options={"exclude_nodes": ["node1"]})
        work(asked.id, until=is_started, seconds=40)
        reports(run)
        work(asked.id)
        work(ask("READMIT_NODE", node=nodes("node1")[0]).id)
        running(set_slurm, job_id)

        work(ask("RESTART_RUN", run_by_id(run.id)).id, until=is_started, seconds=40)

        assert running(set_slurm, job_id).exc_nodes == "node4"

    @pytest.mark.parametrize("stage", ["requeued", "avoiding", "released"])
    def test_goes_on_after_a_crash_at_any_point(
        self, foreign: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], stage: str
    ) -> None:
        run, job_id = foreign
        asked = ask("RESTART_RUN", run, options={"exclude_nodes": ["node1"]})
        order = claimed(asked)
        stages = {
            "requeued": [["requeuehold", str(job_id)]],
            "avoiding": [["requeuehold", str(job_id)], ["update", f"JobId={job_id}", "ExcNodeList=node[1,4]"]],
            "released": [["requeuehold", str(job_id)], ["release", str(job_id)]],
        }
        for words in stages[stage]:
            set_slurm.scontrol(*words)
        services.order_doubt(order_id=order.id, now=datetime.now(UTC))

        row = work(asked.id, until=is_started, seconds=60)

        job = running(set_slurm, job_id)
        assert (job.restarts, job.nodes, job.exc_nodes) == (1, "node[2-3]", "node[1,4]")
        assert attempt_by_id(row.attempt_id).key == f"slurm:{job_id}.1"

    def test_a_job_that_slurm_has_started_again_meanwhile_is_left_alone(
        self, foreign: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = foreign
        set_slurm.scontrol("requeue", str(job_id))
        set_slurm.let_go(job_id)
        running(set_slurm, job_id)

        row = work(ask("RESTART_RUN", run).id)

        assert row.state == "REFUSED"
        assert "by itself" in row.outcome
        assert set_slurm.job(job_id).restarts == 1

    @pytest.mark.parametrize("kind", ["RESTART_RUN", "STOP_RUN"])
    def test_a_number_that_another_job_has_by_now_is_left_alone(
        self,
        foreign: tuple[Any, int],
        set_slurm: Slurm,
        ask: Callable[..., Any],
        work: Callable[..., Any],
        read: Callable[..., Any],
        kind: str,
    ) -> None:
        run, job_id = foreign
        read()
        set_slurm.scontrol("update", f"JobId={job_id}", "JobName=somebody-elses")

        row = work(ask(kind, run).id)
        read()

        assert row.state == "REFUSED"
        assert "is called somebody-elses now and was train: it may be another one" in row.outcome
        assert set_slurm.job(job_id).runs
        assert set_slurm.job(job_id).restarts == 0

    def test_a_job_that_may_not_be_requeued_is_refused_with_what_would_allow_it(
        self, foreign: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = foreign
        set_slurm.scontrol("update", f"JobId={job_id}", "Requeue=0")

        row = work(ask("RESTART_RUN", run).id)

        assert row.state == "REFUSED"
        assert f"scontrol update JobId={job_id} Requeue=1" in row.outcome
        assert running(set_slurm, job_id).restarts == 0

    def test_a_stop_cancels_it(
        self, foreign: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = foreign

        row = work(ask("STOP_RUN", run).id, seconds=60)

        assert row.state == "SUCCEEDED"
        assert set_slurm.job(job_id).is_over
        assert launchers.launches_look(now=datetime.now(UTC)) == 0
