"""Taking in what a scheduler says about jobs: attempts begin and end by its word, whoever started or stopped them.

The watcher and the door for pushed listings use the same function. A listing older than the last one changes nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from apps.engine.readers.slurm import HostlistMalformed, HostlistTooLarge, SlurmJob, hostlist_expand
from apps.fleet.models import Exclusion
from apps.fleet.services import exclusion_noted, nodes_ensure
from apps.journal.choices import Source
from apps.journal.services import recording
from apps.remediation.choices import LaunchState, OrderKind
from apps.remediation.models import Launch, Order, SchedulerJob
from apps.remediation.selectors.jobs import JobLeft, JobOfRun, jobs_expected, jobs_of_cluster
from apps.remediation.selectors.rows import LaunchFact
from apps.remediation.selectors.schedulers import FORGOTTEN
from apps.remediation.services.watching import launch_noted
from apps.runs.choices import AttemptState, Authority, EndReason
from apps.runs.models import RunStatus
from apps.runs.services import attempt_end, attempt_open, run_lock, status_update

BY = "Slurm"

END_REASONS: Mapping[str, str] = {
    "COMPLETED": EndReason.FINISHED,
    "CANCELLED": EndReason.CANCELLED,
    "REVOKED": EndReason.CANCELLED,
    "FAILED": EndReason.CRASHED,
    "OUT_OF_MEMORY": EndReason.CRASHED,
    "LAUNCH_FAILED": EndReason.CRASHED,
    "TIMEOUT": EndReason.TIME_LIMIT,
    "DEADLINE": EndReason.TIME_LIMIT,
    "NODE_FAIL": EndReason.NODE_FAILURE,
    "BOOT_FAIL": EndReason.NODE_FAILURE,
    "PREEMPTED": EndReason.PREEMPTED,
}
"""What a job's last state says about why the attempt ended; any other is UNKNOWN."""

MOST_AVOIDED = 64
"""Names that others newly put on a job's list; a longer one picks a part of the cluster, and is no word about nodes."""

FORGOTTEN_S = 60.0
"""A job that its scheduler does not know so long after its attempt began is over, and nobody saw how."""


def jobs_seen(
    *,
    cluster_id: int,
    jobs: Iterable[SlurmJob],
    at: datetime,
    now: datetime,
    down: Collection[str] = (),
    earlier: Mapping[int, SlurmJob] | None = None,
) -> int:
    """Take in jobs as they were at a moment; return how many of them belong to runs of ours.

    down: nodes that were not up then. earlier: for a job that was requeued, how its start before ended, where the
    accounting knows.
    """
    known = {row.job_id: row for row in jobs_of_cluster(cluster_id, now=now)}
    expected = jobs_expected(cluster_id)
    taken = 0
    for job in jobs:
        if job.id in expected and job.id not in known:
            taken += _first_seen(expected[job.id], job, now=now)
        if (row := known.get(job.id)) is not None:
            taken += _job_seen(cluster_id, row, job, down=set(down), before=(earlier or {}).get(job.id), at=at, now=now)
    return taken


def job_forgotten(*, job: JobOfRun, now: datetime) -> None:
    """Note that a scheduler which answers does not know a job any more: whatever it was, it does not run."""
    if (now - job.started_at).total_seconds() < FORGOTTEN_S:
        return
    SchedulerJob.objects.filter(run_id=job.run_id, job_id=job.job_id).update(state=FORGOTTEN, held=False, told_at=now)
    if job.attempt_state != AttemptState.OPEN:
        return
    if job.launch_id is not None:
        launch_noted(launch_id=job.launch_id, fact=LaunchFact(gone=True), now=now)
        return
    attempt_end(
        attempt_id=job.attempt_id,
        reason=EndReason.UNKNOWN,
        authority=Authority.SILENCE,
        by=BY,
        source=Source.LAUNCHER,
        now=now,
    )


def _over_noted(job_id: int, *, launch_id: int, state: str, now: datetime) -> None:
    """Write down that a job is over which nobody asks about any more: one that seems to wait is waited for."""
    run_id = Launch.objects.values_list("run_id", flat=True).get(pk=launch_id)
    SchedulerJob.objects.filter(run_id=run_id, job_id=job_id).update(state=state[:32], held=False, told_at=now)


def job_left_seen(*, left: JobLeft, job: SlurmJob | None, now: datetime) -> None:
    """Note that a job of an earlier attempt is over, or that its scheduler does not know it any more: its token ends."""
    if job is None or job.is_over:
        _over_noted(left.job_id, launch_id=left.launch_id, state=job.state if job is not None else FORGOTTEN, now=now)
    if job is None:
        launch_noted(launch_id=left.launch_id, fact=LaunchFact(gone=True), now=now)
    elif job.is_over:
        _end(left.attempt_id, left.launch_id, job, now=now)


def _first_seen(run_id: int, job: SlurmJob, *, now: datetime) -> bool:
    """Open the attempt of a run that named this job as its own, once it has nodes; whoever reports as it later finds it."""
    if not job.runs:
        return False
    attempt_open(
        run_id=run_id,
        key=f"slurm:{job.id}.{job.restarts or 0}",
        external_id=f"slurm:{job.id}",
        world_size=None,
        by=BY,
        source=Source.LAUNCHER,
        now=now,
    )
    return True


def is_another(name: str, job: SlurmJob) -> bool:
    """Return whether a job is not the one that had its number before, by the name under which that was known."""
    return bool(name and job.name) and job.name[:300] != name


def job_named_anew(*, cluster_id: int, run_id: int, job_id: int, name: str) -> None:
    """Note the name of a job that was just submitted for a run: a number that it had before counts no more."""
    SchedulerJob.objects.filter(cluster_id=cluster_id, run_id=run_id, job_id=job_id).update(name=name[:300])


def _job_seen(
    cluster_id: int,
    known: JobOfRun,
    job: SlurmJob,
    *,
    down: set[str],
    before: SlurmJob | None,
    at: datetime,
    now: datetime,
) -> bool:
    with recording(now=now):
        run_lock(known.run_id)  # before what is kept of the job, the status and the nodes that follow from it
        # Locked so that of two listings taken in at once the older one cannot come last.
        kept = SchedulerJob.objects.select_for_update(no_key=True).filter(cluster_id=cluster_id, job_id=job.id).first()
        if kept is not None and kept.told_at >= at:
            return False
        if kept is not None and kept.run_id == known.run_id and is_another(kept.name, job):
            return False  # what it does says nothing of this run
        was_on = kept.nodes if kept is not None else ""
        _keep(cluster_id, known, job, kept=kept, at=at)
        if job.restarts is not None and job.restarts > _start_before(known, kept, job.restarts):
            _started_again(known, job, was_on=was_on, down=down, before=before, now=now)
        elif job.is_over:
            _over(known, job, now=now)
        else:
            _goes_on(known, job, now=now)
        _avoided(cluster_id, known, job, before=kept.exc_nodes if kept is not None else "", now=now)
    return True


def _keep(cluster_id: int, known: JobOfRun, job: SlurmJob, *, kept: SchedulerJob | None, at: datetime) -> None:
    SchedulerJob.objects.update_or_create(
        cluster_id=cluster_id,
        job_id=job.id,
        defaults={
            "run_id": known.run_id,
            "name": kept.name if kept is not None and kept.name and kept.run_id == known.run_id else job.name[:300],
            "restarts": job.restarts or 0,
            "state": job.state[:32],
            "reason": job.reason[:300],
            "held": job.is_held,
            "nodes": job.nodes or (kept.nodes if kept is not None else ""),
            "exc_nodes": job.exc_nodes,
            "nodes_asked": _nodes_asked(job, kept),
            "partitions": _partitions(job, kept),
            "eligible_at": job.eligible_at.at,
            "started_at": job.started_at.at,
            "told_at": at,
        },
    )


def _nodes_asked(job: SlurmJob, kept: SchedulerJob | None) -> int | None:
    """Return how many nodes a job needs: the fewest that were ever told, for with nodes it may have more than it asked for."""
    told = (job.nodes_asked, kept.nodes_asked if kept is not None else None)
    return min((number for number in told if number is not None), default=None)


def _partitions(job: SlurmJob, kept: SchedulerJob | None) -> list[str]:
    """Return where a job may run: once it has nodes, only the one of its partitions that it got is told."""
    before = kept.partitions if kept is not None else []
    got_one_of_them = job.state != "PENDING" and set(job.partitions) <= set(before)
    return before if got_one_of_them or not job.partitions else list(job.partitions)


def _started_again(
    known: JobOfRun, job: SlurmJob, *, was_on: str, down: set[str], before: SlurmJob | None, now: datetime
) -> None:
    """Slurm, or somebody by it, put a job back: the attempt that it was is over, and a new one begins when it runs."""
    requeued_at = job.submitted_at.at  # of a requeued job that is when it was requeued
    attempt_end(
        attempt_id=known.attempt_id,
        reason=_why_requeued(job, was_on=was_on, down=down, before=before),
        authority=Authority.SCHEDULER,
        by=BY,
        source=Source.LAUNCHER,
        now=now,
        happened_at=min(requeued_at, now) if requeued_at is not None and requeued_at >= known.started_at else None,
    )
    if not (job.runs or job.is_over):
        _queued_set(known.run_id, queued=True)
        return
    if known.restarts is None:
        _queued_set(known.run_id, queued=False)
        return  # its reporter has a key of its own, which nobody else could know
    attempt, _ = attempt_open(
        run_id=known.run_id,
        key=f"slurm:{job.id}.{job.restarts}",
        external_id=f"slurm:{job.id}",
        world_size=None,
        by=BY,
        source=Source.LAUNCHER,
        now=now,
    )
    if known.launch_id is not None:
        Launch.objects.filter(pk=known.launch_id).update(attempt_id=attempt.id)
    if job.is_over:
        _end(attempt.id, known.launch_id, job, now=now)


def _start_before(known: JobOfRun, kept: SchedulerJob | None, now_at: int) -> int:
    """Return which start of its job an attempt is: by its key, else the one that was seen since it began, else the present."""
    if known.restarts is not None:
        return known.restarts
    return kept.restarts if kept is not None and kept.told_at > known.started_at else now_at


def _why_requeued(job: SlurmJob, *, was_on: str, down: set[str], before: SlurmJob | None) -> str:
    if before is not None and before.state in END_REASONS:
        return END_REASONS[before.state]
    if job.failed_node or _names(was_on) & down:
        return EndReason.NODE_FAILURE
    if "preempt" in job.reason.lower():
        return EndReason.PREEMPTED
    return EndReason.UNKNOWN


def _over(known: JobOfRun, job: SlurmJob, *, now: datetime) -> None:
    _end(known.attempt_id, known.launch_id, job, now=now)
    _queued_set(known.run_id, queued=False)


def _end(attempt_id: int, launch_id: int | None, job: SlurmJob, *, now: datetime) -> None:
    reason = END_REASONS.get(job.state, EndReason.UNKNOWN)
    ended_at = min(job.ended_at.at, now) if job.ended_at.at is not None else None
    if launch_id is not None:
        fact = LaunchFact(
            gone=True, ended_at=ended_at, status=job.exit_status, signal=job.exit_signal, reason=str(reason)
        )
        launch_noted(launch_id=launch_id, fact=fact, now=now)
        return
    attempt_end(
        attempt_id=attempt_id,
        reason=reason,
        authority=Authority.SCHEDULER,
        by=BY,
        source=Source.LAUNCHER,
        now=now,
        happened_at=ended_at,
    )


def _goes_on(known: JobOfRun, job: SlurmJob, *, now: datetime) -> None:
    waits = job.state == "PENDING"
    if known.attempt_state == AttemptState.OPEN or not waits:
        _queued_set(known.run_id, queued=waits and known.attempt_state == AttemptState.OPEN)
    if job.runs and known.launch_id is not None:
        Launch.objects.filter(pk=known.launch_id, state=LaunchState.ALIVE, running_at=None).update(
            running_at=job.started_at.at or now
        )


def _queued_set(run_id: int, *, queued: bool) -> None:
    """Say whether a run waits for its scheduler; what stands so already pokes nobody."""
    if RunStatus.objects.filter(pk=run_id, queued=not queued).exists():
        status_update(run_id=run_id, queued=queued)


def _avoided(cluster_id: int, known: JobOfRun, job: SlurmJob, *, before: str, now: datetime) -> None:
    """Enter in the ledger which nodes others newly keep a job from; what we put on its list ourselves is ours already."""
    new = _names(job.exc_nodes) - _names(before)
    if not new or len(new) > MOST_AVOIDED:
        return
    receipts = Order.objects.filter(
        action__run_id=known.run_id, kind=OrderKind.LAUNCH, receipt__receipt=str(job.id)
    ).values_list("receipt", flat=True)
    new -= {name for receipt in receipts for name in receipt.get("excluded", ())}
    ids = nodes_ensure(cluster_id=cluster_id, names=new, now=now)
    out = set(Exclusion.objects.filter(node_id__in=ids.values(), ended_at=None).values_list("node_id", flat=True))
    for node_id in sorted(set(ids.values()) - out):
        exclusion_noted(
            node_id=node_id,
            reason="on the job's ExcNodeList",
            by_name=job.user or "the job's owner",
            scope=f"job {job.id}",
            source=Source.SYSTEM,
            now=now,
        )


def _names(hostlist: str) -> set[str]:
    try:
        return set(hostlist_expand(hostlist))
    except (HostlistMalformed, HostlistTooLarge):
        return set()
