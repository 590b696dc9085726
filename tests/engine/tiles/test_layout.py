"""Buckets, levels and the stage-node order."""

from itertools import pairwise

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

        assert bucket.pooled in (1, 2, 4) or bucket.level == layout.COLUMN_LEVELS - 1
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


class TestCover:
    @given(
        st.integers(0, 14).map(lambda n: 2**n),
        st.integers(0, 50),
        st.integers(1, 50),
        st.lists(st.integers(0, 200).map(lambda n: n * 64), max_size=5),
    )
    def test_every_step_of_every_bucket_is_read_exactly_once(self, steps, start, columns, sealed):
        bucket = layout.Bucket(steps, start, columns)

        found = layout.cover(bucket, sealed)
        spans = [(segment.first * 8**segment.level, segment.end * 8**segment.level) for segment in found]

        assert spans[0][0] == start * steps
        assert spans[-1][1] == (start + columns) * steps
        assert all(before[1] == after[0] for before, after in pairwise(spans))

    def test_only_sealed_columns_are_read_from_pooled_levels(self):
        found = layout.cover(layout.Bucket(64, 0, 100), [6400, 640, 64])

        assert [(segment.level, segment.end) for segment in found] == [(2, 64), (1, 640), (0, 6400)]
