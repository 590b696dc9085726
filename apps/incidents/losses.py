"""What an incident has cost so far, in GPU-hours, from what was measured."""

from datetime import datetime

from apps.diagnosis.selectors import FindingRow, findings_by_id
from apps.incidents.models import Incident
from apps.runs.selectors import RunRow

STALLS = frozenset({"hang", "rank_lost", "gpu_lost"})
"""Causes during which nothing is trained: every GPU is lost from the beginning to the next step."""


def lead_of(incident: Incident) -> FindingRow | None:
    """Return the finding that names an incident."""
    rows = findings_by_id([incident.lead_finding_id]) if incident.lead_finding_id is not None else []
    return rows[0] if rows else None


def lost_gpu_hours(incident: Incident, run: RunRow | None, lead: FindingRow | None, *, now: datetime) -> float | None:
    """Return GPU-hours lost to an incident until now, or None where it cannot be said.

    A stall costs every GPU for its whole time; slowness costs the seconds it adds to each step.
    """
    if run is None or run.world_size is None or lead is None or incident.class_name == "WATCHING":
        return None
    # The harm ends when it is dealt with or nothing of it is open any more; people close it whenever they have time.
    ends = (incident.resolved_at, incident.mitigated_at, incident.calm_since_at)
    end = min((moment for moment in ends if moment is not None), default=now)
    lasted_s = max(0.0, (end - incident.began_at).total_seconds())
    if lead.cause in STALLS:
        return lasted_s * run.world_size / 3600
    if lead.cost_s is not None and run.step_s:
        return lead.cost_s / run.step_s * lasted_s * run.world_size / 3600
    return None
