"""Single values of a range of columns out of hot blocks, sealed tiles and patches, as pieces of [entity, column].

Columns below a series' `hot_floor` are sealed, the others are hot. A seal moves the floor and the values in one
transaction, so a reader that finds the floor moved between its two queries reads the hot columns again.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import codec
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.selectors import kept
from apps.telemetry.selectors.blocks import hot_rows
from apps.telemetry.selectors.patches import patches_lay, patches_of
from apps.telemetry.selectors.series import SeriesRow, hot_floor_of
from apps.telemetry.selectors.sql import cursor

Cells = NDArray[np.float32]

MOST_TRIES = 8
"""How often a read starts anew because a seal came in between; seals of a series are seconds apart."""


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Cells float32 [entity, column], absent is NaN; the first entity is `first_row`, the first column `first_column`.

    `keys` says of hot columns which values these are, so that what is computed of them can be kept, too."""

    first_row: int
    first_column: int
    cells: Cells
    keys: tuple[tuple[int, tuple[object, ...]], ...] = ()

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
    series, hot_pieces = _hot_with_floor(series, metric, first, end, blocks)
    sealed = tiles_read(series, metric, first=first, end=min(end, series.hot_floor), blocks=blocks)
    return [*sealed, *hot_pieces]


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


def _hot_with_floor(
    series: SeriesRow, metric: int, first: int, end: int, blocks: Collection[int] | None
) -> tuple[SeriesRow, list[Piece]]:
    for _ in range(MOST_TRIES):
        low = max(first, series.hot_floor)
        pieces = hot_read(series, metric, first=low, end=end, blocks=blocks) if low < end else []
        floor = hot_floor_of(series.id)
        if floor == series.hot_floor:
            return series, pieces
        series = replace(series, hot_floor=floor)
    return series, pieces


_STATE = """SELECT col, count(*), max(version), max(block * 1024 + width) FROM telemetry_hotblock
WHERE series_id = %s AND col >= %s AND col < %s AND block = ANY(%s) GROUP BY col ORDER BY col"""


def hot_read(
    series: SeriesRow, metric: int, *, first: int, end: int, blocks: Collection[int] | None = None
) -> list[Piece]:
    """Return the hot values of one metric in columns first..end-1, one piece a tile's columns, whole columns each.

    Columns are kept in memory until they are written again: of a live run only the newest ones are read each time.
    """
    every = range(-(-max(series.width, 1) // BLOCK))
    chosen = list(every) if blocks is None else sorted(blocks)
    with cursor() as c:
        # The state is read before the values: what is kept may be newer than its key says, never older.
        c.execute(_STATE, (series.id, first, end, chosen))
        states = c.fetchall()
    if not states:
        return []
    width = max(series.width, 1, *(state[3] for state in states))
    cols = [state[0] for state in states]
    keys = [(series.id, metric, *state, width, tuple(chosen)) for state in states]
    columns = kept.hot.take(
        keys, lambda at: _hot_columns(series.id, metric, [cols[n] for n in at], blocks=chosen, width=width)
    )
    pieces = []
    start = 0
    for stop in range(1, len(cols) + 1):
        if stop == len(cols) or cols[stop] // TILE_COLUMNS != cols[start] // TILE_COLUMNS:
            pieces.append(_stacked(cols[start:stop], columns[start:stop], keys[start:stop]))
            start = stop
    return pieces


def _hot_columns(series_id: int, metric: int, cols: list[int], *, blocks: list[int], width: int) -> list[Cells]:
    """The values of some hot columns, [entity] each."""
    found = {col: np.full(width, ABSENT, np.float32) for col in cols}
    for col, block, values in hot_rows(series_id, number=metric, first=cols[0], end=cols[-1] + 1, blocks=blocks):
        if col in found:
            part = found[col][BLOCK * block : BLOCK * block + len(values)]
            part[:] = values[: len(part)]
    return list(found.values())


def _stacked(cols: list[int], columns: list[Cells], keys: list[tuple[object, ...]]) -> Piece:
    out = np.full((cols[-1] - cols[0] + 1, len(columns[0])), ABSENT, np.float32)
    for col, values in zip(cols, columns, strict=True):
        out[col - cols[0]] = values
    return Piece(0, cols[0], out.T, tuple(zip(cols, keys, strict=True)))
