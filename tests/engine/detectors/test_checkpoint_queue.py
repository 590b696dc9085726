"""Saves that wait for the store are told from saves that take long, and only what stops training counts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from apps.engine.detection import (
    Certainty,
    Checkpoint,
    CloseReason,
    Healthy,
    Level,
    Phase,
    SubjectKind,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors.checkpoint_queue import DETECTOR
from tests.engine.detectors.kit import NOW, clock_window, found, run, still_open

GAP_S = 400.0


def save(number: int, took_s: float = 20.0, queue_s: float | None = 2.0, **more: Any) -> Checkpoint:
    """The save of step 100 × number, which ended a gap after the one before and blocked for its whole time."""
    facts: dict[str, Any] = {"state": "SAVED", "heard_at": NOW + GAP_S * number, "blocking_s": took_s, "shards": 8}
    return Checkpoint(100 * number, duration_s=took_s, queue_s=queue_s, **{**facts, **more})


def queued(number: int, took_s: float = 100.0, **more: Any) -> Checkpoint:
    """A save of which 95 % was waiting."""
    return save(number, took_s, took_s * 0.95, **more)


def look(saves: Sequence[Checkpoint], **more: Any) -> Window:
    """A look a moment after the last of these saves, at an attempt that began with the first gap."""
    at = max((one.heard_at for one in saves), default=NOW) + 2
    step = max((one.step for one in saves), default=0) + 1
    window = clock_window(at, step=[step] * 8, phase=[Phase.COMPUTE] * 8, checkpoints=tuple(saves), **more)
    return replace(window, attempt=replace(window.attempt, started_at=NOW))


def looks(saves: Sequence[Checkpoint], **more: Any) -> list[Any]:
    """All answers while the saves come one after the other."""
    return run(DETECTOR, [look(saves[: n + 1], **more) for n in range(len(saves))])[1]


def only(answers: list[Any]) -> Verdict:
    (verdict,) = still_open(answers).values()
    return verdict


class TestQueue:
    def test_is_told_with_its_numbers_and_what_helps(self) -> None:
        verdict = only(looks([save(1), save(2), save(3), queued(4), queued(5)]))

        values = {one.name: (one.value, one.unit) for one in verdict.evidence}
        assert verdict.subject.kind is SubjectKind.RUN
        assert verdict.score == pytest.approx(0.95)
        assert values["waiting"] == (pytest.approx(95.0), "s")
        assert values["a save takes"] == (100.0, "s")
        assert values["the run's time lost to it"] == (pytest.approx(95 / 400), "share")
        assert verdict.cost_s == pytest.approx(0.95)
        assert (verdict.level, verdict.certainty) == (Level.CRITICAL, Certainty.CONFIRMED)
        assert "bandwidth does not shorten a queue" in verdict.next

    def test_one_save_is_suspected_if_it_took_three_times_the_usual(self) -> None:
        verdict = only(looks([save(1), save(2), save(3), queued(4)]))

        assert (verdict.certainty, verdict.level, verdict.since_step) == (Certainty.SUSPECTED, Level.WARNING, 400)

    def test_without_a_usual_two_are_needed(self) -> None:
        assert still_open(looks([queued(1)])) == {}
        assert only(looks([queued(1), queued(2)])).since_step == 100

    def test_that_grows_from_save_to_save_is_said_to(self) -> None:
        growing = only(looks([queued(n, 60.0 + 20 * n) for n in range(1, 5)]))
        alike = only(looks([queued(n, 60.0 + n) for n in range(1, 5)]))

        assert "waited longer than the one before" in growing.why
        assert "waited longer" not in alike.why

    def test_is_held_against_what_fewer_writers_waited(self) -> None:
        earlier = [save(n, heard_at=NOW - 9000 + GAP_S * n, shards=4) for n in range(1, 4)]
        words = [*earlier, queued(4), queued(5)]

        values = {one.name: one.value for one in only(looks(words)).evidence}

        assert values["ranks that write"] == 8
        assert values["waiting when 4 ranks wrote"] == 2.0

    def test_is_closed_by_two_saves_that_do_not_wait(self) -> None:
        words = [queued(1), queued(2), save(3), save(4)]

        assert still_open(looks(words[:3]))
        (last,) = found(looks(words)).values()
        assert last.closed is CloseReason.RECOVERED

    def test_of_a_save_that_was_rotated_away_meanwhile_still_counts(self) -> None:
        assert still_open(looks([queued(1, state="DELETED"), queued(2)]))


class TestWhatIsNoQueue:
    def test_a_slow_store_that_is_not_waited_for(self) -> None:
        assert isinstance(looks([save(n, 200.0, 20.0) for n in range(1, 5)])[-1], Healthy)

    def test_waiting_while_training_goes_on_costs_nothing(self) -> None:
        assert still_open(looks([queued(n, blocking_s=1.0) for n in range(1, 5)])) == {}

    def test_a_short_queue_is_nobodys_night(self) -> None:
        assert still_open(looks([queued(n, 3.0) for n in range(1, 5)])) == {}

    def test_saves_of_earlier_attempts_and_failed_ones(self) -> None:
        before = [queued(n, heard_at=NOW - 9000 + n) for n in range(1, 4)]
        failed = [queued(n, state="FAILED") for n in range(4, 7)]

        (answer,) = run(DETECTOR, [look([*before, *failed])])[1]

        assert isinstance(answer, Undecided)

    def test_a_restore_is_no_save(self) -> None:
        assert isinstance(looks([queued(1, kind="restore"), queued(2, kind="restore")])[-1], Undecided)


class TestTheSpreadOverRanks:
    def test_stands_for_the_queue_where_nobody_tells_it_and_stays_suspected(self) -> None:
        words = [save(n, 100.0, None, fastest_s=5.0) for n in range(1, 6)]

        verdict = only(looks(words))

        assert verdict.certainty is Certainty.SUSPECTED
        assert any("by the spread over ranks" in one.name for one in verdict.evidence)
        assert "queue_s" in verdict.why

    def test_of_one_shard_says_nothing(self) -> None:
        (answer,) = run(DETECTOR, [look([save(1, 100.0, None, fastest_s=100.0, shards=1)])])[1]

        assert isinstance(answer, Undecided)
        assert "queue_s" in answer.lack[0]
