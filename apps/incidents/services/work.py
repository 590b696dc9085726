"""What people and the clock do with incidents."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from apps.common.errors import Conflict, NotFound
from apps.diagnosis.choices import FindingState
from apps.diagnosis.selectors import findings_of
from apps.incidents.choices import MOVES, UNRESOLVED, Answer, IncidentState, NoticeKind
from apps.incidents.losses import lost_gpu_hours
from apps.incidents.models import Incident, Watch
from apps.incidents.services.absorb import counts_refresh
from apps.incidents.services.notices import notices_consider, watch_notice
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import AttemptState
from apps.runs.selectors import run_by_id
from apps.telemetry.selectors import door_state, settled_watermark

HEALTHY_STEPS = 50
"""Settled steps without a finding after which an incident resolves itself (DESIGN §1)."""

HEALTHY_FOR = timedelta(minutes=30)
"""Or this long, where there are no steps to count."""

BLIND_AFTER = timedelta(seconds=15)
"""Without a heartbeat of the door for this long, Paceline is blind: three of its beats could be late, not fifteen."""


class MoveRefused(Conflict):
    """The incident cannot go from its state to that one."""

    code = "incident_state"


def incident_acknowledge(*, incident_id: int, by: str, source: str, now: datetime) -> None:
    """Take an incident; a second person who does so is only written down as seen.

    Raises:
        NotFound: no such incident. MoveRefused: it is over.
    """
    with recording(now=now) as log:
        row = _locked(incident_id)
        if row.state == IncidentState.ACKNOWLEDGED:
            return
        owner = row.owner_name or by
        _move(row, IncidentState.ACKNOWLEDGED, owner_name=owner, acknowledged_at=now, acknowledged_by_name=by)
        _say(log, row, "incident.acknowledged", f"INC-{row.number} acknowledged", by=by, source=source)


def incident_assign(*, incident_id: int, owner: str, by: str, source: str, now: datetime) -> None:
    """Give an incident an owner, or none with an empty name."""
    with recording(now=now) as log:
        row = _locked(incident_id)
        if row.owner_name == owner:
            return
        Incident.objects.filter(pk=row.pk).update(owner_name=owner[:150], version=F("version") + 1)
        text = f"INC-{row.number} belongs to {owner}" if owner else f"INC-{row.number} has no owner any more"
        _say(log, row, "incident.assigned", text, by=by, source=source)


def incident_mitigate(*, incident_id: int, reason: str, by: str, source: str, now: datetime) -> None:
    """Say that the harm has stopped; repeats change nothing."""
    with recording(now=now) as log:
        row = _locked(incident_id)
        if row.state == IncidentState.MITIGATED:
            return
        _move(row, IncidentState.MITIGATED, mitigated_at=now)
        _say(log, row, "incident.mitigated", f"INC-{row.number} mitigated: {reason}", by=by, source=source)


def incidents_mitigated_by(
    *, run_id: int | None, node_ids: list[int], whole_run: bool, reason: str, by: str, now: datetime
) -> list[int]:
    """Mitigate what an action that succeeded was about: incidents of its nodes, and of the run if it started anew."""
    rows = Incident.objects.filter(state__in=(IncidentState.OPEN, IncidentState.ACKNOWLEDGED))
    mine = [
        row.pk
        for row in rows.order_by("pk")
        if (row.node_id in node_ids and row.run_id in (None, run_id)) or (whole_run and row.run_id == run_id)
    ]
    for incident_id in mine:
        incident_mitigate(incident_id=incident_id, reason=reason, by=by, source=Source.RULE, now=now)
    return mine


def incident_resolve(
    *, incident_id: int, answer: str, words: str, by: str, source: str, now: datetime, false_alarm: bool = False
) -> None:
    """Close an incident with what people say of the named cause.

    Raises:
        NotFound: no such incident. MoveRefused: it is over already.
    """
    with recording(now=now) as log:
        row = _locked(incident_id)
        state = IncidentState.FALSE_ALARM if false_alarm else IncidentState.RESOLVED
        _close(row, state, answer=Answer.WRONG if false_alarm else answer, words=words, by=by, now=now)
        said = f": {words}" if words else ""
        kind = "incident.false_alarm" if false_alarm else "incident.resolved"
        text = f"INC-{row.number} {'was a false alarm' if false_alarm else 'resolved'}{said}"
        _say(log, row, kind, text, by=by, source=source, payload={"answer": answer})


def incidents_settle(*, now: datetime) -> int:
    """Tell of suspicions that lasted, resolve what has been healthy long enough; return how many were resolved."""
    done = 0
    for incident_id in Incident.objects.filter(state__in=UNRESOLVED).order_by("pk").values_list("pk", flat=True):
        with recording(now=now) as log:
            row = _locked(incident_id)
            notices_consider(row, now=now)
            if row.state not in UNRESOLVED or not _has_healed(row, now=now):
                continue
            _close(row, IncidentState.RESOLVED, answer="", words="healthy again", by="", now=now)
            _say(log, row, "incident.resolved", f"INC-{row.number} resolved: healthy again", by="", source=Source.RULE)
            done += 1
    return done


def watch_check(*, now: datetime) -> bool:
    """Ask whether Paceline itself can hear; tell when that changes. Return whether it can."""
    with recording(now=now) as log:
        state = door_state()
        row, _ = Watch.objects.select_for_update().get_or_create(pk=1, defaults={"checked_at": now})
        last = state.last_beat_at
        blind = last is None or now - last > BLIND_AFTER
        if blind and row.blind_since_at is None and last is not None:
            row.blind_since_at = last
            log.add(
                StreamKey.system(), kind="watch.blind", text="Paceline's door takes no reports", source=Source.SYSTEM
            )
            watch_notice(kind=NoticeKind.BLIND, since_at=last, now=now)
        elif not blind and row.blind_since_at is not None:
            watch_notice(kind=NoticeKind.SEES, since_at=row.blind_since_at, now=now)
            log.add(
                StreamKey.system(), kind="watch.sees", text="Paceline's door takes reports again", source=Source.SYSTEM
            )
            row.blind_since_at = None
        row.checked_at = now
        row.save()
        return not blind


def _has_healed(row: Incident, *, now: datetime) -> bool:
    if findings_of(incident_id=row.pk, state=FindingState.OPEN, limit=1) or row.calm_since_at is None:
        return False
    if now - row.calm_since_at >= HEALTHY_FOR:
        return True
    if row.run_id is None:
        return False
    run = run_by_id(row.run_id)
    if run.attempt_id is None or run.attempt_state != AttemptState.OPEN:
        return False
    reached = settled_watermark(run.attempt_id)
    start = row.calm_step if run.attempt_id == row.calm_attempt_id else run.first_step
    return reached is not None and start is not None and reached - start >= HEALTHY_STEPS


def _close(row: Incident, state: str, *, answer: str, words: str, by: str, now: datetime) -> None:
    run = run_by_id(row.run_id) if row.run_id else None
    lead = next((one for one in findings_of(incident_id=row.pk, limit=500) if one.id == row.lead_finding_id), None)
    lost = lost_gpu_hours(row, run, lead, now=now)
    _move(row, state, resolved_at=now, resolved_by_name=by, resolution=words[:4000], answer=answer, gpu_hours_lost=lost)
    row.refresh_from_db()
    notices_consider(row, now=now)


def _locked(incident_id: int) -> Incident:
    # Locked: two people who press at once are served one after the other.
    row = Incident.objects.select_for_update(no_key=True).filter(pk=incident_id).first()
    if row is None:
        raise NotFound("There is no such incident.")
    return row


def _move(row: Incident, state: str, **fields: Any) -> None:
    if state not in MOVES[row.state]:
        raise MoveRefused(
            f"INC-{row.number} is {IncidentState(row.state).label.lower()} and cannot become {IncidentState(state).label.lower()}.",
            state=row.state,
        )
    Incident.objects.filter(pk=row.pk).update(state=state, version=F("version") + 1, **fields)
    row.refresh_from_db()
    counts_refresh(row)


def _say(
    log: Log, row: Incident, kind: str, text: str, *, by: str, source: str, payload: Mapping[str, Any] | None = None
) -> None:
    stream = StreamKey.run(row.run_id) if row.run_id else StreamKey.cluster(row.cluster_id)
    log.add(
        stream,
        kind=kind,
        text=text,
        source=source,
        actor_name=by,
        subject=row.subject,
        payload={"incident": row.pk, "number": row.number, **(payload or {})},
    )
