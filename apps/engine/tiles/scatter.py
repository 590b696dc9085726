"""Writing many reported values at once into stacked hot blocks, and telling apart what is not a number."""

from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import shape
from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles.hot import ABSENT, Cells
from apps.engine.tiles.metrics import Reducer

Index = NDArray[np.integer]


class Rule(Enum):
    """What happens to a cell that already holds a value: the two rules of reports, and the reducers of 15 s series."""

    OVERWRITE = "OVERWRITE"
    FILL = "FILL"
    MAX = "MAX"
    OR = "OR"

    @classmethod
    def of(cls, reducer: Reducer) -> "Rule":
        """The rule of a reducer; means have a function of their own, `scatter_mean`."""
        return cls.OVERWRITE if reducer is Reducer.LAST else cls[reducer.value]


@dataclass(frozen=True, slots=True)
class Written:
    """What a scatter did, in cells: filled empty ones, changed present ones, left present ones as they were."""

    filled: int = 0
    rewritten: int = 0
    ignored: int = 0

    def __add__(self, other: "Written") -> "Written":
        return Written(self.filled + other.filled, self.rewritten + other.rewritten, self.ignored + other.ignored)


def scatter(
    stack: Cells, *, blocks: Index, rows: Index, entities: Index, values: Cells, rule: Rule = Rule.OVERWRITE
) -> Written:
    """Write a batch of values into stacked hot blocks in place and return how many cells were filled or changed.

    stack: float32 [block, metric, entity], C order, as `hot.stack` gives it; changed in place. blocks, entities: int
    [k], where each sample belongs, entities counted inside their block. rows: int [m], the metric rows that the values
    fill, distinct. values: float32 [m, k], in the metrics' units; NaN means that nothing was reported and leaves the
    cell as it is. rule: for cells that already hold a value.

    Samples are taken in the order given: of a sample that comes twice, OVERWRITE keeps the last and FILL the first.
    Cost: O(m·k), about 10 ns a value. Raises `ArgumentInvalid` for indices outside the stack.

    Source: ours; the rules are those of a report's identity: a late report only fills empty cells.

    >>> cells = np.full((1, 1, 4), np.nan, np.float32)
    >>> at = {"blocks": np.array([0, 0]), "rows": np.array([0]), "entities": np.array([1, 2])}
    >>> scatter(cells, values=np.array([[5, np.nan]], np.float32), **at)
    Written(filled=1, rewritten=0, ignored=0)
    >>> scatter(cells, values=np.array([[6, 7]], np.float32), rule=Rule.FILL, **at), cells[0, 0].tolist()
    (Written(filled=1, rewritten=0, ignored=1), [nan, 5.0, 7.0, nan])
    """
    flat, base, later = _places(stack, blocks, rows, entities, values)
    if later is None:
        return _write(flat, rows[:, None] * stack.shape[2] + base, values, rule)
    done = Written()
    for part in _rounds(later):
        done += _write(flat, rows[:, None] * stack.shape[2] + base[part], values[:, part], rule)
    return done


def scatter_mean(
    stack: Cells, *, blocks: Index, rows: Index, count_rows: Index, entities: Index, values: Cells
) -> Written:
    """Take a batch of samples into running means kept in stacked hot blocks, in place; return the cells changed.

    Arguments as `scatter`; count_rows: int [m], for each row the row of its sample count (id with `hot.COUNT_BIT`).
    Every sample counts once, so what comes in must have been told apart from repeats before. O(m·k).

    Source: ours; Welford's update of a mean, which never needs the sum.

    >>> cells = np.full((1, 2, 1), np.nan, np.float32)
    >>> same, rows = np.zeros(2, int), {"rows": np.array([0]), "count_rows": np.array([1])}
    >>> scatter_mean(cells, blocks=same, entities=same, values=np.array([[1, 4]], np.float32), **rows)
    Written(filled=1, rewritten=1, ignored=0)
    >>> cells.ravel().tolist()
    [2.5, 2.0]
    """
    flat, base, later = _places(stack, blocks, rows, entities, values)
    shape("count_rows", count_rows, len(rows))
    done = Written()
    for part in _rounds(later) if later is not None else [np.arange(len(base))]:
        at = rows[:, None] * stack.shape[2] + base[part]
        counts_at = count_rows[:, None] * stack.shape[2] + base[part]
        given = ~np.isnan(values[:, part])
        at, counts_at, new = at[given], counts_at[given], values[:, part][given]
        old, counts = flat[at], np.nan_to_num(flat[counts_at]) + 1
        empty = np.isnan(old)
        flat[at] = np.where(empty, new, old + (new - old) / counts)
        flat[counts_at] = counts
        done += Written(filled=int(empty.sum()), rewritten=int((~empty).sum()))
    return done


def _places(
    stack: Cells, blocks: Index, rows: Index, entities: Index, values: Cells
) -> tuple[Cells, NDArray[np.int64], NDArray[np.int64] | None]:
    """The stack as one row, each sample's place in metric row 0, and, if samples repeat, the later one of each."""
    n_blocks, n_metrics, width = stack.shape
    shape("values", values, len(rows), len(blocks))
    shape("entities", entities, len(blocks))
    if not stack.flags.c_contiguous:
        raise ArgumentInvalid("The stack must be contiguous, so that writing changes it in place.")
    for name, index, end in (("blocks", blocks, n_blocks), ("rows", rows, n_metrics), ("entities", entities, width)):
        if len(index) and (index.min() < 0 or index.max() >= end):
            raise ArgumentInvalid(f"{name} lie outside the stack.", end=end)
    samples = np.arange(len(blocks))
    place = blocks.astype(np.int64) * width + entities
    last = np.empty(n_blocks * width, np.int64)
    last[place] = samples
    later = last[place]
    base = blocks.astype(np.int64) * (n_metrics * width) + entities
    return stack.reshape(-1), base, None if (later == samples).all() else later


def _rounds(later: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Sample numbers in groups without repeats, so that the n-th report of a cell is written in the n-th group."""
    by_cell = np.argsort(later, kind="stable")
    cell = later[by_cell]
    begins = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
    nth = np.arange(len(cell)) - np.repeat(begins, np.diff(begins, append=len(cell)))
    return [np.sort(by_cell[nth == n]) for n in range(int(nth.max()) + 1)]


def _write(flat: Cells, at: NDArray[np.int64], values: Cells, rule: Rule) -> Written:
    given = ~np.isnan(values)
    if not given.all():
        at, values = at[given], values[given]
    old = flat[at]
    held = ~np.isnan(old)
    n_held = int(held.sum())
    filled = held.size - n_held
    if rule is Rule.OVERWRITE or not n_held:
        flat[at] = values
        return Written(filled, n_held)
    if rule is Rule.FILL:
        flat[at[~held]] = values[~held]
        return Written(filled, 0, n_held)
    flat[at] = np.where(held, _merge(old, values, rule), values)
    return Written(filled, n_held)


def _merge(old: Cells, new: Cells, rule: Rule) -> Cells:
    if rule is Rule.MAX:
        return np.fmax(old, new)
    merged = np.nan_to_num(old).astype(np.int64) | new.astype(np.int64)
    return merged.astype(np.float32)


class NotFinite(IntEnum):
    """Which value that is not finite was reported."""

    NAN = 1
    PLUS_INF = 2
    MINUS_INF = 3


def split_not_finite(values: Cells) -> tuple[Cells, NDArray[np.int64], NDArray[np.int8]]:
    """Return `values` with every cell that is not finite made absent, and where and which those were.

    values: float32, any shape, as a packed report holds them: the NaN 0x7fc00000 means absent, any other NaN was
    produced by the training code.

    Returns (clean, where, which): clean has the shape of `values` and is the same array if nothing had to change;
    where is int64 [n], flat positions; which is int8 [n], of `NotFinite`. O(n).

    Source: the wire form: 0x7fc00000 absent, 0x7fc00001 a NaN that was produced; x86 makes 0xffc00000 of 0/0.

    >>> bits = np.array([0x3F800000, 0x7FC00000, 0x7FC00001, 0xFF800000], np.uint32)
    >>> clean, where, which = split_not_finite(bits.view(np.float32))
    >>> clean.tolist(), where.tolist(), which.tolist()
    ([1.0, nan, nan, nan], [2, 3], [1, 3])
    """
    odd = ~np.isfinite(values)
    if not odd.any():
        return values, np.empty(0, np.int64), np.empty(0, np.int8)
    where = np.flatnonzero(odd)
    found = np.ascontiguousarray(values).reshape(-1)[where]
    produced = found.view(np.uint32) != ABSENT.view(np.uint32)
    where, found = where[produced], found[produced]
    if not len(where):
        return values, where.astype(np.int64), np.empty(0, np.int8)
    which = np.where(np.isnan(found), NotFinite.NAN, np.where(found > 0, NotFinite.PLUS_INF, NotFinite.MINUS_INF))
    clean = values.copy()
    clean.reshape(-1)[where] = ABSENT
    return clean, where.astype(np.int64), which.astype(np.int8)
