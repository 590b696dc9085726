"""Values of single columns at full detail, wherever they are: hot blocks, sealed tiles, patches over them."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import codec
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.selectors.patches import patches_lay, patches_of
from apps.telemetry.selectors.series import hot_floor_of
from apps.telemetry.selectors.sql import cursor

TRIES = 3
"""A seal that commits between two of a read's queries moves columns; then everything is read again."""

Floats = NDArray[np.float32]

_HOT = """SELECT m.n, h.col, h.block, substring(h.data FROM
    (20 + 6 * cardinality(h.metrics) + 7) / 8 * 8 + 4 * h.width * (array_position(h.metrics, m.n) - 1) + 1
    FOR 4 * h.width)
FROM telemetry_hotblock h CROSS JOIN unnest(%b::int4[]) AS m(n)
WHERE h.series_id = %s AND h.col = ANY(%b) AND m.n = ANY(h.metrics)"""

_HOT_RANGE = _HOT.replace("h.col = ANY(%b)", "h.col >= %s AND h.col < %s AND h.block = ANY(%b)")

_TILES = """SELECT metric, tile, block, data FROM telemetry_tile WHERE series_id = %s AND metric = ANY(%b)
AND NOT ratio AND level_columns = 0 AND level_entities = 0 AND tile = ANY(%b)"""


def columns_read(
    *, series_id: int, width: int, numbers: Mapping[str, int], steps: NDArray[np.int64]
) -> dict[str, Floats]:
    """Return the values of metrics at rising steps, each float32 [entity, column]; NaN where nothing was reported."""
    for _ in range(TRIES):
        floor = hot_floor_of(series_id)
        found = {name: np.full((len(steps), width), ABSENT, np.float32) for name in numbers}
        if not len(steps) or not numbers:
            break
        by_number = {numbers[name]: cells for name, cells in found.items()}
        _read_cold(series_id, by_number, steps, floor)
        _read_hot(series_id, by_number, steps)
        if hot_floor_of(series_id) == floor:
            break
    return {name: cells.T for name, cells in found.items()}


def hot_rows(
    series_id: int, *, number: int, first: int, end: int, blocks: Sequence[int]
) -> Iterator[tuple[int, int, Floats]]:
    """Yield (column, block, values float32 [entity]) of one metric in hot columns first..end-1."""
    with cursor() as c:
        c.execute(_HOT_RANGE, ([number], series_id, first, end, list(blocks)))
        for _, col, block, data in c:
            yield col, block, np.frombuffer(data, "<f4")


def _read_hot(series_id: int, by_number: Mapping[int, Floats], steps: NDArray[np.int64]) -> None:
    place = {step: n for n, step in enumerate(steps.tolist())}
    with cursor() as c:
        c.execute(_HOT, (list(by_number), series_id, steps.tolist()))
        for number, col, block, data in c:
            values = np.frombuffer(data, "<f4")
            start = block * BLOCK
            by_number[number][place[col], start : start + len(values)] = values


def _read_cold(series_id: int, by_number: Mapping[int, Floats], steps: NDArray[np.int64], floor: int) -> None:
    cold = np.flatnonzero(steps < floor)
    if not len(cold):
        return
    tile_of = steps[cold] // TILE_COLUMNS
    tiles = np.unique(tile_of)
    # Late values before tiles: a merge in between leaves them in the tile, and laying them over twice changes nothing.
    first_tile, end_tile = int(tiles[0]), int(tiles[-1]) + 1
    all_late = {n: patches_of(series_id, n, first_tile=first_tile, end_tile=end_tile) for n in by_number}
    sealed: dict[tuple[int, int, int], Floats] = {}
    with cursor() as c:
        c.execute(_TILES, (series_id, list(by_number), tiles.tolist()))
        for number, tile, block, data in c:
            sealed[number, tile, block] = codec.decode(data)
    for number, cells in by_number.items():
        late = all_late[number]
        places = {(tile, block) for n, tile, block in sealed if n == number} | set(late)
        for tile, block in places:
            wanted = cold[tile_of == tile]
            if not len(wanted):
                continue
            rows = min(BLOCK, cells.shape[1] - block * BLOCK)
            whole = _whole(sealed.get((number, tile, block)), rows)
            if (tile, block) in late:
                whole = patches_lay(
                    whole, late[tile, block], first_entity=block * BLOCK, first_column=tile * TILE_COLUMNS
                )
            cells[wanted, block * BLOCK : block * BLOCK + rows] = whole.T[steps[wanted] - tile * TILE_COLUMNS]


def _whole(found: Floats | None, rows: int) -> Floats:
    """A tile as wide as its block is now: an attempt whose size nobody told grows."""
    if found is not None and found.shape == (rows, TILE_COLUMNS):
        return found
    whole = np.full((TILE_COLUMNS, rows), ABSENT, np.float32).T
    if found is not None:
        whole[: len(found), : found.shape[1]] = found[:rows]
    return whole


_HOT_SLICE = """SELECT m.n, h.col, substring(h.data FROM
    (20 + 6 * cardinality(h.metrics) + 7) / 8 * 8 + 4 * h.width * (array_position(h.metrics, m.n) - 1) + 4 * %s + 1
    FOR 4 * (least(%s, h.width) - %s))
FROM telemetry_hotblock h CROSS JOIN unnest(%b::int4[]) AS m(n)
WHERE h.series_id = %s AND h.col >= %s AND h.col < %s AND h.block = %s AND h.width > %s AND m.n = ANY(h.metrics)"""


def entities_read(
    *, series_id: int, numbers: Mapping[str, int], entities: NDArray[np.int64], first: int, end: int
) -> dict[str, Floats]:
    """Return the values of some entities in columns first..end-1, each float32 [entity, column]; NaN = no reading.

    Only their part of each blob is read, so one node of thousands costs what one node is.
    """
    for _ in range(TRIES):
        floor = hot_floor_of(series_id)
        found = {name: np.full((len(entities), end - first), ABSENT, np.float32) for name in numbers}
        by_number = {numbers[name]: cells for name, cells in found.items()}
        for block in np.unique(entities // BLOCK).tolist():
            rows = np.flatnonzero(entities // BLOCK == block)
            _slice_cold(series_id, by_number, entities[rows] % BLOCK, rows, block, first, min(end, floor))
            _slice_hot(series_id, by_number, entities[rows] % BLOCK, rows, block, max(first, floor), end, first)
        if hot_floor_of(series_id) == floor:
            break
    return found


def _slice_hot(
    series_id: int,
    by_number: Mapping[int, Floats],
    inside: NDArray[np.int64],
    rows: NDArray[np.int64],
    block: int,
    first: int,
    end: int,
    origin: int,
) -> None:
    low, high = int(inside.min()), int(inside.max()) + 1
    with cursor() as c:
        c.execute(_HOT_SLICE, (low, high, low, list(by_number), series_id, first, end, block, low))
        for number, col, data in c:
            values = np.frombuffer(data, "<f4")
            known = inside - low < len(values)
            by_number[number][rows[known], col - origin] = values[inside[known] - low]


def _slice_cold(
    series_id: int,
    by_number: Mapping[int, Floats],
    inside: NDArray[np.int64],
    rows: NDArray[np.int64],
    block: int,
    first: int,
    end: int,
) -> None:
    if end <= first:
        return
    tiles = list(range(first // TILE_COLUMNS, (end - 1) // TILE_COLUMNS + 1))
    all_late = {n: patches_of(series_id, n, first_tile=tiles[0], end_tile=tiles[-1] + 1) for n in by_number}
    sealed: dict[tuple[int, int], Floats] = {}
    with cursor() as c:
        c.execute(_TILES + " AND block = %s", (series_id, list(by_number), tiles, block))
        for number, tile, _, data in c:
            sealed[number, tile] = codec.decode(data)
    for number, cells in by_number.items():
        late = all_late[number]
        for tile in tiles:
            whole = sealed.get((number, tile))
            if whole is None and (tile, block) not in late:
                continue
            whole = _whole(whole, BLOCK)
            if (tile, block) in late:
                whole = patches_lay(
                    whole, late[tile, block], first_entity=block * BLOCK, first_column=tile * TILE_COLUMNS
                )
            start, stop = max(first, tile * TILE_COLUMNS), min(end, (tile + 1) * TILE_COLUMNS)
            part = whole[inside, start - tile * TILE_COLUMNS : stop - tile * TILE_COLUMNS]
            cells[rows, start - first : stop - first] = part
