"""Parts of single values: sealed columns as they are stored, hot ones with what is kept of them."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial

from apps.engine.tiles import ratio
from apps.engine.tiles.heatgrid import Part
from apps.engine.tiles.layout import TILE_COLUMNS
from apps.engine.tiles.pooled import Plane
from apps.engine.tiles.pyramid import Pooled, pool_entities
from apps.telemetry.selectors.cells import Cells, columns_whole, tiles_read
from apps.telemetry.selectors.hotcolumns import HotColumns, hot_read
from apps.telemetry.selectors.series import SeriesRow
from apps.telemetry.selectors.sources import Source, fitted
from apps.telemetry.selectors.tiles import medians_read, patched_in


def single_parts(source: Source, first: int, end: int, entity_level: int = 0) -> Iterator[Part]:
    """Single values of columns first..end-1; hot ones already pooled over entities if rows are."""
    series = source.series
    if end <= first or series is None:
        return
    floor, hot = hot_read(series, source.number, first=first, end=end)
    yield from _hot_parts(source, hot, entity_level)
    last = min(end, floor)
    pieces = tiles_read(series, source.number, first=first, end=last)
    if not source.has_ratio and source.chosen is None:
        for piece in pieces:
            room = source.layout.world - piece.first_row
            if room > 0:
                yield Part(piece.cells[:room], piece.first_row, piece.first_column)
        return
    if last <= first:
        return
    related = _peers(source, series, first, last) if source.has_ratio else _as_it_is
    for piece in columns_whole(pieces, source.layout.world):
        cells = related(piece.first_column, fitted(piece.cells, source.layout.world))
        yield Part(cells if source.chosen is None else cells[source.chosen], 0, piece.first_column)


def _hot_parts(source: Source, hot: HotColumns, entity_level: int) -> Iterator[Part]:
    world, order = source.layout.world, source.layout.order
    values = hot.values
    what: tuple[Hashable, ...] = ("values", world)
    if source.has_ratio:
        what = ("peers", world, order.version)
        values = hot.derived(what, lambda cells: ratio.to_peers(fitted(cells, world), order))
    if entity_level == 0:
        for first, cells in hot.stacked(values):
            drawn = fitted(cells, world)
            yield Part(drawn if source.chosen is None else drawn[source.chosen], 0, first)
        return
    mine = HotColumns(hot.cols, hot.keys, values)
    planes = [
        mine.stacked(
            mine.derived((*what, order.version, entity_level, plane), partial(_rows, source, entity_level, plane))
        )
        for plane in source.planes
    ]
    for together in zip(*planes, strict=True):
        count = together[1][1] if len(together) > 1 else None
        yield Part(together[0][1], 0, together[0][0], entity_level, 0, count)


def _rows(source: Source, entity_level: int, plane: Plane, cells: Cells) -> Cells:
    """One plane of single values pooled over entities."""
    found = Pooled.of(fitted(cells, source.layout.world))
    for level in range(1, entity_level + 1):
        found = pool_entities(found, source.layout.order, level)
    rows: Cells = getattr(found, plane)
    return rows


def _as_it_is(_column: int, cells: Cells) -> Cells:
    return cells


def _peers(source: Source, series: SeriesRow, first: int, end: int) -> Callable[[int, Cells], Cells]:
    """How whole sealed columns become ratios to peers: by the stored medians where they are of these values."""
    tiles = {"first_tile": first // TILE_COLUMNS, "end_tile": -(-end // TILE_COLUMNS)}
    stored = medians_read(series.id, source.number, **tiles)
    late = set(patched_in(series.id, **tiles)) if stored else set()
    order, stage_of = source.layout.order, source.layout.order.stage_of_rank()

    def relate(column: int, cells: Cells) -> Cells:
        tile = column // TILE_COLUMNS
        medians = stored.get(tile)
        if medians is None or tile in late or len(medians) != len(order.stages):
            return ratio.to_peers(cells, order)
        at = column - tile * TILE_COLUMNS
        return ratio.to_medians(cells, medians[:, at : at + cells.shape[1]], stage_of)

    return relate
