"""What trouble costs, in GPU-hours, from what was measured: the one source for cards, prices and incidents."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from apps.diagnosis.selectors import FindingRow, findings_by_id
from apps.incidents.models import Incident
from apps.runs.choices import FAILURES, AttemptState
from apps.runs.selectors import RunRow

STALLS = frozenset({"hang", "rank_lost", "gpu_lost"})
"""Causes during which nothing is trained: every GPU is lost from the beginning to the next step."""

OUTLASTS_A_RESTART = frozenset({"gc_pause", "checkpoint_queue"})
"""Causes that stand in the program or at its store: a restart brings them along, whatever node it leaves out."""


def loses_all(row: FindingRow) -> bool:
    """Return whether nothing is trained while a finding lasts: the run stands, or its steps are worth nothing."""
    return row.cause in STALLS or (row.cause == "numeric_fault" and row.level == "CRITICAL")


def loss_share(row: FindingRow, run: RunRow) -> float | None:
    """Return the share 0..1 of a run's GPU-hours that a finding costs while it lasts, None if it was not measured."""
    if loses_all(row):
        return 1.0
    if row.cost_s is None or not run.step_s:
        return None
    # A step's time holds what slows the step itself; what comes between steps, as a save does, comes on top of it.
    of_s = run.step_s + row.cost_s if row.class_name == "RECOVERY" else run.step_s
    return min(1.0, row.cost_s / of_s)


def cured_share_of(run: RunRow, rows: Sequence[FindingRow]) -> float | None:
    """Return the share 0..1 of its GPU-hours that a restart would give back to a run, None where there is nothing.

    rows: its newest attempt's open findings.
    """
    curable = [row for row in rows if row.cause not in OUTLASTS_A_RESTART]
    if run.attempt_state == AttemptState.OPEN and rows and not curable:
        return None
    return loss_share_of(run, curable)


def loss_share_of(run: RunRow, rows: Iterable[FindingRow]) -> float | None:
    """Return the share 0..1 of its GPU-hours that a run loses as it goes on now, None where nothing is known to cost.

    rows: its newest attempt's open findings. A run that a failure stopped, or that stands, loses all; the costliest
    finding counts, because a step waits for the slowest only. Without a finding nothing is lost: that steps vary is no
    trouble.
    """
    if run.attempt_state != AttemptState.OPEN:
        return 1.0 if run.attempt_ended_reason in FAILURES else None
    shares = [share for row in rows if row.level != "INFO" and (share := loss_share(row, run)) is not None]
    if run.hang:
        shares.append(1.0)
    if not shares and run.slow and run.step_s and run.own_best_step_s:
        shares.append(max(0.0, 1 - run.own_best_step_s / run.step_s))
    return max(shares, default=None)


def lead_of(incident: Incident) -> FindingRow | None:
    """Return the finding that names an incident."""
    rows = findings_by_id([incident.lead_finding_id]) if incident.lead_finding_id is not None else []
    return rows[0] if rows else None


def lost_gpu_hours(incident: Incident, run: RunRow | None, lead: FindingRow | None, *, now: datetime) -> float | None:
    """Return GPU-hours lost to an incident until now, or None where it cannot be said; once it is closed that is fixed.

    A stall costs every GPU for its whole time; slowness costs the seconds it adds to each step. It is never less than
    what was said before: that a fault costs less as it fades gives back nothing of what it took.
    """
    if incident.resolved_at is not None and incident.gpu_hours_lost is not None:
        return incident.gpu_hours_lost
    amounts = (incident.gpu_hours_lost, _lost_as_it_goes_now(incident, run, lead, now=now))
    return max((amount for amount in amounts if amount is not None), default=None)


def _lost_as_it_goes_now(
    incident: Incident, run: RunRow | None, lead: FindingRow | None, *, now: datetime
) -> float | None:
    """Return what was lost if the incident cost all the time what it costs now."""
    if run is None or lead is None or incident.class_name == "WATCHING":
        return None
    # The ranks of the attempt that it struck, which may be more than the run has by now: a restart leaves nodes out.
    ranks = lead.world_size or run.world_size
    # The harm ends when it is dealt with or nothing of it is open any more; people close it whenever they have time.
    ends = (incident.resolved_at, incident.mitigated_at, incident.calm_since_at)
    end = min((moment for moment in ends if moment is not None), default=now)
    lasted_s = max(0.0, (end - incident.began_at).total_seconds())
    share = loss_share(lead, run)
    return None if share is None or ranks is None else share * lasted_s * ranks / 3600
