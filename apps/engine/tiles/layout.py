"""Where a value lives: blocks, tiles, pyramid levels, snapped buckets and the stage-node order of ranks."""

import hashlib
from collections.abc import Sequence
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

COLUMN_LEVELS = 5
"""Column levels, level 0 included: a column of the last holds 4,096 steps, so half a million steps are 123 columns."""

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
        """The deepest stored column level whose columns fit whole into one bucket: 8^level divides `steps`."""
        return min((self.steps.bit_length() - 1) // 3, COLUMN_LEVELS - 1)

    @property
    def pooled(self) -> int:
        """How many columns of that level make one bucket: 1, 2 or 4 (more only past the last level)."""
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

    def stage_of_rank(self) -> NDArray[np.int64]:
        """Which entry of `stages` each rank belongs to, int64 [rank]."""
        out = np.empty(self.n_entities, np.int64)
        out[self.permutation] = self.row_stage(0)
        return out

    def pool_starts(self, entity_level: int) -> NDArray[np.int64]:
        """Where each row of `entity_level` begins among the rows of the level below it, int64 [row]."""
        below = self.starts(entity_level - 1)
        return np.searchsorted(below, self.starts(entity_level))

    def source_rows(self, entity_level: int, of_rank: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """What each row of an entity level has in common: int64 [row], or None if some row mixes two values.

        of_rank: int64 [rank], any label of each rank. Rows of level 0 stand in rank order, others in this one's.
        """
        if entity_level == 0:
            return of_rank
        starts = self.starts(entity_level)
        labels = of_rank[self.permutation]
        lowest = np.minimum.reduceat(labels, starts)
        return lowest if (lowest == np.maximum.reduceat(labels, starts)).all() else None


def stage_node_order(stage: NDArray[np.integer], node: NDArray[np.integer]) -> StageNodeOrder:
    """Return the order in which pooled levels keep ranks: by stage, then node, then rank.

    stage: int [rank], pipeline stage of each rank; use one value for all (say -1) where stages are unknown. node: int
    [rank], index of the node that holds each rank.

    Groups of 8 and 64 begin anew at each stage; a group of 64 is eight groups of 8. `version` is a hash of the order
    and its stages: two attempts with the same layout share it, and a pooled tile names the one it was made with.
    O(n log n). Raises `ArgumentInvalid` when there is no rank or the arrays differ in length.

    Source: ours; pooling across stages would mix ranks whose times cannot be compared.

    >>> order = stage_node_order(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    >>> order.permutation.tolist(), order.starts8.tolist()
    ([0, 2, 1, 3], [0, 2])
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
class Segment:
    """A stretch of columns to read at one level: [first, end), counted in that level's own columns from step 0."""

    level: int
    first: int
    end: int


def cover(bucket: Bucket, sealed: Sequence[int]) -> list[Segment]:
    """Return which columns of which level to read so that every bucket is covered, coarsest first.

    bucket: of `bucket_for`. sealed: per column level from 0 on, how many of its columns, from step 0, are sealed; the
    rest of level 0 is hot. A missing level counts as 0.

    The deepest level serves as far as it is sealed; the next finer one what follows, down to level 0, whose segment
    runs to the end of the buckets (hot columns included). O(levels).

    Source: ours; a level's tile spans 8 tiles of the level below, so its newest stretch is always missing.

    >>> cover(Bucket(64, 0, 100), [6400, 640, 64])
    [Segment(level=2, first=0, end=64), Segment(level=1, first=512, end=640), Segment(level=0, first=5120, end=6400)]
    """
    found = []
    first, end = bucket.start * bucket.pooled, (bucket.start + bucket.columns) * bucket.pooled
    for level in range(bucket.level, -1, -1):
        have = sealed[level] if level < len(sealed) else 0
        stop = end if level == 0 else min(end, max(first, have))
        if stop > first:
            found.append(Segment(level, first, stop))
        first, end = max(first, stop) * COLUMN_POOL, end * COLUMN_POOL
    return found
