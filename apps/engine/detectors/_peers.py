"""Comparing a rank with those that do the same work."""

import numpy as np

from apps.engine.detection.arrays import Floats, Ints, Times


def peer_medians(values: Floats | Times, stage: Ints) -> Times:
    """Return for each rank the median of its stage, in the unit of `values`, float64 [ranks].

    values: float [ranks], NaN or ≤ 0 = the rank did not report.
    stage: int32 [ranks], ranks of one stage do the same work.

    NaN where the rank did not report, or nobody else of its stage did. Of two ranks each stands against the other
    alone: the middle of both would hide half of a lag.
    Cost: O(n log n). Source: DESIGN §4, ratio = value / median of the same stage and step; two ranks: ours.

    >>> peer_medians(np.array([4.0, 1.0, 2.0, np.nan, 3.0, 2.0]), np.array([0, 0, 0, 0, 1, 1], np.int32)).tolist()
    [2.0, 2.0, 2.0, nan, 2.0, 3.0]
    """
    out = np.full(len(values), np.nan)
    have = np.flatnonzero(values > 0)
    if not len(have):
        return out
    order = have[np.lexsort((values[have], stage[have]))]
    rising, groups = values[order].astype(np.float64), stage[order]
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    sizes = np.diff(np.r_[starts, len(order)])
    middle = (rising[starts + (sizes - 1) // 2] + rising[starts + sizes // 2]) / 2
    out[order] = np.repeat(np.where(sizes > 1, middle, np.nan), sizes)
    for start in starts[sizes == 2]:
        out[order[start : start + 2]] = rising[[start + 1, start]]
    return out


def stage_medians(values: Floats | Times, stage: Ints) -> dict[int, float]:
    """Return the median of each stage that reported, in the unit of `values`.

    >>> stage_medians(np.array([1.0, 3.0, np.nan, 5.0]), np.array([0, 0, 0, 1], np.int32))
    {0: 2.0, 1: 5.0}
    """
    have = values > 0
    return {int(s): float(np.median(values[have & (stage == s)])) for s in np.unique(stage[have])}
