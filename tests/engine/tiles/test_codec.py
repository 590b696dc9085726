"""Sealed tiles: exact or within the declared error, and small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import codec, rounding
from apps.engine.tiles.metrics import Kind, metric_of
from apps.engine.tiles.predict import Mode
from apps.engine.tiles.rounding import Domain
from tests.engine.tiles.arrays import ANY_CELLS, NAN, WHOLE_CELLS, training_metrics

ABSENT_BITS = 0x7FC00000


def _bits(cells):
    return np.ascontiguousarray(cells).view(np.uint32)


class TestRounding:
    @given(ANY_CELLS)
    def test_rounding_twice_is_rounding_once(self, cells):
        once = rounding.rounded(cells)

        np.testing.assert_array_equal(rounding.rounded(once), once)

    @given(ANY_CELLS)
    def test_a_finite_value_stays_finite_and_within_the_declared_error(self, cells):
        found = rounding.rounded(cells)
        finite = np.isfinite(cells)
        normal = finite & (np.abs(cells) >= 2.0**-126)
        error = np.abs(found[normal].astype(np.float64) - cells[normal])

        assert (np.isfinite(found) == finite).all()
        assert (error <= rounding.RELATIVE_ERROR * np.abs(cells[normal].astype(np.float64)) * 2).all()

    @given(st.floats(2.0**-126, 2.0**120, width=32))
    def test_the_error_is_at_most_half_a_step_of_the_last_bit(self, value):
        cell = np.array([value], np.float32)

        assert abs(float(rounding.rounded(cell)[0]) - float(cell[0])) <= rounding.RELATIVE_ERROR * float(cell[0])

    @given(ANY_CELLS)
    def test_order_is_kept(self, cells):
        present = np.sort(cells[~np.isnan(cells)])

        assert (np.diff(rounding.rounded(present)[np.isfinite(present)].astype(np.float64)) >= 0).all()

    @given(ANY_CELLS, st.sampled_from(Kind))
    def test_codes_keep_every_bit_and_the_order_of_values(self, cells, kind):
        values = rounding.rounded(cells[~np.isnan(cells)]) if kind is Kind.ROUNDED else cells[~np.isnan(cells)]
        codes, domain = rounding.to_codes(values, kind)

        assert (
            np.diff(codes[np.argsort(values, kind="stable")].astype(np.int64))[np.diff(np.sort(values)) > 0] > 0
        ).all()
        assert (_bits(rounding.to_values(codes.copy(), domain)) == _bits(values)).all()


class TestTiles:
    @given(ANY_CELLS)
    def test_an_exact_tile_keeps_every_bit_and_makes_all_nans_one(self, cells):
        found = codec.decode(codec.encode(cells, Kind.EXACT))
        absent = np.isnan(cells)

        assert found.shape == cells.shape
        assert (_bits(found)[~absent] == _bits(cells)[~absent]).all()
        assert (_bits(found)[absent] == ABSENT_BITS).all()

    @given(ANY_CELLS)
    def test_a_rounded_tile_holds_the_rounded_values(self, cells):
        found = codec.decode(codec.encode(cells, Kind.ROUNDED))

        np.testing.assert_array_equal(found, rounding.rounded(cells))
        assert (_bits(found)[np.isnan(cells)] == ABSENT_BITS).all()

    @given(ANY_CELLS, st.sampled_from(Kind))
    def test_coding_a_decoded_tile_again_changes_nothing(self, cells, kind):
        blob = codec.encode(cells, kind)

        assert codec.encode(codec.decode(blob), kind) == blob

    @given(WHOLE_CELLS)
    def test_counters_are_coded_as_integers(self, cells):
        blob = codec.encode(cells, Kind.EXACT)

        assert codec.read_info(blob).domain is Domain.INTEGER
        np.testing.assert_array_equal(codec.decode(blob), cells)

    @pytest.mark.parametrize("shape", [(0, 0), (0, 64), (5, 0), (1, 1), (1, 64), (1025, 64), (1024, 1)])
    @pytest.mark.parametrize("kind", Kind)
    def test_any_shape_is_kept(self, shape, kind):
        cells = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 1000

        np.testing.assert_array_equal(codec.decode(codec.encode(cells, kind)), cells)

    def test_a_tile_in_which_nothing_is_present_costs_its_head(self):
        blob = codec.encode(np.full((1024, 64), NAN, np.float32), Kind.ROUNDED)

        assert len(blob) < 100
        assert np.isnan(codec.decode(blob)).all()

    @pytest.mark.parametrize("columns", [slice(0, 10), slice(30, 40), slice(54, 64)])
    def test_absent_ranks_and_stretches_survive_each_prediction(self, columns):
        rng = np.random.default_rng(1)
        drifting = np.round(60 + np.cumsum(rng.normal(size=(300, 64)), axis=1) + 8 * rng.normal(size=(300, 1)))
        noisy = 6 + 0.05 * rng.normal(size=(300, 64)) + 0.2 * rng.normal(size=(300, 1))
        shared = np.broadcast_to(rng.normal(size=64) + 5, (300, 64))
        modes = set()

        for values in (drifting, noisy, shared):
            cells = rounding.rounded(values.astype(np.float32))
            cells[200:] = NAN
            cells[:50, columns] = NAN
            blob = codec.encode(cells, Kind.ROUNDED)
            modes.add(codec.read_info(blob).mode)
            np.testing.assert_array_equal(codec.decode(blob), cells)

        assert modes == set(Mode)

    def test_a_spike_far_outside_the_rest_is_exact_and_cheap(self):
        cells = training_metrics()["compute_s"]
        quiet = len(codec.encode(cells, Kind.ROUNDED))
        cells[5, 5] = 1e30
        blob = codec.encode(cells, Kind.ROUNDED)

        assert codec.read_info(blob).n_exceptions >= 1
        assert codec.decode(blob)[5, 5] == rounding.rounded(cells[5:6, 5:6])[0, 0]
        assert len(blob) < quiet + 200

    def test_too_large_a_tile_is_refused(self):
        with pytest.raises(ArgumentInvalid):
            codec.encode(np.zeros((65_536, 1), np.float32), Kind.EXACT)

    def test_the_input_is_left_alone(self):
        cells = np.array([[1.0001, NAN], [2, 3]], np.float32)
        before = cells.copy()

        codec.encode(cells, Kind.ROUNDED)

        np.testing.assert_array_equal(cells, before)


class TestBudget:
    def test_eight_metrics_of_training_take_at_most_six_tenths_of_a_byte_a_sample(self):
        sizes = {
            name: len(codec.encode(cells, metric_of(name).kind)) / cells.size
            for name, cells in training_metrics().items()
        }

        assert np.mean(list(sizes.values())) <= 0.6
        assert sizes["tokens"] < 0.01

    def test_the_error_of_every_rounded_metric_is_within_a_twentieth_of_a_percent(self):
        for name, cells in training_metrics(seed=4).items():
            found = codec.decode(codec.encode(cells, metric_of(name).kind))

            assert np.max(np.abs(found - cells) / np.abs(cells)) <= 0.0005
