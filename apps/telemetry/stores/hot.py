"""Hot blocks and patches in the database."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import hot
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.selectors.patches import PATCH
from apps.telemetry.selectors.sql import cursor
from apps.telemetry.stores.series import Writing

__all__ = ["PATCH", "Keys", "Loaded", "blocks_load", "blocks_save", "patches_add"]

Keys = NDArray[np.int64]


@dataclass(slots=True)
class Loaded:
    """Blocks in memory: which metric each row is, the cells [block, metric, entity], how many entities had a value."""

    metric_ids: tuple[int, ...]
    cells: NDArray[np.float32]
    present: NDArray[np.int64]


_LOAD = """SELECT col, block, present, data FROM telemetry_hotblock
WHERE series_id = %s AND (col, block) IN (SELECT * FROM unnest(%b::int8[], %b::int4[]))"""

_SAVE = """INSERT INTO telemetry_hotblock AS h (series_id, col, block, version, metrics, present, width, data)
SELECT %s, c, b, %s, %b::int4[], p, w, d
FROM unnest(%b::int8[], %b::int4[], %b::int4[], %b::int4[], %b::bytea[]) AS t(c, b, p, w, d)
ON CONFLICT (series_id, col, block) DO UPDATE SET version = excluded.version, present = excluded.present,
    metrics = excluded.metrics, width = excluded.width, data = excluded.data"""


def blocks_load(series: Writing, *, cols: Keys, blocks: Keys, metric_ids: Sequence[int], width: int) -> Loaded:
    """Return the blocks at (cols[i], blocks[i]) stacked, `width` entities wide, empty where there is none yet."""
    place = {(col, block): n for n, (col, block) in enumerate(zip(cols.tolist(), blocks.tolist(), strict=True))}
    blobs: list[bytes | None] = [None] * len(place)
    present = np.zeros(len(place), np.int64)
    with cursor() as c:
        c.execute(_LOAD, (series.id, cols.tolist(), blocks.tolist()))
        for col, block, count, data in c:
            at = place[col, block]
            blobs[at], present[at] = data, count
    ids = hot.ids_of(blobs, first=metric_ids)
    return Loaded(ids, hot.stack(blobs, ids, width), present)


def blocks_save(series: Writing, loaded: Loaded, *, cols: Keys, blocks: Keys, width: int) -> NDArray[np.int64]:
    """Write the blocks back; return by how many entities the present ones of each grew.

    `width` is the series' whole width: its last block is narrower than the others.
    """
    values = loaded.cells[:, [metric_id < hot.COUNT_BIT for metric_id in loaded.metric_ids]]
    present = (~np.isnan(values)).any(axis=1).sum(axis=1)
    widths = [max(1, min(BLOCK, width - BLOCK * block)) for block in blocks.tolist()]
    blobs = [
        hot.write(hot.HotBlock(loaded.metric_ids, cells[:, :entities]))
        for cells, entities in zip(loaded.cells, widths, strict=True)
    ]
    keys = (cols.tolist(), blocks.tolist(), present.tolist(), widths, blobs)
    with cursor() as c:
        c.execute(_SAVE, (series.id, series.version, list(loaded.metric_ids), *keys))
    grown: NDArray[np.int64] = present - loaded.present
    return grown


def patches_add(series: Writing, rows: NDArray[np.void]) -> None:
    """Append late values, one row per tile and block; `rows` are `PATCH` in the order in which they apply."""
    if not len(rows):
        return
    tile = rows["col"] // TILE_COLUMNS
    block = rows["entity"].astype(np.int64) // BLOCK
    order = np.lexsort((block, tile))
    tile, block = tile[order], block[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(tile) != 0) | (np.diff(block) != 0)])
    blobs = [part.tobytes() for part in np.split(rows[order], starts[1:])]
    tiles, blocks = tile[starts].tolist(), block[starts].tolist()
    with cursor() as c:
        c.execute(
            """INSERT INTO telemetry_patch (series_id, tile, block, version, data)
               SELECT %s, t, b, %s, d FROM unnest(%b::int8[], %b::int4[], %b::bytea[]) AS p(t, b, d)""",
            (series.id, series.version, tiles, blocks, blobs),
        )
