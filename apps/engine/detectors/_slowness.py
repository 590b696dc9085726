"""Memory of which ranks were slow against their peers, column by column; what `compute_straggler` decides from.

Ranks are held as arrays (kept bit for bit between windows), the few that matter as lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.engine.detection.arrays import Ints, Times
from apps.engine.detectors._peers import peer_medians, stage_medians

HISTORY = 32
"""Columns whose step and time are remembered: one bit each in `bad`, enough for the longest count (20)."""

RECENT = 20
"""Columns from which medians of a watched rank are taken."""

SLOW_MEAN = 32
"""Columns over which a rank's mean lag runs: long enough that cv 2 % leaves 0.25 %, short enough to follow an hour."""

LAG_BOUND = 0.10
"""A single column counts in the running mean with at most this lag, so that one spike is not a lasting slowness."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The limits in force for one evaluation."""

    ratio: float
    noises: float
    bad: int
    of: int


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """One evidence column: float64 [ranks] each, NaN = absent."""

    step: int
    received_at: float
    work_s: Times
    lag: Times
    peers_s: Times
    wait_s: Times | None


class Slowness:
    """What is remembered of one attempt; made from a state, changed by `take`, turned into a state again."""

    def __init__(self, ranks: int, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        def array(name: str, dtype: Any) -> NDArray[Any]:
            return arrays[name].copy() if name in arrays else np.zeros(ranks, dtype)

        self.bad, self.seen = array("bad", np.uint32), array("seen", np.uint8)
        self.mean, self.before = array("mean", np.float16), array("before", np.float16)
        self.columns: int = values.get("columns", 0)
        self.noise: float | None = values.get("noise")
        self.noise_columns: int = values.get("noise_columns", 0)
        self.steps: list[list[float | None]] = [list(pair) for pair in values.get("steps", [])]
        self.stages: list[list[float]] = [list(pair) for pair in values.get("stages", [])]
        self.worst: list[list[float]] = [list(pair) for pair in values.get("worst", [])]
        watched = values.get("watched", {})
        self.watched: dict[int, list[list[float]]] = {
            int(r): [list(row) for row in rows] for r, rows in watched.items()
        }
        self.open: list[dict[str, Any]] = [_copied(entry) for entry in values.get("open", [])]

    def values(self) -> dict[str, Any]:
        """Return what is not an array, as JSON can hold it."""
        return {
            "columns": self.columns,
            "noise": self.noise,
            "noise_columns": self.noise_columns,
            "steps": self.steps,
            "stages": self.stages,
            "worst": self.worst,
            "watched": {str(rank): rows for rank, rows in sorted(self.watched.items())},
            "open": self.open,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays over ranks."""
        return {"bad": self.bad, "seen": self.seen, "mean": self.mean, "before": self.before}

    def take(self, column: Column, stage: Ints, rule: Rule) -> None:
        """Count one evidence column."""
        have = np.isfinite(column.lag)
        if not have.any():
            return
        self.columns += 1
        self._noise_take(column.lag, have)
        threshold = self.threshold(rule)
        slow = have & (column.lag >= threshold)
        self.bad[have] = (self.bad[have] << np.uint32(1)) | slow[have].astype(np.uint32)
        self.seen[have] = np.minimum(self.seen[have], 254) + np.uint8(1)
        alpha = 1.0 / np.clip(self.seen[have], 1, SLOW_MEAN)
        mean = self.mean[have].astype(np.float64)
        self.mean[have] = mean + alpha * (np.clip(column.lag[have], -LAG_BOUND, LAG_BOUND) - mean)
        self.before[have] = np.clip(column.lag[have], -1.0, 100.0)
        received = column.received_at if np.isfinite(column.received_at) else None
        self.steps = [*self.steps, [column.step, received]][-HISTORY:]
        self._picture_take(column, stage, rule, threshold)
        self._watched_take(column, rule)

    def threshold(self, rule: Rule) -> float:
        """Return the lag (ratio − 1) from which a step is bad; infinite while the noise is not known."""
        return np.inf if self.noise is None else max(rule.ratio - 1, rule.noises * self.noise)

    def count(self, ranks: NDArray[Any], last: int) -> NDArray[np.uint8]:
        """Return how many of each rank's `last` columns were bad."""
        counts: NDArray[np.uint8] = np.bitwise_count(self.bad[ranks] & np.uint32((1 << last) - 1))
        return counts

    def bad_steps(self, rank: int, last: int) -> list[tuple[int, float | None]]:
        """Return (step, receive time) of the rank's bad columns among the run's last ones, oldest first.

        A rank that missed columns has fewer bits than the run has steps; then the steps are the newest that fit.
        """
        bits = int(self.bad[rank])
        recent = self.steps[::-1][:last]
        return [(int(step or 0), at) for place, (step, at) in enumerate(recent) if bits >> place & 1][::-1]

    def settle(self, ranks: NDArray[Any], minimum: int) -> None:
        """Forget the lasting lag of ranks that recovered, so that the old slowness is not found again."""
        self.mean[ranks] = 0
        self.seen[ranks] = np.minimum(self.seen[ranks], minimum)

    def _noise_take(self, lag: Times, have: NDArray[np.bool_]) -> None:
        # Step-to-step change, not spread over ranks: a rank that is always slow, or a mixed fleet, is not noise.
        known = have & (self.seen > 0)
        if not known.any():
            return
        change = np.abs(lag[known] - self.before[known])
        here = 1.4826 * float(np.median(change)) / np.sqrt(2)
        self.noise_columns = min(self.noise_columns + 1, HISTORY)
        before = self.noise or 0.0
        self.noise = float(before + (here - before) / self.noise_columns)

    def _picture_take(self, column: Column, stage: Ints, rule: Rule, threshold: float) -> None:
        medians = stage_medians(column.work_s, stage)
        slowest = max(medians, key=lambda s: medians[s])
        others = [value for s, value in medians.items() if s != slowest]
        ratio = medians[slowest] / float(np.median(others)) if others else 1.0
        self.stages = [*self.stages, [slowest, ratio]][-rule.of :]
        rank = int(np.nanargmax(column.lag))
        clear = column.lag[rank] >= max(threshold, 2 * (rule.ratio - 1))
        self.worst = [*self.worst, [rank if clear else -1, float(column.lag[rank])]][-rule.of :]

    def _watched_take(self, column: Column, rule: Rule) -> None:
        suspects = np.flatnonzero(self.count(np.arange(len(self.bad)), rule.of) >= 2)
        kept = {int(r) for r in suspects} | {r for entry in self.open for r in entry["ranks"]}
        watched = {}
        for rank in kept:
            rows = self.watched.get(rank, [])
            if np.isfinite(column.lag[rank]):
                row = [column.lag[rank] + 1, column.work_s[rank], column.peers_s[rank]]
                rows = [*rows, [float(x) for x in row]][-RECENT:]
            watched[rank] = rows
        self.watched = watched


def column_of(step: int, received_at: float, values: Mapping[str, NDArray[np.float32]], at: int, stage: Ints) -> Column:
    """Return one column's own work, lag against peers and waiting.

    Garbage collection is taken off the work (it has its own cause), and where ranks report tokens the lag is per token,
    so that a longer batch is not slowness.
    """
    work = values["compute_s"][:, at].astype(np.float64)
    if "gc_s" in values:
        work = work - np.nan_to_num(values["gc_s"][:, at])
    work[~(work > 0)] = np.nan
    rate = work
    if "tokens" in values:
        tokens = values["tokens"][:, at]
        if (tokens[np.isfinite(work)] > 0).all():
            rate = work / tokens
    peers = peer_medians(rate, stage)
    lag = rate / peers - 1
    wait = values["communication_s"][:, at].astype(np.float64) if "communication_s" in values else None
    return Column(step, received_at, work, lag, work / (lag + 1), wait)


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in entry.items()}
