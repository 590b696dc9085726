"""Sealed tiles in the database, and taking hot columns and patches away once they are in one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from apps.engine.tiles.layout import TILE_COLUMNS, StageNodeOrder
from apps.telemetry.models import SeriesOrder
from apps.telemetry.selectors.patches import PATCH
from apps.telemetry.selectors.sql import cursor

Values = np.ndarray
Key = tuple[int, bool, int, int, int]
"""Metric, ratio, column level, entity level, tile."""


@dataclass(frozen=True, slots=True)
class TileBlob:
    """A tile to be stored: its key, its block, the newest version of a value in it."""

    metric: int
    ratio: bool
    level_columns: int
    level_entities: int
    tile: int
    block: int
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class HotBlob:
    """A hot block as it is stored."""

    col: int
    block: int
    version: int
    width: int
    data: bytes


_SAVE = """INSERT INTO telemetry_tile (series_id, metric, ratio, level_columns, level_entities, tile, block, version, data)
SELECT %s, * FROM unnest(%b::int4[], %s::bool[], %s::int2[], %s::int2[], %b::int8[], %b::int4[], %b::int8[], %b::bytea[])
ON CONFLICT (series_id, metric, ratio, level_columns, level_entities, tile, block)
DO UPDATE SET version = greatest(telemetry_tile.version, excluded.version), data = excluded.data"""

WRITTEN_AT_ONCE = 256
"""Tiles of one statement: 10 MiB."""


def seal_lock(series_id: int) -> bool:
    """Return whether this transaction alone seals and merges a series now; it never waits for another one."""
    with cursor() as c:
        c.execute("SELECT pg_try_advisory_xact_lock(%s)", ((0x54 << 56) | (3 << 48) | series_id,))
        return bool((c.fetchone() or (False,))[0])


def tiles_save(series_id: int, tiles: Sequence[TileBlob]) -> None:
    """Write tiles; one that is there already is replaced."""
    with cursor() as c:
        for start in range(0, len(tiles), WRITTEN_AT_ONCE):
            part = tiles[start : start + WRITTEN_AT_ONCE]
            columns = zip(
                *(
                    (t.metric, t.ratio, t.level_columns, t.level_entities, t.tile, t.block, t.version, t.data)
                    for t in part
                ),
                strict=True,
            )
            c.execute(_SAVE, (series_id, *map(list, columns)))


def hot_blobs(series_id: int, *, first: int, end: int) -> list[HotBlob]:
    """Return the hot blocks of columns first..end-1, by column and block."""
    with cursor() as c:
        c.execute(
            """SELECT col, block, version, width, data FROM telemetry_hotblock
               WHERE series_id = %s AND col >= %s AND col < %s ORDER BY col, block""",
            (series_id, first, end),
        )
        return [HotBlob(*row) for row in c]


def hot_first(series_id: int) -> int | None:
    """Return the lowest hot column of a series, None if it has none."""
    with cursor() as c:
        c.execute("SELECT min(col) FROM telemetry_hotblock WHERE series_id = %s", (series_id,))
        found = c.fetchone()
        return None if found is None else found[0]


def hot_state(series_id: int, *, first: int, end: int) -> tuple[int, int]:
    """Return how many hot blocks columns first..end-1 have and their newest version: whether something was written."""
    with cursor() as c:
        c.execute(
            """SELECT count(*), coalesce(max(version), 0) FROM telemetry_hotblock
               WHERE series_id = %s AND col >= %s AND col < %s""",
            (series_id, first, end),
        )
        count, version = c.fetchone() or (0, 0)
        return int(count), int(version)


def hot_delete(series_id: int, *, first: int, end: int, floor: int) -> None:
    """Take columns first..end-1 out of the hot blocks and let the sealed ones reach up to `floor`."""
    with cursor() as c:
        c.execute(
            "DELETE FROM telemetry_hotblock WHERE series_id = %s AND col >= %s AND col < %s", (series_id, first, end)
        )
        c.execute("UPDATE telemetry_series SET hot_floor = %s WHERE id = %s", (floor, series_id))


def patched_tiles(series_id: int, *, limit: int) -> list[int]:
    """Return tiles with late values that are not merged, lowest first."""
    with cursor() as c:
        c.execute(
            "SELECT DISTINCT tile FROM telemetry_patch WHERE series_id = %s ORDER BY tile LIMIT %s", (series_id, limit)
        )
        return [row[0] for row in c]


def patches_load(series_id: int, tile: int) -> tuple[Values, int, int]:
    """Return a tile's late values in the order in which they apply, the newest of their rows' ids and of their versions."""
    with cursor() as c:
        c.execute(
            "SELECT id, version, data FROM telemetry_patch WHERE series_id = %s AND tile = %s ORDER BY id",
            (series_id, tile),
        )
        rows = c.fetchall()
    if not rows:
        return np.empty(0, PATCH), 0, 0
    values = np.concatenate([np.frombuffer(row[2], PATCH) for row in rows])
    return values, rows[-1][0], max(row[1] for row in rows)


def patches_delete(series_id: int, tile: int, *, up_to_id: int) -> None:
    """Take away late values that are merged; those that came since stay."""
    with cursor() as c:
        c.execute(
            "DELETE FROM telemetry_patch WHERE series_id = %s AND tile = %s AND id <= %s", (series_id, tile, up_to_id)
        )


def orders_stale(series_id: int, version: str, *, limit: int) -> list[tuple[int, int]]:
    """Return (column level, tile) of pooled tiles that were made with another stage-node order, finest level first."""
    with cursor() as c:
        c.execute(
            """SELECT DISTINCT level_columns, tile FROM telemetry_tile
               WHERE series_id = %s AND (ratio OR level_entities > 0) AND NOT (level_columns = 0 AND level_entities = 0)
                 AND substring(data from 17 for 8) <> decode(%s, 'hex') ORDER BY level_columns, tile LIMIT %s""",
            (series_id, version, limit),
        )
        return [(row[0], row[1]) for row in c]


def order_note(series_id: int, order: StageNodeOrder, *, nodes: np.ndarray) -> None:
    """Note the stage-node order that pooled tiles of a series are made with, before they are stored.

    With the first tiles of another order the kept medians go: they do not say which stages they are of.
    """
    stages = order.stages[order.stage_of_rank()].astype("<i4").tobytes()
    _, is_new = SeriesOrder.objects.get_or_create(
        series_id=series_id, version=order.version, defaults={"stages": stages, "nodes": nodes.astype("<i4").tobytes()}
    )
    if is_new:
        with cursor() as c:
            c.execute(
                """DELETE FROM telemetry_tile WHERE series_id = %s AND ratio AND level_columns = 0 AND level_entities = 0""",
                (series_id,),
            )


def orders_forget(series_id: int, *, keep: str) -> None:
    """Forget the orders that no tile is made with any more."""
    SeriesOrder.objects.filter(series_id=series_id).exclude(version=keep).delete()


def tiles_trim(series_ids: Collection[int], *, before_column: int, limit: int) -> int:
    """Delete sealed tiles and patches that end before a column, at most `limit` tiles; return how many."""
    if not series_ids:
        return 0
    last = before_column // TILE_COLUMNS
    with cursor() as c:
        c.execute("DELETE FROM telemetry_patch WHERE series_id = ANY(%b) AND tile < %s", (list(series_ids), last))
        c.execute(
            """DELETE FROM telemetry_tile WHERE id IN (SELECT id FROM telemetry_tile
               WHERE series_id = ANY(%b) AND level_columns = 0 AND tile < %s LIMIT %s)""",
            (list(series_ids), last, limit),
        )
        return c.rowcount
