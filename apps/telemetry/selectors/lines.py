"""One line per metric: mean, median and worst over an attempt's ranks, a value a column."""

import warnings
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.layout import Bucket
from apps.engine.tiles.medians import medians
from apps.engine.tiles.metrics import Metric
from apps.engine.tiles.rows import row_layout
from apps.runs.selectors import AttemptRow
from apps.telemetry.selectors.cells import Cells
from apps.telemetry.selectors.heatmap import View, heatmap_open
from apps.telemetry.selectors.marks import ended_of
from apps.telemetry.selectors.parts import grid_read
from apps.telemetry.selectors.pictures import Ask


@dataclass(frozen=True, eq=False, slots=True)
class Line:
    """One value a column, float32 [column], NaN where nothing was reported, in the metric's unit.

    mean, median: over the ranks, of each rank's mean in the column. worst: the worst single value. steps: the first step
    of each column; ended_s: when its last one ended.
    """

    metric: Metric
    steps: NDArray[np.int64]
    steps_per_column: int
    mean: Cells
    median: Cells
    worst: Cells
    ended_s: NDArray[np.float64]
    version: int


def line_open(
    attempt: AttemptRow,
    *,
    metric: str = "",
    first: int | None = None,
    end: int | None = None,
    columns: int = 600,
    missing_is_empty: bool = False,
) -> View:
    """Return a line before it is read: of steps first..end-1, by default the newest ones, as many as columns.

    With `missing_is_empty` the line of a metric that the attempt lacks has no columns.

    Raises:
        MetricUnknown: the attempt has other metrics.
    """
    ask = Ask(metric=metric, first=first, end=end, columns=columns, rows=1)
    return heatmap_open(attempt, ask, missing_is_empty=missing_is_empty)


def line_read(view: View) -> Line:
    """Read a line."""
    bucket = view.bucket
    if view.series is None or bucket is None or view.metric.name not in view.series.numbers:
        none = np.zeros(0, np.float32)
        return Line(view.metric, np.zeros(0, np.int64), 1, none, none, none, np.zeros(0), 0)
    by_rank, worst = _columns(view, bucket)
    return Line(
        metric=view.metric,
        steps=bucket.first_steps(),
        steps_per_column=bucket.steps,
        mean=_mean(by_rank),
        median=medians(by_rank),
        worst=worst,
        ended_s=ended_of(view.series, bucket),
        version=view.series.version,
    )


def _columns(view: View, bucket: Bucket) -> tuple[Cells, Cells]:
    """Each rank's mean in each column, [rank, column], and the worst value of each column."""
    layout = view.layout
    single = row_layout(layout.order, np.maximum(layout.stage, 0), layout.node, by="rank", max_rows=layout.world)
    by_rank = grid_read(replace(view.source, pool="mean"), bucket, single).cells
    if bucket.steps == 1:
        reduce = np.fmax if view.metric.worst == "max" else np.fmin
        return by_rank, np.asarray(reduce.reduce(by_rank, axis=0), np.float32)
    return by_rank, grid_read(view.source, bucket, view.rows).cells[0]


def _mean(by_rank: Cells) -> Cells:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column in which nobody reported has no mean
        mean = np.nanmean(by_rank, axis=0, dtype=np.float64)
    return np.asarray(mean, np.float32)
