"""What happens in a world, second by second: the numbers its ranks would have sent."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.engine.detection import Phase
from apps.engine.detection.arrays import Flags, Floats, Steps, Times
from apps.engine.worlds.world import Fault, FaultKind, World

BEGAN_AT = 1_800_000_000.0
"""When every world begins, seconds since 1970 UTC; any date does, this one is round."""

WAVE_AFTER_S = 20.0
"""After the first exit the launcher stops the others this much later."""
SHUTDOWN_S = 6.0
"""A run that finished takes this long to end its processes."""


@dataclass(frozen=True, eq=False, slots=True)
class Story:
    """One telling of a world.

    compute: float32 [ranks, steps], seconds, collections included. gc: float32 [ranks, steps], seconds in collections.
    queue: float64 [steps], seconds for which the slowest shard of the save after a step waited.
    start: float64 [steps + 1], when each step begins (the last: the end);
    infinite from the step on that never ends. stuck: the step in which the run stands, None if it never does.
    silent_at: float64 [nodes], from when nothing is heard of a node. exit_at: float64 [ranks]; infinite = never.
    """

    world: World
    compute: Floats
    gc: Floats
    queue: Times
    start: Times
    stuck: int | None
    silent_at: Times
    exit_at: Times

    def rank_states(self, at: Times) -> tuple[Steps, NDArray[np.int8], Floats]:
        """Return each rank's step, phase and seconds in it at its own moment `at`, float64 [ranks]."""
        world = self.world
        step = np.clip(np.searchsorted(self.start, at, side="right") - 1, 0, world.steps - 1)
        into = at - self.start[step]
        data, slowest = world.data_s, self.compute[:, step].max(axis=0)
        own = self.compute[np.arange(world.ranks), step]
        joined = data + slowest + world.communication_s
        edges = np.stack([np.zeros_like(own), np.full_like(own, data), data + own, joined, joined + world.optimizer_s])
        phases = np.array([Phase.DATA, Phase.COMPUTE, Phase.COMMUNICATION, Phase.OPTIMIZER, Phase.CHECKPOINT], np.int8)
        place = (into >= edges).sum(axis=0) - 1
        phase, since = phases[np.clip(place, 0, 4)], edges[np.clip(place, 0, 4), np.arange(world.ranks)]
        first = (step == 0) & (into >= 0)
        phase, since = np.where(first, Phase.FIRST_STEP, phase), np.where(first, 0.0, since)
        before = into < 0
        phase = np.where(before, Phase.STARTUP, phase)
        since = np.where(before, BEGAN_AT - self.start[0], since)
        phase, since = self._stuck_phases(step, into, phase, since, data + own)
        after = at >= self.start[-1]
        phase, since = np.where(after, Phase.SHUTDOWN, phase), np.where(after, self.start[-1] - self.start[step], since)
        return step.astype(np.int64), phase.astype(np.int8), (into - since).astype(np.float32)

    def _stuck_phases(
        self, step: NDArray[Any], into: Times, phase: NDArray[Any], since: NDArray[Any], joined_at: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Whoever reaches the collective of the stuck step stays in it; those that hold it up stay before it."""
        if self.stuck is None:
            return phase, since
        here = step == self.stuck
        waits = here & (into >= joined_at) & (into < self.start[self.stuck + 1] - self.start[self.stuck])
        phase, since = np.where(waits, Phase.COMMUNICATION, phase), np.where(waits, joined_at, since)
        for fault in self.world.faults:
            if fault.kind is FaultKind.HANG and fault.from_step == self.stuck:
                held = here & picked(self.world, fault) & (into < fault.lasts_s)
                phase, since = np.where(held, fault.phase, phase), np.where(held, 0.0, since)
        return phase, since

    def saves(self) -> list[tuple[int, float, bool]]:
        """Return (step, when it ended, whether it is complete) of each save, in order."""
        world = self.world
        unsaved = [fault.from_step for fault in world.faults if fault.kind is FaultKind.UNSAVED]
        steps = range(world.save_every - 1, world.steps, world.save_every)
        ended = [(step, float(self.start[step + 1])) for step in steps if np.isfinite(self.start[step + 1])]
        return [(step, at, not any(step >= first for first in unsaved)) for step, at in ended]

    def save_numbers(self, step: int) -> tuple[float, float, float]:
        """Return (seconds the save after `step` took, seconds its slowest shard waited, seconds its fastest took)."""
        queue_s = float(self.queue[step])
        usual = self.world.save_s * self.world.queue_share
        took_s = self.world.save_s + max(queue_s - usual, 0.0)
        return took_s, queue_s, took_s - queue_s


def picked(world: World, fault: Fault) -> Flags:
    """Return the ranks a fault touches, bool [ranks]."""
    chosen = np.zeros(world.ranks, np.bool_)
    chosen[list(fault.ranks) if fault.ranks else slice(None)] = True
    return chosen


def tell(world: World, *, seed: int = 0) -> Story:
    """Return what happens in the world; the same seed tells the same story.

    Cost: O(ranks · steps).
    """
    rng = np.random.default_rng([seed, zlib.crc32(world.name.encode())])
    # Streams of their own: what is added to a world must not change the numbers it had before.
    beside = np.random.default_rng([seed, zlib.crc32(world.name.encode()), 1])
    compute, pauses = _compute(world, rng)
    gc = (beside.exponential(world.gc_s, compute.shape) + pauses).astype(np.float32)
    queue = _queue(world, beside)
    length = world.data_s + compute.max(axis=0) + world.communication_s + world.optimizer_s
    length[0] += world.first_step_s
    length[world.save_every - 1 :: world.save_every] += world.save_s
    length += np.maximum(queue - world.save_s * world.queue_share, 0.0)
    stuck = None
    silent_at, exit_at = np.full(world.nodes, np.inf), np.full(world.ranks, np.inf)
    for fault in world.faults:
        if fault.kind in (FaultKind.HANG, FaultKind.EXIT, FaultKind.SILENT):
            stuck = fault.from_step
            length[stuck] += fault.lasts_s
    start = BEGAN_AT + world.startup_s + np.concatenate([[0.0], np.cumsum(length, dtype=np.float64)])
    exit_at[:] = start[-1] + SHUTDOWN_S
    for fault in world.faults:
        at, ranks = float(start[fault.from_step]) + world.data_s, picked(world, fault)
        if fault.kind in (FaultKind.SILENT, FaultKind.UNHEARD):
            silent_at[np.unique(np.flatnonzero(ranks) // world.ranks_per_node)] = at
        if fault.kind is FaultKind.EXIT:
            exit_at[:] = np.where(ranks, at, at + WAVE_AFTER_S)
    return Story(world, compute, gc, queue, start, stuck, silent_at, exit_at)


def _queue(world: World, rng: np.random.Generator) -> Times:
    """Return how long the slowest shard of the save after each step waits, 0 where nothing is saved."""
    queue = np.zeros(world.steps)
    saves = np.arange(world.save_every - 1, world.steps, world.save_every)
    queue[saves] = world.save_s * world.queue_share * rng.random(len(saves))
    for fault in world.faults:
        if fault.kind is FaultKind.QUEUED:
            touched = saves[(saves >= fault.from_step) & (saves < (fault.to_step or world.steps))]
            queue[touched] = world.save_s * world.queue_share + fault.pause_s * (1 + 0.1 * np.arange(len(touched)))
    return queue


def _compute(world: World, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the compute times of a world with all its collections, and the collections that are faults, in seconds."""
    shape = (world.ranks, world.steps)
    pauses = np.zeros(shape)
    compute = world.compute_s * np.maximum(1 + world.noise * rng.standard_normal(shape), 0.5)
    for fault in world.faults:
        steps = slice(fault.from_step, fault.to_step)
        ranks = picked(world, fault)
        if fault.kind is FaultKind.SLOW:
            compute[ranks, steps] *= fault.factor
        if fault.kind is FaultKind.MOVING:
            which = rng.integers(0, world.ranks, world.steps)
            touched = np.arange(world.steps)[steps]
            compute[which[touched], touched] *= fault.factor
        if fault.kind is FaultKind.PAUSES:
            pauses[ranks, steps] += fault.pause_s * (rng.random(shape) < fault.chance)[ranks, steps]
        if fault.kind is FaultKind.PLANNED:
            pauses[ranks, fault.from_step : fault.to_step : fault.every] += fault.pause_s
    return (compute + pauses).astype(np.float32), pauses.astype(np.float32)
