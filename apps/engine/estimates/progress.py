"""How far a run is, when it will be done, and how fast it can go at its own best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from apps.engine.checks import positive
from apps.engine.errors import ArgumentInvalid

BEST_SHARE = 0.10
"""The best pace is the step time that a tenth of the evidence steps beat: the minimum itself is one lucky step."""

LEAST_STEPS = 20
"""Steps from which the best pace is told: below, a tenth is less than two of them."""

BIN = math.log(1.002)
"""Step times are counted in bins 0.2 % wide, so that the memory of a run of months stays some hundred numbers."""

FARTHEST = timedelta(days=36_500)
"""An ETA beyond a century is no date."""


@dataclass(frozen=True, slots=True)
class BestPace:
    """Memory of all evidence steps' median times: bin → how many steps.

    >>> pace = BestPace().learn([4.0] * 30 + [5.0] * 70)
    >>> round(pace.best_step_s, 2), BestPace.read(pace.write()) == pace
    (4.0, True)
    """

    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, memory: Mapping[str, Any] | None) -> "BestPace":
        """Return what `write` gave; nothing learnt if there is nothing."""
        return cls({int(place): int(count) for place, count in (memory or {}).get("counts", {}).items()})

    def write(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"counts": {str(place): count for place, count in sorted(self.counts.items())}}

    def learn(self, medians_s: Sequence[float]) -> "BestPace":
        """Return the memory with these steps counted.

        medians_s: median step time over ranks of each evidence step, seconds; NaN = nobody reported that step.
        """
        counts = dict(self.counts)
        for step_s in medians_s:
            if math.isfinite(step_s) and step_s > 0:
                place = round(math.log(step_s) / BIN)
                counts[place] = counts.get(place, 0) + 1
        return BestPace(counts)

    @property
    def steps(self) -> int:
        """How many steps were counted."""
        return sum(self.counts.values())

    @property
    def best_step_s(self) -> float | None:
        """The best pace in seconds a step (to 0.1 %), None while fewer than 20 steps were counted.

        Source: ours. Steps of one run are alike (figures §5: p90 is 1.06 × the median), so the fastest tenth is what
        the run can do when nothing holds it back.
        """
        if self.steps < LEAST_STEPS:
            return None
        want, seen = BEST_SHARE * self.steps, 0
        for place in sorted(self.counts):
            seen += self.counts[place]
            if seen >= want:
                return math.exp(place * BIN)
        return None


@dataclass(frozen=True, slots=True)
class Progress:
    """When a run will be done, at its pace now and at its own best; None = cannot be told.

    steps_left: steps still to do. slip_s: seconds after `due_at` at which it will be done (negative = early).
    behind_s: seconds later than at its best pace.
    """

    steps_left: int | None
    eta_at: datetime | None
    eta_at_best_pace: datetime | None
    slip_s: float | None
    behind_s: float | None


def progress_of(
    *,
    now: datetime,
    step: int | None,
    steps_planned: int | None,
    step_s: float | None,
    best_step_s: float | None,
    due_at: datetime | None = None,
) -> Progress:
    """Return when the run will be done.

    now, due_at: aware moments. step: the newest step, counted from 0. steps_planned: how many steps there are.
    step_s, best_step_s: seconds a step takes now, and at the run's own best.

    Raises:
        ArgumentInvalid: `now` or `due_at` is naive.

    Source: ours; time lost by future failures is not in it (see the planner).

    >>> from datetime import UTC
    >>> at = datetime(2026, 11, 30, tzinfo=UTC)
    >>> p = progress_of(now=at, step=399, steps_planned=1000, step_s=6.0, best_step_s=5.0, due_at=at)
    >>> p.steps_left, p.eta_at.minute, p.slip_s, p.behind_s
    (600, 0, 3600.0, 600.0)
    """
    for name, moment in (("now", now), ("due_at", due_at)):
        if moment is not None and moment.tzinfo is None:
            raise ArgumentInvalid(f"{name} must know its zone.", name=name)
    left = None if step is None or steps_planned is None else max(steps_planned - step - 1, 0)
    eta_at, best_at = _eta(now, left, step_s), _eta(now, left, best_step_s)
    return Progress(
        steps_left=left,
        eta_at=eta_at,
        eta_at_best_pace=best_at,
        slip_s=(eta_at - due_at).total_seconds() if eta_at and due_at else None,
        behind_s=(eta_at - best_at).total_seconds() if eta_at and best_at else None,
    )


def _eta(now: datetime, steps_left: int | None, step_s: float | None) -> datetime | None:
    if steps_left is None or step_s is None or not math.isfinite(step_s) or step_s <= 0:
        return None
    if steps_left * step_s > FARTHEST.total_seconds():
        return None
    return now + timedelta(seconds=steps_left * step_s)


def tokens_per_s(tokens_per_step: float | None, step_s: float | None) -> float | None:
    """Return tokens a second of the whole run, None if either is not known.

    >>> tokens_per_s(4_000_000, 5.0), tokens_per_s(None, 5.0)
    (800000.0, None)
    """
    if tokens_per_step is None or step_s is None:
        return None
    return tokens_per_step / positive("step_s", step_s)
