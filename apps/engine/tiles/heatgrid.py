"""The heatmap's grid out of decoded tiles, pooled tiles and hot columns: pure assembly, no reading."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import shape
from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import pooling
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import COLUMN_POOL, Bucket, StageNodeOrder
from apps.engine.tiles.metrics import Worst
from apps.engine.tiles.pooling import RowGroups
from apps.engine.tiles.pyramid import Pool, mean_of, plane_of
from apps.engine.tiles.rounding import Cells
from apps.engine.tiles.rows import RowLayout
from apps.engine.tiles.turning import roomy

How = Literal["max", "min", "mean"]


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of what was read.

    cells: float32 [row, column]: single values at level 0; at a pooled level the plane that the request wants: max, min,
    or for a mean the sum. count: the count plane, for a mean from a pooled level only. entity_level, column_level: of the
    piece. first_row: its first row, counted in rows of the entity level (a block's first is 1,024 · block). first_column:
    its first column, counted in columns of the column level from step 0.
    """

    cells: Cells
    first_row: int
    first_column: int
    entity_level: int = 0
    column_level: int = 0
    count: Cells | None = None


@dataclass(frozen=True, eq=False)
class Grid:
    """A drawing. cells: float32 [row, column], absent is NaN; rows: which ranks each row is; bucket: which steps each
    column is; how: what pooled cells show.
    """

    cells: Cells
    rows: RowLayout
    bucket: Bucket
    how: How

    @property
    def pooled(self) -> dict[str, int | str]:
        """What the answer says about pooling: ranks a row, steps a column, how."""
        return {"rows": self.rows.ranks_per_row, "columns": self.bucket.steps, "how": self.how}


def assemble(
    parts: Iterable[Part], *, order: StageNodeOrder, rows: RowLayout, bucket: Bucket, pool: Pool, worst: Worst
) -> Grid:
    """Return the drawing made of everything that was read.

    parts: pieces of one metric (or of its ratio), in any order, of any mix of levels not coarser than the drawing; cells
    beyond the buckets are left out, what no part covers stays absent, and where parts overlap the worse value shows (so
    do not pass a column twice for a mean). order, rows, bucket: of the plan. pool: "worst", "max", "min", "mean". worst:
    the metric's bad end.

    Raises `ArgumentInvalid` for a part that mixes drawn rows or columns, or misses its counts. O(cells), about 0.7 ms a
    million where rows are whole and 2 ms where they are pooled.

    Source: ours. Parts are pooled one by one while they are in the core's cache, columns before rows.

    >>> from apps.engine.tiles.layout import bucket_for, stage_node_order
    >>> from apps.engine.tiles.rows import row_layout
    >>> order = stage_node_order(np.zeros(4, int), np.zeros(4, int))
    >>> rows = row_layout(order, np.zeros(4, int), np.zeros(4, int), by="rank", max_rows=2)
    >>> part = Part(np.array([[1, 2, 3], [1, 9, 3], [4, 4, 4], [4, 4, np.nan]], np.float32), 0, 0)
    >>> bucket = bucket_for(0, 3, 2)
    >>> assemble([part], order=order, rows=rows, bucket=bucket, pool="worst", worst="max").cells.tolist()
    [[9.0, 3.0], [4.0, 4.0]]
    """
    how = plane_of(pool, worst)
    size = (bucket.columns, rows.n_rows)
    finder = _Finder(order, rows)
    if how == "mean":
        total, count = roomy(*size, np.float32(0)), roomy(*size, np.float32(0))
        for part in parts:
            for cells, counts in _sums(part):
                _gather(cells, part, bucket, finder, np.add, total)
                _gather(counts, part, bucket, finder, np.add, count)
        return Grid(np.ascontiguousarray(mean_of(total, count).T), rows, bucket, how)
    out = roomy(*size, ABSENT)
    for part in parts:
        _gather(part.cells.T, part, bucket, finder, np.fmax if how == "max" else np.fmin, out)
    return Grid(np.ascontiguousarray(out.T), rows, bucket, how)


def slowest_first(grid: Grid, worst: Worst) -> Grid:
    """Return the same drawing with its rows sorted, the worst mean over the window on top, rows without data last.

    worst: the bad end of what is drawn. Equal rows keep their order. O(cells).

    Source: ours; the mean over the window, since a single spike should not outrank a rank that is slow throughout.
    """
    present = ~np.isnan(grid.cells)
    count = present.sum(axis=1)
    score = np.full(len(grid.cells), np.inf)
    np.divide(np.where(present, grid.cells, 0).sum(axis=1, dtype=np.float64), count, out=score, where=count > 0)
    score[count > 0] *= -1 if worst == "max" else 1
    top_down = np.argsort(score, kind="stable")
    return Grid(grid.cells[top_down], grid.rows.reordered(top_down), grid.bucket, grid.how)


class _Finder:
    """For each piece of rows its groups, worked out once: all parts of a block share them."""

    def __init__(self, order: StageNodeOrder, rows: RowLayout) -> None:
        self._order, self._rows = order, rows
        self._labels: dict[int, NDArray[np.int64]] = {}
        self._groups: dict[tuple[int, int, int], RowGroups] = {}

    def groups(self, entity_level: int, first_row: int, n_rows: int) -> RowGroups:
        key = (entity_level, first_row, n_rows)
        if key not in self._groups:
            labels = self._level(entity_level)
            if first_row < 0 or first_row + n_rows > len(labels):
                raise ArgumentInvalid("A part has rows that the layout lacks.", first_row=first_row, n_rows=n_rows)
            self._groups[key] = RowGroups.of(labels[first_row : first_row + n_rows])
        return self._groups[key]

    def _level(self, entity_level: int) -> NDArray[np.int64]:
        if entity_level not in self._labels:
            labels = self._order.source_rows(entity_level, self._rows.row_of)
            if labels is None:
                raise ArgumentInvalid("A part's rows mix drawn rows; ask `plan_for`.", entity_level=entity_level)
            self._labels[entity_level] = labels
        return self._labels[entity_level]


def _sums(part: Part) -> Iterator[tuple[Cells, Cells]]:
    cells = part.cells.T
    if part.entity_level == part.column_level == 0:
        yield pooling.zero_absent(cells), pooling.present(cells)
        return
    if part.count is None:
        raise ArgumentInvalid("A mean from a pooled level needs the counts beside the sums.")
    shape("count", part.count, *part.cells.shape)
    yield pooling.zero_absent(cells), part.count.T


def _gather(cells: Cells, part: Part, bucket: Bucket, finder: _Finder, combine: np.ufunc, out: Cells) -> None:
    """Pool one part's columns, then its rows, and take the result into the grid [column, row]."""
    first, cells = _by_bucket(cells, part, bucket, combine)
    if not cells.size:
        return
    groups = finder.groups(part.entity_level, part.first_row, cells.shape[1])
    cells = groups.pool(cells, combine)
    lines = slice(first, first + len(cells))
    low, high = int(groups.targets[0]), int(groups.targets[-1]) + 1
    target = out[lines, low:high] if high - low == len(groups.targets) else out[lines, groups.targets]
    combined = combine(target, cells)
    if high - low == len(groups.targets):
        out[lines, low:high] = combined
    else:
        out[lines, groups.targets] = combined


def _by_bucket(cells: Cells, part: Part, bucket: Bucket, combine: np.ufunc) -> tuple[int, Cells]:
    """The first bucket that a part has a share in, and its columns combined by bucket."""
    steps = COLUMN_POOL**part.column_level
    if bucket.steps % steps:
        raise ArgumentInvalid("A part's columns are wider than the buckets.", steps=steps, bucket=bucket.steps)
    factor = bucket.steps // steps
    first = max(part.first_column, bucket.start * factor)
    end = min(part.first_column + len(cells), (bucket.start + bucket.columns) * factor)
    cells = cells[max(0, first - part.first_column) : max(0, end - part.first_column)]
    place = first // factor - bucket.start
    if factor == 1 or not len(cells):
        return place, cells
    before = first % factor
    if before:
        neutral = 0 if combine is np.add else ABSENT
        cells = np.concatenate([np.full((before, cells.shape[1]), neutral, np.float32), cells])
    return place, pooling.pool_columns(cells, factor, combine)
