"""Memory of what garbage collection added to each step; what `gc_pause` decides from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.engine.detection.arrays import Floats, Times

RECENT = 32
"""Columns of the short look: half a minute of a fast run, so that pauses are named while somebody watches."""
LONG = 256
"""Columns of the long look: full collections that come once in hundreds of steps on each rank, as in large jobs."""
HIT_SHARE = 0.01
"""A step counts as held up when collection added a hundredth to it: half of what a step's own noise is (cv 2 %)."""

STEP, AT, LOST, TOOK, TOP, TOGETHER, PAUSE = range(7)
"""What a row holds: step, receive time, s added by collection, s it took, the rank that held it up, how many ranks
collected about as long, s the rank collected."""


@dataclass(frozen=True, eq=False, slots=True)
class Look:
    """The newest columns, and among them those that a collection held up (`hits`)."""

    rows: Times

    @property
    def hits(self) -> Times:
        """Return the rows of steps that were held up."""
        found: Times = self.rows[self.rows[:, LOST] >= HIT_SHARE * self.rows[:, TOOK]]
        return found

    @property
    def slowdown(self) -> float:
        """Return T / T without collections, ≥ 1."""
        took, lost = float(self.rows[:, TOOK].sum()), float(self.rows[:, LOST].sum())
        return took / (took - lost) if took > lost else 1.0

    @property
    def lost_s(self) -> float:
        """Return the seconds collection added to a step, mean."""
        return float(self.rows[:, LOST].mean()) if len(self.rows) else 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that held steps up, ascending."""
        return tuple(int(rank) for rank in np.unique(self.hits[:, TOP]))

    def main_rank(self) -> tuple[int, float]:
        """Return the rank that cost most, and its share 0..1 of all that was lost; (-1, 0.0) without hits."""
        hits = self.hits
        if not len(hits):
            return -1, 0.0
        lost = np.bincount(hits[:, TOP].astype(np.int64), hits[:, LOST])
        return int(lost.argmax()), float(lost.max() / lost.sum())


class Pauses:
    """What is remembered of one attempt; made from a state, changed by `take`, turned into a state again."""

    def __init__(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.rows: Times = arrays["rows"].copy() if "rows" in arrays else np.zeros((0, 7))
        self.columns: int = values.get("columns", 0)
        self.heard: int = values.get("heard", 0)
        self.open: dict[str, Any] | None = dict(values["open"]) if values.get("open") else None

    def values(self) -> dict[str, Any]:
        """Return what is not an array, as JSON can hold it."""
        return {"columns": self.columns, "heard": self.heard, "open": self.open}

    def take(self, row: Times, heard: int) -> None:
        """Count one evidence column, of which `heard` ranks reported."""
        self.rows = np.vstack([self.rows, row])[-LONG:]
        self.columns += 1
        self.heard = heard

    def look(self, columns: int) -> Look:
        """Return the newest columns."""
        return Look(self.rows[-columns:])

    def settle(self) -> None:
        """Forget what was lost, so that pauses that ended are not found again."""
        self.rows[:, LOST] = 0.0


def row_of(step: int, received_at: float, values: Mapping[str, Floats], at: int) -> tuple[Times, int] | None:
    """Return what collection added to one column (see `STEP` and following) and how many ranks that rests on.

    values: metric name → float32 [ranks, c], seconds; `gc_s`, `step_s` and `compute_s` are needed. None if fewer than
        half of the ranks reported all of it.

    In a synchronous step everybody waits for the rank that works longest, so what collection added is the longest work
    minus the longest work without collections: a rank that collects while it would have waited costs nothing. Work is
    step time without the time in collectives where that is reported (a pause may come in any phase), else compute time.
    Cost: O(ranks). Source: figures §5, S = T / T_ideal, with the collections taken out instead of evened out; the step
    as one barrier is ours.

    >>> values = {"step_s": [1.3, 1.3], "compute_s": [1.2, 0.9], "gc_s": [0.4, 0.0]}
    >>> row, heard = row_of(7, 0.0, {k: np.array(v, np.float32)[:, None] for k, v in values.items()}, 0)
    >>> round(float(row[LOST]), 3), int(row[TOP]), heard
    (0.3, 0, 2)
    """
    gc = values["gc_s"][:, at].astype(np.float64)
    step_s, work = values["step_s"][:, at].astype(np.float64), values["compute_s"][:, at].astype(np.float64)
    if "communication_s" in values:
        own = step_s - values["communication_s"][:, at]
        work = np.where(np.isfinite(own), own, work)
    have = np.isfinite(gc) & np.isfinite(work) & np.isfinite(step_s) & (step_s > 0)
    heard = int(have.sum())
    if not heard or 2 * heard < len(gc):
        return None
    gc, work = np.where(have, gc, 0.0), np.where(have, work, -np.inf)
    top = int(work.argmax())
    lost = max(float(work.max() - (work - gc).max()), 0.0)
    together = int((gc >= gc[top] / 2).sum()) if gc[top] > 0 else 0
    took = float(np.median(step_s[have]))
    return np.array([step, received_at, min(lost, took), took, top, together, gc[top]]), heard
