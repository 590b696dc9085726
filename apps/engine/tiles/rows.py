"""Which ranks share a drawn row, and which stored level can serve those rows."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import at_least, one_of, shape
from apps.engine.tiles.layout import ENTITY_POOLS, Bucket, StageNodeOrder, bucket_for, rows_pooled

Order = Literal["rank", "node", "stage", "slowest"]
ORDERS: Final = ("rank", "node", "stage", "slowest")

SEVERAL: Final = -(2**31)
"""Stands for a row's node or stage when its ranks have different ones."""


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Drawn rows from top to bottom.

    row_of: int64 [rank], the row of each rank. first_rank, last_rank: int64 [row], lowest and highest rank. node, stage:
    int64 [row], or `SEVERAL`. n_ranks: int64 [row]. ranks_per_row: ranks in a full row.
    """

    row_of: NDArray[np.int64]
    first_rank: NDArray[np.int64]
    last_rank: NDArray[np.int64]
    node: NDArray[np.int64]
    stage: NDArray[np.int64]
    n_ranks: NDArray[np.int64]
    ranks_per_row: int

    @property
    def n_rows(self) -> int:
        return len(self.n_ranks)

    def reordered(self, top_down: NDArray[np.int64]) -> "RowLayout":
        """The same rows in another order: row i is what was row top_down[i]."""
        place = np.empty_like(top_down)
        place[top_down] = np.arange(len(top_down))
        return RowLayout(
            place[self.row_of],
            self.first_rank[top_down],
            self.last_rank[top_down],
            self.node[top_down],
            self.stage[top_down],
            self.n_ranks[top_down],
            self.ranks_per_row,
        )


def row_layout(
    order: StageNodeOrder, stage: NDArray[np.integer], node: NDArray[np.integer], *, by: Order, max_rows: int
) -> RowLayout:
    """Return which ranks share a row so that at most `max_rows` are drawn.

    order: the attempt's layout. stage, node: int [rank]. by: "rank" gives runs of consecutive ranks; "stage" runs of the
    stage-node order that never cross a stage, one row a stage at the least; "node" single ranks sorted by node, or whole
    nodes once ranks do not fit; "slowest" the rows of "stage", to be sorted when their values are known. max_rows: ≥ 1.

    A row holds a power of two of ranks (of nodes, by "node"), so that rows do not change with the window. O(n log n).

    Source: ours; over about 512 rows an operator wants nodes, the worst of eight ranks showing.

    >>> from apps.engine.tiles.layout import stage_node_order
    >>> order = stage_node_order(np.arange(32) // 16, np.arange(32) // 8)
    >>> rows = row_layout(order, np.arange(32) // 16, np.arange(32) // 8, by="stage", max_rows=8)
    >>> rows.ranks_per_row, rows.first_rank.tolist(), rows.stage.tolist()
    (4, [0, 4, 8, 12, 16, 20, 24, 28], [0, 0, 0, 0, 1, 1, 1, 1])
    """
    one_of("by", by, ORDERS)
    at_least("max_rows", max_rows, 1)
    n = order.n_entities
    shape("stage", stage, n)
    shape("node", node, n)
    if by == "rank":
        pooled = rows_pooled(n, max_rows)
        row_of = np.arange(n, dtype=np.int64) // pooled
    elif by == "node":
        row_of, pooled = _by_node(node, max_rows)
    else:
        row_of, pooled = _by_stage(order, max_rows)
    return _described(row_of, stage.astype(np.int64), node.astype(np.int64), pooled)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which stored level serves a drawing. `bucket.level` is the column level; entity_level: 0, 1 or 2."""

    bucket: Bucket
    entity_level: int


def plan_for(
    *, first: int, last: int, max_columns: int, order: StageNodeOrder, rows: RowLayout, by_rank: bool = False
) -> Plan:
    """Return the coarsest stored level from which the drawing can be made without losing what it shows.

    first, last: int, steps, inclusive. max_columns: ≥ 1. order, rows: of this attempt. by_rank: values must be seen rank
    by rank before they are pooled (relative to a rank's own past, or to the median over all ranks).

    An entity level serves when each of its rows lies in one drawn row. O(n).

    Source: ours.

    >>> from apps.engine.tiles.layout import stage_node_order
    >>> node = np.arange(16_384) // 8
    >>> order = stage_node_order(node * 0, node)
    >>> rows = row_layout(order, node * 0, node, by="rank", max_rows=512)
    >>> plan = plan_for(first=0, last=999, max_columns=600, order=order, rows=rows)
    >>> plan.bucket.steps, plan.entity_level, rows.ranks_per_row
    (2, 1, 32)
    """
    bucket = bucket_for(first, last, max_columns)
    levels = [0] if by_rank else [2, 1, 0]
    fits = (level for level in levels if ENTITY_POOLS[level] <= rows.ranks_per_row)
    return Plan(bucket, next(level for level in fits if order.source_rows(level, rows.row_of) is not None))


def _by_node(node: NDArray[np.integer], max_rows: int) -> tuple[NDArray[np.int64], int]:
    in_order = np.argsort(node, kind="stable")
    row_of = np.empty(len(node), np.int64)
    if len(node) <= max_rows:
        row_of[in_order] = np.arange(len(node))
        return row_of, 1
    _, number, sizes = np.unique(node, return_inverse=True, return_counts=True)
    pooled = rows_pooled(len(sizes), max_rows)
    return number.astype(np.int64) // pooled, pooled * int(sizes.max())


def _by_stage(order: StageNodeOrder, max_rows: int) -> tuple[NDArray[np.int64], int]:
    sizes = np.diff(order.stage_starts, append=order.n_entities)
    pooled = 1
    while int((-(-sizes // pooled)).sum()) > max_rows and pooled < int(sizes.max()):
        pooled *= 2
    inside = np.arange(order.n_entities) - np.repeat(order.stage_starts, sizes)
    rows_before = np.cumsum(-(-sizes // pooled)) - (-(-sizes // pooled))
    row_of = np.empty(order.n_entities, np.int64)
    row_of[order.permutation] = np.repeat(rows_before, sizes) + inside // pooled
    return row_of, pooled


def _described(row_of: NDArray[np.int64], stage: NDArray[np.int64], node: NDArray[np.int64], pooled: int) -> RowLayout:
    ranks = np.argsort(row_of, kind="stable")
    in_order = row_of[ranks]
    starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])

    def common(of_rank: NDArray[np.int64]) -> NDArray[np.int64]:
        lowest = np.minimum.reduceat(of_rank[ranks], starts)
        return np.where(lowest == np.maximum.reduceat(of_rank[ranks], starts), lowest, SEVERAL)

    first, last = np.minimum.reduceat(ranks, starts), np.maximum.reduceat(ranks, starts)
    return RowLayout(row_of, first, last, common(node), common(stage), np.diff(starts, append=len(ranks)), pooled)
