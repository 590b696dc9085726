"""The grid that a heatmap draws, against plain loops over the values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import codec, heatgrid, layout, rows
from apps.engine.tiles.heatgrid import Part
from apps.engine.tiles.metrics import Kind
from apps.engine.tiles.pyramid import Pooled, pool_columns, pool_entities
from apps.engine.tiles.rounding import rounded
from tests.engine.tiles.arrays import NAN, training_metrics

CELL = st.one_of(st.just(NAN), st.floats(0.5, 100, width=32))
REDUCE = {"max": np.nanmax, "min": np.nanmin, "mean": np.nanmean}


def _ranks(n_ranks, stages=3, ranks_per_node=8):
    stage, node = np.arange(n_ranks) * stages // n_ranks, np.arange(n_ranks) // ranks_per_node
    return stage, node, layout.stage_node_order(stage, node)


def _expected(cells, drawn, bucket, how):
    out = np.full((drawn.n_rows, bucket.columns), np.nan)
    for row in range(drawn.n_rows):
        for column, first in enumerate(bucket.first_steps().tolist()):
            values = cells[drawn.row_of == row, first : first + bucket.steps].astype(np.float64)
            if not np.isnan(values).all():
                out[row, column] = REDUCE[how](values)
    return out


def _blocks(cells, width=16, columns=64):
    """Level-0 parts as telemetry would read them, with blocks of 16 ranks so that small runs have several."""
    for first_row in range(0, len(cells), width):
        for first in range(0, cells.shape[1], columns):
            yield Part(cells[first_row : first_row + width, first : first + columns], first_row, first)


class TestAssembly:
    @settings(max_examples=80)
    @given(
        st.integers(1, 50),
        st.integers(1, 40),
        st.sampled_from(["rank", "node", "stage"]),
        st.sampled_from(["max", "min", "mean"]),
        st.integers(1, 40),
        st.integers(1, 40),
        st.data(),
    )
    def test_every_cell_is_what_a_loop_over_its_values_gives(self, n, steps, by, pool, max_rows, max_columns, data):
        cells = data.draw(hnp.arrays(np.float32, (n, steps), elements=CELL, fill=CELL))
        stage, node, order = _ranks(n)
        drawn = rows.row_layout(order, stage, node, by=by, max_rows=max_rows)
        bucket = layout.bucket_for(0, steps - 1, max_columns)
        parts = _blocks(cells, data.draw(st.integers(1, 50)), data.draw(st.integers(1, 40)))

        grid = heatgrid.assemble(parts, order=order, rows=drawn, bucket=bucket, pool=pool, worst="max")

        np.testing.assert_allclose(grid.cells, _expected(cells, drawn, bucket, pool), rtol=1e-5)

    @pytest.mark.parametrize("pool", ["max", "min", "mean"])
    @pytest.mark.parametrize("entity_level", [0, 1, 2])
    def test_pooled_levels_draw_what_single_values_would(self, pool, entity_level):
        rng = np.random.default_rng(3)
        cells = rng.random((1200, 64)).astype(np.float32)
        cells[rng.random(cells.shape) < 0.3] = NAN
        stage, node, order = _ranks(1200)
        drawn = rows.row_layout(order, stage, node, by="stage", max_rows=20)
        bucket = layout.bucket_for(0, 63, 4)
        level = Pooled.of(cells)
        for step in range(1, entity_level + 1):
            level = pool_entities(level, order, step)
        level = pool_columns(level)
        plane = level.sum if pool == "mean" else getattr(level, pool)

        part = Part(plane, 0, 0, entity_level=entity_level, column_level=1, count=level.count)
        grid = heatgrid.assemble([part], order=order, rows=drawn, bucket=bucket, pool=pool, worst="max")

        np.testing.assert_allclose(grid.cells, _expected(cells, drawn, bucket, pool), rtol=1e-5)

    def test_sealed_and_hot_columns_of_different_levels_meet_in_one_bucket(self):
        cells = np.arange(8 * 20, dtype=np.float32).reshape(8, 20)
        stage, node, order = _ranks(8, stages=1)
        drawn = rows.row_layout(order, stage, node, by="rank", max_rows=1)
        bucket = layout.bucket_for(0, 19, 2)
        pooled = pool_columns(pool_entities(Pooled.of(cells[:, :8]), order, 1))

        parts = [Part(pooled.max, 0, 0, 1, 1), Part(cells[:, 8:17], 0, 8), Part(cells[:, 17:], 0, 17)]
        grid = heatgrid.assemble(parts, order=order, rows=drawn, bucket=bucket, pool="worst", worst="max")

        np.testing.assert_allclose(grid.cells, _expected(cells, drawn, bucket, "max"))

    @pytest.mark.parametrize("n_ranks", [1, 1024, 1025])
    def test_sealed_blocks_of_1024_ranks_are_drawn_whole(self, n_ranks):
        cells = training_metrics(n_ranks, 70)["compute_s"]
        stage, node, order = _ranks(n_ranks, stages=1)
        drawn = rows.row_layout(order, stage, node, by="rank", max_rows=2000)
        sealed = [
            Part(codec.decode(codec.encode(part.cells, Kind.ROUNDED)), part.first_row, part.first_column)
            for part in _blocks(cells, layout.BLOCK, layout.TILE_COLUMNS)
        ]

        grid = heatgrid.assemble(
            sealed, order=order, rows=drawn, bucket=layout.bucket_for(0, 69, 70), pool="worst", worst="max"
        )

        np.testing.assert_array_equal(grid.cells, rounded(cells))
        assert grid.pooled == {"rows": 1, "columns": 1, "how": "max"}

    def test_columns_outside_the_window_are_left_out(self):
        stage, node, order = _ranks(4, stages=1)
        drawn = rows.row_layout(order, stage, node, by="rank", max_rows=4)
        cells = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)

        parts = [Part(cells, 0, 64), Part(cells + 1000, 0, 512)]
        grid = heatgrid.assemble(
            parts, order=order, rows=drawn, bucket=layout.bucket_for(60, 69, 20), pool="worst", worst="max"
        )

        assert np.isnan(grid.cells[:, :4]).all()
        np.testing.assert_array_equal(grid.cells[:, 4:], cells[:, :6])

    def test_the_worst_of_waiting_is_the_least(self):
        stage, node, order = _ranks(8, stages=1)
        drawn = rows.row_layout(order, stage, node, by="rank", max_rows=1)
        cells = np.array([[4, 4, 4, 0.1, 4, 4, 4, 4]], np.float32).T

        grid = heatgrid.assemble(
            [Part(cells, 0, 0)],
            order=order,
            rows=drawn,
            bucket=layout.bucket_for(0, 0, 1),
            pool="worst",
            worst="min",
        )

        assert grid.cells.tolist() == [[np.float32(0.1)]]
        assert grid.pooled == {"rows": 8, "columns": 1, "how": "min"}

    def test_nothing_read_is_an_empty_drawing(self):
        stage, node, order = _ranks(4)
        drawn = rows.row_layout(order, stage, node, by="rank", max_rows=4)

        for pool in ("worst", "mean"):
            grid = heatgrid.assemble(
                [], order=order, rows=drawn, bucket=layout.bucket_for(0, 9, 10), pool=pool, worst="max"
            )
            assert grid.cells.shape == (4, 10)
            assert np.isnan(grid.cells).all()

    def test_parts_that_do_not_fit_the_plan_are_refused(self):
        stage, node, order = _ranks(24)
        drawn = rows.row_layout(order, stage, node, by="rank", max_rows=24)
        ask = {"order": order, "rows": drawn, "bucket": layout.bucket_for(0, 9, 10), "worst": "max"}
        ones = np.ones((3, 1), np.float32)

        for part, pool in [
            (Part(ones, 0, 0, entity_level=1), "worst"),
            (Part(ones, 0, 0, column_level=1), "worst"),
            (Part(ones, 22, 0), "worst"),
            (Part(ones, 0, 0, column_level=1), "mean"),
        ]:
            with pytest.raises(ArgumentInvalid):
                heatgrid.assemble([part], pool=pool, **ask)


class TestSlowestFirst:
    def _grid(self, cells):
        stage, node, order = _ranks(len(cells), stages=1)
        drawn = rows.row_layout(order, stage, node, by="slowest", max_rows=len(cells))
        bucket = layout.bucket_for(0, cells.shape[1] - 1, cells.shape[1])
        return heatgrid.assemble([Part(cells, 0, 0)], order=order, rows=drawn, bucket=bucket, pool="worst", worst="max")

    def test_the_worst_row_comes_first_and_rows_without_data_last(self):
        grid = self._grid(np.array([[1, 1], [NAN, NAN], [3, NAN], [2, 2]], np.float32))

        assert heatgrid.slowest_first(grid, "max").rows.first_rank.tolist() == [2, 3, 0, 1]
        assert heatgrid.slowest_first(grid, "min").rows.first_rank.tolist() == [0, 3, 2, 1]

    def test_cells_move_with_their_ranks(self):
        grid = heatgrid.slowest_first(self._grid(np.array([[1], [5], [3]], np.float32)), "max")

        assert grid.cells.ravel().tolist() == [5, 3, 1]
        assert grid.rows.row_of.tolist() == [2, 0, 1]
