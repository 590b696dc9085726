"""What is known about metrics."""

import numpy as np
import pytest

from apps.engine.tiles import metrics
from apps.engine.tiles.metrics import Kind, Reducer


class TestKnownMetrics:
    def test_every_metric_of_a_step_is_known(self):
        phases = "step_s compute_s forward_s backward_s communication_s data_s optimizer_s checkpoint_s gc_s"

        assert all(metrics.KNOWN[name].scope == "rank" for name in [*phases.split(), "tokens", "loss", "grad_norm"])

    def test_the_culprit_waits_least(self):
        assert metrics.metric_of("communication_s").worst == "min"
        assert metrics.metric_of("compute_s").worst == "max"

    def test_masks_and_counters_are_kept_exactly(self):
        exact = {name for name, metric in metrics.KNOWN.items() if metric.kind is Kind.EXACT}

        assert {"clock_reasons", "ecc_correctable", "ecc_uncorrectable", "remap_pending", "tokens"} <= exact
        assert metrics.metric_of("clock_reasons").reducer is Reducer.OR

    def test_limits_are_in_order_for_every_metric(self):
        assert all(metric.lo < metric.hi for metric in metrics.KNOWN.values())

    def test_a_mask_within_limits_is_exact_in_float32(self):
        hi = metrics.metric_of("clock_reasons").hi

        assert int(np.float32(hi)) == hi


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature_c", 9223372036854775794.0),
            ("temperature_c", -51.0),
            ("power_w", 601_796.0),
            ("gpu_count", 18446744073709551615.0),
            ("utilization", 97.0),
            ("step_s", -1.0),
        ],
    )
    def test_a_sentinel_or_a_wrong_unit_is_refused(self, name, value):
        lo, hi = metrics.limits_of([name])

        assert not metrics.within_limits(np.array([[value]], np.float32), lo, hi)[0, 0]

    @pytest.mark.parametrize(
        ("name", "value"), [("temperature_c", -50.0), ("power_w", 2000.0), ("loss", -3.0), ("utilization", 1.0)]
    )
    def test_a_possible_value_is_kept(self, name, value):
        lo, hi = metrics.limits_of([name])

        assert metrics.within_limits(np.array([[value]], np.float32), lo, hi)[0, 0]

    def test_absent_is_never_refused(self):
        lo, hi = metrics.limits_of(["temperature_c", "never_heard_of"])

        assert metrics.within_limits(np.full((2, 3), np.nan, np.float32), lo, hi).all()


class TestUnknownMetrics:
    def test_whole_numbers_are_kept_exactly_and_fractions_rounded(self):
        assert metrics.metric_of("widgets", integral=True).kind is Kind.EXACT
        assert metrics.metric_of("widgets", integral=False).kind is Kind.ROUNDED

    def test_the_unit_is_read_from_the_longest_ending(self):
        assert metrics.metric_of("copy_bytes_per_s").unit == "bytes/s"
        assert metrics.metric_of("copy_s").unit == "s"
        assert metrics.metric_of("widgets").unit == ""

    def test_only_reducers_that_a_repeat_cannot_change_may_be_fed_without_numbers(self):
        assert Reducer.MEAN not in metrics.REPEATABLE
