"""A picture over time instead of steps: gaps and stalls have their real width (engine/tiles/timeaxis.py)."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.timeaxis import TimeBucket, spans, time_bucket_for, to_time_axis
from apps.telemetry.selectors.heatmap import View
from apps.telemetry.selectors.lines import line_open, line_read
from apps.telemetry.selectors.pictures import Drawn, Flag, Heatmap

Seconds = NDArray[np.float64]

GAP = 3.0
"""A column that ends so many usual columns after the one before did not take that long: nobody computed in between.
Only where no step time was sent; a step's own length tells better."""

NO_STEP = -1
"""Stands for the first step of a time column in which no step ran."""


def over_time(picture: Heatmap, *, durations_s: Seconds, columns: int) -> Heatmap:
    """Return the same picture over at most `columns` equal stretches of time.

    durations_s: float64 [column], how long each column's steps took, NaN = not told.
    """
    drawn = picture.drawn
    known = np.isfinite(drawn.ended_s)
    if not known.any():
        return replace(picture, drawn=_chosen(drawn, known), times_s=np.zeros(0))
    kept, took = _chosen(drawn, known), durations_s[known]
    began_s, ended_s = spans(kept.ended_s, np.where(np.isfinite(took), took, _usual(kept.ended_s)), 1)
    bucket = time_bucket_for(float(began_s.min()), float(ended_s.max()), max(2, columns))
    cells = to_time_axis(kept.cells, began_s, ended_s, bucket, "min" if picture.how == "min" else "max")
    first, last = _overlaps(began_s, ended_s, bucket)
    ran = last >= first
    at = np.minimum(first, len(kept.steps) - 1)
    return replace(
        picture,
        drawn=Drawn(
            cells=cells,
            steps=np.where(ran, kept.steps[at], NO_STEP),
            veiled=ran & kept.veiled[at],
            ended_s=bucket.edges_s()[1:],
            attempts=np.where(ran, kept.attempts[at], 0),
            redone=ran & kept.redone[at],
            flags=_flags(kept.flags, ended_s, bucket),
        ),
        cursor="",
        times_s=bucket.edges_s()[:-1],
    )


def durations_of(view: View, steps: NDArray[np.int64], *, steps_per_column: int) -> Seconds:
    """Return how long each column's steps took, float64 [column]: the ranks' median step time; NaN where none was sent.

    Only single steps say that: of a wider column it is not known how long it stood still.
    """
    out = np.full(len(steps), np.nan)
    if view.series is None or "step_s" not in view.series.numbers or not len(steps) or steps_per_column > 1:
        return out
    first, end = int(steps[0]), int(steps[-1]) + 1
    line = line_read(line_open(view.attempt, metric="step_s", first=first, end=end, columns=end - first))
    places = np.searchsorted(line.steps, steps)
    inside = (places < len(line.steps)) & (line.steps[np.minimum(places, len(line.steps) - 1)] == steps)
    out[inside] = line.median[places[inside]]
    return out


def _usual(ended_s: Seconds) -> Seconds:
    """How long each column took if nobody said: since the one before, unless that is a gap."""
    between = np.diff(ended_s, prepend=np.nan)
    forward = between[np.isfinite(between) & (between > 0)]
    usual = float(np.median(forward)) if len(forward) else 1.0
    with np.errstate(invalid="ignore"):
        return np.where((between > 0) & (between <= GAP * usual), between, usual)


def _overlaps(began_s: Seconds, ended_s: Seconds, bucket: TimeBucket) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last column that share time with each stretch; last < first where none does."""
    ends = np.maximum.accumulate(ended_s)
    starts = np.maximum.accumulate(np.minimum(began_s, ends))
    edges = bucket.edges_s()
    first = np.searchsorted(ends, edges[:-1], side="right")
    return first, np.searchsorted(starts, edges[1:], side="left") - 1


def _flags(flags: tuple[Flag, ...], ended_s: Seconds, bucket: TimeBucket) -> tuple[Flag, ...]:
    places = np.floor(ended_s / bucket.width_s).astype(np.int64) - bucket.start
    found = {(row, int(np.clip(places[column], 0, bucket.columns - 1)), which) for row, column, which in flags}
    return tuple(sorted(found))


def _chosen(drawn: Drawn, wanted: NDArray[np.bool_]) -> Drawn:
    """Some columns of a drawing."""
    place = np.cumsum(wanted) - 1
    return Drawn(
        drawn.cells[:, wanted],
        drawn.steps[wanted],
        drawn.veiled[wanted],
        drawn.ended_s[wanted],
        drawn.attempts[wanted],
        drawn.redone[wanted],
        tuple((row, int(place[column]), which) for row, column, which in drawn.flags if wanted[column]),
    )
