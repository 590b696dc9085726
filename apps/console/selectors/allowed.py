"""What Paceline may do with a run, and the buttons for it with their prices."""

from dataclasses import dataclass
from datetime import datetime

from apps.common.access import OPERATE, Principal
from apps.common.errors import PacelineError
from apps.console import words
from apps.console.selectors.actions import actions_listed
from apps.console.selectors.suspects import ActButton, act_label, by_hand_words, cheapest, confirm_href, price_words
from apps.diagnosis.selectors import findings_of
from apps.remediation.choices import LauncherKind, Requeued
from apps.remediation.selectors import (
    ActionRow,
    Preview,
    QueuedJob,
    action_preview,
    actions_of,
    job_waits_words,
)
from apps.runs.selectors import RunRow

MODES = {"OBSERVE": "Observe; nothing is proposed", "PROPOSE": "Propose; you press", "ACT": "Act within its guards"}


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rail's lower half."""

    mode: str
    modes: tuple[tuple[str, str], ...]
    launcher: str
    exclusions: str
    spares: tuple[str, ...]
    layout: str
    buttons: tuple[ActButton, ...]
    actions: tuple[tuple[ActionRow, str, str, str], ...]


def allowed_of(run: RunRow, *, who: Principal, now: datetime) -> Allowed:
    """Return what this run allows, with its newest actions."""
    restart = _preview(run, "RESTART_RUN", now=now)
    layout = [f"{name.upper()} {run.layout[name]}" for name in ("tp", "pp", "dp", "cp", "ep") if run.layout.get(name)]
    blast = restart.blast if restart else None
    return Allowed(
        mode=MODES.get(run.mode, run.mode.lower()),
        modes=tuple((cause, MODES.get(mode, mode.lower()).split(";")[0]) for cause, mode in sorted(run.modes.items())),
        launcher=LauncherKind(run.launcher["kind"]).label
        if run.launcher.get("kind")
        else "none; commands to copy instead",
        exclusions=blast.words if blast else "not known",
        # Of a run that does not run its own nodes are free as well, and no spares of it.
        spares=restart.spares[:6] if restart and run.attempt_state == "OPEN" else (),
        layout=" · ".join(layout),
        buttons=tuple(_buttons(run, restart, proposed=_proposed(run, now=now), who=who)),
        actions=tuple(actions_listed(actions_of(run_id=run.id, limit=5))),
    )


def _preview(run: RunRow, kind: str, *, now: datetime) -> Preview | None:
    try:
        return action_preview(kind=kind, run=run, node=None, now=now)
    except PacelineError:
        return None


def _proposed(run: RunRow, *, now: datetime) -> set[str]:
    """Return what open suspects propose already, so that the same restart is not offered a second time under other words."""
    rows = findings_of(run_id=run.id, state="OPEN")
    return {row.proposal_kind for row in rows if row.level != "INFO" and not row.muted(now)} - {"NONE"}


def _buttons(run: RunRow, restart: Preview | None, *, proposed: set[str], who: Principal) -> list[ActButton]:
    off = "" if who.may(OPERATE) else f"You may look at {run.cluster}, not act on it."
    is_open = run.attempt_state == "OPEN"
    made = []
    queued = restart.queued if restart is not None else None
    if restart is not None and queued is not None and restart.can:
        made += [_of_queued(run, queued, requeued, off=off) for requeued in reversed(queued.may)]
    elif restart is not None and run.state != "FINISHED" and proposed <= {"EXCLUDE_NODE"}:
        best = cheapest(restart.prices)
        price = "starts where the newest trusted checkpoint is"
        if restart.choose or (best is not None and is_open):
            price = price_words(best, choose=bool(restart.choose)) if best is not None else restart.choose
        label = (
            "Restart without excluding…" if proposed else act_label("", excludes=False) if is_open else "Start again…"
        )
        if not restart.can:
            label = "Restart it yourself…" if is_open else "Start it yourself…"
            price = f"the commands stand ready: {by_hand_words(restart.why_not)}"
        made.append(
            ActButton(
                label=label,
                price=price,
                href=confirm_href(run, kind="RESTART_RUN", when=""),
                primary=False,
                off=off,
            )
        )
    if queued is not None:
        gone = "nothing of it runs; it stays stopped until somebody starts it"
        href = confirm_href(run, kind="STOP_RUN")
        made.append(ActButton(label=f"Cancel job {queued.job.job_id}…", price=gone, href=href, primary=False, off=off))
    if is_open:
        made.append(
            ActButton(
                label="Stop run…", price=_gives_up(run), href=confirm_href(run, kind="STOP_RUN"), primary=False, off=off
            )
        )
    return made


def _of_queued(run: RunRow, queued: QueuedJob, requeued: str, *, off: str) -> ActButton:
    releases = requeued == Requeued.RELEASE
    label = f"Release job {queued.job.job_id} now…" if releases else "Cancel and submit anew…"
    again = "goes on from the newest trusted checkpoint, and queues again"
    price = f"Slurm put it back by itself; {job_waits_words(queued.job)}" if releases else again
    href = confirm_href(run, kind="RESTART_RUN", when="", requeued=requeued)
    return ActButton(label=label, price=price, href=href, primary=False, off=off)


def _gives_up(run: RunRow) -> str:
    if run.at_risk_steps is None:
        return "what it gives up is not known"
    cost = run.at_risk_gpu_hours
    return f"gives up {words.count(run.at_risk_steps, 'step')}" + (
        f", {words.gpu_hours(cost)}" if cost is not None else ""
    )
