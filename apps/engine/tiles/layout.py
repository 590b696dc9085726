"""Where a value lives: blocks, tiles, pyramid levels, snapped buckets and the stage-node order of ranks."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import at_least, shape
from apps.engine.errors import ArgumentInvalid

BLOCK = 1024
"""Entities in one hot block or tile: a tile of float32 is then 256 KiB, which fits a core's L2 cache."""

TILE_COLUMNS = 64
"""Columns in one sealed tile: 64 steps of a 5 s step are 5 min, so a tile seals while it is still of interest."""

HOT_HORIZON = 128
"""Columns kept hot behind the newest settled one: two tiles, so that one can seal while the next fills."""

COLUMN_POOL = 8
"""Columns that one column of the next level holds. Buckets of 1, 2 and 4 of them give every power of two."""

ENTITY_POOLS = (1, 8, 64)
"""Entities that one row holds at entity level 0, 1, 2: a rank, about a node, about eight nodes."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Columns of one answer: column i holds steps [(start + i) * steps, (start + i + 1) * steps)."""

    steps: int
    start: int
    columns: int

    @property
    def level(self) -> int:
        """The deepest column level whose columns fit whole into one bucket: 8^level divides `steps`."""
        return (self.steps.bit_length() - 1) // 3

    @property
    def pooled(self) -> int:
        """How many columns of that level make one bucket: 1, 2 or 4."""
        return self.steps >> (3 * self.level)

    def first_steps(self) -> NDArray[np.int64]:
        """The first step of each column, int64 [columns]."""
        return np.arange(self.start, self.start + self.columns, dtype=np.int64) * self.steps


def bucket_for(first: int, last: int, max_columns: int) -> Bucket:
    """Return the snapped buckets, in steps, that show steps first..last in at most `max_columns` columns.

    first, last: int, step numbers, both inclusive. max_columns: int, at least 1.

    The width is the smallest of {1, 2, 4}·8^k (every power of two) that fits, counted from step 0, so a bucket never
    changes while a run grows; an answer that had to pool has more than max_columns / 2 columns. O(log n).

    Raises `ArgumentInvalid` for an empty or negative range.

    Source: ours; buckets counted from the window's own start shift with every new step and the picture shimmers.

    >>> bucket_for(0, 999, 600)
    Bucket(steps=2, start=0, columns=500)
    >>> bucket_for(0, 499_999, 600).steps, bucket_for(0, 499_999, 600).level, bucket_for(0, 499_999, 600).pooled
    (1024, 3, 2)
    """
    at_least("max_columns", max_columns, 1)
    at_least("first", first, 0)
    at_least("last", last, first)
    steps = 1
    while last // steps - first // steps + 1 > max_columns:
        steps *= 2
    return Bucket(steps, first // steps, last // steps - first // steps + 1)


def rows_pooled(n_entities: int, max_rows: int) -> int:
    """Return how many entities share a row so that `n_entities` fit in `max_rows`: the smallest such power of two.

    >>> rows_pooled(16_384, 512), rows_pooled(300, 512), rows_pooled(10_000, 512)
    (32, 1, 32)
    """
    at_least("max_rows", max_rows, 1)
    pooled = 1
    while -(-n_entities // pooled) > max_rows:
        pooled *= 2
    return pooled


@dataclass(frozen=True, eq=False)
class StageNodeOrder:
    """Ranks sorted by stage, node, rank, and their groups of 8 and 64, which never cross a stage.

    permutation: int32 [rank position] -> rank. stages: int32 [stage], the sorted distinct stages. stage_starts: int64
    [stage], where each begins in `permutation`. starts8, starts64: int64 [group], likewise. version: 16 hex digits.
    """

    permutation: NDArray[np.int32]
    stages: NDArray[np.int32]
    stage_starts: NDArray[np.int64]
    starts8: NDArray[np.int64]
    starts64: NDArray[np.int64]
    version: str

    @property
    def n_entities(self) -> int:
        return len(self.permutation)

    def starts(self, entity_level: int) -> NDArray[np.int64]:
        """Where the rows of an entity level begin in `permutation`, int64 [row]; level 0 is one rank a row."""
        if entity_level == 0:
            return np.arange(self.n_entities, dtype=np.int64)
        return self.starts8 if entity_level == 1 else self.starts64

    def sizes(self, entity_level: int) -> NDArray[np.int64]:
        """How many ranks each row of an entity level holds, int64 [row]."""
        return np.diff(self.starts(entity_level), append=self.n_entities)

    def row_stage(self, entity_level: int) -> NDArray[np.int64]:
        """Which entry of `stages` each row of an entity level belongs to, int64 [row]."""
        return np.searchsorted(self.stage_starts, self.starts(entity_level), side="right") - 1

    def pool_starts(self, entity_level: int) -> NDArray[np.int64]:
        """Where each row of `entity_level` begins among the rows of the level below it, int64 [row]."""
        below = self.starts(entity_level - 1)
        return np.searchsorted(below, self.starts(entity_level))

    def keeps_rank_order(self, entity_level: int) -> bool:
        """Whether every row of an entity level is a run of consecutive ranks, so that it can be drawn in rank order."""
        if entity_level == 0:
            return True
        steps = np.diff(self.permutation.astype(np.int64))
        inside = np.ones(len(steps), bool)
        inside[self.starts(entity_level)[1:] - 1] = False
        return bool((steps[inside] == 1).all())


def stage_node_order(stage: NDArray[np.integer], node: NDArray[np.integer]) -> StageNodeOrder:
    """Return the order in which pooled levels keep ranks: by stage, then node, then rank.

    stage: int [rank], pipeline stage of each rank; use one value for all (say -1) where stages are unknown. node: int
    [rank], index of the node that holds each rank.

    Groups of 8 and 64 begin anew at each stage; a group of 64 is eight groups of 8. `version` is a hash of the order
    and its stages: two attempts with the same layout share it, and a pooled tile names the one it was made with.
    O(n log n). Raises `ArgumentInvalid` when there is no rank or the arrays differ in length.

    Source: ours; pooling across stages would mix ranks whose times cannot be compared.

    >>> order = stage_node_order(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    >>> order.permutation.tolist(), order.starts8.tolist(), order.keeps_rank_order(1)
    ([0, 2, 1, 3], [0, 2], False)
    """
    shape("stage", stage, None)
    shape("node", node, len(stage))
    if not len(stage):
        raise ArgumentInvalid("A layout needs at least one rank.")
    permutation = np.lexsort((np.arange(len(stage)), node, stage)).astype(np.int32)
    in_order = stage[permutation].astype(np.int32)
    stage_starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]]).astype(np.int64)
    ends = np.r_[stage_starts[1:], len(stage)]
    starts8, starts64 = (
        np.concatenate([np.arange(a, b, size, dtype=np.int64) for a, b in zip(stage_starts, ends, strict=True)])
        for size in ENTITY_POOLS[1:]
    )
    stages = in_order[stage_starts]
    digest = hashlib.sha256(permutation.astype("<i4").tobytes())
    digest.update(stage_starts.astype("<i8").tobytes() + stages.astype("<i4").tobytes())
    return StageNodeOrder(permutation, stages, stage_starts, starts8, starts64, digest.hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class Plan:
    """Which stored level serves a request, and what is left to pool when it is read.

    `bucket` tells the columns; `bucket.level` and `bucket.pooled` the column level and what is left there.
    entity_level: 0, 1 or 2. ranks_per_row: ranks that share a drawn row at most, a power of two.
    """

    bucket: Bucket
    entity_level: int
    ranks_per_row: int

    @property
    def rows_pooled(self) -> int:
        """How many rows of the entity level make one drawn row."""
        return self.ranks_per_row // ENTITY_POOLS[self.entity_level]


def plan_for(
    *, first: int, last: int, order: StageNodeOrder, max_rows: int, max_columns: int, in_rank_order: bool, by_rank: bool
) -> Plan:
    """Return the coarsest stored level that can answer a heatmap request without showing less than it asks for.

    first, last: int, steps, inclusive. order: the attempt's layout. max_rows, max_columns: int, the drawing's size.
    in_rank_order: rows are to be drawn by rank, which pooled rows allow only where they hold consecutive ranks.
    by_rank: the values must be seen rank by rank (own baselines, rows that are single nodes), so no entity level helps.

    A row holds the smallest power of two of ranks with which every stage's rows fit; with fewer rows allowed than there
    are stages, one row a stage is returned. O(stages · log n).

    Source: ours.

    >>> order = stage_node_order(np.zeros(16_384, int), np.arange(16_384) // 8)
    >>> asked = {"order": order, "max_rows": 512, "max_columns": 600, "in_rank_order": True, "by_rank": False}
    >>> plan = plan_for(first=0, last=999, **asked)
    >>> plan.bucket.steps, plan.entity_level, plan.ranks_per_row, plan.rows_pooled
    (2, 1, 32, 4)
    """
    bucket = bucket_for(first, last, max_columns)
    if in_rank_order:
        ranks_per_row = rows_pooled(order.n_entities, max_rows)
    else:
        ranks_per_row = _ranks_per_row(np.diff(order.stage_starts, append=order.n_entities), max_rows)
    level = 0
    if not by_rank:
        level = max(i for i, size in enumerate(ENTITY_POOLS) if size <= ranks_per_row)
        while in_rank_order and not _draws_by_rank(order, level):
            level -= 1
    return Plan(bucket, level, ranks_per_row)


def _ranks_per_row(stage_sizes: NDArray[np.int64], max_rows: int) -> int:
    at_least("max_rows", max_rows, 1)
    pooled = 1
    while int((-(-stage_sizes // pooled)).sum()) > max_rows and pooled < int(stage_sizes.max()):
        pooled *= 2
    return pooled


def _draws_by_rank(order: StageNodeOrder, level: int) -> bool:
    """Rows in rank order start at multiples of their size, so a partial group may only be the very last."""
    if not order.keeps_rank_order(level):
        return False
    sizes = order.sizes(level)
    lowest = order.permutation[order.starts(level)]
    full = ENTITY_POOLS[level]
    return bool((lowest % full == 0).all() and (sizes[lowest + full <= order.n_entities] == full).all())
