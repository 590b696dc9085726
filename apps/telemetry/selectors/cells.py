"""Single values of a range of columns out of hot blocks, sealed tiles and patches, as pieces of [entity, column].

Columns below a series' `hot_floor` are sealed, the others are hot.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import codec
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.selectors.hotcolumns import hot_read
from apps.telemetry.selectors.patches import patches_lay, patches_of
from apps.telemetry.selectors.series import SeriesRow
from apps.telemetry.selectors.sql import cursor

Cells = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Cells float32 [entity, column], absent is NaN; the first entity is `first_row`, the first column `first_column`."""

    first_row: int
    first_column: int
    cells: Cells

    @property
    def end_column(self) -> int:
        """The column after the last."""
        return self.first_column + int(self.cells.shape[1])


def pieces_read(
    series: SeriesRow, metric: int, *, first: int, end: int, blocks: Collection[int] | None = None
) -> list[Piece]:
    """Return the values of one metric in columns first..end-1, one piece a tile (and a block where sealed), in order.

    Columns that nobody wrote may be missing or absent. `blocks` narrows what is read; hot pieces are whole columns.
    """
    floor, hot = hot_read(series, metric, first=first, end=end, blocks=blocks)
    sealed = tiles_read(series, metric, first=first, end=min(end, floor), blocks=blocks)
    return [*sealed, *(Piece(0, column, cells) for column, cells in hot.stacked(hot.values))]


def cells_read(series: SeriesRow, metric: int, *, first: int, end: int, width: int) -> Cells:
    """Return the values of one metric in columns first..end-1 as one array [entity, column], `width` entities."""
    out = np.full((max(0, end - first), width), ABSENT, np.float32)
    for piece in pieces_read(series, metric, first=first, end=end):
        rows = slice(piece.first_row, piece.first_row + piece.cells.shape[0])
        target = out[piece.first_column - first : piece.end_column - first, rows]
        target[:] = piece.cells.T[:, : target.shape[1]]
    return out.T


def columns_whole(pieces: Iterable[Piece], width: int) -> Iterator[Piece]:
    """Yield pieces with all `width` entities: those that lie in the same columns are put together. Order by column."""
    found: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        found.setdefault((piece.first_column, piece.end_column), []).append(piece)
    for (first, end), parts in sorted(found.items()):
        if len(parts) == 1 and parts[0].cells.shape[0] == width:
            yield parts[0]
            continue
        out = np.full((end - first, width), ABSENT, np.float32)
        for part in parts:
            rows = out[:, part.first_row : part.first_row + part.cells.shape[0]]
            rows[:] = part.cells.T[:, : rows.shape[1]]
        yield Piece(0, first, out.T)


def tiles_read(
    series: SeriesRow, metric: int, *, first: int, end: int, blocks: Collection[int] | None = None
) -> Iterator[Piece]:
    """Yield the sealed values of one metric in columns first..end-1, late ones laid over, by tile and block."""
    if end <= first:
        return
    first_tile, end_tile = first // TILE_COLUMNS, -(-end // TILE_COLUMNS)
    late = patches_of(series.id, metric, first_tile=first_tile, end_tile=end_tile)
    for tile, block, data in _tile_blobs(series.id, metric, first_tile, end_tile, blocks):
        late_here = late.pop((tile, block), None)
        cells = codec.decode(data)
        if late_here is not None:
            cells = patches_lay(cells, late_here, first_entity=block * BLOCK, first_column=tile * TILE_COLUMNS)
        yield _clipped(Piece(block * BLOCK, tile * TILE_COLUMNS, cells), first, end)
    for (tile, block), values in late.items():  # a metric or a block that had no value when its tile was sealed
        if blocks is not None and block not in blocks:
            continue
        height = int(values["entity"].max()) + 1 - block * BLOCK
        nothing = np.full((TILE_COLUMNS, height), ABSENT, np.float32).T
        cells = patches_lay(nothing, values, first_entity=block * BLOCK, first_column=tile * TILE_COLUMNS)
        yield _clipped(Piece(block * BLOCK, tile * TILE_COLUMNS, cells), first, end)


def _tile_blobs(
    series_id: int, metric: int, first_tile: int, end_tile: int, blocks: Collection[int] | None
) -> list[tuple[int, int, bytes]]:
    with cursor() as c:
        c.execute(
            """SELECT tile, block, data FROM telemetry_tile
               WHERE series_id = %s AND metric = %s AND NOT ratio AND level_columns = 0 AND level_entities = 0
                 AND tile >= %s AND tile < %s AND (%s::int4[] IS NULL OR block = ANY(%s::int4[])) ORDER BY tile, block""",
            (series_id, metric, first_tile, end_tile, *[None if blocks is None else list(blocks)] * 2),
        )
        return c.fetchall()


def _clipped(piece: Piece, first: int, end: int) -> Piece:
    low, high = max(first, piece.first_column), min(end, piece.end_column)
    cells = piece.cells[:, low - piece.first_column : high - piece.first_column]
    return Piece(piece.first_row, low, cells)
