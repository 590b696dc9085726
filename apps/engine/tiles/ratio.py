"""Values against a reference: peers of the same stage and step, all ranks of the step, or the rank's own past."""

from itertools import pairwise
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import shape
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import StageNodeOrder
from apps.engine.tiles.medians import medians
from apps.engine.tiles.rounding import Cells
from apps.engine.tiles.turning import turned

Relative = Literal["none", "peers", "self", "step"]
RELATIVES: Final = ("none", "peers", "self", "step")


def to_peers(cells: Cells, order: StageNodeOrder) -> Cells:
    """Return value / median of the same stage and column, no unit, float32 [rank, column].

    cells: float32 [rank, column], every rank of the attempt in rank order; NaN means absent. order: the attempt's layout.

    A cell is absent where its value is, or where the median is 0 (no ratio means anything there). One rank alone in its
    stage is 1. O(n), about 10 ms for 16,384 × 64.

    Source: DESIGN, "The store": ratio = value / median of the same stage and step; only ranks with the same work compare.

    >>> from apps.engine.tiles.layout import stage_node_order
    >>> order = stage_node_order(np.array([0, 0, 0, 1]), np.zeros(4, int))
    >>> to_peers(np.array([[2], [2], [3], [9]], np.float32), order).ravel().tolist()
    [1.0, 1.0, 1.5, 1.0]
    """
    return to_medians(cells, peer_medians(cells, order), order.stage_of_rank())


def peer_medians(cells: Cells, order: StageNodeOrder) -> Cells:
    """Return each stage's median of each column, float32 [stage, column], in the unit of `cells`; absent where no rank
    of the stage has a value.

    cells: float32 [rank, column], every rank of the attempt in rank order; NaN means absent. order: the attempt's layout,
    whose `stages` name the rows of the result.

    Kept beside the tiles (stages × 64 numbers each), it lets a drawing of a few ranks do without reading all others.
    O(n). Source: as `to_peers`.

    >>> from apps.engine.tiles.layout import stage_node_order
    >>> peer_medians(np.array([[2], [4], [9]], np.float32), stage_node_order(np.array([0, 0, 1]), np.zeros(3, int))).tolist()
    [[3.0], [9.0]]
    """
    shape("cells", cells, order.n_entities, None)
    by_column = turned(cells)
    out = np.empty((len(order.stages), len(by_column)), np.float32)
    ends = [*order.stage_starts[1:].tolist(), order.n_entities]
    for number, (start, end) in enumerate(zip(order.stage_starts.tolist(), ends, strict=True)):
        ranks = order.permutation[start:end]
        together = bool((np.diff(ranks) == 1).all())
        out[number] = medians((by_column[:, ranks[0] : ranks[-1] + 1] if together else by_column[:, ranks]).T)
    return out


def to_medians(cells: Cells, references: Cells, stage_of_row: NDArray[np.int64]) -> Cells:
    """Return value / its stage's median, no unit, float32 [row, column].

    cells: float32 [row, column], any ranks; NaN means absent. references: float32 [stage, column], of `peer_medians`.
    stage_of_row: int64 [row], which row of `references` each rank belongs to (`StageNodeOrder.stage_of_rank`). O(n).

    >>> to_medians(np.array([[3]], np.float32), np.array([[1], [2]], np.float32), np.array([1])).tolist()
    [[1.5]]
    """
    shape("references", references, None, cells.shape[1])
    shape("stage_of_row", stage_of_row, len(cells))
    by_column, by_stage = turned(cells), turned(references)
    out = np.empty_like(by_column)
    bounds = [0, *(np.flatnonzero(np.diff(stage_of_row)) + 1).tolist(), len(cells)]
    if len(bounds) > len(references) + 1 or not len(cells):
        return _divided(by_column, by_stage[:, stage_of_row]).T
    for start, end in pairwise(bounds):
        stage = int(stage_of_row[start])
        out[:, start:end] = _divided(by_column[:, start:end], by_stage[:, stage : stage + 1])
    return out.T


def to_step(cells: Cells) -> Cells:
    """Return value / median over all rows of the same column, no unit, float32 [row, column].

    cells: float32 [row, column], every rank of the attempt; NaN means absent and stays so. O(n). Source: as `to_peers`.

    >>> to_step(np.array([[2], [4], [6]], np.float32)).ravel().tolist()
    [0.5, 1.0, 1.5]
    """
    return _divided(cells.T, medians(cells)[:, None]).T


def to_self(cells: Cells, baseline: Cells) -> Cells:
    """Return value / the rank's own baseline, no unit, float32 [rank, column].

    cells: float32 [rank, column]; NaN means absent. baseline: float32 [rank], the rank's median over the attempt's first
    evidence steps, in the same unit; NaN where there is none yet, which leaves the rank absent. O(n).

    Source: DESIGN, "The store": the baseline is frozen, so that a slow drift can be seen at all.

    >>> to_self(np.array([[3, 6]], np.float32), np.array([2], np.float32)).tolist()
    [[1.5, 3.0]]
    """
    shape("baseline", baseline, len(cells))
    return _divided(cells.T, baseline).T


def baseline(cells: Cells) -> Cells:
    """Return each rank's median over the given columns, float32 [rank]: what `to_self` divides by.

    cells: float32 [rank, column], the attempt's first evidence steps; NaN means absent. O(n).

    >>> baseline(np.array([[1, 2, 9]], np.float32)).tolist()
    [2.0]
    """
    return medians(cells.T)


def _divided(values: Cells, reference: Cells) -> Cells:
    out = np.full(values.shape, ABSENT, np.float32)
    with np.errstate(over="ignore"):
        np.divide(values, reference, out=out, where=(reference != 0) & np.isfinite(reference))
    out[np.isinf(out)] = ABSENT
    return out
