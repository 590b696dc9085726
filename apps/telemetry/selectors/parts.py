"""From what is stored to the parts that a drawing is made of: which level serves, and values against a reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import ratio
from apps.engine.tiles.heatgrid import Grid, Part, assemble
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import COLUMN_POOL, Bucket, Segment, cover
from apps.engine.tiles.metrics import Metric
from apps.engine.tiles.pyramid import Pool
from apps.engine.tiles.rows import RowLayout
from apps.telemetry.selectors.cells import Cells, columns_whole, pieces_read
from apps.telemetry.selectors.layouts import Layout
from apps.telemetry.selectors.series import SeriesRow

Ranks = NDArray[np.int64]
Range = tuple[int, int]
"""First step, and the step after the last."""


@dataclass(frozen=True, eq=False)
class Source:
    """What is drawn: one metric of a series, all ranks or some, as values or against a reference.

    `chosen`: the ranks that are drawn, None for all. `baseline`: each rank's own past, for relative "self".
    """

    series: SeriesRow | None
    metric: Metric
    number: int
    layout: Layout
    relative: ratio.Relative
    pool: Pool
    chosen: Ranks | None = None
    baseline: Cells | None = None

    @cached_property
    def shown(self) -> Layout:
        """The layout of what is drawn."""
        return self.layout if self.chosen is None else self.layout.chosen(self.chosen)


def grid_read(source: Source, bucket: Bucket, rows: RowLayout, *, within: Range | None = None) -> Grid:
    """Return the drawing of the buckets; `rows` are of `source.shown`. `within`: steps beyond are left out."""
    return assemble(
        parts_read(source, bucket, within=within),
        order=source.shown.order,
        rows=rows,
        bucket=bucket,
        pool=source.pool,
        worst=source.metric.worst,
    )


def parts_read(source: Source, bucket: Bucket, *, within: Range | None = None) -> Iterator[Part]:
    """Yield what covers the buckets, each column once."""
    if source.series is None:
        return
    for segment in segments_of(bucket, [source.series.hot_floor], within=within):
        yield from _single_parts(source, source.series, segment.first, segment.end)


def segments_of(bucket: Bucket, sealed: list[int], *, within: Range | None) -> list[Segment]:
    """Return which columns of which level to read; steps outside of `within` are left out of the first and last bucket."""
    if within is None:
        return cover(bucket, sealed)
    first = max(within[0], bucket.start * bucket.steps)
    end = min(within[1], (bucket.start + bucket.columns) * bucket.steps)
    return [segment for part in _aligned(first, end, bucket.level) for segment in cover(part, sealed)]


def _aligned(first: int, end: int, level: int) -> list[Bucket]:
    """Steps first..end-1 as whole columns of `level` and, before and after them, of the levels below."""
    if end <= first:
        return []
    unit = COLUMN_POOL**level
    low, high = -(-first // unit), end // unit
    if level == 0:
        return [Bucket(1, first, end - first)]
    if high <= low:
        return _aligned(first, end, level - 1)
    middle = Bucket(unit, low, high - low)
    return [*_aligned(first, low * unit, level - 1), middle, *_aligned(high * unit, end, level - 1)]


def _single_parts(source: Source, series: SeriesRow, first: int, end: int) -> Iterator[Part]:
    """Single values of columns first..end-1."""
    pieces = pieces_read(series, source.number, first=first, end=end)
    if source.relative == "none" and source.chosen is None:
        for piece in pieces:
            room = source.layout.world - piece.first_row
            if room > 0:
                yield Part(piece.cells[:room], piece.first_row, piece.first_column)
        return
    relate = reference(source)
    for piece in columns_whole(pieces, source.layout.world):
        cells = relate(fitted(piece.cells, source.layout.world))
        yield Part(cells if source.chosen is None else cells[source.chosen], 0, piece.first_column)


def reference(source: Source) -> Callable[[Cells], Cells]:
    """Return the function that sets whole columns against their reference."""
    if source.relative == "peers":
        return lambda cells: ratio.to_peers(cells, source.layout.order)
    if source.relative == "step":
        return ratio.to_step
    if source.relative == "self" and source.baseline is not None:
        past = source.baseline
        return lambda cells: ratio.to_self(cells, past)
    return lambda cells: cells


def fitted(cells: Cells, world: int) -> Cells:
    """Return columns with exactly `world` ranks: those that were never heard are absent."""
    if cells.shape[0] == world:
        return cells
    out = np.full((cells.shape[1], world), ABSENT, np.float32)
    kept = min(world, cells.shape[0])
    out[:, :kept] = cells.T[:, :kept]
    return out.T
