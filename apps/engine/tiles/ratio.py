"""Values against a reference: peers of the same stage and step, all ranks of the step, or the rank's own past."""

from typing import Final, Literal

import numpy as np

from apps.engine.checks import shape
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import StageNodeOrder
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
    shape("cells", cells, order.n_entities, None)
    by_column = turned(cells)
    out = np.empty_like(by_column)
    ends = [*order.stage_starts[1:].tolist(), order.n_entities]
    for start, end in zip(order.stage_starts.tolist(), ends, strict=True):
        ranks = order.permutation[start:end]
        together = int(ranks[-1]) - int(ranks[0]) == end - start - 1 and bool((np.diff(ranks) == 1).all())
        index = slice(int(ranks[0]), int(ranks[-1]) + 1) if together else ranks
        values = by_column[:, index]
        out[:, index] = _divided(values, medians(values.T)[:, None])
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


def medians(cells: Cells) -> Cells:
    """Return the median of each column's present cells, float32 [column]; absent where there is none.

    cells: float32 [row, column]; NaN means absent. An even number of values has the mean of the middle two. O(n).

    >>> medians(np.array([[1, np.nan], [3, np.nan], [np.nan, 5]], np.float32)).tolist()
    [2.0, 5.0]
    """
    by_column = turned(cells)
    n = by_column.shape[1]
    if not n:
        return np.full(len(by_column), ABSENT, np.float32)
    count = n - np.isnan(by_column).sum(axis=1)
    if (count == n).all():
        low, high = (n - 1) // 2, n // 2
        parted = np.partition(by_column, (low, high), axis=1)
        return (parted[:, low] + (parted[:, high] - parted[:, low]) / 2).astype(np.float32)
    in_order = np.sort(by_column, axis=1)
    line = np.arange(len(by_column))
    low, high = in_order[line, np.maximum(count - 1, 0) // 2], in_order[line, np.minimum(count // 2, n - 1)]
    return np.where(count > 0, low + (high - low) / 2, ABSENT).astype(np.float32)


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
