"""What a failure would cost is measured from the newest complete checkpoint."""

from dataclasses import replace

import pytest

from apps.engine.detection import Checkpoint, Class, CloseReason, Healthy, Level, Phase, Undecided, Window, verdicts_in
from apps.engine.detectors.checkpoint_stale import DETECTOR
from tests.engine.detectors.kit import NOW, clock_window, run


def saved(step: int, *, age_s: float = 0.0, state: str = "SAVED") -> Checkpoint:
    """A word about the save of a step, heard `age_s` before NOW."""
    return Checkpoint(step, state, NOW - age_s)


def look(step: int, *words: Checkpoint, every: int | None = 100, after_s: float = 0.0, **more: object) -> Window:
    """A look at a run in `step` that means to save every so many steps."""
    attempt = {"checkpoint_interval_steps": every, **more.pop("attempt", {})}  # type: ignore[dict-item]
    phases = [Phase.COMPUTE] * 4
    return clock_window(NOW + after_s, step=[step] * 4, phase=phases, checkpoints=words, attempt=attempt, **more)  # type: ignore[arg-type]


def levels(*windows: Window) -> list[Level]:
    """How serious each look was."""
    return [verdict.level for verdict in verdicts_in(tuple(run(DETECTOR, windows)[1]))]


class TestSteps:
    @pytest.mark.parametrize(("step", "expected"), [(349, []), (350, [Level.WARNING]), (500, [Level.CRITICAL])])
    def test_half_an_interval_late_warns_and_two_missing_saves_page(self, step: int, expected: list[Level]) -> None:
        assert levels(look(step, saved(200))) == expected

    def test_says_what_would_be_lost(self) -> None:
        (verdict,) = verdicts_in(tuple(run(DETECTOR, [look(380, saved(200, age_s=900))])[1]))

        values = {one.name: one.value for one in verdict.evidence}
        assert (values["steps at risk"], values["age"], values["newest complete checkpoint"]) == (180, 900.0, 200)
        assert verdict.class_ is Class.RECOVERY
        assert "180 steps would be lost" in verdict.verdict

    def test_no_checkpoint_ever_is_counted_from_where_the_attempt_began(self) -> None:
        (verdict,) = verdicts_in(tuple(run(DETECTOR, [look(1200, attempt={"resumed_from_step": 1000})])[1]))

        assert verdict.score == 2.0
        assert "has not completed a checkpoint" in verdict.verdict

    def test_a_save_that_began_and_never_ended_is_none(self) -> None:
        assert levels(look(380, saved(200), saved(300, state="STARTED"), saved(310, state="WRITTEN"))) == [
            Level.WARNING
        ]

    def test_failed_beats_saved_of_the_same_save(self) -> None:
        assert levels(look(380, saved(300), saved(300, state="FAILED"), saved(200))) == [Level.WARNING]
        assert levels(look(380, saved(300, state="FAILED"), saved(300), saved(200))) == [Level.WARNING]

    def test_a_deleted_checkpoint_is_none_and_deleting_an_older_one_changes_nothing(self) -> None:
        assert levels(look(380, saved(200), saved(300), saved(300, state="DELETED"))) == [Level.WARNING]
        assert levels(look(380, saved(200), saved(300), saved(200, state="DELETED"))) == []

    def test_failed_saves_in_a_row_are_told(self) -> None:
        words = (saved(200), saved(300, state="FAILED"), saved(400, state="FAILED"))

        (verdict,) = verdicts_in(tuple(run(DETECTOR, [look(420, *words)])[1]))

        assert "2 saves failed since" in verdict.why

    def test_a_save_of_an_earlier_attempt_beyond_this_one_does_not_count(self) -> None:
        window = look(1200, saved(5000, age_s=7200), attempt={"resumed_from_step": 1000})

        assert levels(window) == [Level.WARNING]

    @pytest.mark.parametrize("before", ["SAVED", "FAILED", "DELETED"])
    def test_a_step_that_an_earlier_attempt_saved_is_a_new_save_when_it_is_saved_again(self, before: str) -> None:
        old = [replace(saved(step, age_s=600, state=before), attempt=1) for step in (1100, 1200, 1300, 1400)]
        resumed = {"resumed_from_step": 1000, "number": 2}
        state, early = run(DETECTOR, [look(1160, *old, attempt=resumed)])
        new = [replace(saved(step, age_s=9), attempt=2) for step in (1100, 1200)]

        _, late = run(DETECTOR, [look(1240, *old, *new, attempt=resumed)], state)

        assert [verdict.since_step for verdict in verdicts_in(tuple(early))] == [None]  # an abandoned save is none
        assert verdicts_in(tuple(late))[0].closed is CloseReason.RECOVERED
        assert "step 1200 is complete" in verdicts_in(tuple(late))[0].verdict

    def test_a_long_abandoned_tail_pushes_out_no_save_of_the_attempt_that_goes_on(self) -> None:
        tail = [replace(saved(step), attempt=1) for step in range(1100, 20_000, 100)]
        own = replace(saved(1100), attempt=2)

        assert levels(look(1160, *tail, own, attempt={"resumed_from_step": 1000, "number": 2})) == []

    def test_a_complete_save_closes_it(self) -> None:
        state, _ = run(DETECTOR, [look(380, saved(200))])

        _, answers = run(DETECTOR, [look(401, saved(200), saved(400))], state)

        assert verdicts_in(tuple(answers))[0].closed is CloseReason.RECOVERED
        assert isinstance(answers[-1], Healthy)

    def test_saves_seen_once_are_remembered(self) -> None:
        state, _ = run(DETECTOR, [look(210, saved(200))])

        assert verdicts_in(tuple(run(DETECTOR, [look(320)], state)[1])) == ()


class TestTime:
    def setting(self, after_s: float, *words: Checkpoint, **more: object) -> Window:
        return look(50, *words, every=None, after_s=after_s, attempt={"checkpoint_interval_s": 1800.0}, **more)

    def test_a_setting_in_seconds_is_compared_with_the_age(self) -> None:
        assert levels(self.setting(2600, saved(40))) == []
        assert levels(self.setting(2800, saved(40))) == [Level.WARNING]
        assert levels(self.setting(5500, saved(40))) == [Level.CRITICAL]

    def test_a_blind_period_does_not_count(self) -> None:
        assert levels(self.setting(5500, saved(40), watch_began_at=NOW + 5000)) == []


class TestWithoutASetting:
    def test_three_saves_show_the_runs_own_interval(self) -> None:
        words = (saved(100), saved(150), saved(200))

        assert levels(look(270, *words, every=None)) == []
        assert levels(look(276, *words, every=None)) == [Level.WARNING]

    def test_two_saves_are_not_enough_evidence(self) -> None:
        _, answers = run(DETECTOR, [look(5000, saved(100), saved(200), every=None)])

        (answer,) = answers
        assert isinstance(answer, Undecided)
        assert "interval" in answer.lack[0]


def test_steps_made_while_paceline_was_blind_do_not_count_until_their_saves_are_heard() -> None:
    before = look(100, saved(100))
    back = look(250, saved(100), after_s=1000.0, watch_began_at=NOW + 995)
    later = look(420, saved(100), after_s=2000.0, watch_began_at=NOW + 995)

    assert levels(before, back) == []
    assert levels(before, back, later) == [Level.WARNING]
