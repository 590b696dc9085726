"""Reading incidents, their timeline and notices."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from apps.common.errors import NotFound
from apps.common.ids import id_read
from apps.diagnosis.selectors import FindingRow, finding_ids_of_incidents, findings_by_id, findings_of
from apps.fleet.selectors import nodes_by_id
from apps.incidents.choices import UNRESOLVED
from apps.incidents.losses import lost_gpu_hours
from apps.incidents.models import Incident, Note, NoteVersion, Notice, NoticeTarget, Watch
from apps.journal.choices import StreamKey
from apps.journal.selectors import EventRow, events_between
from apps.runs.selectors import runs_by_id

BEFORE = timedelta(minutes=15)
"""How much of the run's log before the beginning stands in a timeline."""

AFTER = timedelta(seconds=10)
"""And how much after the end: what came of it at once."""

LATER = timedelta(days=7)
"""And for how long after that the incident's own rows stand in it: a run's log has no end, and is read row by row for them."""

MOST_OWN = 100
"""Findings of an incident, the newest, whose later rows are looked for."""

MOST_ROWS = 2000

GROUPS: dict[str, str] = {
    "note": "people",
    "incident": "people",
    "finding": "findings",
    "node": "nodes",
    "rank": "nodes",
    "action": "actions",
    "order": "actions",
    "command": "actions",
    "practice": "actions",
    "checkpoint": "checkpoints",
    "attempt": "actions",
}
"""The chip of the timeline that an event belongs to, by the first word of its kind; all others are `system`."""


ROUTINE = frozenset({"checkpoint.deleted", "order.claimed", "incident.joined"})
"""Kinds that are nothing but machinery at work, whatever their first word."""


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident as other rooms see it (CONTRACT, Findings and incidents)."""

    id: int
    number: int
    state: str
    class_name: str
    cause: str
    level: str
    certainty: str
    subject: dict[str, Any]
    place_key: str
    title: str
    run_id: int | None
    run: str | None
    attempt_id: int | None
    cluster_id: int
    cluster: str
    node_id: int | None
    node: str | None
    owner_name: str
    began_at: datetime
    found_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by_name: str
    mitigated_at: datetime | None
    calm_since_at: datetime | None
    resolved_at: datetime | None
    resolved_by_name: str
    resolution: str
    answer: str
    count: int
    first_seen_at: datetime
    last_seen_at: datetime
    lead_finding_id: int | None
    previous_number: int | None
    gpu_hours_lost: float | None
    version: int

    @property
    def stream(self) -> StreamKey:
        """Return the log stream it is told in."""
        return StreamKey.run(self.run_id) if self.run_id is not None else StreamKey.cluster(self.cluster_id)

    @property
    def unresolved(self) -> bool:
        """Return whether it still needs somebody."""
        return self.state in UNRESOLVED


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of an incident's timeline; `group` is its chip, `note_id` is set for notes."""

    id: str
    seq: int
    happened_at: datetime
    recorded_at: datetime
    uncertainty_s: float | None
    kind: str
    group: str
    source: str
    actor_name: str
    text: str
    subject: dict[str, Any]
    payload: dict[str, Any]
    pinned: bool = False
    edited_at: datetime | None = None
    note_id: int | None = None
    note_version: int | None = None
    author_key: str = ""


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A notice and how it fared."""

    id: int
    incident_number: int | None
    kind: str
    channel: str
    target: str
    title: str
    state: str
    tries: int
    created_at: datetime
    sent_at: datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A webhook that is told; its secret is not shown."""

    id: int
    name: str
    url: str
    enabled: bool


def incidents_of(
    *,
    now: datetime,
    run_id: int | None = None,
    node_id: int | None = None,
    cluster_id: int | None = None,
    states: Iterable[str] = (),
    class_name: str | None = None,
    before: int | None = None,
    limit: int = 200,
) -> list[IncidentRow]:
    """Return incidents, newest number first, below number `before`."""
    wanted = {
        "run_id": run_id,
        "node_id": node_id,
        "cluster_id": cluster_id,
        "class_name": class_name,
        "number__lt": before,
    }
    found = Incident.objects.filter(**{name: value for name, value in wanted.items() if value is not None})
    if states := list(states):
        found = found.filter(state__in=states)
    return _rows(found.order_by("-number")[:limit], now=now)


def incidents_open_count(*, cluster_id: int | None = None) -> int:
    """Return how many incidents are not resolved."""
    found = Incident.objects.filter(state__in=UNRESOLVED)
    return found.count() if cluster_id is None else found.filter(cluster_id=cluster_id).count()


def incident_numbers(incident_ids: Iterable[int]) -> dict[int, int]:
    """Return the numbers by which people call incidents, by row; unknown rows are left out."""
    return dict(Incident.objects.filter(pk__in=list(incident_ids)).values_list("pk", "number"))


def incident_by_code(code: str, *, now: datetime) -> IncidentRow:
    """Return the incident that an id, `INC-12` or `12` names.

    Raises:
        NotFound: there is none.
    """
    text = code.removeprefix("INC-")
    if text.isascii() and text.isdigit() and len(text) < 19:
        found = Incident.objects.filter(number=int(text))
    else:
        found = Incident.objects.filter(pk=id_read("inc", code))
    rows = _rows(found, now=now)
    if not rows:
        raise NotFound(f"There is no incident “{code[:40]}”.")
    return rows[0]


def incidents_finding_ids(incident_ids: Collection[int]) -> dict[int, list[int]]:
    """Return the findings of each of some incidents, newest first; of none for one that has none."""
    found: dict[int, list[int]] = {incident_id: [] for incident_id in incident_ids}
    for finding_id, incident_id in finding_ids_of_incidents(incident_ids):
        found[incident_id].append(finding_id)
    return found


def incident_findings(incident_id: int) -> list[FindingRow]:
    """Return an incident's findings, newest first."""
    return findings_of(incident_id=incident_id, limit=500)


def timeline_of(incident: IncidentRow, *, now: datetime) -> list[TimelineRow]:
    """Return the timeline that page, REST and export show: the log around the incident and its notes, by time of happening.

    After the end it goes on, for a week, with the incident's own rows alone: its findings, its actions with what came of them and the
    attempts that they ended and started. Of a log that is too long for it the incident's own rows and the newest others,
    and a row that says so.
    """
    last = max(incident.resolved_at or now, incident.last_seen_at) + AFTER
    first = min(incident.began_at, incident.first_seen_at) - BEFORE
    around = events_between(incident.stream, first=first, last=last, limit=MOST_ROWS)
    rows = [_event_row(event) for event in around if _belongs(event, incident)]
    if len(around) == MOST_ROWS:
        own = events_between(
            incident.stream, first=first, last=last, limit=MOST_ROWS, about={"incident": [incident.id]}
        )
        shown = {event.seq for event in around}
        rows += [_event_row(event) for event in own if event.seq not in shown and _belongs(event, incident)]
        rows.append(_cut_row(around[0]))
    if last < now:
        told = {row.id for row in rows}
        rows += [row for row in map(_event_row, _own_later(incident, last=last, now=now)) if row.id not in told]
    notes = Note.objects.filter(incident_id=incident.id).order_by("happened_at", "pk")[:MOST_ROWS]
    return sorted([*rows, *map(_note_row, notes)], key=lambda row: (row.happened_at, row.recorded_at, row.seq))


def _own_later(incident: IncidentRow, *, last: datetime, now: datetime) -> list[EventRow]:
    """Return the incident's own rows from `last`, where its timeline leaves the run, until now or for a week."""
    findings = [finding for finding, _ in finding_ids_of_incidents([incident.id])[:MOST_OWN]]
    about = {"incident": [incident.id], "about_incident": [incident.id], "finding": findings}
    own = events_between(incident.stream, first=last, last=min(now, last + LATER), limit=MOST_ROWS, about=about)
    own = [event for event in own if _belongs(event, incident)]
    acted = [event.happened_at for event in own if "action" in event.payload]
    if not acted:
        return own
    # One action at a time holds a run: what attempts do until its last word is its doing.
    return own + events_between(incident.stream, first=last, last=acted[-1], limit=MOST_ROWS, noun="attempt")


def note_versions(note_id: int) -> list[tuple[int, str, datetime]]:
    """Return what a note said before its edits, as (version, text, replaced at), oldest first."""
    rows = NoteVersion.objects.filter(note_id=note_id).order_by("version")
    return [(row.version, row.text, row.replaced_at) for row in rows]


def note_incident(note_id: int) -> int:
    """Return the incident a note stands in.

    Raises:
        NotFound: there is no such note.
    """
    found = Note.objects.filter(pk=note_id).values_list("incident_id", flat=True).first()
    if found is None:
        raise NotFound("There is no such note.")
    return found


def notices_latest(*, incident_id: int | None = None, limit: int = 100) -> list[NoticeRow]:
    """Return notices, newest first."""
    found = Notice.objects.all() if incident_id is None else Notice.objects.filter(incident_id=incident_id)
    return [
        NoticeRow(
            id=row.pk,
            incident_number=row.incident.number if row.incident else None,
            kind=row.kind,
            channel=row.channel,
            target=row.target.name if row.target else "operators",
            title=str(row.payload.get("title", "")),
            state=row.state,
            tries=row.tries,
            created_at=row.created_at,
            sent_at=row.sent_at,
            error=row.error,
        )
        for row in found.select_related("incident", "target").order_by("-pk")[:limit]
    ]


def notice_targets() -> list[TargetRow]:
    """Return all webhooks that are told, by name."""
    rows = NoticeTarget.objects.order_by("name", "pk")
    return [TargetRow(id=row.pk, name=row.name, url=row.url, enabled=row.enabled) for row in rows]


def blind_since() -> datetime | None:
    """Return since when Paceline itself has been unable to hear, or None."""
    return Watch.objects.values_list("blind_since_at", flat=True).first()


def _belongs(event: EventRow, incident: IncidentRow) -> bool:
    """Return whether an event of the stream is this incident's: not another incident's own rows, and no note (they follow)."""
    if event.kind.startswith("note."):
        return False
    other = event.payload.get("incident")
    return other in (None, incident.id)


def _event_row(event: EventRow) -> TimelineRow:
    return TimelineRow(
        id=f"{event.stream_kind.lower()}-{event.stream_id}-{event.seq}",
        seq=event.seq,
        happened_at=event.happened_at,
        recorded_at=event.recorded_at,
        uncertainty_s=event.uncertainty_s,
        kind=event.kind,
        group="system" if event.kind in ROUTINE else GROUPS.get(event.kind.partition(".")[0], "system"),
        source=event.source,
        actor_name=event.actor_name,
        text=event.text,
        subject=event.subject,
        payload=event.payload,
    )


def _cut_row(oldest: EventRow) -> TimelineRow:
    """Return the row that stands where the log was cut."""
    text = f"Here rows of the log are left out: only its newest {MOST_ROWS:,} and the incident's own are shown"
    return replace(
        _event_row(oldest),
        id="cut",
        seq=-1,
        kind="timeline.cut",
        group="system",
        source="SYSTEM",
        actor_name="",
        text=text,
        subject={},
        payload={},
    )


def _note_row(note: Note) -> TimelineRow:
    return TimelineRow(
        id=f"note-{note.pk}",
        seq=note.pk,
        happened_at=note.happened_at,
        recorded_at=note.written_at,
        uncertainty_s=None,
        kind="note",
        group="people",
        source=note.source,
        actor_name=note.author_name,
        text=note.text,
        subject={},
        payload={},
        pinned=note.pinned,
        edited_at=note.edited_at,
        note_id=note.pk,
        note_version=note.version,
        author_key=note.author_key,
    )


def _rows(found: QuerySet[Incident], *, now: datetime) -> list[IncidentRow]:
    rows = list(found.select_related("run", "cluster", "previous"))
    runs = runs_by_id({row.run_id for row in rows if row.run_id})
    nodes = nodes_by_id({row.node_id for row in rows if row.node_id})
    leads = _leads(rows)
    return [
        IncidentRow(
            id=row.pk,
            number=row.number,
            state=row.state,
            class_name=row.class_name,
            cause=row.cause,
            level=row.level,
            certainty=row.certainty,
            subject=row.subject,
            place_key=row.place_key,
            title=row.title,
            run_id=row.run_id,
            run=row.run.slug if row.run else None,
            attempt_id=row.attempt_id,
            cluster_id=row.cluster_id,
            cluster=row.cluster.name,
            node_id=row.node_id,
            node=nodes[row.node_id].name if row.node_id in nodes else None,
            owner_name=row.owner_name,
            began_at=row.began_at,
            found_at=row.found_at,
            acknowledged_at=row.acknowledged_at,
            acknowledged_by_name=row.acknowledged_by_name,
            mitigated_at=row.mitigated_at,
            calm_since_at=row.calm_since_at,
            resolved_at=row.resolved_at,
            resolved_by_name=row.resolved_by_name,
            resolution=row.resolution,
            answer=row.answer,
            count=row.count,
            first_seen_at=row.first_seen_at,
            last_seen_at=row.last_seen_at,
            lead_finding_id=row.lead_finding_id,
            previous_number=row.previous.number if row.previous else None,
            gpu_hours_lost=lost_gpu_hours(row, runs.get(row.run_id or 0), leads.get(row.lead_finding_id or 0), now=now),
            version=row.version,
        )
        for row in rows
    ]


def _leads(rows: list[Incident]) -> dict[int, FindingRow]:
    return {row.id: row for row in findings_by_id([row.lead_finding_id for row in rows if row.lead_finding_id])}
