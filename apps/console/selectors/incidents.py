"""Incidents as pages show them: the list, one incident's figures, its timeline with equal rows folded, its evidence."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from apps.common.ids import id_write
from apps.console.selectors.run import SHORT
from apps.console.selectors.suspects import relative_of
from apps.console.selectors.timeline import TOGETHER, is_of_ranks, said_of_all
from apps.diagnosis.choices import LEVEL_TOKENS
from apps.diagnosis.selectors import FindingRow
from apps.engine.tiles.metrics import metric_of
from apps.incidents.choices import STATE_TOKENS, UNRESOLVED, IncidentState
from apps.incidents.selectors import (
    IncidentRow,
    TimelineRow,
    incident_findings,
    incidents_of,
    note_versions,
    timeline_of,
)
from apps.journal.choices import Source
from apps.runs.selectors import attempt_by_id

CHIPS = ("people", "findings", "nodes", "actions", "checkpoints", "system")
DOTS = {"people": "person", "findings": "warn", "actions": "do", "checkpoints": "ckpt"}
COUNTED = frozenset({"", "steps", "ranks", "nodes", "times"})
"""Units of counts: one against a larger one is so many of them, not a ratio."""
NO_RATIO = frozenset({"×"})
"""Units that are ratios already."""
SHORTLY_BEFORE = timedelta(minutes=2)
"""What happened longer before the beginning stands in one row that opens: it is seldom why. REST and export say it all."""
BAND_RANKS, BESIDE, BAND_ROWS, BAND_COLUMNS = 8, 4, 24, 80
"""Of a picture of evidence: ranks that are blamed, neighbours on each side, rows and steps at most."""
LATE = timedelta(minutes=2)
"""A note whose time differs from its writing by more than this says so for ever."""


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One drawn row: an event, a person's note, or several equal machine rows folded into their newest."""

    row: TimelineRow
    dot: str
    is_note: bool
    late: bool
    own: bool
    source: str
    folded: int
    text: str
    more: tuple[TimelineRow, ...]
    versions: tuple[tuple[int, str, datetime], ...]
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class Earlier:
    """What stands folded at the top of a timeline: how many rows that a reader sees at first, and since when."""

    count: int
    since_at: datetime


@dataclass(frozen=True, slots=True)
class IncidentPage:
    """One incident's page."""

    incident: IncidentRow
    token: str
    lead: FindingRow | None
    findings: tuple[FindingRow, ...]
    found_after_s: float
    earlier: Earlier | None
    lines: tuple[TimelineLine, ...]
    counts: tuple[tuple[str, int], ...]
    open: bool


def incidents_page(
    *, state: str, class_name: str, run_id: int | None, now: datetime, limit: int = 200
) -> list[tuple[IncidentRow, str]]:
    """Return incidents with their state's token: unresolved ones by default, newest first."""
    states = {"": UNRESOLVED, "all": ()}.get(state, (state,) if state in IncidentState.values else UNRESOLVED)
    rows = incidents_of(now=now, run_id=run_id, states=states, class_name=class_name or None, limit=limit)
    return [(row, state_token(row)) for row in rows]


def state_token(row: IncidentRow) -> str:
    """Return the colour token of an incident's state: an open one takes its level's."""
    if row.state == IncidentState.OPEN:
        return LEVEL_TOKENS.get(row.level, "warn")
    return STATE_TOKENS[row.state]


def incident_page(incident: IncidentRow, *, reader_key: str, now: datetime) -> IncidentPage:
    """Return everything on an incident's page."""
    findings = incident_findings(incident.id)
    lead = next((row for row in findings if row.id == incident.lead_finding_id), None)
    rows = timeline_of(incident, now=now)
    earlier, lines = folded_before(
        timeline_lines(rows, reader_key=reader_key), began_at=min(incident.began_at, incident.first_seen_at)
    )
    return IncidentPage(
        incident=incident,
        token=state_token(incident),
        lead=lead,
        findings=tuple(findings),
        found_after_s=max(0.0, (incident.found_at - incident.began_at).total_seconds()),
        earlier=earlier,
        lines=tuple(lines),
        counts=tuple((name, sum(row.group == name for row in rows)) for name in CHIPS),
        open=incident.unresolved,
    )


def timeline_lines(rows: list[TimelineRow], *, reader_key: str) -> list[TimelineLine]:
    """Return rows as drawn, in their order; equal machine rows that follow each other are one line with a count.

    The system's own rows, which are not shown at first, do not part them.
    """
    lines: list[TimelineLine] = []
    for row in rows:
        folded = 1
        last = next((place for place in reversed(range(len(lines))) if lines[place].row.group != "system"), None)
        if last is not None and row.note_id is None and _same(lines[last].row, row):
            folded += lines.pop(last).folded
        elif last is not None and (together := _together(lines[last], row)):
            lines[last] = together
            continue
        lines.append(_line(row, folded=folded, reader_key=reader_key))
    return lines


def folded_before(lines: list[TimelineLine], *, began_at: datetime) -> tuple[Earlier | None, list[TimelineLine]]:
    """Return what is folded of what happened longer before the beginning, and all lines, the folded ones marked and first.

    What people wrote never folds.
    """
    before = [line for line in lines if not line.is_note and line.row.happened_at < began_at - SHORTLY_BEFORE]
    seen = sum(line.row.group != "system" for line in before)
    if not seen:
        return None, lines
    folded = [replace(line, earlier=True) for line in before]
    return Earlier(seen, before[0].row.happened_at), [*folded, *(line for line in lines if line not in before)]


def _together(line: TimelineLine, row: TimelineRow) -> TimelineLine | None:
    """Return a line that also says what another rank says at the same time, None where it is something else."""
    first = line.row
    if row.note_id is not None or not is_of_ranks(row.kind) or row.kind != first.kind:
        return None
    more = (*(line.more or (first,)), row)
    text = said_of_all([one.text for one in more]) if row.happened_at - first.happened_at <= TOGETHER else None
    return None if text is None else replace(line, more=more, text=text)


def _same(one: TimelineRow, other: TimelineRow) -> bool:
    same_kind = one.note_id is None and one.kind == other.kind and one.subject == other.subject
    if one.kind == "checkpoint.saved":
        return same_kind  # the newest of them says all
    return same_kind and one.kind in {"finding.changed", "rank.log", "node.telemetry"} and one.text == other.text


def _line(row: TimelineRow, *, folded: int, reader_key: str) -> TimelineLine:
    is_note = row.note_id is not None
    late = is_note and abs(row.recorded_at - row.happened_at) > LATE
    dot = "person" + (" late" if late else "") if is_note else _dot(row)
    return TimelineLine(
        row=row,
        dot=dot,
        is_note=is_note,
        late=late,
        own=is_note and row.author_key == reader_key,
        source=Source(row.source).label if row.source in Source.values else row.source,
        folded=folded,
        text=row.text,
        more=(),
        versions=tuple(note_versions(row.note_id)) if row.note_id is not None and row.edited_at else (),
    )


def _dot(row: TimelineRow) -> str:
    if row.kind.startswith("incident."):
        return "do full"
    dot = DOTS.get(row.group, "")
    return dot + " full" if dot == "do" and not row.kind.endswith("proposed") else dot


def band_of(lead: FindingRow | None) -> dict[str, Any] | None:
    """Return where the cells of a finding are read from for a small picture: its ranks, their neighbours, its steps."""
    cells = lead.cells[0] if lead is not None and lead.cells else {}
    steps, ranks = [int(step) for step in cells.get("steps") or ()], sorted(cells.get("ranks") or ())[:BAND_RANKS]
    if lead is None or not steps or not ranks:
        return None
    since = min(steps) if lead.since_step is None else lead.since_step
    world = attempt_by_id(lead.attempt_id).world_size or ranks[-1] + 1
    low, high = max(0, ranks[0] - BESIDE), min(world - 1, ranks[-1] + BESIDE)
    near = [[rank, rank] for rank in ranks] if high - low >= BAND_ROWS else [[low, high]]
    relative = relative_of(lead.cause)
    query = {
        "metric": cells.get("metric"),
        "relative": relative,
        "order": "rank",
        "rows": BAND_ROWS,
        "columns": BAND_COLUMNS,
        "from": max(0, since - BAND_COLUMNS // 2),
        "to": since + BAND_COLUMNS,
        "ranks": ",".join(f"{a}-{b}" for a, b in near),
    }
    address = f"/api/v1/attempts/{id_write('att', lead.attempt_id)}/heatmap?{urlencode(query)}"
    return {"url": address, "ranks": ranks, "since": since, "relative": relative, "metric": _metric_words(cells)}


def _metric_words(cells: dict[str, Any]) -> str:
    name = str(cells.get("metric"))
    return SHORT[name][0] if name in SHORT else metric_of(name).label


def evidence_rows(finding: FindingRow | None) -> list[dict[str, Any]]:
    """Return a finding's evidence as table rows: name, value, reference, and their ratio where that says something.

    `part` marks a count out of a larger one: "20 of 20 steps" is no ratio.
    """
    return [{**item, **_compared(item)} for item in (finding.evidence if finding else [])]


def _compared(item: dict[str, Any]) -> dict[str, Any]:
    value, reference, unit = item.get("value"), item.get("reference"), item.get("unit", "")
    if not isinstance(value, int | float) or not isinstance(reference, int | float) or not reference:
        return {"ratio": None, "part": False}
    part = unit in COUNTED and isinstance(value, int) and value <= reference
    return {"ratio": None if part or unit in NO_RATIO else value / reference, "part": part}
