"""What a run's timeline and lanes say: many ranks in one row, names in words, findings at their step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apps.console.selectors.lanes import lanes_of
from apps.console.selectors.run import heat_config
from apps.console.selectors.timeline import SHOWN, latest_first, run_timeline
from apps.console.templatetags.console import joined, plain
from apps.journal.choices import Source, StreamKey
from apps.journal.selectors import EventRow
from apps.journal.services import recording

pytestmark = pytest.mark.django_db


def event(now: Any, seq: int, text: str, *, kind: str = "rank.stack", after_s: float = 0.0) -> EventRow:
    at = now + timedelta(seconds=after_s)
    return EventRow(seq, "RUN", 1, seq, at, at, None, kind, "SENDER", "", text, {}, {})


class TestRows:
    def test_what_twelve_ranks_say_at_once_is_one_row_that_opens(self, now: Any) -> None:
        told = [event(now, rank + 1, f"Rank {rank} sent its Python stack", after_s=rank / 10) for rank in range(12)]

        rows = latest_first(told)

        assert [row.text for row in rows] == ["Ranks 0–11: sent its Python stack"]
        assert len(rows[0].more) == 12

    def test_what_one_rank_says_twice_or_another_thing_stays_apart(self, now: Any) -> None:
        told = [
            event(now, 1, "Rank 3 sent its Python stack"),
            event(now, 2, "Rank 3 sent its Python stack", after_s=1),
            event(now, 3, "Rank 4 exited with status 1", kind="rank.exit", after_s=2),
            event(now, 4, "Rank 5 exited with status 2", kind="rank.exit", after_s=3),
            event(now, 5, "Rank 6 exited with status 2", kind="rank.exit", after_s=200),
        ]

        assert [row.more for row in latest_first(told)] == [()] * 5

    def test_an_end_that_is_known_better_later_is_told_once(self, now: Any) -> None:
        ended = replace(event(now, 1, "Attempt 1 ended: cancelled", kind="attempt.ended"), payload={"attempt": 7})
        better = replace(
            ended, seq=2, kind="attempt.reason", text="Attempt 1 ended: planned stop (told as cancelled at first)"
        )
        other = replace(ended, seq=3, text="Attempt 2 ended: crashed", payload={"attempt": 8})

        assert [row.event.seq for row in latest_first([ended, better, other])] == [3, 2]

    def test_shows_the_newest_and_says_that_there_are_older_ones(self, attempt: Any, now: Any) -> None:
        with recording(now=now) as log:
            for number in range(SHOWN + 5):
                log.add(StreamKey.run(attempt.run_id), kind="note.added", text=f"note {number}", source=Source.WEB)

        shown, older = run_timeline(attempt.run_id)
        all_of_them, rest = run_timeline(attempt.run_id, limit=older)

        assert (len(shown), older) == (SHOWN, 2 * SHOWN)
        assert len(all_of_them) >= SHOWN + 5
        assert rest == 0

    def test_never_breaks_the_name_of_a_node_and_stays_escaped(self) -> None:
        assert joined("Rank 5 on gpu-a-03 <b>") == 'Rank 5 on <span class="nowrap">gpu-a-03</span> &lt;b&gt;'

    def test_says_causes_and_ends_in_words(self) -> None:
        assert plain("compute_straggler on trn001: attempt_ended") == "slow compute on trn001: the attempt ended"
        assert plain("it recovered after a hang") == "it recovered after a hang"


class TestLanes:
    def test_a_finding_is_one_bar_at_its_step(self, find: Callable[..., Any], attempt: Any, now: Any) -> None:
        from apps.runs.selectors import run_by_id

        find()

        marks = next(
            lane["marks"] for lane in lanes_of(run_by_id(attempt.run_id), now=now) if lane["name"] == "findings"
        )

        assert [mark["shape"] for mark in marks] == ["finding"]
        assert marks[0]["from"]["step"] == 100
        assert marks[0]["confirmed"] is not None
        assert marks[0]["label"] == "throttles on heat · trn001 · confirmed"


class TestHeatConfig:
    def test_the_newest_attempt_is_joined_to_those_before_it_and_an_old_one_is_not(
        self, attempt: Any, now: Any
    ) -> None:
        from apps.runs.selectors import attempt_by_id, run_by_id

        run, shown = run_by_id(attempt.run_id), attempt_by_id(attempt.id)

        newest = heat_config(run, attempt=shown, suspects=[], now=now)
        older = heat_config(replace(run, attempt_id=shown.id + 1), attempt=shown, suspects=[], now=now)

        assert (newest["stitched"], older["stitched"]) == (True, False)
        assert newest["attempts"] == {shown.number: newest["attempt"]["id"]}
