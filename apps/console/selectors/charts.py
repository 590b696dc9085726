"""The charts of a run's page: what each shows, read from its attempts and stitched as the heatmap is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from apps.console import figures
from apps.console.figures import Flag, Line
from apps.console.words import whole_of
from apps.diagnosis.selectors import findings_of
from apps.engine.tiles.metrics import metric_of
from apps.runs.selectors import AttemptRow, RunRow, attempts_of
from apps.telemetry.selectors import metrics_of, nonfinite_of
from apps.telemetry.selectors.counted import token_ranks
from apps.telemetry.selectors.lines import Line as Read
from apps.telemetry.selectors.lines import line_open, line_read
from apps.telemetry.selectors.stitched import spans_of

COLUMNS = 600
MOST_SPANS = 40
"""Attempts of one chart; of a run with more the newest are drawn."""

Query = Mapping[str, str]
NONE = np.full(1, np.nan)
Values = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart under the heatmap: the metric it needs, its title, unit and digits, which line of it is drawn."""

    metric: str
    title: str
    unit: str
    digits: int


UNDER: dict[str, Chart] = {
    "step": Chart("step_s", "Step time, median of the ranks", "s", 2),
    "tokens": Chart("step_s", "Tokens a second", "tokens/s", 0),
    "loss": Chart("loss", "Loss, mean of the ranks", "", 3),
}
CHARTS = frozenset({"steptime", *UNDER})


def charts_listed(run: RunRow) -> list[tuple[str, str]]:
    """Return the charts under the heatmap that have something to show, as (name, title), in their drawn order."""
    sent = set(metrics_of(run.attempt_id)) if run.attempt_id else set()
    return [
        (name, chart.title)
        for name, chart in UNDER.items()
        if chart.metric in sent and (name != "tokens" or run.tokens_per_step or "tokens" in sent)
    ]


def chart_of(run: RunRow, name: str, *, query: Query, attempt: AttemptRow | None) -> go.Figure:
    """Return one chart; the strip above the heatmap is of `attempt`, or of the run where the query's range says so."""
    if name == "steptime":
        return _strip(run, query, attempt=attempt)
    return _over_the_run(run, UNDER[name], of_tokens=name == "tokens")


def _strip(run: RunRow, query: Query, *, attempt: AttemptRow | None) -> go.Figure:
    """Return step time on the heatmap's own axis and columns."""
    first, end, columns = (whole_of(query.get(key)) for key in ("from", "to", "columns"))
    columns = min(max(columns or COLUMNS, 20), 4000)
    if attempt is None:
        return figures.step_time(steps=[], median_s=[], own_best_s=run.own_best_step_s)
    if query.get("range") == "run":
        reads = [read for read, _ in _stitched(run, "step_s", columns=columns, first=first, end=end)]
    else:
        view = line_open(attempt, metric="step_s", first=first, end=end, columns=columns, missing_is_empty=True)
        reads = [line_read(view)]
    steps = np.concatenate([read.steps for read in reads]) if reads else np.zeros(0, np.int64)
    values = np.concatenate([read.median for read in reads]) if reads else np.zeros(0)
    ended = np.concatenate([read.ended_s for read in reads]) if reads else np.zeros(0)
    on_time = query.get("axis") == "time"
    slow = _slow_since(run) if run.slow and run.attempt_id == attempt.id else None
    return figures.step_time(
        steps=steps.tolist(),
        median_s=figures.gaps(values),
        own_best_s=run.own_best_step_s,
        times=_times(ended) if on_time else None,
        slow_since=None if on_time else slow,
    )


def _times(ended_s: np.ndarray) -> list[datetime | None]:
    return [datetime.fromtimestamp(float(at), UTC) if np.isfinite(at) else None for at in ended_s]


def _slow_since(run: RunRow) -> int | None:
    steps = [
        row.since_step for row in findings_of(run_id=run.id, state="OPEN") if row.cost_s and row.since_step is not None
    ]
    return min(steps, default=None)


def _stitched(
    run: RunRow, metric: str, *, columns: int, first: int | None = None, end: int | None = None, redone: bool = False
) -> list[tuple[Read, AttemptRow]]:
    """Return a metric's lines by attempt, oldest first; the newest attempt wins from its first step on.

    With `redone` what is returned is the other part: steps that a later attempt did again.
    """
    attempts = attempts_of(run.id, limit=MOST_SPANS)
    spans = spans_of(attempts, redone=False)
    ranges = [(span.attempt, span.first, span.end) for span in spans]
    if redone:
        shown = {span.attempt.id: span.end for span in spans}
        ranges = [
            (row, shown.get(row.id, row.first_step), row.last_step + 1)
            for row in reversed(attempts)
            if row.first_step is not None
            and row.last_step is not None
            and shown.get(row.id, row.first_step) <= row.last_step
        ]
    cut = [(row, max(a, first or 0), b if end is None else min(b, end)) for row, a, b in ranges]
    cut = [(row, a, b) for row, a, b in cut if a < b]
    total = sum(b - a for _, a, b in cut) or 1
    return [
        (line_read(line_open(row, metric=metric, first=a, end=b, columns=max(8, columns * (b - a) // total))), row)
        for row, a, b in cut
        if metric in metrics_of(row.id)
    ]


def _over_the_run(run: RunRow, chart: Chart, *, of_tokens: bool) -> go.Figure:
    drawn, again = (
        [
            Line(
                name=f"attempt {row.number}, done again" if redone else f"attempt {row.number}",
                x=read.steps.tolist(),
                y=figures.gaps(values),
                unit=chart.unit or metric_of(chart.metric).unit,
                colour=figures.RULE2 if redone else figures.INK,
                digits=chart.digits,
                labelled=not redone,
            )
            for read, row, values in _read(run, chart, of_tokens=of_tokens, redone=redone)
        ]
        for redone in (False, True)
    )
    starts = [Flag(line.x[0], f"attempt {row}") for line, row in zip(drawn, _numbers(drawn), strict=True) if line.x][1:]
    reference = None
    if chart.metric == "step_s" and not of_tokens and run.own_best_step_s:
        reference = (run.own_best_step_s, "best")
    return figures.lines(
        [*again, *_last_labelled(drawn)],
        unit=chart.unit,
        flags=[*starts[-6:], *_broken(run, chart)],
        reference=reference,
    )


def _read(run: RunRow, chart: Chart, *, of_tokens: bool, redone: bool) -> list[tuple[Read, AttemptRow, Values]]:
    columns = COLUMNS // 2 if redone else COLUMNS
    stretches = _stitched(run, chart.metric, columns=columns, redone=redone)
    if not of_tokens:
        return [(read, row, read.mean if chart.metric == "loss" else read.median) for read, row in stretches]
    tokens = {} if run.tokens_per_step else _tokens(_stitched(run, "tokens", columns=columns, redone=redone))
    rates: list[tuple[Read, AttemptRow, Values]] = []
    for read, row in stretches:
        of_a_step = np.asarray(run.tokens_per_step or tokens.get((row.id, len(read.steps)), NONE), np.float64)
        with np.errstate(all="ignore"):
            rates.append((read, row, np.where(read.median > 0, of_a_step / read.median, np.nan)))
    return rates


def _tokens(stretches: list[tuple[Read, AttemptRow]]) -> dict[tuple[int, int], Values]:
    """Return each attempt's tokens a step, by attempt and number of columns: the same range gives the same columns."""
    return {
        (row.id, len(read.steps)): read.mean * len(token_ranks(row.id, size=row.world_size))
        for read, row in stretches
        if row.world_size
    }


def _numbers(drawn: list[Line]) -> list[str]:
    return [line.name.removeprefix("attempt ") for line in drawn]


def _last_labelled(drawn: list[Line]) -> list[Line]:
    return [
        Line(
            line.name, line.x, line.y, line.unit, line.colour, line.dash, line.digits, labelled=place == len(drawn) - 1
        )
        for place, line in enumerate(drawn)
    ]


def _broken(run: RunRow, chart: Chart) -> list[Flag]:
    """Return a mark where a value stopped being finite: the line has a gap there, and says why."""
    if run.attempt_id is None:
        return []
    bad = [row for row in nonfinite_of(run.attempt_id, after_step=None, limit=1000) if row.metric == chart.metric]
    if not bad:
        return []
    first = min(bad, key=lambda row: row.step)
    return [Flag(first.step, f"{first.which} from step {first.step:,}", figures.CRIT)]
