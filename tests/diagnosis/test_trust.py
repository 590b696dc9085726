"""Which saves a numeric finding casts doubt on, and when they are trusted again."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from apps.diagnosis.services import attempt_catch_up, attempts_settle, clocks_evaluate
from apps.diagnosis.services.findings import verdict_take
from apps.diagnosis.services.status import run_status_refresh
from apps.engine.detection import (
    Certainty,
    Class,
    CloseReason,
    Coverage,
    Level,
    Proposal,
    ProposalKind,
    Subject,
    SubjectKind,
    Verdict,
)
from apps.journal.services import recording
from apps.remediation.selectors.prices import resume_step_default
from apps.runs.selectors import checkpoints_of, run_by_id
from apps.runs.services import CheckpointFact, attempt_end, attempt_open, checkpoint_note, status_update

NAN = Verdict(
    cause="numeric_fault",
    class_=Class.COMPUTE,
    level=Level.WARNING,
    certainty=Certainty.SUSPECTED,
    subject=Subject(SubjectKind.RANK, rank=3, node="trn001"),
    score=0.1,
    score_meaning="share",
    verdict="Rank 3: loss was NaN.",
    why="1 of 8",
    next="Keep the node.",
    coverage=Coverage(8, 8),
    since_step=120,
    found_step=120,
)


@pytest.fixture
def take(attempt: Any, now: datetime) -> Callable[..., None]:
    """Let a detector say something, and the run's status follow."""

    def make(said: Verdict) -> None:
        with recording(now=now) as log:
            verdict_take(said, run_id=attempt.run_id, attempt_id=attempt.id, late=False, log=log, now=now)
            run_status_refresh(run_by_id(attempt.run_id), attempt_id=attempt.id, best_step_s=None)

    return make


@pytest.fixture
def save(attempt: Any, now: datetime) -> Callable[[int], None]:
    def make(step: int) -> None:
        fact = CheckpointFact(step=step, state="SAVED", happened_at=now)
        checkpoint_note(attempt_id=attempt.id, fact=fact, source="SENDER", actor_name="", now=now)

    return make


def trusts(run: Any) -> dict[int, str]:
    return {row.step: row.trust for row in checkpoints_of(run_id=run.id)}


class TestSaves:
    def test_since_the_fault_are_suspect_until_all_values_are_finite_again(
        self, run: Any, take: Callable[..., None], save: Callable[[int], None]
    ) -> None:
        for step in (100, 140):
            save(step)
        take(NAN)
        save(160)
        during = trusts(run)

        take(replace(NAN, closed=CloseReason.RECOVERED))
        save(180)

        assert during == {100: "COMPLETE", 140: "SUSPECT", 160: "SUSPECT"}
        assert trusts(run) == {100: "COMPLETE", 140: "COMPLETE", 160: "COMPLETE", 180: "COMPLETE"}
        assert run_by_id(run.id).checkpoint_step == 180

    def test_stay_suspect_where_a_machine_was_blamed_for_wrong_numbers_need_not_be_nan(
        self, run: Any, take: Callable[..., None], save: Callable[[int], None]
    ) -> None:
        save(140)
        take(replace(NAN, proposal=Proposal(ProposalKind.EXCLUDE_NODE, "trn001"), certainty=Certainty.CONFIRMED))
        take(replace(NAN, closed=CloseReason.RECOVERED))
        save(200)

        assert trusts(run) == {140: "SUSPECT", 200: "SUSPECT"}

    def test_stay_suspect_while_another_fault_is_open(
        self, run: Any, take: Callable[..., None], save: Callable[[int], None]
    ) -> None:
        other = replace(NAN, subject=Subject(SubjectKind.RUN), since_step=150)
        for step in (140, 160):
            save(step)
        take(NAN)
        take(other)

        take(replace(NAN, closed=CloseReason.RECOVERED))

        assert trusts(run) == {140: "COMPLETE", 160: "SUSPECT"}

    def test_told_after_the_attempt_was_stopped_in_the_midst_of_the_fault_are_no_default_of_a_restart(
        self, run: Any, attempt: Any, take: Callable[..., None], save: Callable[[int], None], now: datetime
    ) -> None:
        save(100)
        take(NAN)
        attempt_end(attempt_id=attempt.id, reason="PLANNED", authority="ORDER", by="ana", source="WEB", now=now)
        attempts_settle(now=now)
        clocks_evaluate(attempt_id=attempt.id, now=now)

        save(160)

        assert trusts(run) == {100: "COMPLETE", 160: "SUSPECT"}
        assert resume_step_default(run_by_id(run.id)) == 100

    def test_told_when_the_next_attempt_runs_are_suspect_at_once(
        self, run: Any, attempt: Any, take: Callable[..., None], save: Callable[[int], None], now: datetime
    ) -> None:
        save(100)
        take(NAN)
        attempt_open(
            run_id=run.id, key="next", world_size=8, by="ana", source="WEB", now=now, resumed_from_step=100, force=True
        )
        attempts_settle(now=now)

        save(140)
        told = trusts(run)
        attempt_catch_up(attempt_id=attempt.id, now=now)
        save(160)

        assert told == {100: "COMPLETE", 140: "SUSPECT"}
        assert trusts(run) == {100: "COMPLETE", 140: "SUSPECT", 160: "SUSPECT"}
        assert run_by_id(run.id).checkpoint_step == 100

    def test_a_skipped_update_casts_no_doubt_until_it_is_more_than_that(
        self, run: Any, take: Callable[..., None], save: Callable[[int], None]
    ) -> None:
        skipped = replace(NAN, level=Level.INFO, subject=Subject(SubjectKind.RUN))
        save(140)
        take(skipped)
        save(160)
        before = trusts(run)

        take(replace(skipped, level=Level.CRITICAL))

        assert before == {140: "COMPLETE", 160: "COMPLETE"}
        assert trusts(run) == {140: "SUSPECT", 160: "SUSPECT"}


def test_a_run_with_suspect_saves_alone_names_the_newest_as_such_and_risks_all_its_steps(
    run: Any, take: Callable[..., None], save: Callable[[int], None]
) -> None:
    take(replace(NAN, since_step=20))
    save(40)
    status_update(run_id=run.id, step=57, first_step=1)

    row = run_by_id(run.id)

    assert (row.checkpoint_step, row.checkpoint_trust) == (40, "SUSPECT")
    assert row.at_risk_steps == 57
