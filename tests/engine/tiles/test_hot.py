"""Hot blocks: bytes in, bytes out, and writing into them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import hot, scatter
from apps.engine.tiles.errors import TileCorrupt
from apps.engine.tiles.scatter import NotFinite, Rule, Written

NAN = np.nan


def _cells(*rows):
    return np.array(rows, np.float32)


class TestBlobs:
    @given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.floats(width=32)))
    def test_what_is_read_is_what_was_written_with_one_nan(self, cells):
        block = hot.HotBlock(tuple(range(5, 5 + len(cells))), cells)
        again = hot.read(hot.write(block))

        assert again.metric_ids == block.metric_ids
        np.testing.assert_array_equal(again.cells, cells)
        assert set(again.cells[np.isnan(again.cells)].view(np.uint32).tolist()) <= {0x7FC00000}

    def test_reading_copies_nothing_and_cannot_be_written(self):
        block = hot.read(hot.write(hot.empty([1], 4)))

        assert not block.cells.flags.owndata
        assert not block.cells.flags.writeable

    def test_a_slice_of_the_blob_is_one_metric(self):
        block = hot.empty([1, 2, 3], 5)
        block.cells[1] = 7
        offset, length = hot.row_slice(3, 1, 5)

        assert np.frombuffer(hot.write(block)[offset : offset + length], "<f4").tolist() == [7] * 5

    def test_a_metric_that_the_block_lacks_is_none(self):
        assert hot.empty([1], 2).row(9) is None

    def test_growing_keeps_what_was_there(self):
        block = hot.empty([1, 2], 2)
        block.cells[:] = [[1, 2], [3, 4]]
        bigger = hot.grown(block, [9, 2], 3)

        assert bigger.metric_ids == (1, 2, 9)
        np.testing.assert_array_equal(bigger.cells, _cells([1, 2, NAN], [3, 4, NAN], [NAN, NAN, NAN]))

    def test_a_blob_that_is_too_long_is_corrupt(self):
        with pytest.raises(TileCorrupt):
            hot.read(hot.write(hot.empty([1], 2)) + b"\0")

    @pytest.mark.parametrize(("ids", "n"), [([1, 1], 4), ([70_000], 4), ([1], 0), ([1], 1025)])
    def test_impossible_blocks_are_refused(self, ids, n):
        with pytest.raises(ArgumentInvalid):
            hot.empty(ids, n)


class TestStacks:
    def test_blocks_with_other_metrics_and_widths_meet_in_one_stack(self):
        narrow, swapped = hot.empty([1], 1), hot.empty([2, 1], 3)
        narrow.cells[:] = 5
        swapped.cells[:] = [[6, 6, 6], [7, 7, 7]]
        blobs = [hot.write(narrow), None, hot.write(swapped)]
        stacked = hot.stack(blobs, hot.ids_of(blobs), 3)

        np.testing.assert_array_equal(stacked[0], _cells([5, NAN, NAN], [NAN] * 3))
        assert np.isnan(stacked[1]).all()
        np.testing.assert_array_equal(stacked[2], _cells([7] * 3, [6] * 3))

    def test_unstacking_writes_every_block(self):
        stacked = hot.stack([None, None], [4], 2)
        stacked[1] = 8

        assert [hot.read(blob).cells.tolist() for blob in hot.unstack(stacked, [4])][1] == [[8, 8]]

    def test_a_blob_wider_than_the_stack_is_refused_instead_of_cut(self):
        with pytest.raises(ArgumentInvalid):
            hot.stack([hot.write(hot.empty([1], 4))], [1], 3)


def _scatter(stack, entities, values, rule=Rule.OVERWRITE, blocks=None):
    entities = np.array(entities)
    blocks = np.zeros(len(entities), int) if blocks is None else np.array(blocks)
    rows = np.arange(len(values))
    return scatter.scatter(stack, blocks=blocks, rows=rows, entities=entities, values=_cells(*values), rule=rule)


class TestScatter:
    def test_absent_never_erases(self):
        stack = _cells([[1, 2]]).reshape(1, 1, 2)

        assert _scatter(stack, [0, 1], [[NAN, 5]]) == Written(rewritten=1)
        assert stack.tolist() == [[[1, 5]]]

    def test_the_last_of_a_repeated_sample_wins_and_both_are_counted(self):
        stack = np.full((1, 2, 3), np.nan, np.float32)

        assert _scatter(stack, [1, 1, 1], [[5, 6, NAN], [NAN, NAN, 9]]) == Written(filled=2, rewritten=1)
        np.testing.assert_array_equal(stack[0], _cells([NAN, 6, NAN], [NAN, 9, NAN]))

    def test_a_late_report_only_fills_empty_cells(self):
        stack = _cells([[1, NAN]]).reshape(1, 1, 2)

        assert _scatter(stack, [0, 1, 1], [[7, 8, 9]], Rule.FILL) == Written(filled=1, ignored=2)
        assert stack.tolist() == [[[1, 8]]]

    def test_blocks_do_not_leak_into_each_other(self):
        stack = np.full((2, 1, 2), np.nan, np.float32)

        _scatter(stack, [1, 0], [[3, 4]], blocks=[0, 1])

        np.testing.assert_array_equal(stack, [[[NAN, 3]], [[4, NAN]]])

    def test_maximum_and_mask_gather_all_samples_of_a_cell(self):
        heat, mask = np.full((1, 1, 1), np.nan, np.float32), np.full((1, 1, 1), np.nan, np.float32)

        _scatter(heat, [0, 0, 0], [[61, 66, 63]], Rule.MAX)
        _scatter(mask, [0, 0], [[4, 1]], Rule.OR)
        _scatter(mask, [0], [[32]], Rule.OR)

        assert (heat.item(), mask.item()) == (66, 37)

    @given(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(-3, 3)), max_size=40),
        st.sampled_from([Rule.OVERWRITE, Rule.FILL, Rule.MAX]),
    )
    def test_a_batch_does_what_one_sample_after_the_other_would(self, samples, rule):
        stack = np.full((2, 1, 5), np.nan, np.float32)
        expected = {}
        combine = {Rule.OVERWRITE: lambda old, new: new, Rule.FILL: lambda old, new: old, Rule.MAX: max}[rule]

        blocks, entities, values = (list(column) for column in zip(*samples, strict=True)) if samples else ([], [], [])
        done = _scatter(stack, np.array(entities, int), [values], rule, np.array(blocks, int))
        for block, entity, value in samples:
            expected[block, entity] = combine(expected.get((block, entity), value), value)

        found = {(b, e): stack[b, 0, e] for b, e in np.argwhere(~np.isnan(stack[:, 0])).tolist()}
        assert found == expected
        assert done.filled == len(expected)
        assert done.filled + done.rewritten + done.ignored == len(samples)

    @given(st.lists(st.lists(st.floats(0, 100, width=32), max_size=5), max_size=5))
    def test_a_mean_over_batches_is_the_mean_of_all_samples(self, batches):
        stack = np.full((1, 2, 1), np.nan, np.float32)

        for batch in batches:
            zeros = np.zeros(len(batch), int)
            scatter.scatter_mean(
                stack,
                blocks=zeros,
                rows=np.array([0]),
                count_rows=np.array([1]),
                entities=zeros,
                values=np.array([batch], np.float32).reshape(1, -1),
            )

        samples = [value for batch in batches for value in batch]
        expected = np.mean(samples) if samples else np.nan
        np.testing.assert_allclose(stack[0, 0, 0], expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("entity", [-1, 4])
    def test_a_place_outside_the_block_is_refused(self, entity):
        with pytest.raises(ArgumentInvalid):
            _scatter(np.full((1, 1, 4), np.nan, np.float32), [entity], [[1]])

    def test_an_array_that_would_be_copied_is_refused(self):
        with pytest.raises(ArgumentInvalid):
            _scatter(np.full((2, 1, 4), np.nan, np.float32)[:, :, ::2], [0], [[1]])


class TestNotFinite:
    def test_absent_and_produced_are_told_apart(self):
        bits = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800000, 0xFF800000, 0x40000000], np.uint32)
        clean, where, which = scatter.split_not_finite(bits.view(np.float32))

        assert where.tolist() == [1, 2, 3, 4]
        assert which.tolist() == [NotFinite.NAN, NotFinite.NAN, NotFinite.PLUS_INF, NotFinite.MINUS_INF]
        np.testing.assert_array_equal(clean, _cells([NAN] * 5 + [2])[0])

    def test_the_input_is_left_alone_and_returned_when_nothing_is_odd(self):
        fine = _cells([1, NAN])
        odd = _cells([1, np.inf])

        assert scatter.split_not_finite(fine)[0] is fine
        scatter.split_not_finite(odd)
        assert np.isinf(odd[0, 1])
