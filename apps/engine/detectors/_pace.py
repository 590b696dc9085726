"""Progress of an attempt as its beats show it: when it last moved, and how long it may stand in each phase."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from apps.engine.detection import NO_TELEMETRY_S, Beats, Limit, Phase
from apps.engine.detection.arrays import Flags

HANG_FLOOR_S = Limit(
    "hang_floor_s",
    60.0,
    "s",
    "However fast the steps are, shorter pauses (a slow read, a garbage collection) end by themselves.",
    "DESIGN §5; NCCL's own limit is 600 s",
    least=1.0,
    most=7 * 24 * 3600.0,
)
HANG_FACTOR = Limit(
    "hang_factor",
    5.0,
    "× median step",
    "Steps of one run are alike (p90 is 1.06 × the median), so five of them are far outside.",
    "figures §11.5: max(floor, 5 × median step)",
    least=2.0,
    most=1000.0,
)
HANG_START_S = Limit(
    "hang_start_s",
    1800.0,
    "s",
    "Start-up, restore and the first step come once an attempt, so nothing can be learnt: compilation took 9 min in a "
    "healthy run, reading a checkpoint longer.",
    "figures §7.5 (another tool's default is 30 min); case 31",
    least=1.0,
    most=7 * 24 * 3600.0,
)
HANG_PHASE_S = Limit(
    "hang_phase_s",
    1800.0,
    "s",
    "A save or an evaluation may stand this long until the run has shown how long its own take.",
    "as hang_start_s; a normal evaluation took 12 min in case 30",
    least=1.0,
    most=7 * 24 * 3600.0,
)

LONG_FACTOR = 2.0
"""A save or an evaluation may take twice the longest this attempt completed: queueing at shared storage doubles them."""
LONG_FLOORS = 5.0
"""Floor of a long phase in hang floors: a save of 2 s that once takes 3 min is slow storage, not a hang."""
SAMPLES, LEAST_SAMPLES = 32, 3
"""Advances the median step is taken from, and how few are too few."""
ONCE = (Phase.STARTUP, Phase.RESTORE, Phase.FIRST_STEP, Phase.SHUTDOWN)
LONG = (Phase.CHECKPOINT, Phase.EVALUATION)
STEP = "step"
"""The word for everything that happens inside a step."""
INSIDE = (STEP, Phase.UNKNOWN.word)
"""Standing here, an advance says how long a step takes."""


def standing(phases: set[Phase]) -> str:
    """Return the phase the run as a whole stands in: the most patient one of any rank.

    Ranks that wait for one that saves show `communication`; the saving one decides.

    >>> standing({Phase.COMMUNICATION, Phase.CHECKPOINT}), standing({Phase.DATA, Phase.COMMUNICATION})
    ('checkpoint', 'step')
    """
    for phase in (*ONCE[:3], Phase.EVALUATION, Phase.CHECKPOINT, Phase.SHUTDOWN, Phase.UNKNOWN):
        if phase in phases:
            return phase.word
    return STEP


class Pace:
    """What is remembered of an attempt's progress; forgotten with the attempt."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.newest: int = values.get("newest", -1)
        self.phase: str = values.get("phase", STEP)
        self.since: float | None = values.get("since")
        self.advanced_at: float | None = values.get("advanced_at")
        self.pure: bool = values.get("pure", False)
        self.samples: list[float] = list(values.get("samples", []))
        self.longest: dict[str, float] = dict(values.get("longest", {}))

    def values(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "newest": self.newest,
            "phase": self.phase,
            "since": self.since,
            "advanced_at": self.advanced_at,
            "pure": self.pure,
            "samples": self.samples,
            "longest": self.longest,
        }

    def take(self, beats: Beats, fresh: Flags, watch_began_at: float, *, learn: bool) -> bool:
        """Count what the fresh beats show; return whether the run moved (a step further, or into another phase).

        learn: False while a hang is confirmed, so that its length is never taken for normal.
        """
        newest = int(beats.step[fresh].max())
        phase = standing({Phase(value) for value in np.unique(beats.phase[fresh]).tolist()})
        stepped = newest > self.newest
        if self.since is not None and not stepped and phase == self.phase:
            return False
        at = (
            float(beats.heard_at[fresh & (beats.step == newest)].min())
            if stepped
            else float(beats.heard_at[fresh].max())
        )
        seen = self.since is not None and self.since >= watch_began_at
        if phase != self.phase and seen and learn and self.phase in {p.word for p in LONG}:
            length = at - float(self.since or at)
            self.longest[self.phase] = max(self.longest.get(self.phase, 0.0), length)
        if stepped:
            clean = (
                self.pure and phase in INSIDE and self.advanced_at is not None and self.advanced_at >= watch_began_at
            )
            if clean and learn and at > (self.advanced_at or at):
                per_step = (at - float(self.advanced_at or at)) / (newest - self.newest)
                self.samples = [*self.samples, per_step][-SAMPLES:]
            self.newest, self.advanced_at, self.pure = newest, at, phase in INSIDE
        elif phase not in INSIDE:
            self.pure = False
        self.phase, self.since = phase, at
        return True

    def outlived(self, at: float, limits: Mapping[str, float]) -> bool:
        """Return whether the run made a step later than any report from before `at` can arrive (case 36)."""
        return (self.advanced_at or 0.0) > at + NO_TELEMETRY_S.of(limits)

    def step_s(self) -> float | None:
        """Return the median seconds a step takes, None while too few were seen."""
        return float(np.median(self.samples)) if len(self.samples) >= LEAST_SAMPLES else None

    def limit_s(self, limits: Mapping[str, float], phase: str | None = None) -> float:
        """Return how long the run may stand in `phase` (default: the one it stands in), seconds."""
        phase = self.phase if phase is None else phase
        floor = HANG_FLOOR_S.of(limits)
        if phase in {p.word for p in ONCE}:
            return max(HANG_START_S.of(limits), floor)
        if phase in {p.word for p in LONG}:
            learnt = self.longest.get(phase)
            return (
                max(HANG_PHASE_S.of(limits), floor)
                if learnt is None
                else max(LONG_FLOORS * floor, LONG_FACTOR * learnt)
            )
        if phase == STEP:
            step_s = self.step_s()
            return (
                max(HANG_START_S.of(limits), floor) if step_s is None else max(floor, HANG_FACTOR.of(limits) * step_s)
            )
        return max(self.limit_s(limits, word) for word in ("startup", "checkpoint", "evaluation", STEP))
