"""From what is stored to a drawing: which level serves, which columns of it are stale."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from apps.engine.tiles.heatgrid import Grid, Part, assemble
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import COLUMN_LEVELS, COLUMN_POOL, TILE_COLUMNS, Bucket, Segment, cover
from apps.engine.tiles.pooled import Plane
from apps.engine.tiles.rows import RowLayout, plan_for, row_layout
from apps.telemetry.selectors.cells import Cells, Piece, columns_whole
from apps.telemetry.selectors.series import SeriesRow
from apps.telemetry.selectors.singles import single_parts
from apps.telemetry.selectors.sources import Source, fitted, reference
from apps.telemetry.selectors.tiles import PooledPiece, patched_in, pooled_read

Range = tuple[int, int]
"""First step, and the step after the last."""

MOST_FRESH_STEPS = 8192
"""Steps of pooled columns that are read one by one because late values are not merged yet; beyond, the pooled ones show
until the next sweep has merged them."""


def grid_read(source: Source, bucket: Bucket, rows: RowLayout, *, within: Range | None = None) -> Grid:
    """Return the drawing of the buckets; `rows` are of `source.shown`. `within`: steps beyond are left out.

    What is held against a reference that is not kept pooled is drawn rank by rank first and divided then, so that the
    picture is the same whichever level it was read from.
    """
    if source.late:
        return _grid_late(source, bucket, rows, within)
    plan = plan_for(
        first=bucket.start * bucket.steps,
        last=(bucket.start + bucket.columns) * bucket.steps - 1,
        max_columns=bucket.columns,
        order=source.shown.order,
        rows=rows,
        by_rank=source.by_rank,
    )
    parts = parts_read(source, bucket, entity_level=plan.entity_level, within=within)
    return _assembled(source, parts, bucket, rows)


def _grid_late(source: Source, bucket: Bucket, rows: RowLayout, within: Range | None) -> Grid:
    plain = replace(source, relative="none", chosen=None)
    layout = source.layout
    single = row_layout(layout.order, np.maximum(layout.stage, 0), layout.node, by="rank", max_rows=layout.world)
    drawn = _assembled(plain, parts_read(plain, bucket, entity_level=0, within=within), bucket, single)
    cells = reference(source)(np.ascontiguousarray(drawn.cells.T).T)
    part = Part(cells if source.chosen is None else cells[source.chosen], 0, 0)
    return replace(_assembled(source, [part], Bucket(1, 0, bucket.columns), rows), bucket=bucket)


def _assembled(source: Source, parts: Iterable[Part], bucket: Bucket, rows: RowLayout) -> Grid:
    order, worst = source.shown.order, source.metric.worst
    return assemble(parts, order=order, rows=rows, bucket=bucket, pool=source.pool, worst=worst)


def parts_read(source: Source, bucket: Bucket, *, entity_level: int, within: Range | None = None) -> Iterator[Part]:
    """Yield what covers the buckets, each column once."""
    series = source.series
    if series is None:
        return
    for segment in segments_of(bucket, sealed_levels(series.hot_floor), within=within):
        if segment.level == 0:
            low = min(segment.end, max(segment.first, series.hot_floor)) if entity_level else segment.first
            yield from _pooled_parts(source, Segment(0, segment.first, low), entity_level)
            yield from single_parts(source, low, segment.end, entity_level)
        else:
            yield from _pooled_parts(source, segment, entity_level)


def sealed_levels(hot_floor: int) -> list[int]:
    """Return how many columns of each column level are sealed: whole tiles of it, made when their last column was.

    >>> sealed_levels(1088)
    [1088, 128, 0, 0, 0]
    """
    spans = [TILE_COLUMNS * COLUMN_POOL**level for level in range(COLUMN_LEVELS)]
    return [hot_floor // span * TILE_COLUMNS for span in spans]


def segments_of(bucket: Bucket, sealed: list[int], *, within: Range | None) -> list[Segment]:
    """Return which columns of which level to read; steps outside of `within` are left out of the first and last bucket."""
    if within is None:
        return cover(bucket, sealed)
    first = max(within[0], bucket.start * bucket.steps)
    end = min(within[1], (bucket.start + bucket.columns) * bucket.steps)
    return [segment for part in aligned(first, end, bucket.level) for segment in cover(part, sealed)]


def aligned(first: int, end: int, level: int) -> list[Bucket]:
    """Return steps first..end-1 as whole columns of `level` and, before and after them, of the levels below.

    >>> aligned(5, 20, 1)
    [Bucket(steps=1, start=5, columns=3), Bucket(steps=8, start=1, columns=1), Bucket(steps=1, start=16, columns=4)]
    """
    if end <= first:
        return []
    unit = COLUMN_POOL**level
    low, high = -(-first // unit), end // unit
    if level == 0:
        return [Bucket(1, first, end - first)]
    if high <= low:
        return aligned(first, end, level - 1)
    middle = Bucket(unit, low, high - low)
    return [*aligned(first, low * unit, level - 1), middle, *aligned(high * unit, end, level - 1)]


def _pooled_parts(source: Source, segment: Segment, entity_level: int) -> Iterator[Part]:
    """Pooled columns; those that late values make stale are read step by step."""
    series = source.series
    if series is None or segment.end <= segment.first:
        return
    stale = _stale_columns(series, segment)
    pieces = pooled_read(
        series.id, source.number, ratio=source.has_ratio, levels=(segment.level, entity_level), first=segment.first,
        end=segment.end, planes=source.planes, worst=source.metric.worst,
    )  # fmt: skip
    for piece in pieces if source.chosen is None else _whole(pieces, source.layout.world):
        yield _part(source, _clean(piece, segment, stale), segment.level, entity_level)
    unit = COLUMN_POOL**segment.level
    for column in sorted(stale):
        yield from single_parts(source, column * unit, (column + 1) * unit)


def _stale_columns(series: SeriesRow, segment: Segment) -> set[int]:
    """Columns of a segment that hold steps with late values which are not merged into what is pooled."""
    unit = COLUMN_POOL**segment.level
    first_tile, end_tile = segment.first * unit // TILE_COLUMNS, -(-segment.end * unit // TILE_COLUMNS)
    found: set[int] = set()
    for tile in patched_in(series.id, first_tile=first_tile, end_tile=end_tile):
        first, last = tile * TILE_COLUMNS // unit, ((tile + 1) * TILE_COLUMNS - 1) // unit
        found |= set(range(max(first, segment.first), min(last + 1, segment.end)))
        if len(found) * unit > MOST_FRESH_STEPS:
            return set()
    return found


def _clean(piece: PooledPiece, segment: Segment, stale: set[int]) -> PooledPiece:
    """The piece's columns inside the segment, stale ones emptied."""
    width = next(iter(piece.planes.values())).shape[1]
    low = max(segment.first, piece.first_column)
    cut = slice(low - piece.first_column, min(segment.end, piece.first_column + width) - piece.first_column)
    planes: dict[Plane, Cells] = {name: plane[:, cut] for name, plane in piece.planes.items()}
    empty = [column - low for column in stale if 0 <= column - low < cut.stop - cut.start]
    if empty:
        for name, plane in planes.items():
            planes[name] = plane.copy(order="K")
            planes[name][:, empty] = 0 if name == "count" else ABSENT
    return PooledPiece(piece.first_row, low, planes)


def _whole(pieces: Iterator[PooledPiece], world: int) -> Iterator[PooledPiece]:
    """Pooled columns of all ranks, blocks put together."""
    names: tuple[Plane, ...] = ()
    found: dict[Plane, list[Piece]] = {}
    for piece in pieces:
        names = names or tuple(piece.planes)
        for name, plane in piece.planes.items():
            found.setdefault(name, []).append(Piece(piece.first_row, piece.first_column, plane))
    columns = [columns_whole(found[name], world) for name in names]
    for together in zip(*columns, strict=True):
        planes = {name: fitted(piece.cells, world) for name, piece in zip(names, together, strict=True)}
        if "count" in planes:
            planes["count"] = np.nan_to_num(planes["count"].T).T
        yield PooledPiece(0, together[0].first_column, planes)


def _part(source: Source, piece: PooledPiece, level: int, entity_level: int) -> Part:
    cells, count = piece.planes[source.planes[0]], piece.planes.get("count")
    room = source.layout.world - piece.first_row if entity_level == 0 else len(cells)
    cells, count = cells[:room], None if count is None else count[:room]
    if source.chosen is not None:
        cells, count = cells[source.chosen], None if count is None else count[source.chosen]
    return Part(cells, piece.first_row, piece.first_column, entity_level, level, count)
