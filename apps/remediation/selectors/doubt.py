"""What a person looks at who wants to know whether an order in doubt was carried out."""

import shlex
from pathlib import Path

from django.conf import settings

from apps.common.ids import id_write
from apps.remediation.choices import LauncherKind, OrderKind, OrderState
from apps.remediation.selectors.actions import launch_of_attempt
from apps.remediation.selectors.rows import ActionRow, OrderRow
from apps.remediation.selectors.schedulers import job_named
from apps.runs.selectors import attempt_by_id


def look_lines(action: ActionRow) -> list[str]:
    """Return, for each order of an action that is in doubt, where it is seen whether it was done; commands stand as they are typed.

    Nothing of it is ever run, and no launcher's address or command is told.
    """
    return [line for order in action.orders if order.state == OrderState.UNCERTAIN for line in _lines(action, order)]


def _lines(action: ActionRow, order: OrderRow) -> list[str]:
    code = id_write("ord", order.id)
    if order.launcher == LauncherKind.SLURM:
        return _slurm(action, order, code)
    if order.launcher == LauncherKind.WEBHOOK:
        return [f"# ask the receiver what became of order {code}: GET, at its own address, /{code}"]
    if order.kind == OrderKind.STOP:
        launch = launch_of_attempt(order.attempt_id) if order.attempt_id is not None else None
        if launch is None or launch.pid is None:
            return ["# Paceline did not start this attempt: look where it was started"]
        return [f"ps -fp {launch.pid}", shlex.join(["ls", "-l", launch.directory])]
    return [shlex.join(["ls", "-l", str(Path(settings.DATA_DIR) / "launches" / code)])]


def _slurm(action: ActionRow, order: OrderRow, code: str) -> list[str]:
    about = order.attempt_id if order.kind == OrderKind.STOP else action.expected_attempt_id
    attempt = attempt_by_id(about) if about is not None else None
    job = job_named(attempt.key, attempt.external_id) if attempt is not None else None
    lines = [] if job is None else [f"scontrol show job {job[0]}"]
    if order.kind == OrderKind.STOP and job is None:
        lines.append("# which job of Slurm this attempt is is not known: look through squeue --states=all")
    if order.kind == OrderKind.LAUNCH:
        lines.append(shlex.join(["squeue", "--states=all", f"--name={action.run}.{code}"]))
    return lines
