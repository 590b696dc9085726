"""The one way in which an incident changes its state, and how that is told."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import F

from apps.common.errors import Conflict, NotFound
from apps.incidents.choices import MOVES, IncidentState
from apps.incidents.losses import lead_of, lost_gpu_hours
from apps.incidents.models import Incident
from apps.incidents.services.counts import counts_refresh
from apps.incidents.services.notices import notices_consider
from apps.journal.services import Log
from apps.runs.selectors import run_by_id


class MoveRefused(Conflict):
    """The incident cannot go from its state to that one."""

    code = "incident_state"


def incident_locked(incident_id: int) -> Incident:
    """Return an incident, locked: two people who press at once are served one after the other.

    Raises:
        NotFound: there is none.
    """
    # Closes the race of two people, of a person and the clock, and of either and what is absorbed meanwhile.
    row = Incident.objects.select_for_update(no_key=True).filter(pk=incident_id).first()
    if row is None:
        raise NotFound("There is no such incident.")
    return row


def incident_move(row: Incident, state: str, **fields: Any) -> None:
    """Bring a locked incident into another state.

    Raises:
        MoveRefused: this state does not follow from the one it is in.
    """
    if state not in MOVES[row.state]:
        raise MoveRefused(
            f"INC-{row.number} is {IncidentState(row.state).label.lower()} and cannot become {IncidentState(state).label.lower()}.",
            state=row.state,
        )
    Incident.objects.filter(pk=row.pk).update(state=state, version=F("version") + 1, **fields)
    row.refresh_from_db()
    counts_refresh(row)


def loss_keep(row: Incident, *, now: datetime) -> None:
    """Keep what a locked, open incident has cost so far: what was said once is not taken back when it fades."""
    lost = lost_gpu_hours(row, run_by_id(row.run_id) if row.run_id else None, lead_of(row), now=now)
    if lost != row.gpu_hours_lost:
        Incident.objects.filter(pk=row.pk).update(gpu_hours_lost=lost)
        row.gpu_hours_lost = lost


def incident_close(row: Incident, state: str, *, answer: str, words: str, by: str, now: datetime) -> None:
    """Close a locked incident: what it cost is fixed, and who was told of it is told of its end.

    Raises:
        MoveRefused: it is over already.
    """
    run = run_by_id(row.run_id) if row.run_id else None
    lost = lost_gpu_hours(row, run, lead_of(row), now=now)
    incident_move(
        row,
        state,
        resolved_at=now,
        resolved_by_name=by,
        resolution=words[:4000],
        answer=answer,
        gpu_hours_lost=lost,
    )
    notices_consider(row, now=now)


def incident_say(
    log: Log,
    row: Incident,
    kind: str,
    text: str,
    *,
    source: str,
    by: str = "",
    payload: Mapping[str, Any] | None = None,
) -> None:
    """Write an event of an incident into its stream."""
    log.add(
        row.stream,
        kind=kind,
        text=text,
        source=source,
        actor_name=by,
        subject=row.subject,
        payload={"incident": row.pk, "number": row.number, **(payload or {})},
    )
