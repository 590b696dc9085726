"""Pooled levels and ratios: the worst survives, absent stays absent."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import codec, pooled, pyramid, ratio
from apps.engine.tiles.layout import stage_node_order
from apps.engine.tiles.metrics import Kind
from apps.engine.tiles.pyramid import Pooled, pool_columns, pool_entities
from tests.engine.tiles.arrays import NAN, training_metrics

CELL = st.one_of(st.just(NAN), st.floats(0.5, 100, width=32))


def _random_layout(n_ranks, data):
    stage = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n_ranks, max_size=n_ranks)))
    node = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n_ranks, max_size=n_ranks)))
    return stage_node_order(stage, node), stage


def _all_levels(cells, order):
    """Every combination of column and entity level over `cells`."""
    for entity_level in (0, 1, 2):
        level = Pooled.of(cells)
        for step in range(1, entity_level + 1):
            level = pool_entities(level, order, step)
        for _ in range(3):
            yield level
            level = pool_columns(level)


class TestPooling:
    @settings(max_examples=60)
    @given(st.integers(1, 150), st.integers(1, 20), st.data())
    def test_a_pooled_cell_is_min_max_sum_and_count_of_its_values(self, n_ranks, n_columns, data):
        cells = data.draw(hnp.arrays(np.float32, (n_ranks, n_columns), elements=CELL))
        order, _ = _random_layout(n_ranks, data)

        level = pool_columns(pool_entities(Pooled.of(cells), order, 1))

        for group, ranks in enumerate(np.split(order.permutation, order.starts8[1:])):
            for column in range(level.shape[1]):
                values = cells[ranks, column * 8 : column * 8 + 8].astype(np.float64)
                values = values[~np.isnan(values)]
                found = [getattr(level, name)[group, column] for name in ("min", "max", "sum", "count")]
                expected = (
                    [values.min(), values.max(), values.sum(), len(values)] if len(values) else [NAN, NAN, NAN, 0]
                )
                np.testing.assert_allclose(found, expected, rtol=1e-5)

    @settings(max_examples=60)
    @given(st.integers(1, 150), st.integers(1, 130), st.data())
    def test_the_largest_and_smallest_value_survive_to_every_level(self, n_ranks, n_columns, data):
        cells = data.draw(hnp.arrays(np.float32, (n_ranks, n_columns), elements=CELL, fill=CELL))
        order, _ = _random_layout(n_ranks, data)
        present = cells[~np.isnan(cells)]

        for level in _all_levels(cells, order):
            assert level.count.sum() == len(present)
            assert np.nanmax(level.max, initial=-1) == present.max(initial=-1)
            assert np.nanmin(level.min, initial=1e9) == present.min(initial=1e9)

    @settings(max_examples=20)
    @given(st.integers(0, 16_383), st.integers(0, 63), st.integers(1, 2**12))
    def test_one_straggler_among_16384_is_never_averaged_away(self, rank, column, stages):
        cells = np.full((16_384, 64), 3, np.float32)
        cells[rank, column] = 3.3
        order = stage_node_order(np.arange(16_384) % stages, np.arange(16_384) // 8)

        level = pool_columns(pool_entities(pool_entities(Pooled.of(cells), order, 1), order, 2))
        stored = pooled.decode(
            pooled.encode(level, Kind.ROUNDED, "max", column_level=1, entity_level=2, order_version=order.version)
        )

        row = np.flatnonzero((stored["max"] > 3.29).any(axis=1))
        assert len(row) == 1
        assert rank in order.permutation[order.starts64[row[0]] : order.starts64[row[0]] + order.sizes(2)[row[0]]]

    def test_pooling_what_was_stored_gives_the_worst_that_is_stored_at_level_0(self):
        cells = training_metrics(512)["compute_s"]
        stored = codec.decode(codec.encode(cells, Kind.ROUNDED))

        before, after = pool_columns(Pooled.of(cells)), pool_columns(Pooled.of(stored))
        blob = pooled.encode(after, Kind.ROUNDED, "max", column_level=1, entity_level=0, order_version="0" * 16)

        np.testing.assert_array_equal(pooled.decode(blob)["max"], after.max)
        np.testing.assert_allclose(pooled.decode(blob)["sum"], before.sum, rtol=2 * 2.0**-11)

    def test_columns_put_side_by_side_pool_like_one_piece(self):
        cells = training_metrics(64)["compute_s"]
        whole = pool_columns(Pooled.of(cells))

        parts = [pool_columns(Pooled.of(cells[:, start : start + 16])) for start in range(0, 64, 16)]

        np.testing.assert_array_equal(pyramid.concatenated(parts).max, whole.max)

    def test_all_absent_stays_absent(self):
        order = stage_node_order(np.zeros(70, int), np.arange(70) // 8)

        for level in _all_levels(np.full((70, 9), NAN, np.float32), order):
            assert np.isnan(level.max).all()
            assert np.isnan(level.sum).all()
            assert not level.count.any()

    def test_rows_that_are_missing_are_refused(self):
        order = stage_node_order(np.zeros(70, int), np.arange(70) // 8)

        with pytest.raises(ArgumentInvalid):
            pool_entities(Pooled.of(np.zeros((69, 1), np.float32)), order, 1)

    def test_the_plane_that_is_drawn_most_comes_first(self):
        level = Pooled.of(np.ones((2, 2), np.float32))
        keys = {"column_level": 1, "entity_level": 0, "order_version": "0" * 16}

        for worst in ("max", "min"):
            info = pooled.read_info(pooled.encode(level, Kind.ROUNDED, worst, **keys))
            assert next(iter(info.planes)) == worst

    def test_a_pooled_tile_names_its_order_and_levels(self):
        order = stage_node_order(np.zeros(9, int), np.zeros(9, int))
        level = pool_entities(Pooled.of(np.ones((9, 1), np.float32)), order, 1)

        blob = pooled.encode(level, Kind.EXACT, "max", column_level=3, entity_level=1, order_version=order.version)

        info = pooled.read_info(blob)
        assert (info.column_level, info.entity_level, info.order_version) == (3, 1, order.version)


class TestRatios:
    @settings(max_examples=60)
    @given(st.integers(1, 60), st.integers(1, 6), st.data())
    def test_a_ratio_is_the_value_over_its_peers_median(self, n_ranks, n_columns, data):
        cells = data.draw(hnp.arrays(np.float32, (n_ranks, n_columns), elements=CELL))
        order, stage = _random_layout(n_ranks, data)

        found = ratio.to_peers(cells, order)

        for rank, column in np.argwhere(~np.isnan(cells)).tolist():
            peers = cells[stage == stage[rank], column].astype(np.float64)
            np.testing.assert_allclose(found[rank, column], cells[rank, column] / np.nanmedian(peers), rtol=1e-5)
        assert (np.isnan(found) == np.isnan(cells)).all()

    @given(st.integers(1, 60), st.data())
    def test_medians_kept_beside_the_tiles_serve_any_ranks_alone(self, n_ranks, data):
        cells = data.draw(hnp.arrays(np.float32, (n_ranks, 3), elements=CELL))
        order, _ = _random_layout(n_ranks, data)
        some = np.array(data.draw(st.lists(st.integers(0, n_ranks - 1), max_size=9)), int)

        found = ratio.to_medians(cells[some], ratio.peer_medians(cells, order), order.stage_of_rank()[some])

        np.testing.assert_array_equal(found, ratio.to_peers(cells, order)[some])

    def test_a_stage_that_is_slower_by_its_nature_is_even_with_itself(self):
        stage = np.repeat([0, 1], 64)
        cells = np.where(stage[:, None] == 1, 6.0, 3.0).astype(np.float32) * np.ones((1, 4), np.float32)
        cells[70] *= 1.2

        found = ratio.to_peers(cells, stage_node_order(stage, np.arange(128) // 8))

        np.testing.assert_allclose(np.delete(found, 70, axis=0), 1)
        np.testing.assert_allclose(found[70], 1.2, rtol=1e-6)

    def test_a_median_of_zero_gives_no_ratio(self):
        cells = np.array([[0], [0], [5]], np.float32)

        assert np.isnan(ratio.to_peers(cells, stage_node_order(np.zeros(3, int), np.zeros(3, int)))).all()

    def test_own_past_and_step_divide_by_their_reference(self):
        cells = np.array([[2, 4], [4, 4], [9, NAN]], np.float32)

        np.testing.assert_allclose(ratio.to_step(cells), [[0.5, 1], [1, 1], [2.25, NAN]])
        np.testing.assert_allclose(
            ratio.to_self(cells, np.array([2, NAN, 3], np.float32)), [[1, 2], [NAN, NAN], [3, NAN]]
        )

    def test_permuting_ranks_permutes_their_ratios(self):
        rng = np.random.default_rng(2)
        cells, stage = rng.random((40, 5)).astype(np.float32), rng.integers(0, 3, 40)
        shuffle = rng.permutation(40)

        straight = ratio.to_peers(cells, stage_node_order(stage, stage))
        shuffled = ratio.to_peers(cells[shuffle], stage_node_order(stage[shuffle], stage[shuffle]))

        np.testing.assert_array_equal(shuffled, straight[shuffle])
