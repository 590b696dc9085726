"""Which columns are neither baseline nor evidence."""

import numpy as np

from apps.engine.detection import skip_columns


def skipped(steps: list[int], **more: object) -> list[int]:
    """The steps that are left out."""
    array = np.array(steps, np.int64)
    return array[skip_columns(array, **more)].tolist()  # type: ignore[arg-type]


def test_warm_up_counts_from_the_step_of_the_resume() -> None:
    assert skipped(list(range(1000, 1010)), first_step=1000) == [1000, 1001, 1002]


def test_a_save_and_the_step_after_it_are_left_out() -> None:
    assert skipped(list(range(10, 30)), first_step=0, checkpoint_steps=[15, 20]) == [15, 16, 20, 21]


def test_any_ranks_seconds_inside_a_pause_mark_the_column_and_the_next() -> None:
    seconds = np.zeros((4, 6), np.float32)
    seconds[2, 3] = 12.0
    seconds[1, 1] = np.nan

    assert skipped(list(range(10, 16)), first_step=0, pauses_s=[np.zeros((4, 6), np.float32), seconds]) == [13, 14]


def test_the_step_after_a_save_is_not_one_that_comes_much_later() -> None:
    seconds = np.zeros((1, 3), np.float32)
    seconds[0, 0] = 1.0

    assert skipped([10, 20, 30], first_step=0, pauses_s=[seconds]) == [10]


def test_the_answer_does_not_depend_on_where_the_columns_are_cut() -> None:
    steps = np.arange(0, 60, dtype=np.int64)
    whole = skip_columns(steps, first_step=0, checkpoint_steps=[19, 39])

    parts = [skip_columns(steps[a : a + 20], first_step=0, checkpoint_steps=[19, 39]) for a in (0, 20, 40)]

    assert np.concatenate(parts).tolist() == whole.tolist()
