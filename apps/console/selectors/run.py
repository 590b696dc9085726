"""One run's page: the figures of its head and what the heatmap needs to know before its first cell."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.common.errors import NotFound
from apps.common.ids import id_write
from apps.console.selectors.fleet_of_runs import RunLine, criticals_of, eta_of, run_line
from apps.console.selectors.plotly import plotly_tag
from apps.diagnosis.selectors import findings_of
from apps.engine.tiles.metrics import metric_of
from apps.incidents.choices import UNRESOLVED
from apps.incidents.selectors import incidents_of
from apps.journal.choices import StreamKey
from apps.journal.selectors import stream_seq
from apps.runs.choices import EndReason
from apps.runs.selectors import (
    AttemptRow,
    CheckpointRow,
    RunRow,
    attempt_by_id,
    attempts_of,
    checkpoint_newest_suspect,
    checkpoint_newest_trusted,
)
from apps.telemetry.selectors import metrics_of

FOLLOWED = 240
"""Columns of the first picture, as the mock has them."""

STITCHED = 50
"""Attempts whose places the card beside a cell can name: what a picture that goes over restarts is made of."""

SHORT = {
    "compute_s": ("Compute, without waiting", "compute"),
    "communication_s": ("Waiting in collectives", "waits"),
    "step_s": ("Step time", "step"),
    "data_s": ("Waiting for data", "data"),
    "forward_s": ("Forward", "forward"),
    "backward_s": ("Backward", "backward"),
    "optimizer_s": ("Optimizer", "optimizer"),
    "checkpoint_s": ("Checkpoint, blocking", "checkpoint"),
    "gc_s": ("Garbage collection", "GC"),
    "loss": ("Loss", "loss"),
    "grad_norm": ("Gradient norm", "grad. norm"),
    "tokens": ("Tokens", "tokens"),
}


@dataclass(frozen=True, slots=True)
class RunHead:
    """The head of the page. What is not measured is None. `checkpoint`: the newest trusted, else the newest suspect one."""

    line: RunLine
    attempt: AttemptRow | None
    attempts: int
    slower_share: float | None
    eta_at: datetime | None
    eta_best_at: datetime | None
    slip_s: float | None
    checkpoint: CheckpointRow | None
    next_checkpoint_step: int | None
    next_checkpoint_at: datetime | None
    restarts: int

    @property
    def word_key(self) -> str:
        """Return what the page's suspects must agree with: they are made again together with a head that says another."""
        return f"{self.line.token} {self.line.word}"


def run_head(run: RunRow, *, now: datetime) -> RunHead:
    """Return the figures at the top of a run's page."""
    attempts = attempts_of(run.id)
    open_ones = findings_of(attempt_id=run.attempt_id, state="OPEN") if run.attempt_id is not None else []
    line = run_line(run, critical=criticals_of(open_ones).get(run.attempt_id or 0), now=now)
    stands = bool(run.hang) or run.silent  # of what does not move nobody can say when it arrives
    eta_at = None if stands else eta_of(run, pace_s=run.step_s, now=now)
    best_at = None if stands else eta_of(run, pace_s=run.own_best_step_s, now=now)
    next_step = _next_checkpoint_step(run)
    next_at = None
    if next_step is not None and run.step is not None and run.step_s and run.attempt_state == "OPEN" and not stands:
        next_at = now + timedelta(seconds=(next_step - run.step) * run.step_s)
    return RunHead(
        line=line,
        attempt=attempts[0] if attempts else None,
        attempts=len(attempts),
        slower_share=run.step_s / run.own_best_step_s - 1 if run.step_s and run.own_best_step_s else None,
        eta_at=eta_at,
        eta_best_at=best_at,
        slip_s=(eta_at - run.due_at).total_seconds() if eta_at and run.due_at else None,
        checkpoint=checkpoint_newest_trusted(run.id) or checkpoint_newest_suspect(run.id),
        next_checkpoint_step=next_step,
        next_checkpoint_at=next_at,
        restarts=sum(earlier.reason != EndReason.FINISHED for earlier in attempts[1:]),
    )


def _next_checkpoint_step(run: RunRow) -> int | None:
    every = run.checkpoint_setting.get("interval_steps")
    if not every or run.step is None:
        return None
    return (run.step // int(every) + 1) * int(every)


def heat_config(run: RunRow, *, attempt: AttemptRow | None, suspects: list[str], now: datetime) -> dict[str, Any]:
    """Return what the heatmap reads from the page: names, sizes and addresses, never cells."""
    asked = f"?attempt={id_write('att', attempt.id)}" if attempt else ""
    incidents = incidents_of(now=now, run_id=run.id, states=UNRESOLVED, limit=1)
    attempts = attempts_of(run.id, limit=STITCHED)
    return {
        "run": run.slug,
        "cluster": run.cluster,
        "api": "/api/v1/",
        "attempt": None
        if attempt is None
        else {"id": id_write("att", attempt.id), "number": attempt.number, "state": attempt.state},
        "stitched": attempt is not None and attempt.id == run.attempt_id,
        "attempts": {row.number: id_write("att", row.id) for row in attempts},
        "world_size": (attempt.world_size if attempt else None)
        or next((a.world_size for a in attempts if a.world_size), 1),
        "gpus_per_node": run.gpus_per_node or 8,
        "metrics": [_metric(name) for name in _metrics_of(attempt)],
        "suspects": suspects,
        "first_step": _first_step(run, attempt),
        "last_step": run.step,
        "columns": FOLLOWED,
        "config_url": f"/runs/{run.slug}/heat",
        "lanes_url": f"/runs/{run.slug}/lanes",
        "placement_url": f"/runs/{run.slug}/placement",
        "charts": {"steptime": f"/runs/{run.slug}/charts/steptime{asked}"},
        "plotly": f"/assets/plotly-{plotly_tag()}.js",
        "incident": incidents[0].number if incidents else None,
    }


def _first_step(run: RunRow, attempt: AttemptRow | None) -> int:
    earlier = attempt is not None and attempt.id != run.attempt_id
    return (attempt.first_step if earlier and attempt else run.first_step) or 0


def _metrics_of(attempt: AttemptRow | None) -> list[str]:
    """Return the metrics that an attempt's ranks sent, the mock's default first; before the first report the usual ones."""
    sent = metrics_of(attempt.id) if attempt else []
    known = [name for name in SHORT if name in sent]
    return [*known, *(name for name in sent if name not in SHORT)] or ["compute_s", "communication_s", "step_s"]


def _metric(name: str) -> dict[str, str]:
    known = metric_of(name)
    label, short = SHORT.get(name, (known.label, known.label.lower()))
    return {"name": name, "label": label, "short": short, "unit": known.unit, "worst": known.worst}


def feed_path(run: RunRow) -> str:
    """Return the address of the live feed that starts after what this render shows."""
    return f"/ws/feed?stream=run:{run.slug}@{stream_seq(StreamKey.run(run.id))}"


def attempt_shown(run: RunRow, attempt_id: int | None) -> AttemptRow | None:
    """Return the attempt a page is about: the one asked for, else the newest.

    Raises:
        NotFound: the one asked for is none of this run's.
    """
    wanted = run.attempt_id if attempt_id is None else attempt_id
    if wanted is None:
        return None
    attempt = attempt_by_id(wanted)
    if attempt.run_id != run.id:
        raise NotFound(f"This attempt is none of {run.slug}'s.")
    return attempt
