"""The fleet of runs: one line a run, what needs a person first."""

from dataclasses import dataclass
from datetime import datetime

from apps.console import words
from apps.console.selectors.frame import ACTIVE
from apps.runs.choices import RUN_TOKENS, EndReason, RunState
from apps.runs.selectors import RunRow, runs_all

NEEDS = {"HUNG": 0, "STOPPED": 1, "GAVE_UP": 1, "SILENT": 2, "SLOW": 3}
ORDER = {"RESTARTING": 5, "STARTING": 6, "RUNNING": 7, "QUEUED": 8}


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run as the list shows it."""

    run: RunRow
    token: str
    word: str
    since_at: datetime | None
    why: str
    where: str
    needs_person: bool
    silent: bool
    queued: bool


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The list and the figures above it."""

    lines: tuple[RunLine, ...]
    ended: tuple[RunLine, ...]
    running: int
    queued: int
    gpus: int
    need_person: int
    at_risk_gpu_hours: float
    at_risk_unknown: int


def runs_page(*, cluster_id: int | None, now: datetime) -> RunsPage:
    """Return active runs, those that need a person first, then ended ones, newest first."""
    rows = runs_all(cluster_id=cluster_id)
    lines = [run_line(row) for row in rows]
    active = sorted((line for line in lines if line.run.state in ACTIVE), key=_place)
    ended = [line for line in lines if line.run.state not in ACTIVE]
    live = [line for line in active if not line.queued]
    known = [line.run.at_risk_gpu_hours for line in live if line.run.at_risk_gpu_hours is not None]
    return RunsPage(
        lines=tuple(active),
        ended=tuple(ended),
        running=len(live),
        queued=len(active) - len(live),
        gpus=sum(line.run.world_size or 0 for line in live if line.run.attempt_state == "OPEN"),
        need_person=sum(line.needs_person for line in active),
        at_risk_gpu_hours=sum(known),
        at_risk_unknown=sum(line.silent for line in live),
    )


def _place(line: RunLine) -> tuple[int, str]:
    return NEEDS.get(line.run.state, ORDER.get(line.run.state, 9)), line.run.slug


def run_line(run: RunRow) -> RunLine:
    """Return a run's line."""
    word, since_at, why = state_words(run)
    return RunLine(
        run=run,
        token=state_token(run),
        word=word,
        since_at=since_at,
        why=why,
        where=_where(run),
        needs_person=run.state in NEEDS,
        silent=run.state == RunState.SILENT,
        queued=run.state == RunState.QUEUED,
    )


def state_token(run: RunRow) -> str:
    """Return the colour token of a run's state."""
    if run.state == RunState.STOPPED and run.attempt_ended_reason in {EndReason.CANCELLED, EndReason.PLANNED}:
        return "done"
    return RUN_TOKENS[RunState(run.state)]


def state_words(run: RunRow) -> tuple[str, datetime | None, str]:
    """Return a run's status words, since when (or None), and the sentence under them."""
    label = RunState(run.state).label
    if run.state == RunState.SLOW:
        return "Slow since", run.slow_since_at, _slower(run)
    if run.state == RunState.HUNG:
        return ("Hung" if run.hang == "CONFIRMED" else "Hang suspected"), None, "no step comes"
    if run.state == RunState.SILENT:
        return "No data since", run.last_report_at, "its senders are silent"
    if run.state == RunState.STOPPED:
        reason = EndReason(run.attempt_ended_reason).label if run.attempt_ended_reason else "no attempt yet"
        return ("Stopped by failure" if state_token(run) == "crit" else "Stopped"), None, f"last attempt: {reason}"
    if run.state == RunState.STARTING:
        return label, run.attempt_started_at, "no step yet"
    return label, None, ""


def _slower(run: RunRow) -> str:
    if run.step_s is None or not run.own_best_step_s:
        return ""
    return f"{words.percent(run.step_s / run.own_best_step_s - 1)} slower than its own best"


def _where(run: RunRow) -> str:
    size = f"{words.whole(run.world_size)} GPUs, " if run.world_size else ""
    step = ""
    if run.step is not None:
        step = f" · step {words.whole(run.step)}" + (
            f" of {words.whole(run.steps_planned)}" if run.steps_planned else ""
        )
    return f"{size}{run.cluster}{step}"
