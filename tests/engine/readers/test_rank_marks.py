"""Lines of many processes: which are one rank's, by the marks before them."""

import pytest

from apps.engine.readers.rank_marks import lines_marked


class TestLinesMarked:
    @pytest.mark.parametrize(
        ("line", "rank", "local_rank", "is_its_own"),
        [
            ("[rank3]: Traceback (most recent call last):", 3, None, True),
            ("[rank3]:[E1130 12:50:48.005 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught", 3, None, True),
            ("[rank31]: ValueError", 3, 3, False),
            ("[default3]:  what():  CUDA error: unknown error", 11, 3, True),
            ("[default3]:  what():  CUDA error: unknown error", 3, None, False),
            ("[default3]:[rank11]: KeyError", 11, 0, True),
            ("[default3]:[rank11]: KeyError", 3, 3, False),
            ("115: [rank115]:[E1130] [Rank 14] Watchdog caught", 115, None, True),
            ("(RayWorkerWrapper pid=4009) [rank1]:[E] Watchdog caught", 1, None, True),
            ("ValueError of [rank3]: in the middle", 3, 3, False),
            ("[Rank 3] no mark at its beginning", 3, 3, False),
            ("", 0, 0, False),
        ],
    )
    def test_a_mark_at_its_beginning_says_whose_a_line_is(
        self, line: str, rank: int, local_rank: int | None, is_its_own: bool
    ) -> None:
        assert lines_marked([line], rank=rank, local_rank=local_rank) == [line] * is_its_own
