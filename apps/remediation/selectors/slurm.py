"""What Paceline could have Slurm do for a run, and how it says so before it does it."""

from collections.abc import Sequence

from apps.remediation.choices import ActionKind
from apps.remediation.selectors.schedulers import JobRow, job_named, job_of_run, scheduler_of
from apps.runs.choices import AttemptState
from apps.runs.launcher import LauncherSetting
from apps.runs.selectors import AttemptRow, RunRow, attempt_by_id


def submits(setting: LauncherSetting) -> bool:
    """Return whether a start is a submission of its own, and not somebody's job that is requeued."""
    return bool(setting.command or setting.script)


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


def slurm_orders(kind: str, run: RunRow, setting: LauncherSetting, exclude: Sequence[str]) -> list[str]:
    """Return, in order, what Slurm would be told; one order a line."""
    job, lines = job_of(run), []
    is_open = run.attempt_state == AttemptState.OPEN
    avoid = f", without {', '.join(exclude)}" if exclude else ""
    if kind == ActionKind.STOP_RUN or (submits(setting) and is_open):
        lines.append(f"scancel job {job[0] if job else '?'}: SIGTERM, after {setting.stop_grace_s:g} s for good")
    if kind != ActionKind.RESTART_RUN:
        return lines
    if submits(setting):
        return [*lines, f"sbatch{avoid}; held until it is the only one, then released"]
    held = f"requeue and hold job {job[0] if job else '?'}" if is_open else f"requeue job {job[0] if job else '?'}"
    return [*lines, held, f"add to its ExcNodeList{avoid}", "release it, to begin in 2 s"]


def slurm_happens(run: RunRow) -> tuple[str, str] | None:
    """Return what Slurm is doing with the run's job by itself, with its small print; None where it is doing nothing."""
    seen, job = job_of_run(run.id), job_of(run)
    if seen is None or job is None or seen.job_id != job[0] or not seen.waits:
        return None
    text = f"Slurm has job {seen.job_id} in its queue"
    if job[1] is not None and seen.restarts > job[1]:
        text = f"Slurm has requeued job {seen.job_id} by itself already (restart {seen.restarts})"
    return text, _waits(seen)


def _waits(seen: JobRow) -> str:
    if seen.held:
        return "it is held until it is released"
    if seen.eligible_at is not None and seen.eligible_at > seen.told_at:
        return (
            f"it may start at {seen.eligible_at:%H:%M:%S} UTC; a restart releases it now, never a second one beside it"
        )
    return f"it waits for {seen.reason or 'nodes'}; a restart changes this job, never starts a second one beside it"


def _attempt(run: RunRow) -> AttemptRow | None:
    return attempt_by_id(run.attempt_id) if run.attempt_id is not None else None
