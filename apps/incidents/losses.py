"""What an incident has cost so far, in GPU-hours, from what was measured."""

from datetime import datetime

from apps.diagnosis.selectors import FindingRow
from apps.incidents.models import Incident
from apps.runs.selectors import RunRow

STALLS = frozenset({"hang", "rank_lost", "gpu_lost"})
"""Causes during which nothing is trained: every GPU is lost from the beginning to the next step."""


def lost_gpu_hours(incident: Incident, run: RunRow | None, lead: FindingRow | None, *, now: datetime) -> float | None:
    """Return GPU-hours lost to an incident until now, or None where it cannot be said.

    A stall costs every GPU for its whole time; slowness costs the seconds it adds to each step.
    """
    if run is None or run.world_size is None or lead is None or incident.class_name == "WATCHING":
        return None
    end = incident.resolved_at or incident.mitigated_at or incident.calm_since_at or now
    lasted_s = max(0.0, (end - incident.began_at).total_seconds())
    if lead.cause in STALLS:
        return lasted_s * run.world_size / 3600
    if lead.cost_s is not None and run.step_s:
        return lead.cost_s / run.step_s * lasted_s * run.world_size / 3600
    return None
