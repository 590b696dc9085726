"""Buckets, levels and the stage-node order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import layout


class TestBuckets:
    @given(st.integers(0, 600_000), st.integers(0, 600_000), st.integers(1, 4096))
    def test_an_answer_has_between_half_and_all_of_the_columns_asked_for(self, first, length, columns):
        bucket = layout.bucket_for(first, first + length, columns)

        assert bucket.columns <= columns
        assert bucket.steps == 1 or bucket.columns > columns / 2

    @given(st.integers(0, 600_000), st.integers(0, 600_000), st.integers(1, 4096))
    def test_the_buckets_cover_the_range_and_are_counted_from_step_zero(self, first, length, columns):
        bucket = layout.bucket_for(first, first + length, columns)
        starts = bucket.first_steps()

        assert (starts % bucket.steps == 0).all()
        assert starts[0] <= first < starts[0] + bucket.steps
        assert starts[-1] <= first + length < starts[-1] + bucket.steps

    @given(st.integers(0, 20))
    def test_a_bucket_is_one_two_or_four_columns_of_its_level(self, exponent):
        bucket = layout.Bucket(2**exponent, 0, 1)

        assert bucket.pooled in (1, 2, 4)
        assert bucket.pooled * layout.COLUMN_POOL**bucket.level == bucket.steps

    def test_nothing_is_pooled_when_it_fits(self):
        assert layout.bucket_for(7, 606, 600) == layout.Bucket(1, 7, 600)

    def test_an_empty_range_is_refused(self):
        with pytest.raises(ArgumentInvalid):
            layout.bucket_for(5, 4, 600)


class TestStageNodeOrder:
    @given(
        st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 40)), min_size=1, max_size=300), st.sampled_from([1, 2])
    )
    def test_every_rank_is_in_exactly_one_group_and_no_group_crosses_a_stage(self, ranks, level):
        stage, node = (np.array(column) for column in zip(*ranks, strict=True))
        order = layout.stage_node_order(stage, node)
        groups = np.split(order.permutation, order.starts(level)[1:])

        assert sorted(np.concatenate(groups).tolist()) == list(range(len(ranks)))
        assert all(len(set(stage[group].tolist())) == 1 for group in groups)
        assert all(1 <= len(group) <= layout.ENTITY_POOLS[level] for group in groups)
        assert [stage[group[0]] for group in groups] == order.stages[order.row_stage(level)].tolist()

    def test_ranks_of_a_node_stand_together_inside_their_stage(self):
        order = layout.stage_node_order(np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.array([1, 0, 1, 0, 1, 0, 1, 0]))

        assert order.permutation.tolist() == [1, 5, 0, 4, 3, 7, 2, 6]

    def test_the_version_names_the_order_and_its_stages(self):
        node = np.arange(64) // 8
        first = layout.stage_node_order(np.zeros(64, int), node)

        assert layout.stage_node_order(np.zeros(64, int), node).version == first.version
        assert layout.stage_node_order(np.arange(64) // 32, node).version != first.version

    def test_a_group_of_64_is_made_of_whole_groups_of_8(self):
        order = layout.stage_node_order(np.repeat([0, 1], [70, 130]), np.arange(200) // 8)

        assert set(order.starts64) <= set(order.starts8)
        assert order.pool_starts(2).tolist() == [0, 8, 9, 17, 25]

    def test_a_layout_without_ranks_is_refused(self):
        with pytest.raises(ArgumentInvalid):
            layout.stage_node_order(np.array([], int), np.array([], int))


class TestPlan:
    def _plan(self, stage, node, **asked):
        order = layout.stage_node_order(stage, node)
        defaults = {
            "first": 0,
            "last": 999,
            "max_rows": 512,
            "max_columns": 600,
            "in_rank_order": False,
            "by_rank": False,
        }
        return layout.plan_for(order=order, **{**defaults, **asked})

    def test_a_small_run_is_drawn_rank_by_rank(self):
        plan = self._plan(np.zeros(16, int), np.arange(16) // 8)

        assert (plan.entity_level, plan.ranks_per_row, plan.rows_pooled) == (0, 1, 1)

    def test_16384_ranks_of_the_usual_layout_are_served_by_groups_of_8_in_every_order(self):
        stage, node = np.arange(16_384) // 2048, np.arange(16_384) // 8

        for in_rank_order in (False, True):
            plan = self._plan(stage, node, in_rank_order=in_rank_order)
            assert (plan.entity_level, plan.ranks_per_row, plan.bucket.steps) == (1, 32, 2)

    def test_interleaved_stages_fall_back_to_ranks_when_drawn_by_rank(self):
        stage, node = np.arange(16_384) % 8, np.arange(16_384) // 8

        assert self._plan(stage, node, in_rank_order=True).entity_level == 0
        assert self._plan(stage, node, in_rank_order=False).entity_level == 1

    def test_nodes_that_are_no_multiple_of_8_ranks_fall_back_where_rows_would_not_line_up(self):
        stage = np.repeat([0, 1], [1004, 1004])

        assert self._plan(stage, np.arange(2008) // 4, in_rank_order=True, max_rows=128).entity_level == 0

    def test_more_stages_than_rows_gives_one_row_a_stage(self):
        plan = self._plan(np.arange(64) // 4, np.arange(64) // 8, max_rows=8)

        assert plan.ranks_per_row == 4

    def test_half_a_million_steps_come_from_a_pooled_level(self):
        plan = self._plan(np.zeros(8, int), np.zeros(8, int), last=499_999)

        assert (plan.bucket.level, plan.bucket.pooled) == (3, 2)
