"""What is still there of a run that was started, so that nothing is started beside it."""

from apps.remediation.choices import ActionKind, LauncherKind, LaunchState, OrderKind, OrderState
from apps.remediation.models import Launch, Order
from apps.remediation.selectors.slurm import job_there, queued_job, submits
from apps.runs.choices import AttemptState
from apps.runs.launcher import LauncherSetting
from apps.runs.selectors import RunRow


def stops_first(kind: str, run: RunRow, setting: LauncherSetting, *, requeued: str = "") -> bool:
    """Return whether an action on a run begins with a stop.

    That an attempt is over says nothing of its processes: whoever reported its end may have been wrong, and a job that
    lost a node is put back into the queue. A stop of what is gone is done at once.

    requeued: what is to become of a job that Slurm put back by itself, see `queued_job`.
    """
    is_open = run.attempt_state == AttemptState.OPEN
    if setting.kind == LauncherKind.WEBHOOK:
        # A webhook's receiver restarts as one thing: it is told once, and what ran ends when it has said yes.
        return is_open and kind == ActionKind.STOP_RUN
    if is_open:
        return True
    slurm = setting.kind == LauncherKind.SLURM
    if kind == ActionKind.RESTART_RUN and slurm:
        queued = queued_job(run, setting, wanted=requeued)
        if not submits(setting) or (queued is not None and queued.releases):
            return False  # the start looks at the job itself, and brings it back or changes it
    return _lives(run) or (slurm and job_there(run) is not None)


def launch_beside(run_id: int, *, order_id: int) -> int | None:
    """Return the attempt that a launch of ours lives as beside which an order would start another, None if there is none.

    What an order has stopped is not waited for: the watcher notes within a second that it is gone.
    """
    stopped = Order.objects.filter(action__run_id=run_id, kind=OrderKind.STOP, state=OrderState.DONE)
    alive = Launch.objects.filter(run_id=run_id, state=LaunchState.ALIVE).exclude(launcher=LauncherKind.WEBHOOK)
    beside = alive.exclude(order_id=order_id).exclude(attempt_id__in=stopped.values("attempt_id"))
    return beside.values_list("attempt_id", flat=True).first()


def _lives(run: RunRow) -> bool:
    if run.attempt_id is None:
        return False
    found = Launch.objects.filter(attempt_id=run.attempt_id, state=LaunchState.ALIVE)
    return found.exclude(launcher=LauncherKind.WEBHOOK).exists()
