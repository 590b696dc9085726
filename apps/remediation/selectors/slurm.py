"""What Paceline could have Slurm do for a run, and how it says so before it does it."""

from collections.abc import Sequence
from dataclasses import dataclass

from apps.remediation.choices import ActionKind, Requeued
from apps.remediation.selectors.schedulers import JobRow, job_named, job_of_run, scheduler_of
from apps.runs.choices import AttemptState
from apps.runs.launcher import LauncherSetting
from apps.runs.selectors import AttemptRow, RunRow, attempt_by_id


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that Slurm put back into its queue by itself while its attempt is over: what a restart may do with it.

    `chosen` is the `Requeued` that is previewed; `may` those that are possible, the usual one first.
    """

    job: JobRow
    may: tuple[str, ...]
    chosen: str

    @property
    def releases(self) -> bool:
        """Return whether this job goes on, instead of another one that is submitted."""
        return self.chosen == Requeued.RELEASE


def submits(setting: LauncherSetting) -> bool:
    """Return whether a start is a submission of its own, and not somebody's job that is requeued."""
    return bool(setting.command or setting.script)


def queued_job(run: RunRow, setting: LauncherSetting, *, wanted: str = "") -> QueuedJob | None:
    """Return the job of a run that waits in Slurm's queue though its attempt is over, None if there is none.

    wanted: the `Requeued` that somebody chose; what is not possible counts as not chosen. Somebody's own job is always
    released: there is nothing that could be submitted in its place.
    """
    job = job_there(run) if run.attempt_state != AttemptState.OPEN else None
    if job is None or not job.waits:
        return None
    may = (Requeued.RESUBMIT, Requeued.RELEASE) if submits(setting) else (Requeued.RELEASE,)
    return QueuedJob(job=job, may=tuple(map(str, may)), chosen=wanted if wanted in may else str(may[0]))


def job_there(run: RunRow) -> JobRow | None:
    """Return the job of a run's newest attempt unless it is over, as far as the scheduler told."""
    seen = job_seen(run)
    return seen if seen is not None and not seen.is_over else None


def job_seen(run: RunRow) -> JobRow | None:
    """Return the job of a run's newest attempt as the scheduler last told of it, None if it did not."""
    seen, job = job_of_run(run.id), job_of(run)
    return seen if seen is not None and job is not None and seen.job_id == job[0] else None


def job_of(run: RunRow) -> tuple[int, int | None] | None:
    """Return the job and, where known, the start of it that a run's newest attempt is; None where that is not known."""
    attempt = _attempt(run)
    return None if attempt is None else job_named(attempt.key, attempt.external_id)


def slurm_why_not(kind: str, run: RunRow, setting: LauncherSetting) -> str:
    """Return why Slurm cannot be told to stop or start this run, or nothing."""
    if scheduler_of(run.cluster_id) is None:
        return f"The cluster {run.cluster} has no Slurm set; an admin says where it is under Settings."
    is_open, job = run.attempt_state == AttemptState.OPEN, job_of(run)
    if job is None and is_open:
        return f"Which job of Slurm attempt {run.attempt_number} is is not known, so Paceline cannot stop it."
    if job is None and kind == ActionKind.RESTART_RUN and not submits(setting):
        return "No job of this run is known that could be requeued, and its launcher has no command to submit."
    return ""


def slurm_orders(
    kind: str,
    run: RunRow,
    setting: LauncherSetting,
    exclude: Sequence[str],
    *,
    stops: bool = False,
    queued: QueuedJob | None = None,
) -> list[str]:
    """Return, in order, what Slurm would be told; one order a line. `stops`: what is there is stopped first."""
    job, lines = job_of(run), []
    number = job[0] if job else "?"
    is_open = run.attempt_state == AttemptState.OPEN
    avoid = f", without {', '.join(exclude)}" if exclude else ""
    if kind == ActionKind.STOP_RUN or (submits(setting) and stops):
        how = (
            f"scancel job {number}"
            if queued
            else f"scancel job {number}: SIGTERM, after {setting.stop_grace_s:g} s for good"
        )
        lines.append(how)
    if kind != ActionKind.RESTART_RUN:
        return lines
    if submits(setting) and not (queued and queued.releases):
        return [*lines, f"sbatch{avoid}; held until it is the only one, then released"]
    first = [] if queued else [f"requeue and hold job {number}" if is_open else f"requeue job {number}"]
    avoids = [f"add to the ExcNodeList of job {number}{avoid}" if queued else f"add to its ExcNodeList{avoid}"]
    return [
        *lines,
        *first,
        *(avoids if avoid or not queued else []),
        f"release {f'job {number}' if queued else 'it'}, to begin in 2 s",
    ]


def slurm_happens(run: RunRow) -> tuple[str, str] | None:
    """Return what Slurm is doing with the run's job by itself, with its small print; None where it is doing nothing."""
    seen, job = job_there(run), job_of(run)
    if seen is None or job is None or not seen.waits:
        return None
    text = f"Slurm has job {seen.job_id} in its queue"
    if job[1] is not None and seen.restarts > job[1]:
        text = f"Slurm has requeued job {seen.job_id} by itself already (restart {seen.restarts})"
    return text, f"{job_waits_words(seen)}; a second one is never started beside it"


def job_waits_words(seen: JobRow) -> str:
    """Return what a job in the queue waits for."""
    if seen.held:
        return "it is held until somebody releases it"
    if seen.eligible_at is not None and seen.eligible_at > seen.told_at:
        return f"it may start at {seen.eligible_at:%H:%M:%S} UTC"
    return f"it waits for {seen.reason or 'nodes'}"


def _attempt(run: RunRow) -> AttemptRow | None:
    return attempt_by_id(run.attempt_id) if run.attempt_id is not None else None
