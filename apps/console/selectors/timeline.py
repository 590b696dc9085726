"""The log as a timeline: which row is a person's, a finding, a node's, an action, a checkpoint or the system's."""

from dataclasses import dataclass, replace

from apps.incidents.selectors import ROUTINE
from apps.journal.choices import Source, StreamKey
from apps.journal.selectors import EventRow, events_latest

GROUPS = ("people", "findings", "nodes", "actions", "checkpoints", "system")
_BY_NOUN = {
    "note": "people",
    "finding": "findings",
    "incident": "actions",
    "node": "nodes",
    "rank": "nodes",
    "gpu": "nodes",
    "action": "actions",
    "order": "actions",
    "command": "actions",
    "attempt": "actions",
    "checkpoint": "checkpoints",
}
_DOTS = {"people": "person", "findings": "warn", "nodes": "", "actions": "do", "checkpoints": "ckpt", "system": ""}
REPEATED = frozenset({"note.pinned", "note.unpinned"}) | ROUTINE
"""They say a note's words again, or that the machinery works; the incident's page has them under a chip of their own."""


MOST_READ = 300
"""Events that are read for the rows of a page: saves fold, so that sixty rows may be many more events."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row as pages draw it."""

    event: EventRow
    group: str
    dot: str
    source: str
    folded: int = 1


def group_of(kind: str) -> str:
    """Return which chip a kind of event belongs to."""
    return _BY_NOUN.get(kind.partition(".")[0], "system")


def run_timeline(run_id: int, *, limit: int = 60) -> list[TimelineRow]:
    """Return a run's newest events as rows, the latest to happen first."""
    return latest_first(events_latest(StreamKey.run(run_id), limit=MOST_READ))[:limit]


def latest_first(events: list[EventRow]) -> list[TimelineRow]:
    """Return events as rows by when they happened, the latest first; what only says a note again is left out."""
    told = [event for event in events if event.kind not in REPEATED]
    rows: list[TimelineRow] = []
    for event in sorted(told, key=lambda event: (event.happened_at, event.seq), reverse=True):
        if rows and event.kind == rows[-1].event.kind == "checkpoint.saved":
            rows[-1] = replace(rows[-1], folded=rows[-1].folded + 1)  # the newest of them says all
        else:
            rows.append(timeline_row(event))
    return rows


def timeline_row(event: EventRow) -> TimelineRow:
    """Return one event as a row."""
    group = group_of(event.kind)
    dot = _DOTS[group] + (" full" if group == "actions" and not event.kind.endswith(".proposed") else "")
    return TimelineRow(event=event, group=group, dot=dot, source=event.actor_name or Source(event.source).label)
