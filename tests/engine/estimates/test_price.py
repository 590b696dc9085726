"""What a restart costs and when it pays back; what was not measured makes the price unknown, never cheap."""

import pytest

from apps.engine.errors import ArgumentInvalid
from apps.engine.estimates.price import at_risk_gpu_hours, payback_steps, restart_price, spread_of


class TestPayback:
    @pytest.mark.parametrize(("cost_s", "steps"), [(60.0, 200), (1200.0, 4000)])
    def test_reproduces_the_published_ladder(self, cost_s: float, steps: int) -> None:
        assert payback_steps(cost_s, slowdown_s=1.3 - 1.0) == steps

    def test_never_comes_without_a_slowdown_and_at_once_without_a_cost(self) -> None:
        assert payback_steps(60.0, slowdown_s=0.0) is None
        assert payback_steps(0.0, slowdown_s=0.3) == 0

    @pytest.mark.parametrize(("cost_s", "slowdown_s"), [(-1.0, 0.3), (60.0, -0.3), (float("nan"), 0.3)])
    def test_impossible_figures_are_refused(self, cost_s: float, slowdown_s: float) -> None:
        with pytest.raises(ArgumentInvalid):
            payback_steps(cost_s, slowdown_s=slowdown_s)


class TestSpread:
    def test_says_median_least_most_and_how_many(self) -> None:
        spread = spread_of([30.0, float("nan"), 90.0, 50.0])

        assert spread is not None
        assert (spread.median_s, spread.least_s, spread.most_s, spread.n) == (50.0, 30.0, 90.0, 3)

    def test_of_nothing_is_nothing(self) -> None:
        assert spread_of([]) is None
        assert spread_of([float("nan")]) is None


class TestAtRisk:
    def test_the_eight_hour_old_checkpoint_of_1024_gpus(self) -> None:
        assert at_risk_gpu_hours(8 * 3600 // 6, step_s=6.0, gpus=1024) == 8192.0

    def test_is_unknown_where_a_part_is(self) -> None:
        assert at_risk_gpu_hours(None, step_s=6.0, gpus=8) is None
        assert at_risk_gpu_hours(5, step_s=None, gpus=8) is None


class TestRestart:
    def price(self, **changes: object) -> object:
        known: dict[str, object] = {
            "newest_step": 1100,
            "checkpoint_step": 1000,
            "step_s": 6.5,
            "best_step_s": 5.0,
            "gpus": 8,
            "downtimes_s": [80.0, 100.0, 180.0],
        }
        return restart_price(**(known | changes))  # type: ignore[arg-type]

    def test_is_the_work_done_again_at_full_pace_and_the_downtime(self) -> None:
        price = self.price()

        assert (price.steps, price.redo_s, price.cost_s) == (100, 500.0, 600.0)
        assert price.gpu_hours == pytest.approx(600 * 8 / 3600)
        assert (price.downtime.median_s, price.downtime.n) == (100.0, 3)

    def test_pays_back_by_the_measured_slowdown(self) -> None:
        price = self.price()

        assert price.payback_steps == 400
        assert price.payback_s == 2000.0

    def test_the_slowdown_of_a_finding_goes_before_the_difference_of_paces(self) -> None:
        assert self.price(slowdown_s=0.5).payback_steps == 1200

    def test_is_due_once_the_slowdown_has_cost_as_much(self) -> None:
        assert self.price(slow_steps=399).due is False
        assert self.price(slow_steps=400).due is True
        assert self.price().due is None

    @pytest.mark.parametrize("missing", [{"newest_step": None}, {"checkpoint_step": None}, {"downtimes_s": []}])
    def test_an_unmeasured_part_makes_the_sums_unknown(self, missing: dict[str, object]) -> None:
        price = self.price(**missing)

        assert price.cost_s is None
        assert price.gpu_hours is None
        assert price.payback_s is None

    def test_a_healthy_run_never_pays_back(self) -> None:
        assert self.price(step_s=5.0).payback_steps is None

    def test_a_checkpoint_ahead_of_the_step_loses_nothing(self) -> None:
        assert self.price(checkpoint_step=1200).steps == 0
