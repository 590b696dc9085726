"""Hot columns of one metric, kept in memory until they are written again: of a live run only the newest ones are read.

A seal moves a series' floor and its values in one transaction, so a reader that finds the floor moved between its two
queries reads again.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS
from apps.telemetry.selectors import kept
from apps.telemetry.selectors.blocks import hot_rows
from apps.telemetry.selectors.series import SeriesRow, hot_floor_of
from apps.telemetry.selectors.sql import cursor

Cells = NDArray[np.float32]

MOST_TRIES = 8
"""How often a read starts anew because a seal came in between; seals of a series are seconds apart."""

_STATE = """SELECT col, count(*), max(version), max(block * 1024 + width) FROM telemetry_hotblock
WHERE series_id = %s AND col >= %s AND col < %s AND block = ANY(%s) GROUP BY col ORDER BY col"""


@dataclass(frozen=True, eq=False, slots=True)
class HotColumns:
    """Columns that have values, rising. keys: what each column's values are known by. values: float32 [entity] each."""

    cols: list[int]
    keys: list[tuple[Hashable, ...]]
    values: list[Cells]

    def derived(self, what: tuple[Hashable, ...], make: Callable[[Cells], Cells]) -> list[Cells]:
        """Return something that is computed of each column alone, kept with it: float32 [row] each.

        what: names the computation and all that it depends on beside the column. make: from cells [entity, column] to
        cells [row, column].
        """

        def some(at: list[int]) -> list[Cells]:
            cells = np.array([self.values[n] for n in at], np.float32)
            return [row.copy() for row in np.ascontiguousarray(make(cells.T).T)]

        return kept.hot.take([(*key, *what) for key in self.keys], some)

    def stacked(self, values: Sequence[Cells]) -> Iterator[tuple[int, Cells]]:
        """Yield (first column, cells [row, column]) of the columns within each tile; `values` as this object's."""
        start = 0
        for stop in range(1, len(self.cols) + 1):
            if stop < len(self.cols) and self.cols[stop] // TILE_COLUMNS == self.cols[start] // TILE_COLUMNS:
                continue
            first, last = self.cols[start], self.cols[stop - 1]
            out = np.full((last - first + 1, len(values[start])), ABSENT, np.float32)
            for col, row in zip(self.cols[start:stop], values[start:stop], strict=True):
                out[col - first] = row
            yield first, out.T
            start = stop


def hot_read(
    series: SeriesRow, metric: int, *, first: int, end: int, blocks: Collection[int] | None = None
) -> tuple[int, HotColumns]:
    """Return the hot columns among first..end-1 of one metric, and the floor below which columns are sealed."""
    floor = series.hot_floor
    for _ in range(MOST_TRIES):
        found = _read(series, metric, max(first, floor), end, blocks)
        now = hot_floor_of(series.id)
        if now == floor:
            break
        floor = now
    return floor, found


def _read(series: SeriesRow, metric: int, first: int, end: int, blocks: Collection[int] | None) -> HotColumns:
    if first >= end:
        return HotColumns([], [], [])
    every = range(-(-max(series.width, 1) // BLOCK))
    chosen = list(every) if blocks is None else sorted(blocks)
    with cursor() as c:
        # The state is read before the values: what is kept may be newer than its key says, never older.
        c.execute(_STATE, (series.id, first, end, chosen))
        states = c.fetchall()
    width = max([series.width, 1, *(state[3] for state in states)])
    cols: list[int] = [state[0] for state in states]
    keys: list[tuple[Hashable, ...]] = [(series.id, metric, *state, width, tuple(chosen)) for state in states]
    values = kept.hot.take(
        keys, lambda at: _columns(series.id, metric, [cols[n] for n in at], blocks=chosen, width=width)
    )
    return HotColumns(cols, keys, values)


def _columns(series_id: int, metric: int, cols: list[int], *, blocks: list[int], width: int) -> list[Cells]:
    found = {col: np.full(width, ABSENT, np.float32) for col in cols}
    for col, block, values in hot_rows(series_id, number=metric, first=cols[0], end=cols[-1] + 1, blocks=blocks):
        if col in found:
            part = found[col][BLOCK * block : BLOCK * block + len(values)]
            part[:] = values[: len(part)]
    return list(found.values())
