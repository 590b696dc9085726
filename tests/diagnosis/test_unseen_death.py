"""A rank that was alone on its node dies and takes its sender with it: the attempt is over before its silence means
anything, and it is named all the same."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.diagnosis.selectors import FindingRow, findings_of
from apps.diagnosis.services import clocks_evaluate
from apps.runs.services import attempt_end
from apps.telemetry.models import DoorBeat
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db

RANKS = range(4)


@pytest.fixture
def fail(run: Any, make_attempt: Callable[..., Any], now: datetime) -> Callable[..., Any]:
    """Let an attempt of four ranks on four nodes begin at `at`, lose rank `dead` after 60 s (None: all vanish alike), and
    be over 4 s later; the clock looks each two seconds for a while."""
    DoorBeat.objects.create(instance="test", accepting_since=now - timedelta(hours=1), last_beat_at=now)

    def make(number: int, *, at: float, dead: int | None) -> Any:
        began = now + timedelta(seconds=at)
        row = make_attempt(run, key=f"slurm:{number}.0.0", world_size=4, per_node=1, now=began)
        site = Site(row.id, began)
        for rank in RANKS:
            for seq, (second, step, phase) in enumerate([(55.0, 4, "compute"), (59.5, 5, "compute")], 1):
                said = [{"rank": rank, "step": step, "phase": phase, "phase_age_s": 0.1}]
                site.put(sender=f"trn00{rank + 1}", seq=seq, at=second, beats=said)
            if dead not in (rank, None):
                bye = [{"rank": rank, "step": 5, "phase": "shutdown", "phase_age_s": 0.0}]
                site.put(sender=f"trn00{rank + 1}", seq=3, at=63.4, beats=bye)
        ended = began + timedelta(seconds=64)
        attempt_end(attempt_id=row.id, reason="CRASHED", authority="WRAPPER", by="t", source="LAUNCHER", now=ended)
        for second in range(0, 16, 2):
            moment = ended + timedelta(seconds=second)
            DoorBeat.objects.update(last_beat_at=moment)
            clocks_evaluate(attempt_id=row.id, now=moment)
        return row

    return make


def found(attempt: Any, cause: str) -> list[FindingRow]:
    return [row for row in findings_of(attempt_id=attempt.id) if row.cause == cause]


def test_the_rank_that_took_no_leave_is_named_with_its_node(fail: Callable[..., Any]) -> None:
    (row,) = found(fail(1, at=0, dead=1), "rank_lost")

    assert (row.subject["rank"], row.subject["node"], row.certainty, row.state) == (1, "trn002", "SUSPECTED", "OPEN")
    assert row.found_at - row.began_at < timedelta(seconds=15)


def test_nobody_is_named_when_all_vanish_alike(fail: Callable[..., Any]) -> None:
    assert found(fail(1, at=0, dead=None), "rank_lost") == []


def test_a_loop_is_about_the_node_that_stopped_each_attempt(fail: Callable[..., Any]) -> None:
    attempts = [fail(number, at=100.0 * number, dead=1) for number in (1, 2, 3)]

    assert [row.subject.get("node") for one in attempts for row in found(one, "restart_loop")] == ["trn002", "trn002"]
