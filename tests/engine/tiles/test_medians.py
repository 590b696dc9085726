"""Medians of columns, found by counting or by partitioning, against numpy's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apps.engine.tiles.medians import medians
from apps.engine.tiles.rounding import rounded
from tests.engine.tiles.arrays import NAN

CELL = st.one_of(st.just(NAN), st.floats(-100, 100, width=32))


def _check(cells):
    present = ~np.isnan(cells).all(axis=0)
    found = medians(cells)

    np.testing.assert_allclose(found[present], np.nanmedian(cells[:, present].astype(np.float64), axis=0), rtol=1e-6)
    assert np.isnan(found[~present]).all()


class TestMedians:
    @given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=CELL))
    def test_few_rows(self, cells):
        _check(cells)

    @pytest.mark.parametrize("n_rows", [2048, 2049, 4095])
    @pytest.mark.parametrize(
        "values",
        [
            lambda rng, size: 3 + 0.03 * rng.normal(size=size),
            lambda rng, size: rounded((3 + 0.03 * rng.normal(size=size)).astype(np.float32)),
            lambda rng, size: np.exp(5 * rng.normal(size=size)),
            lambda rng, size: rng.normal(size=size),
            lambda rng, size: np.where(rng.random(size) < 0.6, 0.0, rng.random(size)),
            lambda rng, size: np.full(size, 8192.0),
            lambda rng, size: np.where(rng.random(size) < 0.499, 1e-20, 1e20),
        ],
        ids=["noise", "rounded", "wide", "signed", "mostly zero", "constant", "two ends"],
    )
    @pytest.mark.parametrize("absent", [0.0, 0.3])
    def test_many_rows_of_every_nature(self, n_rows, values, absent):
        rng = np.random.default_rng(n_rows)
        cells = values(rng, (n_rows, 70)).astype(np.float32)
        cells[rng.random(cells.shape) < absent] = NAN

        _check(cells)

    def test_columns_that_hold_little_or_nothing_stand_among_full_ones(self):
        cells = np.random.default_rng(0).random((3000, 5)).astype(np.float32) + 1
        cells[:, 1] = NAN
        cells[1:, 2] = NAN
        cells[2:, 3] = NAN

        _check(cells)

    def test_the_middle_of_two_far_values_is_between_them(self):
        cells = np.repeat(np.array([2, 2.5], np.float32), 1500)[:, None]

        assert medians(cells).tolist() == [2.25]

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (3000, 0)])
    def test_nothing_is_absent(self, shape):
        found = medians(np.empty(shape, np.float32))

        assert found.shape == (shape[1],)
        assert np.isnan(found).all()
