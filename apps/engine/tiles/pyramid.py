"""Pooled levels: what is kept of many cells when a drawing has room for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import one_of, shape
from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import pooling
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import COLUMN_POOL, StageNodeOrder
from apps.engine.tiles.metrics import Worst
from apps.engine.tiles.pooling import RowGroups
from apps.engine.tiles.rounding import Cells
from apps.engine.tiles.turning import turned

Pool = Literal["worst", "max", "min", "mean"]
POOLS: Final = get_args(Pool)


@dataclass(frozen=True, eq=False)
class Pooled:
    """Cells that each stand for several values. All arrays float32 [row, column]; min, max and sum are absent (NaN)
    where count is 0; min, max, sum in the metric's unit.
    """

    min: Cells
    max: Cells
    sum: Cells
    count: Cells

    @classmethod
    def of(cls, cells: Cells) -> "Pooled":
        """Single values as pooled cells of one.

        cells: float32 [entity, column], NaN means absent. O(n).

        >>> Pooled.of(np.array([[3, np.nan]], np.float32)).count.tolist()
        [[1.0, 0.0]]
        """
        return cls(cells, cells, cells, pooling.present(cells))

    @property
    def shape(self) -> tuple[int, int]:
        return self.count.shape[0], self.count.shape[1]

    def values(self, pool: Pool, worst: Worst) -> Cells:
        """Return what is drawn of each cell, float32 [row, column], in the metric's unit.

        pool: "max", "min", "mean", or "worst": the metric's own bad end. worst: that end. O(n).

        >>> pooled = pool_columns(Pooled.of(np.array([[1, 4]], np.float32)))
        >>> pooled.values("worst", "min").tolist(), pooled.values("mean", "min").tolist()
        ([[1.0]], [[2.5]])
        """
        end = plane_of(pool, worst)
        if end != "mean":
            return self.max if end == "max" else self.min
        return mean_of(self.sum, self.count)


def plane_of(pool: Pool, worst: Worst) -> Literal["max", "min", "mean"]:
    """Return which end of pooled cells a request wants.

    >>> plane_of("worst", "min"), plane_of("mean", "min")
    ('min', 'mean')
    """
    one_of("pool", pool, POOLS)
    return worst if pool == "worst" else pool


def mean_of(total: Cells, count: Cells) -> Cells:
    """Return total / count, absent where count is 0. Float32 of any shape.

    >>> mean_of(np.array([6, np.nan], np.float32), np.array([2, 0], np.float32)).tolist()
    [3.0, nan]
    """
    out = np.full(count.shape, ABSENT, np.float32)
    np.divide(total, count, out=out, where=count > 0)
    return out


def pool_columns(pooled: Pooled, factor: int = COLUMN_POOL) -> Pooled:
    """Return the next column level: groups of `factor` columns of each row, their worst kept.

    pooled: its first column must begin a group, counted from step 0; a last partial group is pooled as it is.

    min and max of the result are values that really occurred, so a straggler survives any number of levels; sums are
    float32, each level adding at most 2^-24 of rounding of its own (2^-11 where they were stored ROUNDED). O(n).

    Source: ours; a mean over 8 steps and 8 ranks would show a rank twice as slow for one step as 1.6 % slower.

    >>> pool_columns(Pooled.of(np.array([[1, np.nan, 9]], np.float32)), 2).max.tolist()
    [[1.0, 9.0]]
    """

    def by_columns(cells: Cells, combine: np.ufunc) -> Cells:
        return pooling.pool_columns(turned(cells), factor, combine).T

    count = by_columns(pooled.count, np.add)
    return Pooled(
        by_columns(pooled.min, np.fmin),
        by_columns(pooled.max, np.fmax),
        _absent_where_none(by_columns(pooling.zero_absent(pooled.sum), np.add), count),
        count,
    )


def pool_entities(pooled: Pooled, order: StageNodeOrder, entity_level: int) -> Pooled:
    """Return `entity_level` from the level below it: groups of 8 rows in stage-node order, never across a stage.

    pooled: all rows of the level below: for level 1 every rank in rank order, for level 2 every row of level 1.
    order: the attempt's layout. entity_level: 1 or 2.

    Raises `ArgumentInvalid` when the rows are not all there. O(n). Source: as `pool_columns`.

    >>> from apps.engine.tiles.layout import stage_node_order
    >>> order = stage_node_order(np.array([1, 0, 1]), np.array([0, 0, 1]))
    >>> pool_entities(Pooled.of(np.array([[5], [7], [6]], np.float32)), order, 1).max.tolist()
    [[7.0], [6.0]]
    """
    if entity_level not in (1, 2):
        raise ArgumentInvalid("Entities are pooled to level 1 or 2.", entity_level=entity_level)
    shape("rows", pooled.count, len(order.starts(entity_level - 1)), None)
    groups = RowGroups.of(_labels(order, entity_level))

    def by_rows(cells: Cells, combine: np.ufunc) -> Cells:
        return groups.pool(turned(cells), combine).T

    count = by_rows(pooled.count, np.add)
    return Pooled(
        by_rows(pooled.min, np.fmin),
        by_rows(pooled.max, np.fmax),
        _absent_where_none(by_rows(pooling.zero_absent(pooled.sum), np.add), count),
        count,
    )


def concatenated(parts: Sequence[Pooled]) -> Pooled:
    """Return the parts' columns side by side; all parts have the same rows. O(n).

    >>> part = Pooled.of(np.array([[1]], np.float32))
    >>> concatenated([part, part]).shape
    (1, 2)
    """
    if not parts:
        raise ArgumentInvalid("Nothing to put side by side.")
    planes = ([getattr(part, name).T for part in parts] for name in ("min", "max", "sum", "count"))
    return Pooled(*(np.concatenate(plane).T for plane in planes))


def _labels(order: StageNodeOrder, entity_level: int) -> NDArray[np.int64]:
    """The row of `entity_level` that each row of the level below belongs to."""
    starts = order.pool_starts(entity_level)
    labels = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order.starts(entity_level - 1))))
    if entity_level == 2:
        return labels
    of_rank = np.empty_like(labels)
    of_rank[order.permutation] = labels
    return of_rank


def _absent_where_none(total: Cells, count: Cells) -> Cells:
    return np.where(count > 0, total, ABSENT)
