"""An attempt of which nobody hears any more ends as UNKNOWN, and never while somebody could know better."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.remediation.services import attempts_silent_end
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.runs.services import run_put, status_update
from apps.telemetry.models import DoorBeat
from tests.remediation.conftest import is_watched

HOURS = 3600.0
Later = Callable[[float], datetime]


@pytest.fixture
def door(db: None, later: Later) -> Callable[..., None]:
    """Let the door accept since a moment, as of another: `door(since=-60, until=6 * HOURS)`."""

    def beat(*, since: float, until: float) -> None:
        DoorBeat.objects.all().delete()
        DoorBeat.objects.create(instance="d", accepting_since=later(since), last_beat_at=later(until))

    return beat


class TestAttemptsSilentEnd:
    def test_ends_what_was_silent_for_six_hours_at_its_last_word(
        self, run: Any, attempt: Any, door: Callable[..., None], later: Later
    ) -> None:
        status_update(run_id=run.id, last_report_at=later(100))
        door(since=-60, until=7 * HOURS)

        early = attempts_silent_end(now=later(6 * HOURS + 99))
        late = attempts_silent_end(now=later(6 * HOURS + 101))

        row = attempt_by_id(attempt.id)
        assert (early, late) == (0, 1)
        assert (row.reason, row.authority, row.ended_at) == ("UNKNOWN", "SILENCE", later(100))
        assert run_by_id(run.id).state == "STOPPED"

    def test_counts_only_time_in_which_somebody_could_be_heard(
        self, attempt: Any, door: Callable[..., None], later: Later
    ) -> None:
        door(since=5 * HOURS, until=8 * HOURS)

        assert attempts_silent_end(now=later(8 * HOURS)) == 0

    def test_waits_as_long_as_the_run_says(
        self, run: Any, attempt: Any, door: Callable[..., None], now: datetime, later: Later
    ) -> None:
        limits = {"silence_ends_s": 600.0}
        run_put(slug=run.slug, cluster_id=run.cluster_id, fields={"limits": limits}, by="t", source="API", now=now)
        door(since=-60, until=700)

        assert attempts_silent_end(now=later(700)) == 1

    def test_leaves_a_program_alone_that_its_launcher_still_sees(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = work(ask("RESTART_RUN", local_run).id, until=is_watched)
        moment = datetime.now(UTC) + timedelta(hours=9)
        DoorBeat.objects.create(instance="d", accepting_since=moment - timedelta(hours=9), last_beat_at=moment)

        assert attempts_silent_end(now=moment) == 0
        assert attempt_by_id(action.attempt_id).state == "OPEN"
