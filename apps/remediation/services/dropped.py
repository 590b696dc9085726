"""Nodes that others left out between two attempts: in the ledger as observed, over as they begin."""

from datetime import datetime

from apps.fleet.services import exclusions_noted
from apps.journal.choices import Source
from apps.journal.services import recording
from apps.remediation.selectors.dropped import Dropped, nodes_dropped
from apps.runs.selectors import AttemptRow
from apps.runs.services import placement_compare_claim


def nodes_dropped_note(*, attempt_id: int, now: datetime) -> int:
    """Enter in the ledger which nodes of the attempt before are missing, once per attempt; return how many."""
    with recording(now=now):
        # Compare-and-set: of two who look at once, one enters it.
        if not placement_compare_claim(attempt_id=attempt_id) or (found := nodes_dropped(attempt_id)) is None:
            return 0
        entered = exclusions_noted(
            node_ids=found.node_ids,
            reason=f"{_had(found)} had it, attempt {found.attempt.number} is whole without it",
            by_name=_who(found.attempt),
            scope=f"attempt {found.attempt.number} of {found.attempt.run}",
            source=Source.SYSTEM,
            now=now,
            since=found.attempt.started_at,
        )
        return len(entered)


def _had(found: Dropped) -> str:
    first, last = found.before.number, found.attempt.number - 1
    return f"attempt {last}" if first == last else f"one of the attempts {first} to {last}"


def _who(attempt: AttemptRow) -> str:
    """Return who chose an attempt's nodes, as far as that is known."""
    return (attempt.opened_by if attempt.order_id is None else "its launcher or its program") or "whoever started it"
