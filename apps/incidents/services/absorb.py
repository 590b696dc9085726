"""Findings become incidents: one per origin, the most serious names it, consequences are attached (DESIGN §1)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

from django.db.models import F, QuerySet

from apps.common.errors import Conflict, NotFound
from apps.common.sweeps import sweeping
from apps.common.tasks import queue_on_commit
from apps.diagnosis.choices import CloseReason, FindingState
from apps.diagnosis.selectors import FindingRow, findings_by_id, findings_of
from apps.diagnosis.services import finding_absorbed, findings_claim
from apps.fleet.selectors import node_by_code
from apps.incidents.choices import LEVEL_RANK, ORIGINS, UNRESOLVED, IncidentState, wave_of
from apps.incidents.models import Incident
from apps.incidents.services.again import incident_again, incident_before, incident_placed, incident_reopen
from apps.incidents.services.counts import counts_refresh
from apps.incidents.services.moving import incident_close, incident_say, loss_keep
from apps.incidents.services.notices import notices_consider
from apps.incidents.services.numbers import number_next
from apps.journal.choices import Source
from apps.journal.services import Log, recording
from apps.runs.selectors import run_by_id

TOGETHER_S = timedelta(seconds=10)
"""What begins this close together may be told in either order: beats come each two seconds, checks run each two."""

AT_ONCE = 50
"""Findings absorbed in one transaction."""

AGES = frozenset({"checkpoint_stale"})
"""Causes that any open origin brings about, whenever they are found."""

SAME_STOP_STEPS = 2
"""A run that made more steps than this since was not stopped: its ranks need not be in the same step when it is."""

WAVE_S = timedelta(minutes=10)
"""How long after its origin a consequence may be found: the longest collective time-out in common use."""


def findings_absorb(*, now: datetime) -> int:
    """Absorb what is new or changed among the findings; return how many. Claimed with SKIP LOCKED, so repeats are harmless.

    Raises:
        ExceptionGroup: some could not be absorbed; all others were.
    """
    done: set[int] = set()
    seen: set[int] = set()
    with sweeping("some findings could not be absorbed") as each:
        while True:
            with recording(now=now):
                rows = findings_by_id(findings_claim(limit=AT_ONCE, without=seen - done))
                done.update(each(sorted(rows, key=_origin_first), partial(_absorb, now=now)))
            seen.update(row.id for row in rows)
            if len(rows) < AT_ONCE:
                return len(done)


def _origin_first(row: FindingRow) -> tuple[bool, int, datetime]:
    """Of what one look found the gravest comes first: it opens the incident, and people are told of one thing once."""
    return row.place_key == "RUN", -LEVEL_RANK.get(row.level, 0), row.began_at or row.found_at


def _absorb(row: FindingRow, *, now: datetime) -> int:
    """Absorb one finding, all of it or nothing; return its row."""
    with recording(now=now) as log:
        incident = _incident_of(row, log=log)
        if incident is None and _opens(row):
            incident = _open(row, log=log)
        elif incident is not None and row.incident_id != incident.pk:
            _join(incident, row, log=log)
        finding_absorbed(finding_id=row.id, version=row.version, incident_id=incident.pk if incident else None)
        queue_on_commit("remediation.policies_consider")  # by now it has its incident, which a proposal names
        if incident is not None:
            incident_refresh(incident, log=log, now=now)
    return row.id


def _opens(row: FindingRow) -> bool:
    return row.level != "INFO" and row.state == FindingState.OPEN


def _incident_of(row: FindingRow, *, log: Log) -> Incident | None:
    """Return the incident a finding belongs to: its own, that of its place, or that of its origin.

    What was seen late belongs to none: nobody is told of it, and it changes nothing that people deal with now."""
    if row.close_reason == CloseReason.LATE:
        return None
    # Locked: who works on an incident and who absorbs into it take turns.
    open_ones = Incident.objects.select_for_update(no_key=True).filter(run_id=row.run_id, state__in=UNRESOLVED)
    if row.incident_id is not None:
        return Incident.objects.select_for_update(no_key=True).filter(pk=row.incident_id).first()
    if row.cause in AGES and _opens(row) and (origin := _open_origin(open_ones, row)) is not None:
        return origin
    if _opens(row) and (again := incident_again(open_ones, row)) is not None:
        return again
    here = open_ones.filter(place_key=row.place_key).first()
    if here is not None and _opens(row) and _is_over(here, row):
        _resolve_for(here, row, log=log)
        here = None
    if not _opens(row):
        return here
    began = row.began_at or row.found_at
    mine = open_ones.filter(attempt_id=row.attempt_id)
    near = [
        one
        for one in mine.filter(began_at__lte=began + TOGETHER_S).order_by("began_at")
        if began - WAVE_S <= _began_in(row.attempt_id, one) <= began + TOGETHER_S
    ]
    if here is not None:
        # The run as a whole is the place of much that has nothing to do with a stop: its wave is not for that incident.
        elsewhere = row.place_key == "RUN" and here.cause not in ORIGINS
        return (_brought_about_by(near, row) if elsewhere else None) or here
    if row.place_key != "RUN" and (wave := wave_of(row.cause)):
        about_run = mine.filter(place_key="RUN", cause__in=wave, began_at__gte=began - TOGETHER_S)
        moved = incident_placed(
            next((one for one in about_run.order_by("began_at") if _same_stop(one, row)), None), row
        )
        if moved is not None:
            return moved
    return _brought_about_by(near, row)


def _brought_about_by(near: Iterable[Incident], row: FindingRow) -> Incident | None:
    return next((one for one in near if row.cause in wave_of(one.cause) and _same_stop(one, row)), None)


def _began_in(attempt_id: int, incident: Incident) -> datetime:
    """Return when an incident began in an attempt: later than at first, if it came back in that one."""
    rows = findings_of(incident_id=incident.pk, attempt_id=attempt_id)
    return min((row.began_at or row.found_at for row in rows), default=incident.began_at)


def _open_origin(open_ones: QuerySet[Incident], row: FindingRow) -> Incident | None:
    """Return the incident of what keeps this attempt from saving, however long ago it began: while it stands, or while
    what it saves is suspect, its checkpoints age."""
    origins = open_ones.filter(attempt_id=row.attempt_id, cause__in=ORIGINS, calm_since_at=None)
    return origins.order_by("began_at", "pk").first()


def _same_stop(incident: Incident, row: FindingRow) -> bool:
    """Return whether the run has not gone on since the incident began, so that a finding may be of the same stop."""
    began = row.began_at or row.found_at
    if incident.calm_since_at is not None and incident.calm_since_at < began:
        return False
    lead = findings_by_id([incident.lead_finding_id]) if incident.lead_finding_id is not None else []
    then = lead[0].since_step if lead else None
    # What ages is said to be as old as its last save: that step says nothing of when the run stopped.
    if then is None or row.since_step is None or "checkpoint_stale" in (row.cause, incident.cause):
        return True
    return abs(row.since_step - then) <= SAME_STOP_STEPS or row.cause == incident.cause == "numeric_fault"


def _is_over(incident: Incident, row: FindingRow) -> bool:
    """Return whether an incident was dealt with before another attempt ran into something new at the same place."""
    return (
        incident.state == IncidentState.MITIGATED
        and incident.calm_since_at is not None
        and incident.attempt_id != row.attempt_id
    )


def _resolve_for(incident: Incident, row: FindingRow, *, log: Log) -> None:
    """Close an incident that was dealt with, so that the new fault is one of its own."""
    words = "followed by a new fault"
    incident_close(incident, IncidentState.RESOLVED, answer="", words=words, by="", now=row.found_at)
    text = f"INC-{incident.number} resolved: it was dealt with, and what comes now is new"
    incident_say(log, incident, "incident.resolved", text, source=Source.RULE)


def _open(row: FindingRow, *, log: Log) -> Incident:
    run = run_by_id(row.run_id)
    before = incident_before(row)
    incident = Incident.objects.create(
        number=number_next(),
        cluster_id=run.cluster_id,
        run_id=row.run_id,
        attempt_id=row.attempt_id,
        place_key=row.place_key,
        class_name=row.class_name,
        cause=row.cause,
        level=row.level,
        certainty=row.certainty,
        subject=row.subject,
        title=row.verdict,
        lead_finding_id=row.id,
        began_at=row.began_at or row.found_at,
        found_at=row.found_at,
        count=1,
        first_seen_at=row.found_at,
        last_seen_at=row.found_at,
        previous=before,
    )
    again = f", again after INC-{before.number}" if before else ""
    text = f"INC-{incident.number} opened{again}: {row.verdict}"
    more = {"finding": row.id, "level": row.level}
    incident_say(log, incident, "incident.opened", text, source=Source.RULE, payload=more)
    counts_refresh(incident)
    return incident


def _join(incident: Incident, row: FindingRow, *, log: Log) -> None:
    Incident.objects.filter(pk=incident.pk).update(count=F("count") + 1)
    log.add(
        incident.stream,
        kind="incident.joined",
        text=f"INC-{incident.number}: {row.cause} joined",
        source=Source.RULE,
        subject=row.subject,
        payload={"incident": incident.pk, "number": incident.number, "finding": row.id},
    )


def incident_refresh(incident: Incident, *, log: Log, now: datetime) -> None:
    """Let the most serious finding name the incident, keep its times, and see whether someone must be told."""
    incident.refresh_from_db()
    dealt_with_in = incident.attempt_id
    rows = findings_of(incident_id=incident.pk, limit=500)
    if not rows or incident.state not in UNRESOLVED:
        return
    open_rows = [row for row in rows if row.state == FindingState.OPEN]
    standing = [row for row in rows if row.close_reason != CloseReason.RECOVERED]
    lead = min(standing or rows, key=lambda row: _seriousness(row, incident))
    worse = LEVEL_RANK[lead.level] > LEVEL_RANK[incident.level]
    Incident.objects.filter(pk=incident.pk).update(
        class_name=lead.class_name,
        cause=lead.cause,
        level=lead.level if worse or open_rows else incident.level,
        certainty=max((row.certainty for row in rows), key=lambda word: word == "CONFIRMED"),
        subject=lead.subject,
        title=lead.verdict,
        lead_finding_id=lead.id,
        node_id=_node_id(incident, lead),
        attempt_id=max(row.attempt_id for row in rows),
        began_at=min(row.began_at or row.found_at for row in rows),
        last_seen_at=max([incident.last_seen_at, *(row.closed_at or row.found_at for row in rows)]),
        version=F("version") + 1,
    )
    _calm(incident, is_calm=not open_rows, now=now)
    incident.refresh_from_db()
    if incident.state == IncidentState.MITIGATED:
        mitigated_at = incident.mitigated_at or now
        came_back = [row for row in open_rows if _is_later(row.attempt_id, dealt_with_in)]
        if came_back or any(row.found_at > mitigated_at for row in open_rows):
            incident_reopen(incident, in_attempt=max((row.attempt_id for row in came_back), default=None), log=log)
    loss_keep(incident, now=now)
    counts_refresh(incident)
    notices_consider(incident, now=now)


def _is_later(attempt_id: int, than: int | None) -> bool:
    return than is not None and attempt_id > than


def _seriousness(row: FindingRow, incident: Incident) -> tuple[bool, int, bool, bool, int, datetime, int]:
    """Sort key, most serious first: of the incident's place, level, certainty, an origin, of the newest attempt it came
    back in, then what began first; of what began at once the newest.

    A finding that closed because its attempt ended or another says it better still names what happened.
    """
    return (
        row.place_key != incident.place_key,
        -LEVEL_RANK[row.level],
        row.certainty != "CONFIRMED",
        row.cause not in ORIGINS,
        -row.attempt_id,
        row.began_at or row.found_at,
        -row.id,
    )


def _node_id(incident: Incident, lead: FindingRow) -> int | None:
    name = lead.subject.get("node")
    if not name:
        return None
    try:
        return node_by_code(name, cluster_id=incident.cluster_id).id
    except (NotFound, Conflict):
        return None


def _calm(incident: Incident, *, is_calm: bool, now: datetime) -> None:
    """Note from which moment and step on nothing is open any more; anything open starts the count anew."""
    if not is_calm:
        Incident.objects.filter(pk=incident.pk).update(calm_since_at=None, calm_attempt_id=None, calm_step=None)
    elif incident.calm_since_at is None and incident.run_id is not None:
        run = run_by_id(incident.run_id)
        Incident.objects.filter(pk=incident.pk).update(
            calm_since_at=now, calm_attempt_id=run.attempt_id, calm_step=run.step
        )
