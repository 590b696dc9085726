"""Attempts of which nobody hears any more and whose end nobody saw (CONTRACT, End reasons: silence is the last authority)."""

from datetime import datetime

from apps.common.sweeps import sweeping
from apps.journal.choices import Source
from apps.remediation.selectors.actions import attempts_on_their_own
from apps.runs.choices import Authority, EndReason
from apps.runs.limits import limit_value
from apps.runs.selectors import AttemptRow, RunRow, runs_by_id
from apps.runs.services import attempt_end
from apps.telemetry.selectors import door_state

BY = "Paceline"


def attempts_silent_end(*, now: datetime) -> int:
    """End attempts that have been silent for `silence_ends_s` of their run; return how many.

    Only time in which the door could accept counts. What Paceline launched and still sees is left alone.
    """
    since = door_state(now).accepting_since
    attempts = attempts_on_their_own()
    runs = runs_by_id({row.run_id for row in attempts})
    with sweeping("some silent attempts could not be ended") as each:
        return sum(each(attempts, lambda row: _end(row, runs[row.run_id], since=since, now=now)))


def _end(attempt: AttemptRow, run: RunRow, *, since: datetime, now: datetime) -> bool:
    heard_at = run.last_report_at or attempt.started_at
    if (now - max(heard_at, since)).total_seconds() < limit_value(run.limits, "silence_ends_s"):
        return False
    return attempt_end(
        attempt_id=attempt.id,
        reason=EndReason.UNKNOWN,
        authority=Authority.SILENCE,
        by=BY,
        source=Source.SYSTEM,
        now=now,
        happened_at=heard_at,
    )
