"""The fleet of runs: one line a run, what needs a person first."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from apps.console import words
from apps.console.selectors.frame import ACTIVE
from apps.console.selectors.strips import strip_of
from apps.diagnosis.selectors import FindingRow, findings_of
from apps.engine.detectors import registry
from apps.fleet.selectors import clusters_all, exclusions_of
from apps.incidents.choices import UNRESOLVED
from apps.incidents.losses import STALLS
from apps.incidents.selectors import IncidentRow, incidents_of
from apps.runs.choices import RUN_TOKENS, EndReason, RunState
from apps.runs.selectors import RunRow, attempts_by_id, runs_all

NEEDS = {"HUNG": 0, "STOPPED": 1, "GAVE_UP": 1, "SILENT": 2, "SLOW": 3}
ON_PACE = 1.15
"""Step time over the run's own best up to which a run without a finding is called on pace."""
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
    incident: IncidentRow | None
    no_recovery: bool
    at_risk: float | None
    grows: bool
    eta_at: datetime | None = None
    ended_at: datetime | None = None
    strip: list[float | str | None] | None = None
    strip_words: str = ""

    @property
    def at_risk_digits(self) -> int:
        """Return how many digits the growing figure has: what `hours_number` gives."""
        return min(2, words.digits_for(self.at_risk) if self.at_risk is not None and self.at_risk < 10 else 0)


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The list and the figures above it."""

    lines: tuple[RunLine, ...]
    ended: tuple[RunLine, ...]
    running: int
    queued: int
    gpus: int
    need_person: int
    unowned: int
    at_risk_gpu_hours: float
    at_risk_unknown: int
    incidents: dict[str, int]
    nodes: int
    nodes_out: int
    out_names: str


def runs_page(*, cluster_id: int | None, now: datetime) -> RunsPage:
    """Return active runs, those that need a person first, then ended ones, newest first."""
    open_incidents = incidents_of(now=now, cluster_id=cluster_id, states=UNRESOLVED, limit=1000)
    rows = runs_all(cluster_id=cluster_id)
    stopped = {row.id for row in rows if row.state in (RunState.STOPPED, RunState.HUNG)}
    by_run = {
        row.run_id: row
        for row in sorted(open_incidents, key=lambda row: _incident_place(row, stopped), reverse=True)
        if row.run_id
    }
    no_recovery = {
        row.run_id for row in findings_of(cluster_id=cluster_id, cause="no_recovery", state="OPEN", limit=1000)
    }
    critical = criticals_of(findings_of(cluster_id=cluster_id, state="OPEN", limit=1000))
    lines = [
        run_line(
            row,
            incident=by_run.get(row.id),
            no_recovery=row.id in no_recovery,
            critical=critical.get(row.attempt_id or 0),
            now=now,
        )
        for row in rows
    ]
    active = sorted((line for line in lines if line.run.state in ACTIVE), key=_place)
    live = [line for line in active if not line.queued]
    clusters = [row for row in clusters_all() if cluster_id in (None, row.id)]
    out = exclusions_of(cluster_id=cluster_id, open_only=True)
    needing = [line for line in active if line.needs_person]
    return RunsPage(
        lines=tuple(replace(line, **strip_of(line.run, now=now)) for line in active),
        ended=tuple(_with_ends([line for line in lines if line.run.state not in ACTIVE])),
        running=len(live),
        queued=len(active) - len(live),
        gpus=sum(line.run.world_size or 0 for line in live if line.run.attempt_state == "OPEN"),
        need_person=len(needing),
        unowned=sum(line.incident is None or not line.incident.owner_name for line in needing),
        at_risk_gpu_hours=sum(line.at_risk for line in live if line.at_risk is not None),
        at_risk_unknown=sum(line.silent for line in live),
        incidents=_incident_counts(open_incidents),
        nodes=sum(row.nodes for row in clusters),
        nodes_out=len(out),
        out_names=", ".join(row.node for row in out[:4]) + (", …" if len(out) > 4 else ""),
    )


def _incident_place(row: IncidentRow, stopped: Collection[int]) -> tuple[bool, int, int]:
    """Sort key: of a run that stands first what stops runs, then the more serious, then the newer."""
    is_why = row.run_id in stopped and row.cause in STALLS
    return not is_why, {"CRITICAL": 0, "WARNING": 1}.get(row.level, 2), -row.number


def criticals_of(rows: Iterable[FindingRow]) -> dict[int, FindingRow]:
    """Return by attempt the first of its findings that is critical and that nobody has dismissed."""
    found: dict[int, FindingRow] = {}
    for row in sorted(rows, key=lambda row: row.id):
        if row.level == "CRITICAL" and not row.muted_for_good:
            found.setdefault(row.attempt_id, row)
    return found


def _incident_counts(rows: list[IncidentRow]) -> dict[str, int]:
    counts = {
        name: sum(row.class_name == name.upper() for row in rows) for name in ("compute", "coordination", "recovery")
    }
    return {"total": len(rows), **counts}


def _place(line: RunLine) -> tuple[int, int, str]:
    """Sort key: needs a person and has none, needs a person, then the others; inside, the more serious first."""
    owned = line.incident is not None and bool(line.incident.owner_name)
    group = 0 if line.needs_person and not owned else 1 if line.needs_person else 2
    return group, NEEDS.get(line.run.state, ORDER.get(line.run.state, 4)), line.run.slug


def run_line(
    run: RunRow,
    *,
    now: datetime,
    incident: IncidentRow | None = None,
    no_recovery: bool = False,
    critical: FindingRow | None = None,
) -> RunLine:
    """Return a run's line. A run that goes on with a `critical` finding is not on pace: the finding is its headline."""
    word, since_at, why = state_words(run)
    token = state_token(run)
    in_doubt = critical is not None and run.state in (RunState.RUNNING, RunState.SLOW)
    if critical is not None and in_doubt:
        token, word, since_at, why = "crit", _title(critical.cause), None, critical.verdict.rstrip(".")
    is_open = run.attempt_state == "OPEN"
    return RunLine(
        run=run,
        token=token,
        word=word,
        since_at=since_at,
        why=incident.title.partition(":")[0].rstrip(".")
        if incident and run.state != RunState.RUNNING and not in_doubt
        else why,
        where=_where(run),
        needs_person=in_doubt or run.state in NEEDS or (incident is not None and incident.level != "INFO"),
        silent=run.state == RunState.SILENT,
        queued=run.state == RunState.QUEUED,
        incident=incident,
        no_recovery=no_recovery,
        at_risk=at_risk_now(run, now=now),
        grows=is_open and not run.silent and run.step_s is not None,
        eta_at=eta_of(run, pace_s=run.step_s, now=now),
    )


def _title(cause: str) -> str:
    known = registry().get(cause)
    return known.title if known is not None else cause.replace("_", " ").capitalize()


def _with_ends(lines: list[RunLine]) -> list[RunLine]:
    attempts = attempts_by_id([line.run.attempt_id for line in lines if line.run.attempt_id is not None])
    ends = {line.run.id: attempts.get(line.run.attempt_id or 0) for line in lines}
    return [replace(line, ended_at=end.ended_at) if (end := ends[line.run.id]) else line for line in lines]


def eta_of(run: RunRow, *, pace_s: float | None, now: datetime) -> datetime | None:
    """Return when the planned steps are done at a pace, or None if plan or pace are not known."""
    if run.steps_planned is None or run.step is None or not pace_s or run.attempt_state != "OPEN":
        return None
    return now + timedelta(seconds=max(0, run.steps_planned - run.step - 1) * pace_s)


def at_risk_now(run: RunRow, *, now: datetime) -> float | None:
    """Return GPU-hours a stop would give up this moment: the steps since the safe one, and the step under way."""
    base = run.at_risk_gpu_hours
    if base is None or run.world_size is None or run.last_report_at is None:
        return base
    return base + max(0.0, (now - run.last_report_at).total_seconds()) * run.world_size / 3600


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
    if run.state == RunState.RUNNING and _off_pace(run):
        return "Running", None, f"{_slower(run)}, no cause named"
    return label, None, ""


def _off_pace(run: RunRow) -> bool:
    return bool(run.step_s and run.own_best_step_s and run.step_s > ON_PACE * run.own_best_step_s)


def _slower(run: RunRow) -> str:
    if run.step_s is None or not run.own_best_step_s:
        return ""
    return f"{words.percent(run.step_s / run.own_best_step_s - 1)} slower than its own best"


def _where(run: RunRow) -> str:
    size = f"{words.count(run.world_size, 'GPU')}, " if run.world_size else ""
    step = ""
    if run.step is not None:
        step = f" · step {words.whole(run.step)}" + (
            f" of {words.whole(run.steps_planned)}" if run.steps_planned else ""
        )
    return f"{size}{run.cluster}{step}"
