"""The events of an attempt's reports as facts."""

from collections.abc import Sequence
from datetime import datetime

from apps.journal.services import Log
from apps.runs.choices import AttemptState
from apps.runs.selectors import AttemptRow
from apps.telemetry.choices import FactKind, Reason
from apps.telemetry.services.facts import Told, facts_keep, is_current
from apps.telemetry.services.fold.entries import Entry, Refusals
from apps.telemetry.services.fold.parts import moment_of
from apps.telemetry.services.parse import Event, Refused
from apps.telemetry.services.parse.parts import STACK_LENGTH, TEXT_LENGTH, int4, text_clean


def events_keep(log: Log, entries: Sequence[Entry], refusals: Refusals, *, attempt: AttemptRow, now: datetime) -> None:
    """Keep what reports tell besides numbers; words that are none, and more texts than are kept apart, are refused."""
    told: list[Told] = []
    for entry in entries:
        for event in entry.parsed.events:
            fact = _told(entry, event, attempt)
            if fact is None:
                refusals.add(entry.row, Refused(Reason.WORD, f"event kind “{event.kind[:40]}”"))
            else:
                told.append(fact)
    if told:
        many = facts_keep(log, told, run_id=attempt.run_id, now=now)
        if many:
            refusals.add(entries[0].row, Refused(Reason.EVENTS_MANY, f"{len(told):,} events at once", many))


def _told(entry: Entry, event: Event, attempt: AttemptRow) -> Told | None:
    kind = event.kind.upper()
    if kind not in FactKind.values:
        return None
    row = entry.row
    happened = event.happened_at if event.happened_at is not None and event.happened_at.tzinfo else row.received_at
    return Told(
        kind=kind,
        happened_at=happened,
        ours_at=moment_of(entry, event.happened_at),
        received_at=row.received_at,
        sender=row.sender,
        current=attempt.state == AttemptState.OPEN
        and is_current(
            happened_at=happened, sent_at=row.sent_at, received_at=row.received_at, offset_s=entry.process.offset
        ),
        attempt_id=attempt.id,
        node_id=entry.process.node_id,
        node=text_clean(event.node, length=255) or row.sender,
        rank=event.rank,
        text=text_clean(event.text, length=STACK_LENGTH if kind == FactKind.STACK else TEXT_LENGTH),
        code=int4(event.code),
        signal=int4(event.signal),
    )
