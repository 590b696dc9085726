"""The events of an attempt's reports as facts."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from apps.fleet.selectors import nodes_by_id
from apps.journal.services import Log
from apps.runs.selectors import AttemptRow
from apps.telemetry.choices import FactKind, Reason
from apps.telemetry.selectors.facts import is_current, lag_of
from apps.telemetry.services.facts import Told, facts_keep
from apps.telemetry.services.fold.entries import Entry, Refusals
from apps.telemetry.services.parse import Event, Refused
from apps.telemetry.services.parse.parts import STACK_LENGTH, TEXT_LENGTH, text_clean
from apps.telemetry.stores.folded import Process


def events_keep(
    log: Log,
    entries: Sequence[Entry],
    refusals: Refusals,
    *,
    attempt: AttemptRow,
    processes: Iterable[Process],
    now: datetime,
) -> None:
    """Keep what reports tell besides numbers; words that are none, and more texts than are kept apart, are refused."""
    told: list[Told] = []
    skews = _skews([entry for entry in entries if entry.parsed.events], processes)
    for entry in entries:
        for event in entry.parsed.events:
            fact = _told(entry, event, attempt, skews[entry.process.key[:3]])
            if fact is None:
                refusals.add(entry.row, Refused(Reason.WORD, f"event kind “{event.kind[:40]}”"))
            else:
                told.append(fact)
    if told:
        many = facts_keep(log, told, run_id=attempt.run_id, now=now)
        if many:
            refusals.add(entries[0].row, Refused(Reason.EVENTS_MANY, f"{len(told):,} events at once", many))


def _skews(entries: Sequence[Entry], processes: Iterable[Process]) -> dict[tuple[str, int, str], float]:
    """Return how far each sender's clock is behind ours, by what all of its processes and its node's own sender say."""
    if not entries:
        return {}
    node_ids = {entry.process.key[:3]: entry.process.node_id or 0 for entry in entries}
    nodes = nodes_by_id({node_id for node_id in node_ids.values() if node_id})
    least: dict[tuple[str, int, str], list[float]] = {sender: [] for sender in node_ids}
    for process in processes:
        if process.key[:3] in least and process.least is not None:
            least[process.key[:3]].append(process.least)
    return {
        sender: lag_of(
            min(least[sender], default=None),
            nodes[node_id].clock_skew_s if (node_id := node_ids[sender]) in nodes else None,
        )
        for sender in node_ids
    }


def _told(entry: Entry, event: Event, attempt: AttemptRow, skew_s: float) -> Told | None:
    kind = event.kind.upper()
    if kind not in FactKind.values:
        return None
    row = entry.row
    happened = event.happened_at if event.happened_at is not None and event.happened_at.tzinfo else row.received_at
    return Told(
        kind=kind,
        happened_at=happened,
        ours_at=_ours(happened, row.received_at, skew_s),
        received_at=row.received_at,
        sender=row.sender,
        current=is_current(happened_at=happened, sent_at=row.sent_at, received_at=row.received_at, offset_s=skew_s),
        attempt_id=attempt.id,
        node_id=entry.process.node_id,
        node=text_clean(event.node, length=255) or row.sender,
        rank=event.rank,
        text=text_clean(event.text, length=STACK_LENGTH if kind == FactKind.STACK else TEXT_LENGTH),
        code=event.code,
        signal=event.signal,
    )


def _ours(happened_at: datetime, received_at: datetime, skew_s: float) -> datetime:
    try:
        return min(happened_at + timedelta(seconds=skew_s if abs(skew_s) >= 1.0 else 0.0), received_at)
    except OverflowError:
        return received_at
