"""Whose tokens count: ranks that share a sample through tensor, context or pipeline parallelism all report it."""

import numpy as np
from numpy.typing import NDArray

from apps.runs.selectors import placement_of

SHARING_AXES = ("tp", "cp", "pp")


def token_ranks(attempt_id: int, *, size: int) -> NDArray[np.int64]:
    """Return the ranks whose tokens add up to a step's: tp = cp = pp = 0, or all `size` where nobody told coordinates."""
    placement = placement_of(attempt_id)
    mask = np.ones(size, bool)
    for rank, where in (placement.coords if placement else {}).items():
        if int(rank) < size:
            mask[int(rank)] = not any(where.get(axis, 0) for axis in SHARING_AXES)
    return np.flatnonzero(mask)
