"""Reading a cluster's Slurm: nodes and the jobs of our runs, with whatever of it answers."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from apps.engine.readers.slurm import SlurmJob
from apps.remediation.launchers.slurm_cli import SlurmCli
from apps.remediation.launching import LaunchRefused, LaunchUnavailable
from apps.remediation.selectors.jobs import JobOfRun, jobs_expected, jobs_left, jobs_of_cluster, something_awaited
from apps.remediation.selectors.schedulers import SchedulerRow
from apps.remediation.services.jobs import job_forgotten, job_left_seen, jobs_seen
from apps.remediation.services.nodes import nodes_seen
from apps.remediation.services.scheduling import scheduler_answered, scheduler_silent

BUDGET_S = 30.0
"""All calls of one read together: below the time after which whoever reads counts as dead."""


def scheduler_look(where: SchedulerRow, *, now: datetime) -> bool:
    """Read a cluster's Slurm and take in what it says; return whether it answered. A silent one is noted, never raised."""
    began = time.monotonic()
    cli = SlurmCli(where, budget_s=BUDGET_S)
    try:
        nodes = cli.nodes()
        wanted = jobs_of_cluster(where.cluster_id, now=now)
        left = jobs_left(where.cluster_id)
        asked = {row.job_id for row in wanted} | {row.job_id for row in left} | set(jobs_expected(where.cluster_id))
        jobs = cli.jobs(*sorted(asked))
        again = [row for row in wanted if _was_put_back(row, jobs)]
        missing = [row for row in wanted if row.job_id not in jobs]
        starts = cli.accounted(*{row.job_id for row in (*again, *missing)})
        earlier = {row.job_id: ended for row in again if (ended := _earlier(row, starts)) is not None}
    except (LaunchUnavailable, LaunchRefused) as error:
        # The pause begins when the wait is over: a controller that hangs is not asked without a break.
        waited = timedelta(seconds=time.monotonic() - began)
        scheduler_silent(cluster_id=where.cluster_id, error=error.message, now=now + waited)
        return False
    nodes_seen(cluster_id=where.cluster_id, nodes=nodes.values(), at=now, now=now)
    down = {name for name, node in nodes.items() if node.is_down}
    jobs_seen(cluster_id=where.cluster_id, jobs=jobs.values(), at=now, now=now, down=down, earlier=earlier)
    for row in missing:
        _forgotten(where, row, starts, now=now)
    for one in left:
        job_left_seen(left=one, job=jobs.get(one.job_id), now=now)
    scheduler_answered(cluster_id=where.cluster_id, soon=something_awaited(where.cluster_id), now=now)
    return True


def _was_put_back(row: JobOfRun, jobs: Mapping[int, SlurmJob]) -> bool:
    job = jobs.get(row.job_id)
    return job is not None and job.restarts is not None and row.restarts is not None and job.restarts > row.restarts


def _earlier(row: JobOfRun, starts: Mapping[int, Sequence[SlurmJob]]) -> SlurmJob | None:
    """Return how the start before ended, of a job that was put back, where the accounting knows."""
    rows = starts.get(row.job_id, ())
    return rows[row.restarts] if row.restarts is not None and row.restarts < len(rows) else None


def _forgotten(where: SchedulerRow, row: JobOfRun, starts: Mapping[int, Sequence[SlurmJob]], *, now: datetime) -> None:
    rows = starts.get(row.job_id)
    if rows is None:
        return  # its accounting does not answer: what became of it is asked again
    if rows and rows[-1].is_over:
        jobs_seen(cluster_id=where.cluster_id, jobs=rows[-1:], at=now, now=now)
    else:
        job_forgotten(job=row, now=now)
