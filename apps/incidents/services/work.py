"""What people and the clock do with incidents."""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db.models import F, Q

from apps.common.sweeps import sweeping
from apps.diagnosis.choices import CloseReason, FindingState
from apps.diagnosis.selectors import FindingRow, findings_of
from apps.diagnosis.services import findings_dismiss
from apps.incidents.choices import UNRESOLVED, Answer, IncidentState, NoticeKind
from apps.incidents.losses import lead_of
from apps.incidents.models import Incident, Watch
from apps.incidents.services.moving import incident_close, incident_locked, incident_move, incident_say, loss_keep
from apps.incidents.services.notices import notices_consider, watch_notice, watch_was_told
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import AttemptState
from apps.runs.selectors import run_by_id
from apps.telemetry.selectors import door_state, settled_watermark

HEALTHY_STEPS = 50
"""Settled steps without a finding after which an incident resolves itself (DESIGN §1)."""

HEALTHY_FOR = timedelta(minutes=30)
"""Or this long, where there are no steps to count."""

LOOKED_BACK = 200
"""Findings of a run among which those that are open are."""

TOUCHED = (IncidentState.OPEN, IncidentState.ACKNOWLEDGED)
"""What an action that succeeds mitigates."""

BLIND_AFTER = timedelta(seconds=15)
"""Without a heartbeat of the door for this long, Paceline is blind: three of its beats could be late, not fifteen."""

TOLD_AFTER = timedelta(seconds=30)
"""Blind for this long, it is told: each page says it at once, but a busy machine that catches its breath wakes nobody."""


def incident_acknowledge(*, incident_id: int, by: str, source: str, now: datetime) -> None:
    """Take an incident; whoever does so after the first changes nothing. One whose harm has stopped stays mitigated.

    Raises:
        NotFound: no such incident. MoveRefused: it is over.
    """
    with recording(now=now) as log:
        row = incident_locked(incident_id)
        if row.state in UNRESOLVED and row.acknowledged_at is not None:
            return
        taken = {"owner_name": row.owner_name or by, "acknowledged_at": now, "acknowledged_by_name": by}
        if row.state == IncidentState.MITIGATED:
            Incident.objects.filter(pk=row.pk).update(version=F("version") + 1, **taken)
        else:
            incident_move(row, IncidentState.ACKNOWLEDGED, **taken)
        incident_say(log, row, "incident.acknowledged", f"INC-{row.number} acknowledged", by=by, source=source)


def incident_assign(*, incident_id: int, owner: str, by: str, source: str, now: datetime) -> None:
    """Give an incident an owner, or none with an empty name.

    Raises:
        NotFound: no such incident.
    """
    with recording(now=now) as log:
        row = incident_locked(incident_id)
        if row.owner_name == owner:
            return
        Incident.objects.filter(pk=row.pk).update(owner_name=owner[:150], version=F("version") + 1)
        text = f"INC-{row.number} belongs to {owner}" if owner else f"INC-{row.number} has no owner any more"
        incident_say(log, row, "incident.assigned", text, by=by, source=source)


def incident_mitigate(*, incident_id: int, reason: str, by: str, source: str, now: datetime) -> None:
    """Say that the harm has stopped; repeats change nothing.

    Raises:
        NotFound: no such incident. MoveRefused: it is over.
    """
    with recording(now=now) as log:
        row = incident_locked(incident_id)
        if row.state != IncidentState.MITIGATED:
            _mitigate(log, row, reason=reason, by=by, source=source, now=now)


def incidents_mitigated_by(
    *,
    run_id: int | None,
    node_ids: list[int],
    whole_run: bool,
    reason: str,
    by: str,
    now: datetime,
    but_causes: Collection[str] = (),
) -> list[int]:
    """Mitigate what an action that succeeded was about: incidents of its nodes, and of the run if it started anew.

    `but_causes`: what it cannot have helped against.
    """
    about = Q(node_id__in=node_ids) & (Q(run_id=None) | Q(run_id=run_id))
    if whole_run and run_id is not None:
        about |= Q(run_id=run_id)
    done = []
    with recording(now=now) as log:
        for incident_id in (
            Incident.objects.filter(about, state__in=TOUCHED)
            .exclude(cause__in=list(but_causes))
            .order_by("pk")
            .values_list("pk", flat=True)
        ):
            row = incident_locked(incident_id)
            if whole_run and run_id is not None and _is_back(row, run_id):
                continue
            if row.state in TOUCHED:  # read again under the lock: somebody may have closed it meanwhile
                _mitigate(log, row, reason=reason, by=by, source=Source.RULE, now=now)
                done.append(row.pk)
    return done


def _is_back(row: Incident, run_id: int) -> bool:
    """Return whether what an incident is about is found in the attempt that was to deal with it already."""
    attempt_id = run_by_id(run_id).attempt_id
    before = findings_of(incident_id=row.pk, limit=500)
    again = [one for one in before if one.attempt_id == attempt_id and one.state == FindingState.OPEN]
    return bool(again) and any(one.attempt_id != attempt_id for one in before)


def _mitigate(log: Log, row: Incident, *, reason: str, by: str, source: str, now: datetime) -> None:
    incident_move(row, IncidentState.MITIGATED, mitigated_at=now)
    incident_say(log, row, "incident.mitigated", f"INC-{row.number} mitigated: {reason}", by=by, source=source)


def incident_resolve(
    *, incident_id: int, answer: str, words: str, by: str, source: str, now: datetime, false_alarm: bool = False
) -> None:
    """Close an incident with what people say of the named cause. What was a false alarm counts as no recurrence, either.

    Raises:
        NotFound: no such incident. MoveRefused: it is over already.
    """
    with recording(now=now) as log:
        if false_alarm:
            findings_dismiss(incident_id=incident_id, reason=f"A false alarm{f': {words}' if words else ''}", by=by)
        row = incident_locked(incident_id)
        state = IncidentState.FALSE_ALARM if false_alarm else IncidentState.RESOLVED
        incident_close(row, state, answer=Answer.WRONG if false_alarm else answer, words=words, by=by, now=now)
        said = f": {words}" if words else ""
        kind = "incident.false_alarm" if false_alarm else "incident.resolved"
        text = f"INC-{row.number} {'was a false alarm' if false_alarm else 'resolved'}{said}"
        incident_say(log, row, kind, text, by=by, source=source, payload={"answer": answer})


def incidents_settle(*, now: datetime) -> int:
    """Tell of suspicions that lasted, resolve what has been healthy long enough; return how many were resolved.

    Raises:
        ExceptionGroup: some could not be looked at; all others were.
    """
    open_ones = Incident.objects.filter(state__in=UNRESOLVED).order_by("pk").values_list("pk", flat=True)
    with sweeping("some incidents could not be settled") as each:
        return sum(each(open_ones, lambda incident_id: _settle(incident_id, now=now)))


def _settle(incident_id: int, *, now: datetime) -> bool:
    with recording(now=now) as log:
        row = incident_locked(incident_id)
        _title_follow(row)
        if row.state in UNRESOLVED:
            loss_keep(row, now=now)
        notices_consider(row, now=now)
        if row.state not in UNRESOLVED or not _has_healed(row, now=now):
            return False
        incident_close(row, IncidentState.RESOLVED, answer="", words="healthy again", by="", now=now)
        text = f"INC-{row.number} resolved: healthy again"
        incident_say(log, row, "incident.resolved", text, source=Source.RULE)
        return True


def _title_follow(row: Incident) -> None:
    """Let an open incident say what its lead finding says now: a count goes on, a stall gets longer."""
    lead = lead_of(row)
    if row.state in UNRESOLVED and lead is not None and lead.verdict != row.title:
        Incident.objects.filter(pk=row.pk).update(title=lead.verdict, version=F("version") + 1)
        row.refresh_from_db()


def watch_check(*, now: datetime) -> bool:
    """Ask whether Paceline itself can hear; tell when that changes. Return whether it can."""
    with recording(now=now) as log:
        state = door_state()
        # The one row is locked, so that two who ask at once tell of a change once.
        row, _ = Watch.objects.select_for_update(no_key=True).get_or_create(pk=1, defaults={"checked_at": now})
        last = state.last_beat_at
        blind = last is None or now - last > BLIND_AFTER
        if blind and row.blind_since_at is None and last is not None:
            row.blind_since_at = last
            log.add(
                StreamKey.system(), kind="watch.blind", text="Paceline's door takes no reports", source=Source.SYSTEM
            )
        elif not blind and row.blind_since_at is not None:
            if watch_was_told(since_at=row.blind_since_at):
                watch_notice(kind=NoticeKind.SEES, since_at=row.blind_since_at, now=now)
            log.add(
                StreamKey.system(), kind="watch.sees", text="Paceline's door takes reports again", source=Source.SYSTEM
            )
            row.blind_since_at = None
        since = row.blind_since_at
        if since is not None and now - since >= TOLD_AFTER and not watch_was_told(since_at=since):
            watch_notice(kind=NoticeKind.BLIND, since_at=since, now=now)
        row.checked_at = now
        row.save()
        return not blind


def _has_healed(row: Incident, *, now: datetime) -> bool:
    if findings_of(incident_id=row.pk, state=FindingState.OPEN, limit=1) or row.calm_since_at is None:
        return False
    if row.run_id is None:
        return now - row.calm_since_at >= HEALTHY_FOR
    run = run_by_id(row.run_id)
    reached = settled_watermark(run.attempt_id) if run.attempt_id is not None else None
    grave = [one for one in findings_of(run_id=run.id, limit=LOOKED_BACK) if _is_grave(one)]
    if any(one.state == FindingState.OPEN for one in grave):
        # Steps that are taken meanwhile are no healthy ones: they are counted from here on.
        Incident.objects.filter(pk=row.pk).update(calm_attempt_id=run.attempt_id, calm_step=reached)
        return False
    if now - max([row.calm_since_at, *(one.closed_at for one in grave if one.closed_at)]) >= HEALTHY_FOR:
        return True
    if run.attempt_id is None or run.attempt_state != AttemptState.OPEN:
        return False
    start = row.calm_step if run.attempt_id == row.calm_attempt_id else None
    if start is None:  # the attempt began after all was calm, or had no step yet when it was
        start = run.first_step
    return reached is not None and start is not None and reached - start >= HEALTHY_STEPS


def _is_grave(row: FindingRow) -> bool:
    """Return whether a run with this finding is not healthy, whatever it steps. What people dismissed is none."""
    sure = row.level == "CRITICAL" and row.certainty == "CONFIRMED"
    return sure and not row.muted_for_good and row.close_reason != CloseReason.LATE
