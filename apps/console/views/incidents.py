"""The list of incidents, one incident's page, and what people do there."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from apps.common.access import OPERATE, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, NotFound
from apps.console.selectors.deaths import death_of
from apps.console.selectors.incidents import band_of, evidence_rows, incident_page, incidents_page
from apps.console.selectors.suspects import Stood, incident_next
from apps.console.views.kit import back_to, page, render_page, render_part, stood_of
from apps.console.words import whole_of
from apps.diagnosis.choices import CLASS_LABELS
from apps.incidents import services
from apps.incidents.choices import Answer, IncidentState
from apps.incidents.selectors import IncidentRow, incident_by_code, incident_findings, note_incident
from apps.journal.choices import Source, StreamKey
from apps.journal.selectors import stream_seq
from apps.runs.selectors import run_by_code

LINE = re.compile(r"^\s*(\d{1,2}:\d{2}(?::\d{2})?)\s+(.+)$")
CLOCK = re.compile(r"^(?:(\d{4})-(\d{2})-(\d{2})[ T])?(\d{1,2}):(\d{2})(?::(\d{2}))?$")
PARTS = ("head", "timeline", "rail", "death")
MOST_LINES = 200
MOST_OFFSET_MIN = 18 * 60
"""No zone is further from UTC."""
AHEAD = timedelta(minutes=2)
"""A writer's clock may be this far ahead of ours before a time without a day means yesterday."""


@page()
def incidents(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show incidents that are not over, or as the filters say."""
    run = request.GET.get("run", "")
    state, class_name = request.GET.get("state", ""), request.GET.get("class", "")
    context: dict[str, Any] = {
        "rows": incidents_page(
            state=state, class_name=class_name, run_id=run_by_code(run).id if run else None, now=now()
        ),
        "state": state,
        "class_name": class_name,
        "run": run,
        "states": IncidentState.choices,
        "classes": CLASS_LABELS.items(),
    }
    if request.GET.get("part"):
        return render_part(request, "console/incidents/list.html", who=who, **context)
    return render_page(request, "console/incidents/page.html", who=who, active="incidents", **context)


@page()
def incident(request: HttpRequest, number: int, *, who: Principal) -> HttpResponse:
    """Show one incident."""
    row = incident_by_code(str(number), now=now())
    stream = StreamKey.run(row.run_id) if row.run_id else StreamKey.cluster(row.cluster_id)
    name = f"run:{row.run}" if row.run else f"cluster:{row.cluster}"
    return render_page(
        request,
        "console/incidents/incident.html",
        who=who,
        active="incidents",
        feed=f"/ws/feed?stream={name}@{stream_seq(stream)}&page=incident:{row.number}",
        draft=request.GET.get("note", ""),
        death=death_of(row, incident_findings(row.id)),
        **_context(row, who, stood_of(request)),
    )


@page()
def part(request: HttpRequest, number: int, name: str, *, who: Principal) -> HttpResponse:
    """Render one part again, after a poke."""
    if name not in PARTS:
        raise NotFound(f"An incident's page has no part “{name}”.")
    row = incident_by_code(str(number), now=now())
    context = (
        {"death": death_of(row, incident_findings(row.id))}
        if name == "death"
        else _context(row, who, stood_of(request))
    )
    return render_part(request, f"console/incidents/{name}.html", who=who, **context)


def _context(row: IncidentRow, who: Principal, stood: Stood) -> dict[str, Any]:
    found = incident_page(row, reader_key=who.key, now=now())
    return {
        "page": found,
        "incident": row,
        "evidence": evidence_rows(found.lead),
        "band": band_of(found.lead),
        "next": incident_next(row, found.lead, who=who, now=now(), stood=stood),
        "may": who.may(OPERATE),
        "answers": Answer.choices,
    }


@page(scope=OPERATE, methods=("POST",))
def work(request: HttpRequest, number: int, *, who: Principal) -> HttpResponse:
    """Acknowledge, assign, mitigate, resolve, or call it a false alarm."""
    row = incident_by_code(str(number), now=now())
    act = WORK.get(request.POST.get("act", ""))
    if act is None:
        raise BadRequest("act: none of the buttons of this page.")
    act(request, row, who)
    return back_to(request, reverse("incident", args=[number]))


def _acknowledge(request: HttpRequest, row: IncidentRow, who: Principal) -> None:  # noqa: ARG001 - the one signature of WORK
    services.incident_acknowledge(incident_id=row.id, by=who.name, source=Source.WEB, now=now())


def _assign(request: HttpRequest, row: IncidentRow, who: Principal) -> None:
    services.incident_assign(
        incident_id=row.id, owner=request.POST.get("owner", "").strip(), by=who.name, source=Source.WEB, now=now()
    )


def _mitigate(request: HttpRequest, row: IncidentRow, who: Principal) -> None:
    words = request.POST.get("words", "").strip()
    services.incident_mitigate(incident_id=row.id, reason=words, by=who.name, source=Source.WEB, now=now())


def _resolve(request: HttpRequest, row: IncidentRow, who: Principal) -> None:
    answer = request.POST.get("answer", Answer.UNKNOWN)
    if answer not in Answer.values:
        raise BadRequest("answer: say whether the named cause was right, wrong or is not known.")
    services.incident_resolve(
        incident_id=row.id,
        answer=answer,
        words=request.POST.get("words", "").strip(),
        by=who.name,
        source=Source.WEB,
        now=now(),
        false_alarm=answer == Answer.WRONG and "false_alarm" in request.POST,
    )


WORK: dict[str, Callable[[HttpRequest, IncidentRow, Principal], None]] = {
    "acknowledge": _acknowledge,
    "assign": _assign,
    "mitigate": _mitigate,
    "resolve": _resolve,
}


@page(scope=OPERATE, methods=("POST",))
def notes(request: HttpRequest, number: int, *, who: Principal) -> HttpResponse:
    """Write a note, or one for each line of a paste that begins with a time."""
    moment = now()
    row = incident_by_code(str(number), now=moment)
    services.notes_add(
        incident_id=row.id,
        notes=_notes_of(request, moment),
        author_key=who.key,
        author_name=who.name,
        source=Source.WEB,
        now=moment,
    )
    return _timeline(request, row, who)


def _notes_of(request: HttpRequest, moment: datetime) -> list[tuple[datetime | None, str]]:
    text, offset_min = request.POST.get("text", ""), _offset(request)
    lines = [line for line in text.splitlines() if line.strip()]
    matches = [LINE.match(line) for line in lines]
    if len(lines) >= 2 and len(lines) <= MOST_LINES and all(matches):
        return [(moment_of(m.group(1), moment, offset_min), m.group(2).strip()) for m in matches if m]
    at = request.POST.get("at", "").strip()
    if not at and len(lines) == 1 and matches[0]:
        return [(moment_of(matches[0].group(1), moment, offset_min), matches[0].group(2).strip())]
    return [(moment_of(at, moment, offset_min) if at else None, text)]


def _offset(request: HttpRequest) -> int:
    text = request.POST.get("offset_min", "0")
    minutes = whole_of(text.removeprefix("-")) or 0
    return 0 if minutes > MOST_OFFSET_MIN else -minutes if text.startswith("-") else minutes


def moment_of(text: str, moment: datetime, offset_min: int) -> datetime:
    """Return the moment that `02:05`, `02:05:10` or `2026-12-01 02:05` means in a zone `offset_min` east of UTC.

    A time without a day is the newest one that is not ahead of `moment`.

    Raises:
        BadRequest: not a time.
    """
    found = CLOCK.match(text.strip())
    if found is None:
        raise BadRequest(f"at: “{text[:40]}” is not a time; write 02:05 or 2026-12-01 02:05.")
    year, month, day, hour, minute, second = (int(part) if part else None for part in found.groups())
    local = moment + timedelta(minutes=offset_min)
    try:
        said = datetime(
            year or local.year, month or local.month, day or local.day, hour or 0, minute or 0, second or 0, tzinfo=UTC
        )
        at = said - timedelta(minutes=offset_min)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"at: “{text[:40]}” is no time of the calendar.") from error
    return at - timedelta(days=1) if year is None and at > moment + AHEAD else at


@page(scope=OPERATE, methods=("POST",))
def note(request: HttpRequest, number: int, note_id: int, *, who: Principal) -> HttpResponse:
    """Edit one's own note, or pin any."""
    moment = now()
    row = incident_by_code(str(number), now=moment)
    if note_incident(note_id) != row.id:
        raise NotFound("This note stands in another incident.")
    if "pinned" in request.POST:
        services.note_pin(
            note_id=note_id, pinned=request.POST["pinned"] == "1", by=who.name, source=Source.WEB, now=moment
        )
        return _timeline(request, row, who)
    at = request.POST.get("at", "").strip()
    services.note_edit(
        note_id=note_id,
        version=whole_of(request.POST.get("version")) or 0,
        text=request.POST.get("text", ""),
        happened_at=moment_of(at, moment, _offset(request)) if at else None,
        author_key=who.key,
        author_name=who.name,
        source=Source.WEB,
        now=moment,
    )
    return _timeline(request, row, who)


def _timeline(request: HttpRequest, row: IncidentRow, who: Principal) -> HttpResponse:
    if request.headers.get("HX-Request"):
        return render_part(request, "console/incidents/timeline.html", who=who, **_context(row, who, stood_of(request)))
    return back_to(request, reverse("incident", args=[row.number]) + "#timeline")
