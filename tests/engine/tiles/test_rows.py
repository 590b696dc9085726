"""Which ranks share a drawn row, and which level serves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.engine.tiles import layout, rows

RANKS = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 30)), min_size=1, max_size=200)


def _layout(stage, node, by="stage", max_rows=512):
    order = layout.stage_node_order(stage, node)
    return order, rows.row_layout(order, stage, node, by=by, max_rows=max_rows)


def _plan(stage, node, by, max_rows=512, last=999, **how):
    order, drawn = _layout(stage, node, by, max_rows)
    return rows.plan_for(first=0, last=last, max_columns=600, order=order, rows=drawn, **how), drawn


class TestRowLayout:
    @given(RANKS, st.sampled_from(rows.ORDERS), st.integers(1, 64))
    def test_every_rank_has_a_row_and_every_row_says_truly_what_it_holds(self, ranks, by, max_rows):
        stage, node = (np.array(column) for column in zip(*ranks, strict=True))
        _, drawn = _layout(stage, node, by, max_rows)

        for row in range(drawn.n_rows):
            held = np.flatnonzero(drawn.row_of == row)
            assert (held.min(), held.max(), len(held)) == (
                drawn.first_rank[row],
                drawn.last_rank[row],
                drawn.n_ranks[row],
            )
            assert set(node[held]) == {drawn.node[row]} or drawn.node[row] == rows.SEVERAL
            assert set(stage[held]) == {drawn.stage[row]} or drawn.stage[row] == rows.SEVERAL
        assert drawn.n_rows == drawn.row_of.max() + 1

    @given(RANKS, st.integers(1, 64))
    def test_rows_by_stage_never_mix_stages(self, ranks, max_rows):
        stage, node = (np.array(column) for column in zip(*ranks, strict=True))
        _, drawn = _layout(stage, node, "stage", max_rows)

        assert (drawn.stage != rows.SEVERAL).all()
        assert drawn.n_rows <= max(max_rows, len(set(stage.tolist())))

    @given(RANKS, st.sampled_from(["rank", "node"]), st.integers(1, 64))
    def test_no_more_rows_than_asked_for(self, ranks, by, max_rows):
        stage, node = (np.array(column) for column in zip(*ranks, strict=True))

        assert _layout(stage, node, by, max_rows)[1].n_rows <= max_rows

    def test_nothing_is_pooled_when_it_fits(self):
        for by in rows.ORDERS:
            assert _layout(np.zeros(512, int), np.arange(512) // 8, by)[1].n_rows == 512

    def test_ranks_that_do_not_fit_are_folded_to_whole_nodes(self):
        _, drawn = _layout(np.zeros(1200, int), np.arange(1200) // 8, "node", 512)

        assert drawn.n_rows == 150
        assert drawn.node.tolist() == list(range(150))

    def test_reordered_rows_keep_their_ranks(self):
        _, drawn = _layout(np.zeros(4, int), np.zeros(4, int))
        turned = drawn.reordered(np.array([3, 1, 0, 2]))

        assert turned.first_rank.tolist() == [3, 1, 0, 2]
        assert turned.row_of.tolist() == [2, 1, 3, 0]


class TestPlan:
    def test_a_small_run_is_drawn_rank_by_rank(self):
        plan, drawn = _plan(np.zeros(16, int), np.arange(16) // 8, "rank")

        assert (plan.entity_level, drawn.ranks_per_row) == (0, 1)

    @pytest.mark.parametrize("by", rows.ORDERS)
    def test_16384_ranks_of_the_usual_layout_are_served_by_groups_of_8(self, by):
        plan, _ = _plan(np.arange(16_384) // 2048, np.arange(16_384) // 8, by)

        assert (plan.entity_level, plan.bucket.steps) == (1, 2)

    def test_interleaved_stages_fall_back_to_ranks_when_drawn_by_rank(self):
        stage, node = np.arange(16_384) % 8, np.arange(16_384) // 8

        assert _plan(stage, node, "rank")[0].entity_level == 0
        assert _plan(stage, node, "stage")[0].entity_level == 1

    def test_a_stage_that_ends_inside_a_row_falls_back_to_ranks(self):
        stage = np.repeat([0, 1], [1004, 1004])

        assert _plan(stage, np.arange(2008) // 4, "rank", max_rows=128)[0].entity_level == 0

    def test_values_that_must_be_seen_by_rank_are_read_by_rank(self):
        plan, _ = _plan(np.zeros(16_384, int), np.arange(16_384) // 8, "rank", by_rank=True)

        assert plan.entity_level == 0

    def test_more_stages_than_rows_gives_one_row_a_stage(self):
        _, drawn = _plan(np.arange(64) // 4, np.arange(64) // 8, "stage", max_rows=8)

        assert drawn.n_rows == 16

    def test_half_a_million_steps_come_from_a_pooled_level(self):
        plan, _ = _plan(np.zeros(8, int), np.zeros(8, int), "rank", last=499_999)

        assert (plan.bucket.level, plan.bucket.pooled) == (3, 2)
