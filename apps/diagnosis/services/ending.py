"""What the exits of its ranks say of how an attempt ended."""

from datetime import datetime, timedelta

from apps.runs.choices import AttemptState, Authority, EndReason
from apps.runs.selectors import attempt_by_id
from apps.runs.services import attempt_failure_note
from apps.telemetry.selectors import FactRow, facts_of

AT_THE_END = timedelta(seconds=60)
"""A rank that failed longer before the end was outlived by the others, so they may well have finished without it; one
that fails longer after it, by its own word, hung in leaving, or was put an end to, when all was done."""

SIGTERM = frozenset({15, -15, 128 + 15})
"""A rank that is told to stop when the others are done has not failed."""


def attempt_end_check(*, attempt_id: int, now: datetime) -> bool:
    """Call an attempt crashed that was called finished by one rank while another failed; return whether it was.

    The ranks of one program do not know of each other: the last word of one is no evidence against the exit of another.
    """
    attempt = attempt_by_id(attempt_id)
    is_said = (attempt.reason, attempt.authority) == (EndReason.FINISHED, Authority.CLIENT)
    if attempt.state != AttemptState.ENDED or attempt.ended_at is None or not is_said:
        return False
    since, until = attempt.ended_at - AT_THE_END, attempt.ended_at + AT_THE_END
    failed = [
        fact
        for fact in facts_of(attempt_id, kinds=("exit",))
        # What is told late happened before it was received; how long before, only its sender's word says.
        if _failed(fact) and fact.received_at >= since and min(fact.ours_at, fact.received_at) <= until
    ]
    if not failed:
        return False
    first = min(failed, key=lambda fact: (fact.received_at, fact.rank))
    how = f"ended by signal {first.signal}" if first.signal else f"exited with code {first.code}"
    return attempt_failure_note(attempt_id=attempt_id, how=f"rank {first.rank} {how}", now=now)


def _failed(fact: FactRow) -> bool:
    return fact.rank is not None and bool(fact.code or fact.signal) and not {fact.code, fact.signal} & SIGTERM
