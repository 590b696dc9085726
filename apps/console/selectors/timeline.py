"""The log as a timeline: which row is a person's, a finding, a node's, an action, a checkpoint or the system's."""

import re
from dataclasses import dataclass, replace
from datetime import timedelta

from apps.console import words
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
    text: str = ""
    more: tuple[EventRow, ...] = ()


TOGETHER = timedelta(seconds=60)
"""What ranks say of the same thing within so long is one row that opens."""
_RANK = re.compile(r"\b([Rr]ank) (\d+)\b( on [\w.-]+)?")


def said_of_all(texts: list[str]) -> str | None:
    """Return one sentence for what each of some ranks says alike, None where they do not say the same.

    >>> said_of_all(["Rank 1 sent its Python stack", "Rank 0 sent its Python stack"])
    'Ranks 0–1: sent its Python stack'
    >>> said_of_all(["Rank 3: rank 3: rank 3 waited", "Rank 4: rank 4: rank 4 waited"])
    'Ranks 3–4: waited'
    """
    ranks, rests = [], set()
    for text in texts:
        found = _RANK.match(text)
        if found is None:
            return None
        ranks.append(int(found.group(2)))
        own = re.compile(rf"\b[Rr]ank {found.group(2)}\b:? ?")  # many a message says its own rank once more
        rests.add(own.sub("", text[found.end() :]).strip(" :,"))
    if len(set(ranks)) < 2 or len(rests) > 1:
        return None
    return f"Ranks {words.ranks(sorted(set(ranks)))}: {rests.pop()}"


def is_of_ranks(kind: str) -> bool:
    """Return whether a row of this kind is what one of many ranks says of itself."""
    return kind.startswith("rank.")


def group_of(kind: str) -> str:
    """Return which chip a kind of event belongs to."""
    return _BY_NOUN.get(kind.partition(".")[0], "system")


SHOWN = 20
"""Rows of a run's timeline before somebody asks for older ones."""


def run_timeline(run_id: int, *, limit: int = SHOWN) -> tuple[list[TimelineRow], int]:
    """Return a run's newest events as rows, the latest to happen first, and how many rows to ask for next, 0 for no more."""
    read = MOST_READ * (1 + limit // (3 * SHOWN))
    events = events_latest(StreamKey.run(run_id), limit=read)
    rows = latest_first(events)
    more = len(rows) > limit or len(events) == read
    return rows[:limit], (2 * limit if more else 0)


def latest_first(events: list[EventRow]) -> list[TimelineRow]:
    """Return events as rows by when they happened, the latest first; what only says a note again is left out,
    and an end that was told better later is told once, as it was.
    """
    known_better = {event.payload.get("attempt") for event in events if event.kind == "attempt.reason"}
    told = [
        event
        for event in events
        if event.kind not in REPEATED
        and not (event.kind == "attempt.ended" and event.payload.get("attempt") in known_better)
    ]
    rows: list[TimelineRow] = []
    for event in sorted(told, key=lambda event: (event.happened_at, event.seq), reverse=True):
        if rows and event.kind == rows[-1].event.kind == "checkpoint.saved":
            rows[-1] = replace(rows[-1], folded=rows[-1].folded + 1)  # the newest of them says all
        elif rows and (joined := _joined(rows[-1], event)) is not None:
            rows[-1] = joined
        else:
            rows.append(timeline_row(event))
    return rows


def _joined(row: TimelineRow, event: EventRow) -> TimelineRow | None:
    """Return a row that also says what another rank says at the same time, None where it is something else."""
    if (
        not is_of_ranks(event.kind)
        or event.kind != row.event.kind
        or row.event.happened_at - event.happened_at > TOGETHER
    ):
        return None
    more = (*(row.more or (row.event,)), event)
    text = said_of_all([one.text for one in more])
    return None if text is None else replace(row, more=more, text=text)


def timeline_row(event: EventRow) -> TimelineRow:
    """Return one event as a row."""
    group = group_of(event.kind)
    dot = _DOTS[group] + (" full" if group == "actions" and not event.kind.endswith(".proposed") else "")
    return TimelineRow(event=event, group=group, dot=dot, source=event.actor_name or Source(event.source).label)
