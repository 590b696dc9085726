"""The rank × step picture of one attempt (CONTRACT, Heatmap): opened cheaply, drawn where it changed."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.heatgrid import Grid, slowest_first
from apps.engine.tiles.layout import Bucket
from apps.engine.tiles.metrics import Metric, metric_of
from apps.engine.tiles.pyramid import plane_of
from apps.engine.tiles.rows import RowLayout, row_layout
from apps.runs.selectors import AttemptRow
from apps.telemetry.choices import SeriesKind
from apps.telemetry.selectors.baselines import Baseline, baseline_of
from apps.telemetry.selectors.changes import changed_columns, cursor_text, runs_of
from apps.telemetry.selectors.layouts import Layout, layout_of
from apps.telemetry.selectors.marks import Marks, ended_of, flags_of, marks_of, veiled_of
from apps.telemetry.selectors.parts import Range, grid_read
from apps.telemetry.selectors.pictures import (
    Ask,
    Drawn,
    Heatmap,
    bucket_asked,
    metric_chosen,
    metrics_in,
    nothing_drawn,
    ranks_asked,
    side_by_side,
)
from apps.telemetry.selectors.series import SeriesRow, series_of
from apps.telemetry.selectors.sources import Source


@dataclass(frozen=True, eq=False)
class View:
    """A picture before it is drawn: everything that is cheap to find, and enough to tell whether it changed."""

    ask: Ask
    attempt: AttemptRow
    series: SeriesRow | None
    layout: Layout
    metric: Metric
    marks: Marks

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """The ranks to draw."""
        every = np.arange(self.layout.world, dtype=np.int64)
        return every if not self.ask.ranks else ranks_asked(self.ask.ranks, self.layout.world)

    @cached_property
    def source(self) -> Source:
        """What is drawn: metric, ranks and reference."""
        return Source(
            series=self.series,
            metric=self.metric,
            number=-1 if self.series is None else self.series.numbers.get(self.metric.name, -1),
            layout=self.layout,
            relative=self.ask.relative,
            pool=self.ask.pool,
            chosen=self.ranks if self.ask.ranks else None,
            baseline=None if self.baseline is None else self.baseline.values,
        )

    @cached_property
    def rows(self) -> RowLayout:
        """Which of the drawn ranks share a row."""
        shown = self.layout.chosen(self.ranks) if self.ask.ranks else self.layout
        return row_layout(
            shown.order, np.maximum(shown.stage, 0), shown.node, by=self.ask.order, max_rows=self.ask.rows
        )

    @cached_property
    def bucket(self) -> Bucket | None:
        """Which steps each column holds; None if there is nothing to draw."""
        if self.series is None:
            return None
        first, last = self.series.first_step, self.series.last_step
        return bucket_asked(self.ask, first_step=first, last_step=last, rows=self.rows.n_rows)

    @cached_property
    def baseline(self) -> Baseline | None:
        """Each rank's own past, where that is what values are held against."""
        if self.ask.relative != "self" or self.series is None or self.metric.name not in self.series.numbers:
            return None
        number = self.series.numbers[self.metric.name]
        return baseline_of(self.series, number, self.marks, world=self.layout.world)

    @property
    def key(self) -> tuple[object, ...]:
        """What the picture depends on: it is the same picture as long as this is the same."""
        version = 0 if self.series is None else self.series.version
        return (self.ask, self.attempt.id, version, self.layout.version, self.layout.world, self.marks)

    @cached_property
    def form(self) -> str:
        """A digest of all that makes columns of two answers fit together: if it differs, a cursor is of no use."""
        past = None if self.baseline is None else self.baseline.steps
        width = None if self.bucket is None else self.bucket.steps
        asked = replace(self.ask, first=None, end=None, since="", columns=0)
        told = repr((asked, self.attempt.id, self.layout.version, self.layout.world, self.marks, width, past))
        return hashlib.blake2b(told.encode(), digest_size=6).hexdigest()


def heatmap_open(attempt: AttemptRow, ask: Ask, *, missing_is_empty: bool = False) -> View:
    """Return a picture before it is drawn; with `missing_is_empty` one of a metric that the attempt lacks is empty.

    Raises:
        MetricUnknown: the attempt has other metrics.
    """
    series = series_of(SeriesKind.RANK, attempt.id)
    world = max(attempt.world_size or 0, series.width if series else 0, 1)
    name = ask.metric if missing_is_empty else metric_chosen(ask.metric, series)
    layout = layout_of(attempt_id=attempt.id, world=world)
    return View(replace(ask, metric=name), attempt, series, layout, metric_of(name), marks_of(attempt))


def heatmap_read(view: View) -> Heatmap:
    """Draw a picture; with a cursor only the columns that changed since.

    Raises:
        BadRequest: ranks that the attempt does not have.
    """
    rows, parts = view.rows, list[Drawn]()
    for piece in _wanted(view):
        grid = grid_read(view.source, piece, rows)
        if view.ask.order == "slowest":
            grid = slowest_first(grid, view.metric.worst)
        rows = grid.rows
        parts.append(drawn_of(view, grid))
    return picture_of(view, rows, side_by_side(parts, rows.n_rows))


def _wanted(view: View) -> list[Bucket]:
    """The stretches of columns to draw. Rows sorted by all columns, and time, leave no part of a picture alone."""
    if view.series is None or view.bucket is None or view.metric.name not in view.series.numbers:
        return []
    if not view.ask.since or view.ask.order == "slowest" or view.ask.axis == "time":
        return [view.bucket]
    changed = changed_columns(view.series, view.bucket, since=view.ask.since, form=view.form)
    return [view.bucket] if changed is None else runs_of(view.bucket, changed)


def strip_read(view: View, bucket: Bucket, rows: RowLayout, *, within: Range) -> Drawn:
    """Return the steps `within` of an attempt in rows that another picture fixed: those of its ranks that have one."""
    n = min(len(rows.row_of), len(view.ranks))
    ranks = view.ranks[:n]
    source = replace(view.source, chosen=None if n == view.layout.world else ranks)
    mine = replace(rows, row_of=rows.row_of[:n])
    return drawn_of(
        replace(view, ask=replace(view.ask, ranks=())), grid_read(source, bucket, mine, within=within), ranks
    )


def drawn_of(view: View, grid: Grid, ranks: NDArray[np.int64] | None = None) -> Drawn:
    """Return a grid with what is said about its columns."""
    assert view.series is not None
    bucket = grid.bucket
    row_of = np.full(view.layout.world, -1, np.int64)
    row_of[view.ranks if ranks is None else ranks] = grid.rows.row_of
    return Drawn(
        cells=grid.cells,
        steps=bucket.first_steps(),
        veiled=veiled_of(view.marks, view.series, bucket, world=view.layout.world),
        ended_s=ended_of(view.series, bucket),
        attempts=np.full(bucket.columns, view.attempt.number, np.int64),
        redone=np.zeros(bucket.columns, np.bool_),
        flags=tuple(flags_of(view.series, view.source.number, bucket, row_of)),
    )


def picture_of(view: View, rows: RowLayout, drawn: Drawn | None = None) -> Heatmap:
    """Return a picture of drawn columns."""
    series = view.series
    return Heatmap(
        metric=view.metric,
        relative=view.ask.relative,
        version=0 if series is None else series.version,
        layout=view.layout,
        ranks=view.ranks,
        rows=rows,
        drawn=nothing_drawn(rows.n_rows) if drawn is None else drawn,
        steps_per_column=1 if view.bucket is None else view.bucket.steps,
        how=plane_of(view.ask.pool, view.metric.worst),
        cursor="" if series is None else cursor_text(series, form=view.form),
        metrics=metrics_in(series),
        first_step=None if series is None else series.first_step,
        last_step=None if series is None else series.last_step,
        settled_step=None if series is None else series.settled_step,
    )
