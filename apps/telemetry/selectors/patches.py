"""Values that came after their tile was sealed: their packed form, and laying them over the tile's cells.

A patch row is an array of `PATCH`. Rows apply in the order of their ids, values in their order within a row; applying
all of them twice gives the same cells, so a reader that sees a tile and the patches that are in it already is right too.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.selectors.sql import cursor

PATCH = np.dtype([("metric", "<u2"), ("rule", "u1"), ("entity", "<u4"), ("col", "<i8"), ("value", "<f4")])
"""One late value; `rule` 0 overwrites, 1 only fills. `entity` is counted in the series, `col` is the step."""

Cells = NDArray[np.float32]
Patches = dict[tuple[int, int], NDArray[np.void]]
"""(tile, block) → the late values of one metric in the order in which they apply."""


def patches_of(series_id: int, metric: int, *, first_tile: int, end_tile: int) -> Patches:
    """Return the late values of a metric in the tiles first_tile..end_tile-1 that are not merged yet."""
    found: dict[tuple[int, int], list[NDArray[np.void]]] = {}
    with cursor() as c:
        c.execute(
            """SELECT tile, block, data FROM telemetry_patch
               WHERE series_id = %s AND tile >= %s AND tile < %s ORDER BY tile, block, id""",
            (series_id, first_tile, end_tile),
        )
        for tile, block, data in c:
            values = np.frombuffer(data, PATCH)
            mine = values[values["metric"] == metric]
            if len(mine):
                found.setdefault((tile, block), []).append(mine)
    return {key: np.concatenate(parts) for key, parts in found.items()}


def patches_lay(cells: Cells, values: NDArray[np.void], *, first_entity: int, first_column: int) -> Cells:
    """Return [entity, column] cells with late values laid over; the argument stays as it is.

    Of several values for one cell the last that overwrites counts; one that fills counts where nothing else is.
    """
    out = cells.copy(order="K")
    rows = values["entity"].astype(np.int64) - first_entity
    columns = values["col"] - first_column
    inside = (rows >= 0) & (rows < out.shape[0]) & (columns >= 0) & (columns < out.shape[1])
    rows, columns, values = rows[inside], columns[inside], values[inside]
    for rule, part in _stretches(values["rule"]):
        r, c, v = rows[part], columns[part], values["value"][part]
        if rule == 0:
            out[r, c] = v
            continue
        # Backwards, so that of two fills of one cell the first stays.
        empty = np.isnan(out[r, c])
        out[r[empty][::-1], c[empty][::-1]] = v[empty][::-1]
    return out


def place_of(col: int, entity: int) -> tuple[int, int]:
    """Return (tile, block) of a value.

    >>> place_of(130, 1024)
    (2, 1)
    """
    return col // TILE_COLUMNS, entity // BLOCK


def _stretches(rules: NDArray[np.uint8]) -> Sequence[tuple[int, slice]]:
    """Runs of equal rules, in order."""
    if not len(rules):
        return []
    starts = np.flatnonzero(np.r_[True, rules[1:] != rules[:-1]]).tolist()
    ends = [*starts[1:], len(rules)]
    return [(int(rules[start]), slice(start, end)) for start, end in zip(starts, ends, strict=True)]
