"""The grid over time: gaps and stalls have width."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import timeaxis
from apps.engine.tiles.timeaxis import TimeBucket
from tests.engine.tiles.arrays import NAN


class TestTimeBuckets:
    @given(st.floats(0, 2e9), st.floats(0, 1e7), st.integers(2, 2000))
    def test_the_range_is_covered_with_no_more_columns_than_asked_for(self, first, length, columns):
        bucket = timeaxis.time_bucket_for(first, first + length, columns)
        edges = bucket.edges_s()

        assert bucket.columns <= columns
        assert edges[0] <= first
        assert edges[-1] > first + length or np.isclose(edges[-1], first + length)
        assert np.log2(bucket.width_s) % 1 == 0

    @given(st.floats(0, 2e9), st.floats(1, 1e7), st.integers(8, 2000))
    def test_no_fewer_columns_than_about_half(self, first, length, columns):
        assert timeaxis.time_bucket_for(first, first + length, columns).columns > columns / 2 - 1

    def test_a_range_that_ends_before_it_begins_is_refused(self):
        with pytest.raises(ArgumentInvalid):
            timeaxis.time_bucket_for(10, 9, 100)


class TestTimeAxis:
    def _drawn(self, values, began, ended, columns=6, worst="max"):
        cells = np.array([values], np.float32)
        bucket = TimeBucket(10, 0, columns)
        return timeaxis.to_time_axis(cells, np.array(began, float), np.array(ended, float), bucket, worst)[0].tolist()

    def test_a_long_step_is_as_wide_as_it_took(self):
        np.testing.assert_array_equal(self._drawn([1, 9, 1], [0, 10, 50], [10, 50, 60]), [1, 9, 9, 9, 9, 1])

    def test_a_gap_between_steps_is_absent(self):
        np.testing.assert_array_equal(self._drawn([1, 2], [0, 40], [10, 50]), [1, NAN, NAN, NAN, 2, NAN])

    def test_many_steps_in_one_bucket_show_their_worst(self):
        began, ended = [0, 2, 4, 10], [2, 4, 10, 20]

        np.testing.assert_array_equal(self._drawn([1, 7, 2, 3], began, ended, 2), [7, 3])
        np.testing.assert_array_equal(self._drawn([1, 7, 2, 3], began, ended, 2, "min"), [1, 3])

    def test_a_column_without_a_time_is_left_out(self):
        np.testing.assert_array_equal(self._drawn([1, 2], [0, NAN], [10, NAN], 2), [1, NAN])
        np.testing.assert_array_equal(self._drawn([1, 2], [NAN, NAN], [NAN, NAN], 2), [NAN, NAN])

    def test_a_clock_that_was_set_back_loses_no_step(self):
        np.testing.assert_array_equal(self._drawn([1, 9, 2], [0, 5, 30], [20, 15, 40], 4), [9, 9, NAN, 2])

    def test_absent_cells_do_not_hide_present_ones(self):
        np.testing.assert_array_equal(self._drawn([NAN, 4], [0, 5], [5, 10], 1), [4])


class TestSpans:
    def test_buckets_span_from_their_first_to_their_last_step(self):
        began, ended = timeaxis.spans(np.array([10.0, 15.0, 40.0]), np.array([5.0, 5.0, 5.0]), 2)

        assert began.tolist() == [5, 35]
        assert ended.tolist() == [15, 40]

    def test_unknown_times_stay_unknown(self):
        began, ended = timeaxis.spans(np.array([NAN, 15.0]), np.array([5.0, NAN]), 1)

        np.testing.assert_array_equal(began, [NAN, 15])
        np.testing.assert_array_equal(ended, [NAN, 15])

    def test_no_steps_are_no_spans(self):
        assert timeaxis.spans(np.empty(0), np.empty(0), 4)[0].size == 0
