"""What can be said about a tile's numbers before seeing them, so that only the surprise is coded.

Arrays are [column, entity] here, as tiles are kept: a column is what a hot block held, and a step's values lie together.
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.rounding import Codes
from apps.engine.tiles.turning import turned

Mask = NDArray[np.bool_]

_SAMPLED: Final = 128
"""Entities from which columns' medians and the choice of mode are taken: a ninth of the noise, an eighth of the work."""

_FEW: Final = 8
"""A column with fewer sampled values than this gets its median from all entities."""


class Mode(IntEnum):
    """Which prediction was taken away; the number stands in sealed tiles."""

    COLUMN = 0
    COLUMN_ROW = 1
    DELTA = 2


@dataclass(frozen=True, eq=False)
class Predicted:
    """A tile as prediction and surprise.

    column: int32 [column]. row: int32 [entity], or empty for COLUMN. residual: int32 [column, entity].
    """

    mode: Mode
    column: Codes
    row: Codes
    residual: Codes


def predict(codes: Codes, absent: Mask | None) -> Predicted:
    """Return the prediction that leaves the least to code, and the residuals.

    codes: int32 [column, entity]. absent: bool of the same shape, or None when every cell is present.

    COLUMN takes away each column's median; COLUMN_ROW also each entity's own offset from it; DELTA the value of the
    column before, and then the columns' median change. The cost of each is estimated on about 128 entities. O(n), about
    0.5 ms for 1,024 × 64. What stands in absent cells does not matter.

    Source: ours; steps have much in common over ranks (COLUMN), a chip keeps its own pace (ROW), a temperature drifts
    (DELTA), and counters stand still (DELTA or COLUMN_ROW).

    >>> predict(np.arange(400, dtype=np.int32).reshape(2, 200) % 200 * 9, None).mode.name
    'COLUMN_ROW'
    """
    if codes.size and codes.min() == codes.max():
        column = np.full(len(codes), codes[0, 0], np.int32)
        return Predicted(Mode.COLUMN, column, np.empty(0, np.int32), np.zeros_like(codes))
    # An odd stride meets every position of layouts that repeat each 2, 4 or 8 ranks.
    sample = slice(None, None, codes.shape[1] // _SAMPLED | 1)
    sampled, sampled_absent = codes[:, sample], _part(absent, sample)
    columns = {mode: _columns(mode, codes, absent, sample) for mode in (Mode.COLUMN, Mode.DELTA)}
    columns[Mode.COLUMN_ROW] = columns[Mode.COLUMN]
    costs = {mode: _cost(_take(mode, sampled, sampled_absent, columns[mode]), codes.shape[1]) for mode in Mode}
    mode = min(costs, key=lambda mode: costs[mode])
    return _take(mode, codes, absent, columns[mode])


def restore(found: Predicted) -> Codes:
    """Return the codes that `predict` took apart, in the memory of `found.residual`, which is used up. O(n).

    >>> restore(predict(np.array([[5, 9], [6, 10]], np.int32), None)).tolist()
    [[5, 9], [6, 10]]
    """
    codes = found.residual
    codes += found.column[:, None]
    if len(found.row):
        codes[: 1 if found.mode is Mode.DELTA else None] += found.row
    if found.mode is Mode.DELTA:
        for before, column in pairwise(codes):
            column += before
    return codes


def _columns(mode: Mode, codes: Codes, absent: Mask | None, sample: slice) -> Codes:
    """What `mode` takes away from each column: its median, or its median change since the column before."""
    if mode is Mode.DELTA:
        changes = np.zeros(len(codes), np.int32)
        if len(codes) > 1:
            missing = None if absent is None else absent[1:] | absent[:-1]
            changes[1:] = _medians(np.diff(codes[:, sample], axis=0), _part(missing, sample))
        return changes
    medians = _medians(codes[:, sample], _part(absent, sample))
    if absent is not None:
        few = (~absent[:, sample]).sum(axis=1) < _FEW
        medians[few] = _medians(codes[few], absent[few])
    return medians


def _take(mode: Mode, codes: Codes, absent: Mask | None, column: Codes) -> Predicted:
    if mode is Mode.DELTA:
        return _take_delta(codes, absent, column)
    residual = codes - column[:, None]
    row = np.empty(0, np.int32)
    if mode is Mode.COLUMN_ROW:
        row = _medians(turned(residual), None if absent is None else turned(absent))
        residual -= row
    if absent is not None:
        residual[absent] = 0
    return Predicted(mode, column, row, residual)


def _take_delta(codes: Codes, absent: Mask | None, column: Codes) -> Predicted:
    still = codes - np.cumsum(column, dtype=np.int32)[:, None]
    if absent is not None:
        first = np.argmin(absent, axis=0)
        still[0] = still[first, np.arange(still.shape[1])]
        for (before, values), missing in zip(pairwise(still), absent[1:], strict=True):
            np.copyto(values, before, where=missing)
    row = still[0].copy()
    return Predicted(Mode.DELTA, column, row, np.diff(still, axis=0, prepend=still[:1]))


def _part(absent: Mask | None, sample: slice) -> Mask | None:
    return None if absent is None else absent[:, sample]


def _medians(codes: Codes, absent: Mask | None) -> Codes:
    """The lower median of each line's present cells; 0 where a line has none."""
    if absent is None:
        return np.sort(codes, axis=1)[:, (codes.shape[1] - 1) // 2].copy()
    last = np.int32(2**31 - 1)
    in_order = np.sort(np.where(absent, last, codes), axis=1)
    present = (~absent).sum(axis=1)
    middle = in_order[np.arange(len(codes)), np.maximum(present - 1, 0) // 2]
    return np.where(present > 0, middle, np.int32(0)).astype(np.int32)


def _cost(found: Predicted, n_entities: int) -> float:
    """About how many bits the cells and the prediction itself will take."""
    cells = _bits(found.residual) * len(found.residual) * n_entities
    if not len(found.row):
        return cells
    return cells + (_bits(found.row - np.int32(np.median(found.row))) + 1) * n_entities


def _bits(numbers: Codes) -> float:
    return float(np.log2(np.abs(numbers.astype(np.float32)) * 2 + 1).mean())
