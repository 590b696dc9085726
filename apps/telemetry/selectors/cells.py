"""Single values of a series out of hot blocks, sealed tiles and patches, as pieces of [entity, column].

Columns below a series' `hot_floor` are sealed, the others are hot. A seal moves the floor and the values in one
transaction, so a reader that finds the floor moved between its two queries reads the hot columns again.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import codec, hot
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.models import Series, SeriesMetric
from apps.telemetry.selectors.patches import patches_lay, patches_of
from apps.telemetry.selectors.sql import cursor

Cells = NDArray[np.float32]

MOST_TRIES = 8
"""How often a read starts anew because a seal came in between; seals of a series are seconds apart."""


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A series as readers see it. `metrics`: name → number. Columns below `hot_floor` are sealed."""

    id: int
    kind: str
    owner_id: int
    version: int
    width: int
    first_step: int | None
    last_step: int | None
    settled_step: int | None
    hot_floor: int
    changed_at: datetime
    metrics: dict[str, int]


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Cells float32 [entity, column], absent is NaN; the first entity is `first_row`, the first column `first_column`."""

    first_row: int
    first_column: int
    cells: Cells

    @property
    def end_column(self) -> int:
        """The column after the last."""
        return self.first_column + self.cells.shape[1]


def series_of(*, kind: str, owner_id: int) -> SeriesRow | None:
    """Return a series, or None if nothing was ever written to it."""
    row = Series.objects.filter(kind=kind, owner_id=owner_id).first()
    if row is None:
        return None
    metrics = dict(SeriesMetric.objects.filter(series=row).order_by("number").values_list("name", "number"))
    return SeriesRow(
        id=row.pk,
        kind=row.kind,
        owner_id=row.owner_id,
        version=row.version,
        width=row.width,
        first_step=row.first_step,
        last_step=row.last_step,
        settled_step=row.settled_step,
        hot_floor=row.hot_floor,
        changed_at=row.changed_at,
        metrics=metrics,
    )


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
    out = np.full((max(0, end - first), width), hot.ABSENT, np.float32)
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
        out = np.full((end - first, width), hot.ABSENT, np.float32)
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
        nothing = np.full((TILE_COLUMNS, height), hot.ABSENT, np.float32).T
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
        floor = Series.objects.filter(pk=series.id).values_list("hot_floor", flat=True).first()
        if floor is None or floor == series.hot_floor:
            return series, pieces
        series = replace(series, hot_floor=floor)
    return series, pieces


_HOT = """SELECT col, block, octet_length(data), substring(data from 1 for %s),
    substring(data from (%s + 1 + %s * CASE WHEN block = %s THEN %s ELSE 1024 END)::int
              for (4 * CASE WHEN block = %s THEN %s ELSE 1024 END)::int)
FROM telemetry_hotblock WHERE series_id = %s AND col >= %s AND col < %s
    AND (%s::int4[] IS NULL OR block = ANY(%s::int4[])) ORDER BY col, block"""


@dataclass(frozen=True, slots=True)
class _Form:
    """How most hot blocks of a series are built: which metrics in which order, where the asked one begins."""

    ids: tuple[int, ...]
    position: int

    @property
    def header(self) -> int:
        return hot.header_bytes(len(self.ids))

    def offset(self, n_entities: int) -> int:
        return hot.row_slice(len(self.ids), self.position, n_entities)[0]

    def fits(self, head: bytes, size: int, n_entities: int) -> bool:
        """Whether a blob is built so: its length says how many values, its head which metrics."""
        if size != self.header + 4 * len(self.ids) * n_entities:
            return False
        return hot.ids_of([head]) == self.ids


def hot_read(
    series: SeriesRow, metric: int, *, first: int, end: int, blocks: Collection[int] | None = None
) -> list[Piece]:
    """Return the hot values of one metric in columns first..end-1, one piece a tile's columns, whole columns each.

    Only the metric's own bytes are read of each block, wherever the block is built like the newest one.
    """
    form = _form(series.id, metric, first, end)
    if form is None:
        return []
    last = max(0, (series.width - 1) // BLOCK)
    tail = max(1, series.width - BLOCK * last)
    rows: list[tuple[int, int, bytes]] = []
    odd: list[tuple[int, int]] = []
    with cursor() as c:
        chosen = None if blocks is None else list(blocks)
        c.execute(
            _HOT,
            (
                form.header,
                form.header,
                4 * form.position,
                last,
                tail,
                last,
                tail,
                series.id,
                first,
                end,
                chosen,
                chosen,
            ),
        )
        for col, block, size, head, values in c:
            if form.fits(head, size, tail if block == last else BLOCK):
                rows.append((col, block, values))
            else:
                odd.append((col, block))
    rows += _odd_rows(series.id, metric, odd)
    return _stacked(sorted(rows), max(series.width, 1))


def _form(series_id: int, metric: int, first: int, end: int) -> _Form | None:
    """How the newest block that has the metric is built; None if none of the newest ones has it."""
    with cursor() as c:
        c.execute(
            """SELECT substring(data from 1 for 512) FROM telemetry_hotblock
               WHERE series_id = %s AND col >= %s AND col < %s ORDER BY col DESC, block LIMIT 8""",
            (series_id, first, end),
        )
        heads = [row[0] for row in c]
    for head in heads:
        ids = hot.ids_of([head])
        if metric in ids:
            return _Form(ids, ids.index(metric))
    return _Form((metric,), 0) if heads else None


def _odd_rows(series_id: int, metric: int, keys: Sequence[tuple[int, int]]) -> list[tuple[int, int, bytes]]:
    """The metric's values out of blocks that are built otherwise, read whole."""
    if not keys:
        return []
    found = []
    with cursor() as c:
        cols, blocks = zip(*keys, strict=True)
        c.execute(
            """SELECT col, block, data FROM telemetry_hotblock
               WHERE series_id = %s AND (col, block) IN (SELECT * FROM unnest(%s::int8[], %s::int4[]))""",
            (series_id, list(cols), list(blocks)),
        )
        for col, block, data in c:
            row = hot.read(data).row(metric)
            if row is not None:
                found.append((col, block, row.tobytes()))
    return found


def _stacked(rows: Sequence[tuple[int, int, bytes]], width: int) -> list[Piece]:
    """Rows of one metric, by column and block, as pieces that stay within one tile's columns."""
    pieces = []
    start = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and rows[at][0] // TILE_COLUMNS == rows[start][0] // TILE_COLUMNS:
            continue
        first, last = rows[start][0], rows[at - 1][0]
        width = max(width, *(BLOCK * block + len(values) // 4 for _, block, values in rows[start:at]))
        out = np.full((last - first + 1, width), hot.ABSENT, np.float32)
        for col, block, values in rows[start:at]:
            out[col - first, BLOCK * block : BLOCK * block + len(values) // 4] = np.frombuffer(values, "<f4")
        pieces.append(Piece(0, first, out.T))
        start = at
    return pieces
