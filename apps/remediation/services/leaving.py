"""Attempts whose ranks have all left though none said that the whole is over: a script without `finish()`, a crash."""

from collections.abc import Collection
from datetime import datetime, timedelta

from apps.common.sweeps import sweeping
from apps.journal.choices import Source
from apps.remediation.selectors.actions import attempts_on_their_own
from apps.runs.choices import Authority, EndReason
from apps.runs.selectors import AttemptRow, runs_by_id
from apps.runs.services import attempt_end
from apps.telemetry.selectors import FactRow, Leaving, ranks_left

BY = "its ranks"

QUIET = timedelta(seconds=5)
"""Reports in which the last ranks say why they leave, and rank 0's own word on the whole, are there by then."""

SIGINT, SIGTERM = 2, 15


def attempts_left_end(*, now: datetime) -> int:
    """End attempts that no rank is left of, with the authority of the client; return how many.

    What Paceline launched and still sees is left alone.
    """
    open_now = attempts_on_their_own()
    runs = runs_by_id({row.run_id for row in open_now})
    # Who still reports has not left: of running attempts nothing is read here.
    quiet = [row for row in open_now if (at := runs[row.run_id].last_report_at) is not None and now - at > QUIET]
    with sweeping("some attempts could not be ended") as each:
        return sum(each(quiet, lambda row: _end(row, now=now)))


def _end(attempt: AttemptRow, *, now: datetime) -> bool:
    left = ranks_left(attempt, now=now)
    if not left.everybody or left.last_at is None or now - left.last_at <= QUIET:
        return False
    return attempt_end(
        attempt_id=attempt.id,
        reason=reason_of(left),
        authority=Authority.CLIENT,
        by=BY,
        source=Source.SYSTEM,
        now=now,
        happened_at=left.last_at,
    )


def reason_of(left: Leaving) -> str:
    """Return why an attempt is over whose ranks have all left, as far as their exits tell.

    SIGTERM says that somebody wanted an end, not who: a person, a time limit, a preemption.
    """
    failures = [signal for fact in left.exits.values() if (signal := _failure(fact)) is not None]
    if failures:
        return _reason_of_failures(failures)
    told = all(fact.code == 0 for fact in left.exits.values())
    return EndReason.FINISHED if told else EndReason.UNKNOWN


def _reason_of_failures(signals: Collection[int]) -> str:
    if any(signal not in (SIGINT, SIGTERM) for signal in signals):
        return EndReason.CRASHED
    return EndReason.CANCELLED if SIGINT in signals else EndReason.UNKNOWN


def _failure(fact: FactRow) -> int | None:
    """Return the signal that ended a rank, 0 if it failed by itself, None if it did not fail."""
    if fact.signal:
        return fact.signal
    code = fact.code or 0
    if code < 0:
        return -code
    if 128 < code <= 128 + 64:
        return code - 128
    return 0 if code else None
