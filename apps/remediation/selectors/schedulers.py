"""Which scheduler runs a cluster, how it was last seen, and which of its jobs belong to which run."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from apps.engine.readers.slurm import ENDED
from apps.remediation.models import SchedulerJob, SchedulerSetting


@dataclass(frozen=True, slots=True)
class SchedulerRow:
    """A cluster's scheduler: where its programs and its configuration are, what Paceline may do, how it was last seen.

    `drains` says whether excluding a node also drains it there. `failures` counts reads that failed since the last good
    one.
    """

    cluster_id: int
    cluster: str
    kind: str
    conf: str = ""
    programs: str = ""
    zone: str = "UTC"
    poll_s: float = 5.0
    drains: bool = True
    updated_by: str = ""
    updated_at: datetime | None = None
    read_at: datetime | None = None
    failures: int = 0
    error: str = ""
    next_read_at: datetime | None = None

    @property
    def tzinfo(self) -> ZoneInfo:
        """Return the zone in which pushed listings of it have times without an offset; its programs are asked in UTC."""
        return ZoneInfo(self.zone)


FORGOTTEN = "FORGOTTEN"
"""What stands for the state of a job that its scheduler does not know any more."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A run's job as the scheduler last told. `nodes_asked`: the least number of nodes with which it would begin."""

    cluster_id: int
    run_id: int
    job_id: int
    name: str
    restarts: int
    state: str
    reason: str
    held: bool
    nodes: str
    exc_nodes: str
    eligible_at: datetime | None
    started_at: datetime | None
    told_at: datetime
    nodes_asked: int | None = None
    partitions: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Return whether it stands in the queue."""
        return self.state == "PENDING"

    @property
    def is_over(self) -> bool:
        """Return whether it had ended when it was last told of."""
        return self.state in ENDED or self.state == FORGOTTEN


@dataclass(frozen=True, slots=True)
class Silence:
    """A scheduler that cannot be read: since when, None where it never was, and why."""

    since_at: datetime | None
    why: str


SILENT_AFTER = timedelta(seconds=30)
"""One read that fails is a busy controller; a page says so when what it shows is older than people would take it for."""

_JOB = re.compile(r"slurm:(\d{1,10})(?:\.(\d{1,9}))?(?![0-9])")


def job_named(key: str, external_id: str = "") -> tuple[int, int | None] | None:
    """Return the job that an attempt is and which start of it, by its key or else by its job; None where neither says.

    A job that is known by its number alone may be any start of it: the second is None.

    >>> job_named("slurm:12.1.batch"), job_named("torchrun:a/b", "slurm:12"), job_named("torchrun:a")
    ((12, 1), (12, None), None)
    """
    found = _JOB.match(key) or _JOB.match(external_id)
    return None if found is None else (int(found[1]), int(found[2]) if found[2] else None)


def scheduler_of(cluster_id: int) -> SchedulerRow | None:
    """Return a cluster's scheduler, None where none is set."""
    row = SchedulerSetting.objects.select_related("cluster").filter(pk=cluster_id).first()
    return None if row is None else _scheduler_row(row)


def schedulers_all() -> list[SchedulerRow]:
    """Return all schedulers that are set, by cluster name."""
    rows = SchedulerSetting.objects.select_related("cluster").order_by("cluster__name")
    return [_scheduler_row(row) for row in rows]


def scheduler_silence(cluster_id: int, *, now: datetime) -> Silence | None:
    """Return that a cluster's scheduler has not been read for a while, None where it was, or where none is set."""
    row = scheduler_of(cluster_id)
    if row is None or not row.failures or (row.read_at is not None and now - row.read_at < SILENT_AFTER):
        return None
    why = row.error.removeprefix("Slurm's controller does not answer: ").rstrip(". ")
    return Silence(since_at=row.read_at, why=why)


def schedulers_due(*, now: datetime) -> list[int]:
    """Return the clusters whose scheduler is to be read now, longest due first."""
    due = SchedulerSetting.objects.filter(next_read_at__lte=now).order_by("next_read_at", "pk")
    return list(due.values_list("pk", flat=True))


def job_of_run(run_id: int) -> JobRow | None:
    """Return the job that a run last had, None if it had none that was seen."""
    row = SchedulerJob.objects.filter(run_id=run_id).order_by("-told_at", "-pk").first()
    return None if row is None else _job_row(row)


def job_known(cluster_id: int, job_id: int, *, run_id: int) -> tuple[str, int | None]:
    """Return the name under which a run's job is known and which start of it was told last; "" and None where nobody told."""
    row = SchedulerJob.objects.filter(cluster_id=cluster_id, job_id=job_id, run_id=run_id)
    return row.values_list("name", "restarts").first() or ("", None)


def jobs_of_runs(run_ids: Collection[int]) -> dict[int, JobRow]:
    """Return the newest job of each run; runs without are left out."""
    rows = SchedulerJob.objects.filter(run_id__in=list(run_ids)).order_by("told_at", "pk")
    return {row.run_id: _job_row(row) for row in rows}


def _scheduler_row(row: SchedulerSetting) -> SchedulerRow:
    return SchedulerRow(
        cluster_id=row.pk,
        cluster=row.cluster.name,
        kind=row.kind,
        conf=row.conf,
        programs=row.programs,
        zone=row.zone,
        poll_s=row.poll_s,
        drains=row.drains,
        updated_by=row.updated_by,
        updated_at=row.updated_at,
        read_at=row.read_at,
        failures=row.failures,
        error=row.error,
        next_read_at=row.next_read_at,
    )


def _job_row(row: SchedulerJob) -> JobRow:
    return JobRow(
        cluster_id=row.cluster_id,
        run_id=row.run_id,
        job_id=row.job_id,
        name=row.name,
        restarts=row.restarts,
        state=row.state,
        reason=row.reason,
        held=row.held,
        nodes=row.nodes,
        exc_nodes=row.exc_nodes,
        eligible_at=row.eligible_at,
        started_at=row.started_at,
        told_at=row.told_at,
        nodes_asked=row.nodes_asked,
        partitions=tuple(row.partitions),
    )
