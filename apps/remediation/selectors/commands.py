"""What Paceline would order, in words, and the same as commands for people to copy. Pure text: nothing here is ever run.

Free text is quoted as one argument, so that what somebody wrote as a reason stays a reason wherever it is pasted.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from apps.remediation.choices import ActionKind, LauncherKind
from apps.remediation.selectors.rows import LaunchRow
from apps.remediation.selectors.slurm import QueuedJob, slurm_orders
from apps.runs.launcher import LauncherSetting
from apps.runs.selectors import RunRow

REASON_LENGTH = 200
SLURM_KEY = re.compile(r"slurm:(\d+)\.")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command is made from. `nodes` are those an action puts out or takes back in; `drains`: a scheduler has them.

    `start`: from where it goes on, in words, where that is no step that is known now. `stops`: what is there is stopped
    first. `queued`: the job that a scheduler put back by itself.
    """

    kind: str
    run: RunRow | None
    setting: LauncherSetting | None
    launch: LaunchRow | None
    drains: bool
    start: str
    attempt_key: str
    nodes: tuple[str, ...]
    exclude_nodes: tuple[str, ...]
    resume_step: int | None
    reason: str
    check: tuple[str, ...] = ()
    stops: bool = False
    queued: QueuedJob | None = None


def orders_of(plan: Plan) -> list[str]:
    """Return, in order, what Paceline itself would do; one sentence or one order a line."""
    lines = [f"ledger: {name} {_LEDGER_WORDS[plan.kind]}" for name in plan.nodes if plan.kind in _LEDGER_WORDS]
    if plan.kind not in (ActionKind.RESTART_RUN, ActionKind.STOP_RUN) or plan.setting is None or plan.run is None:
        return lines
    if plan.setting.kind == LauncherKind.WEBHOOK:
        return [*lines, f"POST {plan.setting.url}  kind {plan.kind}, run {plan.run.slug}{_step_words(plan)}"]
    if plan.setting.kind == LauncherKind.SLURM:
        orders = slurm_orders(
            plan.kind, plan.run, plan.setting, plan.exclude_nodes, stops=plan.stops, queued=plan.queued
        )
        return [*lines, *orders]
    if plan.launch is not None:
        grace = f"SIGKILL after {plan.setting.stop_grace_s:g} s"
        lines.append(f"SIGTERM to the program of pid {plan.launch.pid}, {grace}")
    if plan.kind == ActionKind.RESTART_RUN:
        lines.append(shlex.join(plan.setting.command) + _step_words(plan))
    return lines


def commands_of(plan: Plan) -> list[str]:
    """Return, in order, the commands with which a person does the same by hand."""
    if plan.kind == ActionKind.CHECK_NODE:
        return [_check_line(plan, name) for name in plan.nodes]
    slurm = SLURM_KEY.match(plan.attempt_key)
    if slurm is not None or (plan.setting is not None and plan.setting.kind == LauncherKind.SLURM):
        return _slurm(plan, slurm.group(1) if slurm else "JOBID")
    if plan.run is None or plan.kind not in (ActionKind.RESTART_RUN, ActionKind.STOP_RUN):
        if not plan.drains:
            return []  # the ledger is all there is: nothing else keeps a list of nodes
        return [shlex.join(["scontrol", "update", f"NodeName={name}", *_slurm_node(plan)]) for name in plan.nodes]
    lines = []
    if plan.launch is not None and plan.launch.pid is not None:
        lines.append(f"kill -TERM {plan.launch.pid}")
    elif plan.run.attempt_state == "OPEN":
        lines.append(f"# stop attempt {plan.run.attempt_number} of {plan.run.slug} in the way it was started")
    if plan.kind == ActionKind.RESTART_RUN:
        lines.append(_start_line(plan, plan.run))
    return lines


def reason_words(reason: str) -> str:
    """Return a reason as a scheduler can keep it: one line, no `|` (it breaks listings), bounded."""
    flat = " ".join(reason.replace("|", "/").split())
    return flat[: REASON_LENGTH - 1] + "…" if len(flat) > REASON_LENGTH else flat


def _slurm(plan: Plan, job: str) -> list[str]:
    nodes = [shlex.join(["scontrol", "update", f"NodeName={name}", *_slurm_node(plan)]) for name in plan.nodes]
    if plan.kind == ActionKind.STOP_RUN:
        return [shlex.join(["scancel", job])]
    if plan.kind != ActionKind.RESTART_RUN:
        return nodes
    # A job that Slurm put back itself waits in the queue: it needs no requeue, and must not begin before its list is right.
    hold = "requeuehold" if plan.queued is None else "hold"
    lines = [*nodes, shlex.join(["scontrol", hold, job])]
    if plan.exclude_nodes:
        excluded = ",".join(plan.exclude_nodes)
        lines.append(shlex.join(["scontrol", "update", f"JobId={job}", f"ExcNodeList={excluded}"]))
    # Without the last, a requeued job waits two minutes; told `now` it may meet its revoked credential and fail.
    begin = ["scontrol", "update", f"JobId={job}", "StartTime=now+2"]
    return [*lines, shlex.join(["scontrol", "release", job]), shlex.join(begin)]


def _check_line(plan: Plan, name: str) -> str:
    if plan.check:
        return shlex.join([word.replace("{node}", name) for word in plan.check])
    return (
        f"# check {name} as this site does, for example: {shlex.join(['ssh', '--', name, 'dcgmi', 'diag', '-r', '2'])}"
    )


def _slurm_node(plan: Plan) -> list[str]:
    if plan.kind == ActionKind.READMIT_NODE:
        return ["State=UNDRAIN"]  # unlike RESUME it leaves a node that is down as it is
    return ["State=DRAIN", f"Reason=paceline {reason_words(plan.reason)}".rstrip()]


def _start_line(plan: Plan, run: RunRow) -> str:
    given = {
        "PACELINE_RUN": run.slug,
        "PACELINE_ATTEMPT_KEY": f"by-hand:{run.slug}.{run.attempt_number + 1}",
        "PACELINE_RESUME_STEP": "" if plan.resume_step is None else str(plan.resume_step),
        "PACELINE_EXCLUDE_NODES": ",".join(plan.exclude_nodes),
    }
    words = ["env", *(f"{name}={value}" for name, value in given.items() if value)]
    if plan.setting is None or not plan.setting.command:
        return f"{shlex.join(words)} …  # then the command that starts {run.slug}"
    line = shlex.join([*words, *plan.setting.command])
    if plan.setting.directory:
        line = f"cd {shlex.quote(plan.setting.directory)} && {line}"
    # Values may be secrets and those who copy need not be those who configure.
    names = ", ".join(sorted(plan.setting.environment))
    return f"{line}  # needs the launcher's own {names}" if names else line


def _step_words(plan: Plan) -> str:
    if plan.kind != ActionKind.RESTART_RUN:
        return ""
    start = plan.start or (
        "the program chooses its checkpoint" if plan.resume_step is None else f"from step {plan.resume_step:,}"
    )
    without = f", without {', '.join(plan.exclude_nodes)}" if plan.exclude_nodes else ""
    return f"  ({start}{without})"


def names_short(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    >>> names_short(["a"]), names_short(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "no node"


_LEDGER_WORDS: dict[str, str] = {
    ActionKind.EXCLUDE_NODE: "out of service",
    ActionKind.READMIT_NODE: "back in service",
    ActionKind.RESTART_RUN: "out of service",
}
