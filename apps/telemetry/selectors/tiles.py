"""Sealed tiles as they are read: single values of one tile over all entities, and pooled ones plane by plane."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from apps.engine.tiles import codec, pooled
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.engine.tiles.pooled import Plane
from apps.engine.tiles.pyramid import Pooled
from apps.telemetry.selectors.cells import Cells
from apps.telemetry.selectors.sql import cursor

WIDE = BLOCK
"""A series of more entities also has pooled rows and its stages' medians; a narrower one is read rank by rank."""


@dataclass(frozen=True, eq=False, slots=True)
class PooledPiece:
    """Planes float32 [row, column] of one pooled tile; first row and column are counted in its own levels."""

    first_row: int
    first_column: int
    planes: dict[Plane, Cells]


_PREFIX = """substring(data from 1 for (48 + get_byte(h, 0) + (get_byte(h, 1) << 8) + (get_byte(h, 2) << 16)
    + (get_byte(h, 3) << 24))::int)"""

_POOLED = """SELECT tile, block, {data} FROM (
    SELECT tile, block, data, substring(data from 29 for 4) AS h FROM telemetry_tile
    WHERE series_id = %s AND metric = %s AND ratio = %s AND level_columns = %s AND level_entities = %s
      AND tile >= %s AND tile < %s AND (%s::int4[] IS NULL OR block = ANY(%s::int4[])) OFFSET 0) t ORDER BY tile, block"""


def pooled_read(
    series_id: int,
    metric: int,
    *,
    ratio: bool,
    levels: tuple[int, int],
    first: int,
    end: int,
    planes: tuple[Plane, ...],
    worst: Plane,
    blocks: Collection[int] | None = None,
) -> Iterator[PooledPiece]:
    """Yield the pooled tiles that hold columns first..end-1 of a column level and an entity level, by tile and block.

    Where only the metric's bad end is wanted, only its part of each blob is read.
    """
    sql = _POOLED.format(data=_PREFIX if planes == (worst,) else "data")
    chosen = None if blocks is None else list(blocks)
    with cursor() as c:
        tiles = (first // TILE_COLUMNS, -(-end // TILE_COLUMNS))
        c.execute(sql, (series_id, metric, ratio, *levels, *tiles, chosen, chosen))
        for tile, block, data in c:
            yield PooledPiece(block * BLOCK, tile * TILE_COLUMNS, pooled.decode(data, planes))


def pooled_whole(
    series_id: int, metric: int, *, ratio: bool, levels: tuple[int, int], tile: int, rows: int
) -> Pooled | None:
    """Return all rows of one pooled tile, or None if it is not there."""
    names: tuple[Plane, ...] = ("min", "max", "sum", "count")
    pieces = pooled_read(
        series_id, metric, ratio=ratio, levels=levels, first=tile * TILE_COLUMNS, end=(tile + 1) * TILE_COLUMNS,
        planes=names, worst="max",
    )  # fmt: skip
    planes: dict[Plane, Cells] = {}
    for piece in pieces:
        for name in names:
            if name not in planes:
                planes[name] = np.full((TILE_COLUMNS, rows), 0 if name == "count" else ABSENT, np.float32)
            cells = piece.planes[name]
            planes[name][: cells.shape[1], piece.first_row : piece.first_row + len(cells)] = cells.T
    if not planes:
        return None
    return Pooled(*(planes[name].T for name in names))


def cells_whole(series_id: int, metric: int, *, tile: int, rows: int) -> Cells | None:
    """Return the sealed values of one tile over `rows` entities, late ones not laid over; None if it is not there."""
    out: Cells | None = None
    with cursor() as c:
        c.execute(
            """SELECT block, data FROM telemetry_tile WHERE series_id = %s AND metric = %s AND NOT ratio
               AND level_columns = 0 AND level_entities = 0 AND tile = %s""",
            (series_id, metric, tile),
        )
        for block, data in c:
            if out is None:
                out = np.full((TILE_COLUMNS, rows), ABSENT, np.float32)
            cells = codec.decode(data)
            part = out[: cells.shape[1], block * BLOCK : block * BLOCK + len(cells)]
            part[:] = cells.T[:, : part.shape[1]]
    return None if out is None else out.T


def medians_read(series_id: int, metric: int, *, first_tile: int, end_tile: int) -> dict[int, Cells]:
    """Return the stages' medians float32 [stage, column] of each tile that has them (the tile key of ratio, level 0)."""
    with cursor() as c:
        c.execute(
            """SELECT tile, data FROM telemetry_tile WHERE series_id = %s AND metric = %s AND ratio
               AND level_columns = 0 AND level_entities = 0 AND tile >= %s AND tile < %s""",
            (series_id, metric, first_tile, end_tile),
        )
        return {tile: codec.decode(data) for tile, data in c}


def orders_of(series_id: int) -> set[str]:
    """Return the versions of the stage-node orders that pooled tiles of a series are made with."""
    with cursor() as c:
        c.execute("SELECT version FROM telemetry_seriesorder WHERE series_id = %s", (series_id,))
        return {row[0] for row in c}


def patched_in(series_id: int, *, first_tile: int, end_tile: int) -> list[int]:
    """Return the tiles first_tile..end_tile-1 that have late values not merged yet, ascending."""
    with cursor() as c:
        c.execute(
            """SELECT DISTINCT tile FROM telemetry_patch WHERE series_id = %s AND tile >= %s AND tile < %s
               ORDER BY tile""",
            (series_id, first_tile, end_tile),
        )
        return [row[0] for row in c]
