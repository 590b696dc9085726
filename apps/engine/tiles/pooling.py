"""The inner loops of pooling: many cells to one along columns or rows, absent ones left out.

Arrays are [column, row] here. numpy reduces a short inner axis slowly (18 ns a cell), so columns are reduced as a middle
axis with whole rows inside (0.1 ns), and rows by combining strided or gathered slices (0.6 to 1.2 ns).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.rounding import Cells


def pool_columns(cells: Cells, factor: int, combine: np.ufunc) -> Cells:
    """Return float32 [column group, row]: groups of `factor` columns combined; a last partial group stands alone.

    >>> pool_columns(np.array([[1], [5], [2]], np.float32), 2, np.fmax).tolist()
    [[5.0], [2.0]]
    """
    n_columns, n_rows = cells.shape
    whole = n_columns // factor * factor
    out = np.empty((-(-n_columns // factor), n_rows), np.float32)
    if whole:
        combine.reduce(cells[:whole].reshape(-1, factor, n_rows), axis=1, out=out[: whole // factor])
    if whole < n_columns:
        combine.reduce(cells[whole:], axis=0, out=out[-1])
    return out


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which source rows are combined, made once and used for many arrays.

    targets: int64 [group], the label of each group, ascending. slices: the n-th member of every group that has one, as
    (index of the members, the groups' part). Groups are sorted by size when sizes differ.
    """

    targets: NDArray[np.int64]
    slices: tuple[tuple[Any, slice], ...]
    by_size: NDArray[np.int64] | None

    @classmethod
    def of(cls, labels: NDArray[np.int64]) -> "RowGroups":
        """Group source rows by label, int64 [row]. O(n log n).

        >>> RowGroups.of(np.array([4, 4, 9])).targets.tolist()
        [4, 9]
        """
        members = np.argsort(labels, kind="stable")
        in_order = labels[members]
        starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]]) if len(labels) else np.empty(0, np.int64)
        sizes = np.diff(starts, append=len(labels))
        targets = in_order[starts]
        if not len(sizes):
            return cls(targets, (), None)
        if (sizes == sizes[0]).all():
            return cls(targets, cls._even(members, int(sizes[0])), None)
        by_size = np.argsort(-sizes, kind="stable")
        starts, sizes = starts[by_size], sizes[by_size]
        slices = []
        for nth in range(int(sizes[0])):
            having = int(np.searchsorted(-sizes, -nth, side="left"))
            slices.append((members[starts[:having] + nth], slice(0, having)))
        place = np.empty_like(by_size)
        place[by_size] = np.arange(len(by_size))
        return cls(targets, tuple(slices), place)

    @staticmethod
    def _even(members: NDArray[np.int64], size: int) -> tuple[tuple[Any, slice], ...]:
        if (members == np.arange(len(members))).all():
            return tuple((slice(nth, None, size), slice(None)) for nth in range(size))
        return tuple((members[nth::size], slice(None)) for nth in range(size))

    def pool(self, cells: Cells, combine: np.ufunc) -> Cells:
        """Return float32 [column, group] in the order of `targets`.

        >>> RowGroups.of(np.array([1, 0, 1])).pool(np.array([[1, 2, 3]], np.float32), np.fmax).tolist()
        [[2.0, 3.0]]
        """
        if not self.slices:
            return np.empty((len(cells), 0), np.float32)
        out = _members(cells, self.slices[0][0])
        out = out.copy() if out.base is not None else out
        for members, groups in self.slices[1:]:
            combine(out[:, groups], _members(cells, members), out=out[:, groups])
        return out if self.by_size is None else out.take(self.by_size, axis=1)


def _members(cells: Cells, index: Any) -> Cells:
    return cells[:, index] if isinstance(index, slice) else cells.take(index, axis=1)


def zero_absent(cells: Cells) -> Cells:
    """Return `cells` with 0 for absent, the same array when none is absent, so that they can be added.

    >>> zero_absent(np.array([1, np.nan], np.float32)).tolist()
    [1.0, 0.0]
    """
    absent = np.isnan(cells)
    return np.where(absent, np.float32(0), cells) if absent.any() else cells


def present(cells: Cells) -> Cells:
    """Return 1 where a value is present and 0 where it is absent, float32 of the same shape.

    >>> present(np.array([7, np.nan], np.float32)).tolist()
    [1.0, 0.0]
    """
    return (~np.isnan(cells)).astype(np.float32)
