"""Windows hold together, or say what does not."""

from dataclasses import replace

import numpy as np
import pytest

from apps.engine.detection import Beats, Columns, Phase, Placement, WindowMalformed
from apps.engine.worlds import WORLDS, clock_window, columns_window, tell


def beats(rank: list[int], step: list[int], heard_at: list[float]) -> Beats:
    """The newest of these beats in a world of three ranks."""
    return Beats.latest(
        3,
        rank=np.array(rank, np.int32),
        step=np.array(step, np.int64),
        phase=np.full(len(rank), Phase.DATA, np.int8),
        phase_age_s=np.ones(len(rank), np.float32),
        heard_at=np.array(heard_at),
    )


class TestBeats:
    def test_the_newest_beat_of_a_rank_wins_whatever_the_order(self) -> None:
        assert beats([0, 0, 0], [5, 7, 6], [10.0, 30.0, 20.0]).step.tolist() == [7, -1, -1]

    def test_of_beats_received_together_the_furthest_step_wins(self) -> None:
        assert beats([1, 1], [9, 8], [10.0, 10.0]).step[1] == 9

    def test_ranks_outside_the_world_are_dropped(self) -> None:
        assert beats([-1, 3, 2], [1, 1, 4], [1.0, 1.0, 1.0]).step.tolist() == [-1, -1, 4]

    def test_a_rank_never_heard_is_unknown(self) -> None:
        silent = beats([], [], [])

        assert silent.phase.tolist() == [Phase.UNKNOWN] * 3
        assert np.isnan(silent.heard_at).all()


class TestShapes:
    def test_columns_of_different_lengths_are_refused(self) -> None:
        with pytest.raises(WindowMalformed):
            Columns(np.arange(3), {"loss": np.zeros((2, 4), np.float32)}, np.zeros(3, np.bool_), np.zeros(3))

    def test_columns_out_of_order_are_refused(self) -> None:
        with pytest.raises(WindowMalformed):
            Columns(np.array([3, 2]), {}, np.zeros(2, np.bool_), np.zeros(2))

    def test_a_rank_on_an_unnamed_node_is_refused(self) -> None:
        with pytest.raises(WindowMalformed):
            Placement(np.array([0, 2], np.int32), ("a",), np.zeros(2, np.int32), np.zeros(2, np.int32))

    def test_a_window_of_another_world_size_is_refused(self) -> None:
        window = clock_window(tell(WORLDS["steady_run"]), 1_800_000_100.0)

        with pytest.raises(WindowMalformed):
            replace(window, attempt=replace(window.attempt, world_size=8))

    def test_a_part_of_the_columns_holds_the_same_steps_in_every_part(self) -> None:
        columns = columns_window(tell(WORLDS["steady_run"]), 90, 110).columns

        part = columns.part(5, 12)

        assert part.steps.tolist() == list(range(95, 102))
        assert (part.values["compute_s"] == columns.values["compute_s"][:, 5:12]).all()
        assert part.skip.tolist() == columns.skip[5:12].tolist()
