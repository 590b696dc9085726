"""Which jobs of a cluster's scheduler belong to which runs, and where our ledger and the scheduler disagree."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from apps.common.errors import NotFound
from apps.common.ids import BIGGEST_ID
from apps.remediation.choices import LauncherKind, LaunchState, OrderKind, OrderState
from apps.remediation.models import Drift, Launch, Order, SchedulerJob
from apps.remediation.selectors.schedulers import job_named
from apps.runs.choices import AttemptState
from apps.runs.models import Attempt, RunStatus

_IN_HAND = (OrderState.WAITING, OrderState.CLAIMED, OrderState.UNCERTAIN)

ASKED_FOR = timedelta(hours=1)
"""A job whose attempt ended so long ago is asked about no more, unless it is seen in the queue."""


@dataclass(frozen=True, slots=True)
class JobOfRun:
    """A run's newest attempt and the job that it is. `launch_id`: Paceline started it, and it lives.

    `restarts` is the start of the job that it is, None where its key does not say.
    """

    run_id: int
    attempt_id: int
    attempt_state: str
    started_at: datetime
    job_id: int
    restarts: int | None
    launch_id: int | None


@dataclass(frozen=True, slots=True)
class JobLeft:
    """A job that Paceline submitted for an attempt that is not its run's newest."""

    launch_id: int
    attempt_id: int
    job_id: int


@dataclass(frozen=True, slots=True)
class DriftRow:
    """A node about which our ledger and the scheduler disagree. `kept_by_name` decided to leave it so, if anybody did."""

    id: int
    node_id: int
    node: str
    cluster_id: int
    cluster: str
    kind: str
    exclusion_id: int | None
    scheduler_state: str
    reason: str
    by_name: str
    began_at: datetime
    seen_at: datetime
    kept_by_name: str = ""
    kept_until_at: datetime | None = None

    def is_kept(self, now: datetime) -> bool:
        """Return whether somebody decided to leave it so, and that still holds."""
        return bool(self.kept_by_name) and (self.kept_until_at is None or self.kept_until_at > now)


def jobs_of_cluster(cluster_id: int, *, now: datetime) -> list[JobOfRun]:
    """Return the jobs that a cluster's scheduler is to be asked about, by run. One of a run whose order is in hand is left out."""
    newest = RunStatus.objects.filter(run__cluster_id=cluster_id).exclude(attempt_id=None).values("attempt_id")
    waiting = SchedulerJob.objects.filter(cluster_id=cluster_id, state="PENDING").values("run_id")
    busy = Order.objects.filter(
        action__run__cluster_id=cluster_id,
        state__in=_IN_HAND,
        kind__in=("STOP", "LAUNCH"),
    )
    found = Attempt.objects.filter(pk__in=newest).exclude(run_id__in=busy.values("action__run_id"))
    found = found.filter(
        Q(state=AttemptState.OPEN) | Q(ended_at__gte=now - ASKED_FOR) | Q(run_id__in=waiting)
    ).order_by("run_id")
    launches = {
        (run_id, external_id): launch_id
        for launch_id, run_id, external_id in Launch.objects.filter(
            run__cluster_id=cluster_id, launcher=LauncherKind.SLURM, state=LaunchState.ALIVE
        ).values_list("pk", "run_id", "external_id")
    }
    rows = []
    for attempt in found:
        if (job := job_named(attempt.key, attempt.external_id)) is not None:
            rows.append(
                JobOfRun(
                    run_id=attempt.run_id,
                    attempt_id=attempt.pk,
                    attempt_state=attempt.state,
                    started_at=attempt.started_at,
                    job_id=job[0],
                    restarts=job[1],
                    launch_id=launches.get((attempt.run_id, str(job[0]))),
                )
            )
    return rows


def jobs_expected(cluster_id: int) -> dict[int, int]:
    """Return the runs, by job, that name a job as theirs (`external_id`) which none of their attempts is yet.

    Of such a run nobody may ever report: its attempts begin and end by the scheduler's word alone.
    """
    rows = RunStatus.objects.filter(run__cluster_id=cluster_id, run__external_id__startswith="slurm:").exclude(
        attempt_state=AttemptState.OPEN
    )
    named = {run_id: job_named("", external_id) for run_id, external_id in rows.values_list("pk", "run__external_id")}
    newest = Attempt.objects.filter(pk__in=rows.exclude(attempt_id=None).values("attempt_id"))
    last = {run_id: job_named(key, job) for run_id, key, job in newest.values_list("run_id", "key", "external_id")}
    found = {}
    for run_id, job in named.items():
        before = last.get(run_id)
        if job is not None and (before is None or before[0] < job[0]):
            found[job[0]] = run_id
    return found


def jobs_left(cluster_id: int) -> list[JobLeft]:
    """Return the jobs that Paceline submitted for earlier attempts and that it has not seen to end, by launch.

    A run goes on to its next attempt within a second of a stop; nobody asks about the job before that one any more, and
    its token would never end. One of a run whose order is in hand is left out: that may be the same job, put back.
    """
    newest = RunStatus.objects.filter(run__cluster_id=cluster_id).exclude(attempt_id=None).values("attempt_id")
    busy = Order.objects.filter(action__run__cluster_id=cluster_id, state__in=_IN_HAND, kind__in=("STOP", "LAUNCH"))
    left = Launch.objects.filter(run__cluster_id=cluster_id, launcher=LauncherKind.SLURM, state=LaunchState.ALIVE)
    left = left.exclude(attempt_id__in=newest).exclude(run_id__in=busy.values("action__run_id")).order_by("pk")
    return [
        JobLeft(launch_id=launch_id, attempt_id=attempt_id, job_id=int(external_id))
        for launch_id, attempt_id, external_id in left.values_list("pk", "attempt_id", "external_id")
        if external_id.isdecimal()
    ]


def put_by_us(run_id: int, job_id: int, *, but: int = 0) -> set[str]:
    """Return the nodes that Paceline's orders for a run put on a job's list of nodes to avoid. `but`: an order that does not count."""
    earlier = Order.objects.filter(action__run_id=run_id, kind=OrderKind.LAUNCH, state=OrderState.DONE).exclude(pk=but)
    receipts = [got for got in earlier.values_list("receipt", flat=True) if got.get("receipt") == str(job_id)]
    return {name for got in receipts for name in got.get("excluded", ())}


def something_awaited(cluster_id: int) -> bool:
    """Return whether a job of the cluster is on its way into or out of the queue, so that it is worth reading soon."""
    starting = Launch.objects.filter(
        run__cluster_id=cluster_id, launcher=LauncherKind.SLURM, state=LaunchState.ALIVE, running_at=None
    )
    return starting.exists() or SchedulerJob.objects.filter(cluster_id=cluster_id, state="PENDING").exists()


def drifts_open(*, cluster_id: int | None = None, node_id: int | None = None) -> list[DriftRow]:
    """Return where ledger and scheduler disagree now, oldest first."""
    found = Drift.objects.filter(ended_at=None).select_related("node__cluster").order_by("began_at", "pk")
    if cluster_id is not None:
        found = found.filter(node__cluster_id=cluster_id)
    if node_id is not None:
        found = found.filter(node_id=node_id)
    return [_drift_row(row) for row in found]


def drifts_of_nodes(node_ids: Collection[int]) -> list[DriftRow]:
    """Return where ledger and scheduler disagree now about these nodes."""
    found = Drift.objects.filter(ended_at=None, node_id__in=list(node_ids)).select_related("node__cluster")
    return [_drift_row(row) for row in found]


def drift_by_id(drift_id: int) -> DriftRow:
    """Return a difference that is not over.

    Raises:
        NotFound: there is none, or it is over.
    """
    found = Drift.objects.filter(ended_at=None).select_related("node__cluster")
    row = found.filter(pk=drift_id).first() if drift_id <= BIGGEST_ID else None
    if row is None:
        raise NotFound("There is no such difference any more; look again.")
    return _drift_row(row)


def _drift_row(row: Drift) -> DriftRow:
    return DriftRow(
        id=row.pk,
        node_id=row.node_id,
        node=row.node.name,
        cluster_id=row.node.cluster_id,
        cluster=row.node.cluster.name,
        kind=row.kind,
        exclusion_id=row.exclusion_id,
        scheduler_state=row.scheduler_state,
        reason=row.reason,
        by_name=row.by_name,
        began_at=row.began_at,
        seen_at=row.seen_at,
        kept_by_name=row.kept_by_name,
        kept_until_at=row.kept_until_at,
    )
