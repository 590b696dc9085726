"""The same grid over time instead of steps: gaps and stalls have real width."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import at_least, finite, shape
from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.metrics import Worst
from apps.engine.tiles.rounding import Cells
from apps.engine.tiles.turning import turned

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeBucket:
    """Columns of a time axis: column i is [(start + i) * width_s, (start + i + 1) * width_s), in epoch seconds."""

    width_s: float
    start: int
    columns: int

    def edges_s(self) -> Seconds:
        """Where columns begin and the last one ends, float64 [columns + 1], epoch seconds."""
        return (self.start + np.arange(self.columns + 1, dtype=np.float64)) * self.width_s


def time_bucket_for(first_s: float, last_s: float, max_columns: int) -> TimeBucket:
    """Return equal time buckets that show first_s..last_s in at most `max_columns` columns.

    first_s, last_s: float, epoch seconds, both inside. max_columns: at least 2.

    The width is a power of two of seconds (fractions for fast steps), counted from the epoch, so that buckets stay where
    they are while time goes on; more than max_columns / 2 - 1 columns are used. O(1).

    Raises `ArgumentInvalid` for a range that ends before it begins. Source: ours, as `layout.bucket_for`.

    >>> time_bucket_for(1_000.0, 1_600.0, 600)
    TimeBucket(width_s=2.0, start=500, columns=301)
    """
    at_least("max_columns", max_columns, 2)
    length = finite("last_s", last_s) - finite("first_s", first_s)
    if length < 0:
        raise ArgumentInvalid("The range ends before it begins.", first_s=first_s, last_s=last_s)
    width = 2.0 ** (math.floor(math.log2(max(length, 1e-3) / max_columns)))
    while math.floor(last_s / width) - math.floor(first_s / width) + 1 > max_columns:
        width *= 2
    start = math.floor(first_s / width)
    return TimeBucket(width, start, math.floor(last_s / width) - start + 1)


def to_time_axis(cells: Cells, began_s: Seconds, ended_s: Seconds, bucket: TimeBucket, worst: Worst) -> Cells:
    """Return the grid over equal time buckets, float32 [row, time bucket]; a bucket in which no step ran is absent.

    cells: float32 [row, column], of one attempt, columns in step order; NaN means absent. began_s, ended_s: float64
    [column], epoch seconds, by one clock: when the column's first step began and its last one ended (the ranks' median);
    NaN leaves the column out. worst: which of several columns in one bucket shows.

    A column fills every bucket that it overlaps, so one step that took ten minutes is ten minutes wide. Ends that run
    backwards (a clock that was set) are taken as no earlier than those before them. O(rows · (columns + buckets)).

    Source: ours; on a step axis a stall of an hour is as wide as a step of 5 s.

    >>> cells = np.array([[5, 7]], np.float32)
    >>> to_time_axis(cells, np.array([0., 30.]), np.array([10., 40.]), TimeBucket(10, 0, 5), "max").tolist()
    [[5.0, nan, nan, 7.0, nan]]
    """
    shape("began_s", began_s, cells.shape[1])
    shape("ended_s", ended_s, cells.shape[1])
    known = np.isfinite(began_s) & np.isfinite(ended_s)
    out = np.full((bucket.columns, len(cells)), ABSENT, np.float32)
    if not known.any():
        return out.T
    values = turned(np.ascontiguousarray(cells[:, known]))
    ended = np.maximum.accumulate(ended_s[known])
    began = np.maximum.accumulate(np.minimum(began_s[known], ended))
    edges = bucket.edges_s()
    lo = np.searchsorted(ended, edges[:-1], side="right")
    hi = np.searchsorted(began, edges[1:], side="left")
    combine = np.fmax if worst == "max" else np.fmin
    for column in np.flatnonzero(hi > lo):
        combine.reduce(values[lo[column] : hi[column]], axis=0, out=out[column])
    return out.T


def spans(ended_s: Seconds, duration_s: Seconds, pooled: int) -> tuple[Seconds, Seconds]:
    """Return when each bucket of steps began and ended, float64 [bucket] each, epoch seconds.

    ended_s: float64 [step], each step's median end; NaN where unknown. duration_s: float64 [step], how long each step
    took; NaN where unknown (the step then begins where the one before it ended). pooled: steps a bucket, ≥ 1, the first
    step beginning a bucket.

    O(n). Source: ours; a step's own length, not the end of the one before, tells a gap from a long step.

    >>> spans(np.array([10.0, 15.0, 40.0]), np.array([5.0, np.nan, 5.0]), 1)[0].tolist()
    [5.0, 10.0, 35.0]
    """
    shape("duration_s", duration_s, len(ended_s))
    at_least("pooled", pooled, 1)
    before = np.r_[np.nan, ended_s[:-1]] if len(ended_s) else ended_s
    began = np.where(np.isfinite(duration_s), ended_s - duration_s, np.where(np.isfinite(before), before, ended_s))
    padding = (0, -len(ended_s) % pooled)
    return (
        np.fmin.reduce(np.pad(began, padding, constant_values=np.nan).reshape(-1, pooled), axis=1),
        np.fmax.reduce(np.pad(ended_s, padding, constant_values=np.nan).reshape(-1, pooled), axis=1),
    )
