"""A run of ours whose job Slurm put back by itself: it is released, or another takes its place, never both."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.accounts.models import ApiToken
from apps.common.errors import BadRequest
from apps.remediation.models import Action, Launch
from apps.remediation.selectors import action_preview
from apps.remediation.services import ActionOpen
from apps.runs.selectors import attempts_of, run_by_id
from apps.runs.services import StateChanged, attempt_end, attempt_open
from tests.remediation.conftest import is_watched
from tests.remediation.slurm.conftest import FOREVER
from tests.remediation.slurm.test_submit import is_started, job_of, running, started
from tests.slurm import TRAIN, Slurm, slurm_needed, wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def put_back(
    submitted_run: Any,
    set_slurm: Slurm,
    nodes: Callable[..., list[int]],
    ask: Callable[..., Any],
    work: Callable[..., Any],
    reports: Any,
    read: Callable[..., Any],
) -> tuple[Any, int]:
    """A run that Paceline submitted, and its job, which stands in the queue again because of its scheduler."""
    nodes(*set_slurm.names)
    asked = ask("RESTART_RUN", submitted_run)
    job_id = job_of(work(asked.id, until=is_watched))
    running(set_slurm, job_id)
    reports(submitted_run)
    work(asked.id)
    read()
    set_slurm.scontrol("requeue", str(job_id))
    wait_for(lambda: set_slurm.job(job_id).state == "PENDING", "the job to be put back")
    read()
    return run_by_id(submitted_run.id), job_id


def chosen(kind: str = "RESUBMIT", **more: Any) -> dict[str, Any]:
    return {"requeued": kind, **more}


class TestPutBack:
    def test_a_restart_cancels_it_and_submits_another_by_default(
        self, put_back: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = put_back
        assert run.state == "QUEUED"

        row = work(ask("RESTART_RUN", run).id, until=is_watched, seconds=40)

        assert job_of(row) != job_id
        assert set_slurm.job(job_id).state == "CANCELLED"
        assert set_slurm.queue() == [str(job_of(row))]
        assert running(set_slurm, job_of(row)).restarts == 0

    def test_it_is_released_without_the_node_and_keeps_its_number_and_its_token(
        self, put_back: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = put_back
        options = chosen("RELEASE", exclude_nodes=["node1"])

        row = work(ask("RESTART_RUN", run, options=options).id, until=is_started, seconds=40)

        job = running(set_slurm, job_id)
        assert job_of(row) == job_id
        assert (job.restarts, job.nodes) == (1, "node[2-4]")
        assert set_slurm.queue() == [str(job_id)]
        old, new = sorted(attempts_of(run.id), key=lambda attempt: attempt.number)
        assert (old.state, old.authority, new.key) == ("ENDED", "SCHEDULER", f"slurm:{job_id}.1")
        alive = Launch.objects.get(state="ALIVE")
        assert alive.attempt_id == new.id
        assert ApiToken.objects.get(pk=alive.token_id).revoked_at is None

    def test_a_stop_cancels_it_and_leaves_why_its_attempt_ended(
        self, put_back: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = put_back
        before = attempts_of(run.id)[0].reason

        row = work(ask("STOP_RUN", run).id, seconds=40)

        assert row.state == "SUCCEEDED"
        assert set_slurm.job(job_id).state == "CANCELLED"
        assert attempts_of(run.id)[0].reason == before != "PLANNED"

    def test_one_that_begins_meanwhile_is_left_alone(
        self, put_back: tuple[Any, int], set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        run, job_id = put_back
        set_slurm.let_go(job_id)
        running(set_slurm, job_id)

        row = work(ask("RESTART_RUN", run).id)

        assert row.state == "REFUSED"
        assert "by itself meanwhile" in row.outcome
        assert set_slurm.queue() == [str(job_id)]

    def test_two_people_who_choose_differently_are_one_action(
        self, put_back: tuple[Any, int], ask: Callable[..., Any]
    ) -> None:
        run, _ = put_back
        ask("RESTART_RUN", run, options=chosen("RELEASE"))

        with pytest.raises(ActionOpen):
            ask("RESTART_RUN", run, options=chosen())

        assert Action.objects.filter(state="REQUESTED").count() == 1

    def test_a_released_job_cannot_be_told_its_checkpoint(
        self, put_back: tuple[Any, int], ask: Callable[..., Any]
    ) -> None:
        with pytest.raises(BadRequest, match="chooses its checkpoint by itself"):
            ask("RESTART_RUN", put_back[0], options=chosen("RELEASE", from_step=40))

    def test_the_look_before_says_what_waits_and_what_each_choice_does(
        self, put_back: tuple[Any, int], api: Callable[..., Client]
    ) -> None:
        run, job_id = put_back

        said = {}
        for kind in ("RELEASE", "RESUBMIT"):
            body = {"kind": "RESTART_RUN", "run": run.slug, "reason": "a look at both ways", "options": chosen(kind)}
            answer = api("operate", "read").post("/api/v1/actions?dry_run=1", body, content_type="application/json")
            assert answer.status_code == 200, answer.content
            said[kind] = answer.json()["preview"]

        told = said["RELEASE"]["requeued"]
        assert (told["job"], told["restarts"], told["may"]) == (job_id, 1, ["RESUBMIT", "RELEASE"])
        assert "it may start at" in told["waits"]
        assert said["RELEASE"]["orders"] == [f"release job {job_id}, to begin in 2 s"]
        assert said["RESUBMIT"]["orders"][0] == f"scancel job {job_id}"
        assert said["RESUBMIT"]["orders"][1].startswith("sbatch")
        assert said["RESUBMIT"]["commands"][0] == f"scontrol hold {job_id}"


class TestNothingPutBack:
    def test_a_choice_about_a_job_that_does_not_wait_is_refused(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], reports: Any
    ) -> None:
        started(submitted_run, ask, work, reports)

        with pytest.raises(StateChanged):
            ask("RESTART_RUN", run_by_id(submitted_run.id), options=chosen("RELEASE"))

    def test_a_job_of_somebody_else_can_only_be_released(
        self, make_run: Callable[..., Any], set_slurm: Slurm, ask: Callable[..., Any], read: Callable[..., Any]
    ) -> None:
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        job_id = set_slurm.submit(FOREVER)
        running(set_slurm, job_id)
        key, moment = f"slurm:{job_id}.0.batch", datetime.now(UTC)
        attempt_open(
            run_id=run.id, key=key, external_id=f"slurm:{job_id}", world_size=2, by="t", source="API", now=moment
        )
        read()
        set_slurm.scontrol("requeue", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).state == "PENDING", "the job to be put back")
        read()

        preview = action_preview(kind="RESTART_RUN", run=run_by_id(run.id), node=None, now=datetime.now(UTC))

        assert preview.queued is not None
        assert (preview.queued.may, preview.queued.chosen) == (("RELEASE",), "RELEASE")
        with pytest.raises(BadRequest, match="can only be released"):
            ask("RESTART_RUN", run_by_id(run.id), options=chosen())


class TestAnEndThatWasWronglyTold:
    def test_a_job_that_still_runs_is_stopped_before_another_is_submitted(
        self, submitted_run: Any, set_slurm: Slurm, ask: Callable[..., Any], work: Callable[..., Any], reports: Any
    ) -> None:
        first = started(submitted_run, ask, work, reports)
        running(set_slurm, first)
        attempt_end(
            attempt_id=run_by_id(submitted_run.id).attempt_id,
            reason="CRASHED",
            authority="CLIENT",
            by="rank 0",
            source="API",
            now=datetime.now(UTC),
        )

        row = work(ask("RESTART_RUN", run_by_id(submitted_run.id)).id, until=is_watched, seconds=40)

        assert set_slurm.job(first).is_over
        assert set_slurm.queue() == [str(job_of(row))]
        assert [attempt.reason for attempt in attempts_of(submitted_run.id)][1] == "CRASHED"


class TestPreemption:
    @pytest.fixture
    def preempting(self, request: pytest.FixtureRequest, settle_slurm: Callable[..., None]) -> Iterator[Slurm]:
        """A real Slurm whose partition `urgent` takes nodes from jobs in `train`."""
        slurm_needed()
        urgent = TRAIN.replace("train", "urgent").replace("Default=YES", "Default=NO")
        with tempfile.TemporaryDirectory(prefix="paceline-slurm-") as folder:
            made = Slurm(
                Path(folder),
                nodes=2,
                limits=f"PreemptType=preempt/partition_prio\nPreemptMode={request.param}",
                partitions=(f"{TRAIN} PriorityTier=1", f"{urgent} PriorityTier=9 PreemptMode=OFF"),
            )
            try:
                made.start()
                settle_slurm(made)
                yield made
            finally:
                made.stop()

    @pytest.fixture
    def preempted(self, preempting: Slurm, make_run: Callable[..., Any], read: Callable[..., Any]) -> tuple[Any, int]:
        """A run whose job lost its nodes to one of more weight."""
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        job_id = preempting.submit(FOREVER, "--nodes=2", "--exclusive")
        running(preempting, job_id)
        key, moment = f"slurm:{job_id}.0.batch", datetime.now(UTC)
        attempt_open(
            run_id=run.id, key=key, external_id=f"slurm:{job_id}", world_size=2, by="t", source="API", now=moment
        )
        read()
        running(preempting, preempting.submit("sleep 600", "--partition=urgent", name="urgent"))
        wait_for(lambda: not preempting.job(job_id).runs, "the job to lose its nodes")
        wait_for(lambda: preempting.job(job_id).state != "COMPLETING", "it to have left")
        read()
        return run_by_id(run.id), job_id

    @pytest.mark.parametrize("preempting", ["CANCEL"], indirect=True)
    def test_one_that_ends_the_job_is_no_failure(self, preempted: tuple[Any, int]) -> None:
        attempt = attempts_of(preempted[0].id)[0]

        assert (attempt.state, attempt.reason, attempt.authority) == ("ENDED", "PREEMPTED", "SCHEDULER")

    @pytest.mark.parametrize("preempting", ["REQUEUE"], indirect=True)
    def test_one_that_puts_the_job_back_leaves_the_run_queued_until_it_runs_again(
        self, preempting: Slurm, preempted: tuple[Any, int], read: Callable[..., Any]
    ) -> None:
        run, job_id = preempted
        first = attempts_of(run.id)[0]
        assert (run.state, first.state, first.authority) == ("QUEUED", "ENDED", "SCHEDULER")
        assert first.reason in ("PREEMPTED", "UNKNOWN")  # without accounting, Slurm itself forgets why

        preempting._run("scancel", "--name=urgent")
        preempting.let_go(job_id)
        running(preempting, job_id)
        read()

        assert attempts_of(run.id)[0].key == f"slurm:{job_id}.1"
