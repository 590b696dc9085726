"""What Slurm did by itself, or somebody by it, is seen: requeued, ended, gone down, silent."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.engine.readers.slurm import SlurmJob, SlurmNode
from apps.fleet.selectors import exclusions_of, node_by_id
from apps.journal.models import Event
from apps.remediation.models import Launch
from apps.remediation.selectors import scheduler_of
from apps.remediation.services.jobs import jobs_seen
from apps.remediation.services.nodes import nodes_seen
from apps.runs.selectors import attempts_of, run_by_id
from apps.runs.services import attempt_open, run_put
from tests.remediation.conftest import is_watched
from tests.remediation.slurm.conftest import FOREVER
from tests.remediation.slurm.test_submit import job_of, running
from tests.slurm import Slurm, wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def followed(make_run: Callable[..., Any]) -> Callable[[Slurm, int], Any]:
    """A run whose reporter said which job it is."""

    def follow(slurm: Slurm, job_id: int) -> Any:
        run = make_run("dense-7b")
        attempt_open(
            run_id=run.id,
            key=f"slurm:{job_id}.0.batch",
            external_id=f"slurm:{job_id}",
            world_size=2,
            by="test",
            source="API",
            now=datetime.now(UTC),
        )
        return run

    return follow


def ended(run: Any) -> tuple[str, str]:
    """Reason and authority of the first attempt's end."""
    first = min(attempts_of(run.id), key=lambda attempt: attempt.number)
    return first.reason, first.authority


class TestEnds:
    @pytest.mark.parametrize(
        ("script", "words", "reason"),
        [("exit 0", (), "FINISHED"), ("exit 3", (), "CRASHED"), ("kill -9 $$", (), "CRASHED")],
    )
    def test_a_job_that_ends_by_itself_ends_its_attempt(
        self,
        set_slurm: Slurm,
        followed: Callable[..., Any],
        read: Callable[..., Any],
        script: str,
        words: tuple[str, ...],
        reason: str,
    ) -> None:
        job_id = set_slurm.submit(script, *words)
        run = followed(set_slurm, job_id)
        wait_for(lambda: set_slurm.job(job_id).is_over, "the job to end")

        read()

        assert ended(run) == (reason, "SCHEDULER")

    def test_a_job_that_somebody_cancels_is_cancelled_and_no_failure(
        self, set_slurm: Slurm, followed: Callable[..., Any], read: Callable[..., Any]
    ) -> None:
        job_id = set_slurm.submit(FOREVER)
        run = followed(set_slurm, job_id)
        running(set_slurm, job_id)
        set_slurm._run("scancel", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).is_over, "the job to end")

        read()

        assert ended(run) == ("CANCELLED", "SCHEDULER")

    def test_the_scheduler_knows_better_than_what_the_reporter_said_last(
        self, set_slurm: Slurm, followed: Callable[..., Any], read: Callable[..., Any]
    ) -> None:
        from apps.runs.services import attempt_end

        job_id = set_slurm.submit(FOREVER)
        run = followed(set_slurm, job_id)
        attempt_end(
            attempt_id=run_by_id(run.id).attempt_id,
            reason="CRASHED",
            authority="CLIENT",
            by="rank 0",
            source="API",
            now=datetime.now(UTC),
        )
        set_slurm._run("scancel", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).is_over, "the job to end")

        read()

        assert ended(run) == ("CANCELLED", "SCHEDULER")

    @pytest.mark.parametrize(("state", "reason"), [("TIMEOUT", "TIME_LIMIT"), ("PREEMPTED", "PREEMPTED")])
    def test_a_limit_or_a_preemption_is_no_failure(
        self, cluster: int, followed: Callable[..., Any], state: str, reason: str
    ) -> None:
        run = followed(None, 7)
        moment = datetime.now(UTC)

        jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, state, nodes="n1", restarts=0)], at=moment, now=moment)

        assert ended(run) == (reason, "SCHEDULER")

    @pytest.mark.slow
    def test_a_time_limit_is_seen_at_a_real_job(
        self, set_slurm: Slurm, followed: Callable[..., Any], read: Callable[..., Any]
    ) -> None:
        job_id = set_slurm.submit(FOREVER)
        run = followed(set_slurm, job_id)
        running(set_slurm, job_id)
        set_slurm.scontrol("update", f"JobId={job_id}", "TimeLimit=0:01")
        wait_for(lambda: set_slurm.job(job_id).is_over, "the job to reach its limit", 120)

        read()

        assert ended(run) == ("TIME_LIMIT", "SCHEDULER")

    def test_what_paceline_submitted_loses_its_token_when_its_job_is_over(
        self,
        make_run: Callable[..., Any],
        set_slurm: Slurm,
        ask: Callable[..., Any],
        work: Callable[..., Any],
        read: Callable[..., Any],
    ) -> None:
        from apps.accounts.models import ApiToken

        run = make_run("dense-7b", launcher={"kind": "SLURM", "command": ["/bin/sh", "-c", "exit 3"]})
        row = work(ask("RESTART_RUN", run).id, until=is_watched)
        wait_for(lambda: set_slurm.job(job_of(row)).is_over, "the job to end")

        read()

        launch = Launch.objects.get()
        assert (launch.state, launch.exit_status) == ("GONE", 3)
        assert ended(run) == ("CRASHED", "SCHEDULER")
        assert ApiToken.objects.get(pk=launch.token_id).revoked_at is not None


class TestRunsThatNameTheirJob:
    def test_their_attempts_begin_and_end_by_slurms_word_and_a_reporter_finds_them(
        self, make_run: Callable[..., Any], set_slurm: Slurm, read: Callable[..., Any]
    ) -> None:
        job_id = set_slurm.submit(FOREVER)
        run = make_run("dense-7b", external_id=f"slurm:{job_id}")
        running(set_slurm, job_id)

        read()
        begun = run_by_id(run.id)
        _, is_new = attempt_open(
            run_id=run.id,
            key=f"slurm:{job_id}.0.batch/abc",
            external_id=f"slurm:{job_id}",
            world_size=2,
            by="rank 0",
            source="API",
            now=datetime.now(UTC),
        )
        set_slurm._run("scancel", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).is_over, "the job to end")
        read()
        read()

        assert (begun.state, begun.attempt_number) == ("STARTING", 1)
        assert not is_new
        assert ended(run) == ("CANCELLED", "SCHEDULER")
        assert len(attempts_of(run.id)) == 1

    def test_what_another_job_with_the_same_number_does_says_nothing_of_them(
        self, make_run: Callable[..., Any], cluster: int
    ) -> None:
        run = make_run("dense-7b", external_id="slurm:7")
        for job in (
            SlurmJob(7, "RUNNING", name="train", nodes="n1"),
            SlurmJob(7, "RUNNING", name="train", nodes="n1"),
            SlurmJob(7, "FAILED", name="another", nodes="n2"),
        ):
            moment = datetime.now(UTC)
            jobs_seen(cluster_id=cluster, jobs=[job], at=moment, now=moment)

        assert [(row.state, row.key) for row in attempts_of(run.id)] == [("OPEN", "slurm:7.0")]

    def test_a_job_that_waits_is_no_attempt_yet_and_a_later_one_is_the_next(
        self, make_run: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        run = make_run("dense-7b", external_id="slurm:7")

        def seen(job: SlurmJob) -> list[str]:
            moment = datetime.now(UTC)
            jobs_seen(cluster_id=cluster, jobs=[job], at=moment, now=moment)
            return [attempt.key for attempt in reversed(attempts_of(run.id))]

        waits = seen(SlurmJob(7, "PENDING"))
        runs = seen(SlurmJob(7, "RUNNING", nodes="n1"))
        over = seen(SlurmJob(7, "FAILED", nodes="n1"))
        run_put(slug="dense-7b", cluster_id=cluster, fields={"external_id": "slurm:9"}, by="t", source="API", now=now)
        following = seen(SlurmJob(9, "RUNNING", nodes="n1"))

        assert (waits, runs, over) == ([], ["slurm:7.0"], ["slurm:7.0"])
        assert following == ["slurm:7.0", "slurm:9.0"]


class TestRequeues:
    def test_a_requeue_by_slurm_ends_the_attempt_and_opens_the_next_when_it_runs(
        self, set_slurm: Slurm, followed: Callable[..., Any], read: Callable[..., Any]
    ) -> None:
        job_id = set_slurm.submit(FOREVER)
        run = followed(set_slurm, job_id)
        running(set_slurm, job_id)
        read()
        set_slurm.scontrol("requeue", str(job_id))
        wait_for(lambda: set_slurm.job(job_id).state == "PENDING", "the job to be put back")

        read()
        waiting = run_by_id(run.id)
        set_slurm.let_go(job_id)
        running(set_slurm, job_id)
        read()
        read()

        assert waiting.state == "QUEUED"
        keys = [attempt.key for attempt in sorted(attempts_of(run.id), key=lambda attempt: attempt.number)]
        assert keys == [f"slurm:{job_id}.0.batch", f"slurm:{job_id}.1"]
        assert run_by_id(run.id).state == "STARTING"

    def test_the_loss_of_a_node_is_what_ended_the_attempt(
        self,
        slurm_own: Slurm,
        settle_slurm: Callable[..., None],
        followed: Callable[..., Any],
        read: Callable[..., Any],
        nodes: Callable[..., list[int]],
    ) -> None:
        settle_slurm(slurm_own)
        (lost,) = nodes("node1")
        job_id = slurm_own.submit(FOREVER, "--nodes=2", "--exclusive", "--nodelist=node1")
        run = followed(slurm_own, job_id)
        running(slurm_own, job_id)
        read()

        slurm_own.end("node1", signal.SIGKILL)
        wait_for(lambda: (slurm_own.job(job_id).restarts or 0) > 0, "Slurm to put the job back", 90)
        read()

        assert ended(run) == ("NODE_FAILURE", "SCHEDULER")
        assert node_by_id(lost).state == "DOWN"
        assert Event.objects.filter(kind="nodes.down").exists()


class TestKeysOfTheirOwn:
    """Runs whose reporter is known by its job's number alone, as under torchrun."""

    @pytest.fixture
    def torchrun(self, make_run: Callable[..., Any]) -> Any:
        run = make_run("dense-7b")
        attempt_open(
            run_id=run.id,
            key="torchrun:9/aa",
            external_id="slurm:7",
            world_size=2,
            by="test",
            source="API",
            now=datetime.now(UTC) - timedelta(seconds=10),
        )
        return run

    def test_one_that_began_in_a_later_start_of_its_job_is_left_alone(self, cluster: int, torchrun: Any) -> None:
        moment = datetime.now(UTC)

        for place in range(3):
            at = moment + timedelta(seconds=place)
            jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, "RUNNING", nodes="n1", restarts=2)], at=at, now=at)

        (attempt,) = attempts_of(torchrun.id)
        assert (attempt.state, attempt.key) == ("OPEN", "torchrun:9/aa")

    def test_a_requeue_that_is_seen_ends_it_and_the_next_is_opened_by_its_reporter(
        self, cluster: int, torchrun: Any
    ) -> None:
        moment = datetime.now(UTC)
        states = [("RUNNING", 0), ("PENDING", 1), ("RUNNING", 1)]
        seen = []

        for place, (state, restarts) in enumerate(states):
            at = moment + timedelta(seconds=place)
            jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, state, nodes="n1", restarts=restarts)], at=at, now=at)
            seen.append(run_by_id(torchrun.id).state)

        (attempt,) = attempts_of(torchrun.id)
        assert seen == ["STARTING", "QUEUED", "STOPPED"]
        assert (attempt.state, attempt.reason, attempt.authority) == ("ENDED", "UNKNOWN", "SCHEDULER")


class TestListings:
    def test_an_older_listing_changes_nothing(self, cluster: int, followed: Callable[..., Any], nodes: Any) -> None:
        run = followed(None, 7)
        (node,) = nodes("n1")
        moment = datetime.now(UTC)
        old = moment - timedelta(seconds=5)
        jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, "RUNNING", nodes="n1", restarts=0)], at=moment, now=moment)
        nodes_seen(cluster_id=cluster, nodes=[SlurmNode("n1", "ALLOCATED")], at=moment, now=moment)

        jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, "FAILED", nodes="n1", restarts=0)], at=old, now=moment)
        nodes_seen(cluster_id=cluster, nodes=[SlurmNode("n1", "DOWN")], at=old, now=moment)

        assert run_by_id(run.id).attempt_state == "OPEN"
        assert node_by_id(node).state == "IN_SERVICE"

    def test_what_others_put_on_a_jobs_list_enters_the_ledger_once_and_keeps_nobody_else_out(
        self, cluster: int, followed: Callable[..., Any], nodes: Any
    ) -> None:
        followed(None, 7)
        kept_out, _ = nodes("n1", "n2")
        moment = datetime.now(UTC)
        for place in range(2):
            at = moment + timedelta(seconds=place)
            job = SlurmJob(7, "RUNNING", nodes="n2", restarts=0, user="mia", exc_nodes="n1")
            jobs_seen(cluster_id=cluster, jobs=[job], at=at, now=at)

        (line,) = exclusions_of(cluster_id=cluster)

        assert (line.node_id, line.origin, line.by_name) == (kept_out, "OBSERVED", "mia")
        assert line.ended_reason == "counts for job 7 alone"
        assert node_by_id(kept_out).state == "IN_SERVICE"

    def test_fifty_nodes_that_go_down_together_are_one_line_and_no_exclusion(self, cluster: int) -> None:
        from apps.fleet.models import Exclusion

        moment = datetime.now(UTC)
        names = [f"trn{number:03d}" for number in range(1, 55)]
        nodes_seen(cluster_id=cluster, nodes=[SlurmNode(name, "IDLE") for name in names], at=moment, now=moment)
        later = moment + timedelta(seconds=5)

        down = [SlurmNode(name, "DOWN", frozenset({"NOT_RESPONDING"}), "Not responding", "slurm") for name in names]
        nodes_seen(cluster_id=cluster, nodes=down, at=later, now=later)

        (line,) = Event.objects.filter(kind="nodes.down")
        assert "trn[001-054]" in line.payload["text"]
        assert not Exclusion.objects.exists()


class TestSilence:
    def test_a_controller_that_is_gone_is_shown_and_asked_less_often_until_it_answers(
        self, slurm_own: Slurm, settle_slurm: Callable[..., None], cluster: int, read: Callable[..., Any]
    ) -> None:
        settle_slurm(slurm_own, poll_s=5.0)
        assert read().failures == 0
        slurm_own.controller_signal(signal.SIGKILL)

        read()
        begun = datetime.now(UTC)
        silent = read()
        slurm_own.controller_start()
        again = read()

        assert silent.failures == 2
        assert silent.error
        assert silent.next_read_at - begun > timedelta(seconds=10)
        assert (again.failures, again.error) == (0, "")
        assert scheduler_of(cluster).read_at is not None  # type: ignore[union-attr]
        kinds = list(Event.objects.filter(kind__startswith="scheduler.").order_by("pk").values_list("kind", flat=True))
        assert kinds == ["scheduler.set", "scheduler.silent", "scheduler.answers"]
