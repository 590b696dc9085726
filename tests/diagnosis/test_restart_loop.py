"""A run that is restarted in vain: what its attempts say together is known as soon as the second one is over."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.diagnosis.selectors import FindingRow, findings_of
from apps.diagnosis.services import attempts_settle, clocks_evaluate
from apps.runs.services import attempt_end, attempt_open, attempt_start_error_note
from apps.telemetry.models import DoorBeat
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def fail(run: Any, make_attempt: Callable[..., Any], now: datetime) -> Callable[..., Any]:
    """Let an attempt begin at `at` and crash 12 s later, with what its ranks say; then the clock looks."""
    DoorBeat.objects.create(instance="test", accepting_since=now - timedelta(hours=1), last_beat_at=now)

    def make(number: int, *, at: float, says: dict[int, str] | None = None) -> Any:
        began = now + timedelta(seconds=at)
        row = make_attempt(run, key=f"slurm:{number}.0.0", now=began)
        site = Site(row.id, began)
        stamp = (began + timedelta(seconds=5)).isoformat()
        events = [
            {"kind": "log", "happened_at": stamp, "rank": rank, "text": text} for rank, text in (says or {}).items()
        ]
        if events:
            site.put(at=5, events=events)
            site.fold(after=6)
        ended = began + timedelta(seconds=12)
        attempt_end(attempt_id=row.id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=ended)
        clocks_evaluate(attempt_id=row.id, now=ended + timedelta(seconds=2))
        return row

    return make


def loops(attempt: Any) -> list[FindingRow]:
    return [row for row in findings_of(attempt_id=attempt.id) if row.cause == "restart_loop"]


class TestRestartLoop:
    def test_is_found_when_the_second_attempt_failed_like_the_first(self, fail: Callable[..., Any]) -> None:
        first, second = fail(1, at=0), fail(2, at=650)

        assert loops(first) == []
        (row,) = loops(second)
        assert (row.state, row.class_name, row.certainty, row.proposal_kind) == (
            "OPEN",
            "RECOVERY",
            "CONFIRMED",
            "NONE",
        )
        assert row.verdict == "2 attempts in a row got nowhere."

    def test_goes_over_to_the_next_attempt_while_that_starts(
        self, run: Any, fail: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        fail(1, at=0)
        second = fail(2, at=650)
        third = make_attempt(run, key="slurm:3.0.0", now=now + timedelta(seconds=1300))

        clocks_evaluate(attempt_id=third.id, now=now + timedelta(seconds=1302))
        attempts_settle(now=now + timedelta(seconds=1303))

        assert [row.state for row in (*loops(second), *loops(third))] == ["CLOSED", "OPEN"]

    def test_tells_what_cannot_start_after_one_attempt(self, fail: Callable[..., Any]) -> None:
        line = "PermissionError: [Errno 13] Permission denied: '/data/cache.lock'"

        (row,) = loops(fail(1, at=0, says={0: line, 5: line}))

        assert row.verdict == f"It cannot start: several ranks said “{line}” before the first step."
        assert row.subject["kind"] == "RUN"

    @pytest.mark.parametrize("told", [False, True])
    def test_believes_the_program_as_a_whole_only_where_no_rank_told_of_its_end(
        self, make_attempt: Callable[..., Any], run: Any, now: datetime, told: bool
    ) -> None:
        row = make_attempt(run, key="slurm:1.0.0", now=now)
        if told:
            site = Site(row.id, now)
            left = {"kind": "exit", "happened_at": (now + timedelta(seconds=5)).isoformat(), "rank": 3, "code": 1}
            site.put(at=5, events=[left])
            site.fold(after=6)
        ended = now + timedelta(seconds=12)
        attempt_start_error_note(attempt_id=row.id, text="ImportError: cannot import name 'x'")
        attempt_end(attempt_id=row.id, reason="CRASHED", authority="WRAPPER", by="t", source="API", now=ended)

        clocks_evaluate(attempt_id=row.id, now=ended + timedelta(seconds=2))

        said = "It cannot start: its program said “ImportError: cannot import name 'x'” before the first step."
        assert [one.verdict for one in loops(row)] == [said] * (not told)

    def test_is_found_although_no_rank_ever_spoke(self, run: Any, fail: Callable[..., Any], now: datetime) -> None:
        fail(1, at=0)
        began = now + timedelta(seconds=650)
        silent, _ = attempt_open(run_id=run.id, key="order:7", world_size=None, by="t", source="LAUNCHER", now=began)
        ended = began + timedelta(seconds=3)
        attempt_end(attempt_id=silent.id, reason="CRASHED", authority="WRAPPER", by="t", source="LAUNCHER", now=ended)

        clocks_evaluate(attempt_id=silent.id, now=ended)

        assert [row.verdict for row in loops(silent)] == ["2 attempts in a row got nowhere."]

    def test_says_nothing_of_one_failure_in_which_one_rank_spoke(self, fail: Callable[..., Any]) -> None:
        assert loops(fail(1, at=0, says={0: "PermissionError: '/data'"})) == []
