"""When a run will be done, and its own best pace."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from apps.engine.errors import ArgumentInvalid
from apps.engine.estimates.progress import BestPace, Progress, progress_of, tokens_per_s

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


def progress(**changes: object) -> Progress:
    """A run of 1,000 steps in step 399, at 6 s a step and 5 s at its best."""
    known: dict[str, object] = {"now": AT, "step": 399, "steps_planned": 1000, "step_s": 6.0, "best_step_s": 5.0}
    return progress_of(**(known | changes))  # type: ignore[arg-type]


class TestProgress:
    def test_eta_is_the_steps_left_at_the_pace_now_and_at_best_pace(self) -> None:
        ahead = progress()

        assert ahead.steps_left == 600
        assert ahead.eta_at == AT + timedelta(hours=1)
        assert ahead.eta_at_best_pace == AT + timedelta(minutes=50)
        assert ahead.behind_s == 600

    def test_slip_is_against_the_day_it_is_due(self) -> None:
        assert progress(due_at=AT + timedelta(minutes=45)).slip_s == 900
        assert progress(due_at=AT + timedelta(hours=2)).slip_s == -3600
        assert progress().slip_s is None

    @pytest.mark.parametrize("missing", ["step", "steps_planned", "step_s"])
    def test_what_is_not_known_leaves_the_eta_unknown(self, missing: str) -> None:
        assert progress(**{missing: None}).eta_at is None

    @pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf"), 1e12])
    def test_a_pace_that_is_none_gives_no_date(self, step_s: float) -> None:
        assert progress(step_s=step_s).eta_at is None

    def test_a_finished_run_is_done_now(self) -> None:
        ahead = progress(step=1500)

        assert (ahead.steps_left, ahead.eta_at) == (0, AT)

    @pytest.mark.parametrize("name", ["now", "due_at"])
    def test_a_naive_moment_is_refused(self, name: str) -> None:
        with pytest.raises(ArgumentInvalid):
            progress(**{name: AT.replace(tzinfo=None)})


class TestBestPace:
    def test_is_the_fastest_tenth_and_not_the_luckiest_step(self) -> None:
        times = [1.0, *np.random.default_rng(0).normal(5.0, 0.05, 500)]

        assert BestPace().learn(times).best_step_s == pytest.approx(np.quantile(times, 0.1), rel=0.003)

    def test_is_not_told_from_a_few_steps(self) -> None:
        assert BestPace().learn([5.0] * 19).best_step_s is None
        assert BestPace().learn([5.0] * 20).best_step_s == pytest.approx(5.0, rel=0.001)

    def test_stays_known_through_a_long_slow_spell(self) -> None:
        pace = BestPace().learn([5.0] * 200).learn([8.0] * 1500)

        assert pace.best_step_s == pytest.approx(5.0, rel=0.001)

    def test_steps_nobody_reported_do_not_count(self) -> None:
        assert BestPace().learn([float("nan"), 0.0, -1.0, float("inf")]).steps == 0

    def test_does_not_depend_on_how_the_steps_were_cut_and_survives_the_store(self) -> None:
        times = np.random.default_rng(1).normal(5.0, 0.3, 300).tolist()
        pace = BestPace().learn(times[:70]).learn(times[70:])

        assert pace == BestPace().learn(times)
        assert BestPace.read(json.loads(json.dumps(pace.write()))) == pace

    def test_a_run_of_months_is_remembered_in_little_space(self) -> None:
        pace = BestPace().learn(np.random.default_rng(2).lognormal(1.6, 0.2, 300_000).tolist())

        assert len(pace.counts) < 1500


def test_tokens_a_second_are_unknown_where_a_part_is() -> None:
    assert tokens_per_s(4_194_304, 4.0) == 1_048_576
    assert tokens_per_s(None, 4.0) is None
    assert tokens_per_s(4_194_304, None) is None
