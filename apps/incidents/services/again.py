"""What comes back in a later attempt although it was said to be dealt with: the same incident, opened again (decision 35)."""

from django.db.models import QuerySet

from apps.common.errors import Conflict, NotFound
from apps.diagnosis.choices import CloseReason
from apps.diagnosis.selectors import FindingRow, findings_of
from apps.engine.estimates.retry_chains import PROGRESS_STEPS
from apps.fleet.selectors import exclusions_by_node, node_by_code
from apps.incidents.choices import STOPS, IncidentState
from apps.incidents.models import Incident
from apps.incidents.services.moving import incident_move, incident_say
from apps.journal.choices import Source
from apps.journal.services import Log
from apps.runs.selectors import attempt_by_id

LOOP = "restart_loop"

LOOKED_BACK = 200
"""Findings of a run among which those of earlier attempts are: several each for more attempts than a window carries."""


def incident_again(open_ones: QuerySet[Incident], row: FindingRow) -> Incident | None:
    """Return the open incident that a finding is of because its cause is back, in a later attempt, where it was.

    A restart that takes along what was the matter has dealt with nothing, and what stops each attempt alike, or a loop of
    restarts, is one origin. Only a node that was put out since was dealt with."""
    before = _before(row)
    known = {one.pk: one for one in open_ones.filter(pk__in={one.incident_id for one in before})}
    for one in before:
        incident = known.get(one.incident_id or 0)
        if incident is None or not _is_where_it_was(one, row, incident) or _was_put_out(row, incident):
            continue
        wide = incident.place_key == "RUN" != row.place_key
        # Where something else is open at that place, the run as a whole stays this one's: there is one to a place.
        return incident_placed(incident, row) if wide and not open_ones.filter(place_key=row.place_key) else incident
    return None


def incident_before(row: FindingRow) -> Incident | None:
    """Return the newest incident of a run that the one which a finding opens is a repetition of: the cause is the same, and
    the place may be. What else happened there before has nothing to do with it."""
    same = Incident.objects.filter(run_id=row.run_id, cause=row.cause).order_by("-number")[:LOOKED_BACK]
    return next((one for one in same if _of_one_place(one, row)), None)


def incident_placed(incident: Incident | None, row: FindingRow) -> Incident | None:
    """Give an incident about the run as a whole the place that explains it."""
    if incident is not None:
        incident.place_key = row.place_key
        incident.save(update_fields=["place_key"])
    return incident


def incident_reopen(incident: Incident, *, in_attempt: int | None, log: Log) -> None:
    """Open an incident again that was mitigated and is back. `in_attempt`: the later attempt that took it along."""
    state = IncidentState.ACKNOWLEDGED if incident.acknowledged_at else IncidentState.OPEN
    incident_move(incident, state, mitigated_at=None, again_attempt_id=in_attempt)
    how = f"came back in attempt {attempt_by_id(in_attempt).number}" if in_attempt is not None else "is back"
    text = f"INC-{incident.number} {how}: {incident.title}"
    incident_say(log, incident, "incident.reopened", text, source=Source.RULE)


def _before(row: FindingRow) -> list[FindingRow]:
    """Return what was the matter in earlier attempts as it is in this one, or in those of a loop, the newest first."""
    if row.cause == LOOP:
        return _of_the_loop(row)
    rows = [
        one
        for one in findings_of(run_id=row.run_id, cause=row.cause, limit=LOOKED_BACK)
        if one.attempt_id < row.attempt_id
    ]
    if row.cause not in STOPS:
        return rows
    rows = [one for one in rows if one.close_reason != CloseReason.RECOVERED]
    reached = max((one.since_step for one in rows if one.since_step is not None), default=None)
    went_on = row.since_step is not None and (reached is None or row.since_step >= reached + PROGRESS_STEPS)
    return [] if went_on else rows


def _of_the_loop(row: FindingRow) -> list[FindingRow]:
    began = row.began_at or row.found_at
    rows = findings_of(run_id=row.run_id, limit=LOOKED_BACK)
    loop = [one for one in rows if one.cause in STOPS | {LOOP} and one.id != row.id and one.found_at >= began]
    several = len({one.place_key for one in loop} - {"RUN"}) > 1
    # Where other nodes stop each attempt, that it is restarted in vain is of none of them.
    return [one for one in loop if one.place_key == "RUN"] if several and row.place_key == "RUN" else loop


def _is_where_it_was(before: FindingRow, row: FindingRow, incident: Incident) -> bool:
    if incident.place_key == row.place_key:
        return True
    # What an incident only brought about (checkpoints that age) may well come again without it.
    is_its_own = row.cause in STOPS | {LOOP} or before.cause == incident.cause
    return is_its_own and _of_one_place(before, row)


def _of_one_place(one: FindingRow | Incident, other: FindingRow) -> bool:
    """Return whether two of them can be of one place: it is the same, or one of them could not say which of several."""
    if "RUN" not in (one.place_key, other.place_key):
        return one.place_key == other.place_key
    wide, exact = (one, other) if one.place_key == "RUN" else (other, one)
    among = wide.subject.get("nodes")
    return not among or exact.place_key == "RUN" or exact.subject.get("node") in among


def _was_put_out(row: FindingRow, incident: Incident) -> bool:
    """Return whether the node that a finding names was put out since the incident was found."""
    name = row.subject.get("node")
    if not name:
        return False
    try:
        node_id = node_by_code(name, cluster_id=incident.cluster_id).id
    except (NotFound, Conflict):
        return False
    return bool(exclusions_by_node(node_ids=[node_id], since=incident.found_at))
