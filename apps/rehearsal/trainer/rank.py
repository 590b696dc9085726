"""One rank: the training loop, measured and reported through the client like anybody's."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.rehearsal.trainer import model
from apps.rehearsal.trainer.checkpoint import checkpoint_load
from apps.rehearsal.trainer.collectives import Collectives
from apps.rehearsal.trainer.faults import Fault, FaultWatch
from apps.rehearsal.trainer.options import Options
from apps.rehearsal.trainer.ring import ring_join
from apps.rehearsal.trainer.saving import Saver
from apps.rehearsal.trainer.stopping import Stop

COMPUTE_SHARE = 0.88
DATA_SHARE = 0.03
"""Shares of a healthy step; what is left is for the collective and the optimizer, which take what they take."""
COMPUTE_NOISE = 0.01
"""Relative deviation of compute times from step to step, as on healthy accelerators."""
NOISE = 4
"""The word for this stream of random numbers."""
GC_PAUSES_A_STEP = 0.65
"""Pauses among all ranks that have the fault, mean per step: of many ranks one or more pauses in about every second
step. With the usual 150 ms in steps of 0.5 s that is a slowdown of 1.14, over the 1.1 from which a run is called
straggling (the study this follows had 12.6 % to win), whether it is set on one rank or everywhere."""
GC_PAUSE_MOST_P = 0.5
"""A single rank pauses in every second step at most: it has to be sporadic."""
HANG_POLL_S = 0.2
SAY_EVERY = 20
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank this is, where, and from which step it goes on."""

    rank: int
    node: str
    local_rank: int
    first_step: int
    ring_folder: Path
    ring_key: bytes


class Trainer:
    """The loop's parts, each ready for use."""

    def __init__(
        self, options: Options, seat: Seat, *, pace: Any, stop: Stop, note_load: Callable[[float], None]
    ) -> None:
        self._options = options
        self._seat = seat
        self._pace = pace
        self._stop = stop
        self._note_load = note_load
        self._faults = FaultWatch(
            options.directory, node=seat.node, local_rank=seat.local_rank, attempt=options.attempt
        )
        self._teacher = model.teacher_weights(options.seed)
        self._root = options.directory / CHECKPOINTS
        self._sound = True
        """No step was left out since the last save; all ranks know it, because they take the same mean gradient."""

    def run(self) -> model.State:
        """Train to the last step; return the state reached.

        Raises: Stopped, RingBroken, CheckpointBroken.
        """
        state = self._restored()
        collectives = self._joined()
        saver = Saver(
            self._root,
            keep=self._options.keep,
            collectives=collectives,
            pace=self._pace,
            stop=self._stop,
            sound=state.step or None,
        )
        if collectives.rank == 0:
            saver.discard_after(state.step)
        while state.step < self._options.steps:
            self._stop.check()
            self._step(state, collectives, saver)
        return state

    def _restored(self) -> model.State:
        step = self._seat.first_step
        if not step:
            return model.state_first(self._options.seed)
        began = time.monotonic()
        with self._pace.phase("restore"):
            state = model.state_from_flat(step, checkpoint_load(self._root, step=step))
        if self._seat.rank == 0:
            took_s = round(time.monotonic() - began, 4)
            size_bytes = state.flat().nbytes
            self._pace.checkpoint(step=step, kind="restore", state="RESTORED", duration_s=took_s, bytes=size_bytes)
        return state

    def _joined(self) -> Collectives:
        with self._pace.phase("startup"), self._stop.waiting():
            ring = ring_join(
                self._seat.ring_folder,
                rank=self._seat.rank,
                size=self._options.world_size,
                key=self._seat.ring_key,
                timeout_s=self._options.collective_timeout_s,
            )
        return Collectives(ring, self._stop)

    def _step(self, state: model.State, collectives: Collectives, saver: Saver) -> None:
        step = state.step + 1
        faults = self._faults.look()
        began = time.monotonic()
        with self._pace.step(step):
            with self._pace.phase("data"):
                batch = self._batch(step, began)
            with self._pace.phase("compute"):
                loss, gradient, busy_s = self._compute(state, batch, step, faults)
            grad_norm = float(np.linalg.norm(gradient))
            with self._pace.phase("communication"):
                self._hang(faults, inside=True)
                collectives.all_reduce(gradient)
            with self._pace.phase("optimizer"):
                gradient /= np.float32(collectives.size)
                self._sound &= model.step_take(state, gradient)
            if step % self._options.checkpoint_every == 0:
                with self._pace.phase("checkpoint"):
                    saver.save(state, faults.get("slow_checkpoint"), sound=self._sound)
                self._sound = True
            self._pace.log(loss=loss, grad_norm=grad_norm, tokens=model.BATCH)
        took_s = time.monotonic() - began
        self._note_load(busy_s / took_s if took_s > 0 else 0.0)
        if self._seat.rank == 0 and step % SAY_EVERY == 0:
            say(f"step {step} loss {loss:.4f} grad_norm {grad_norm:.4f} step_s {took_s:.3f}")

    def _batch(self, step: int, began: float) -> model.Batch:
        batch = model.batch_make(self._teacher, seed=self._options.seed, step=step, rank=self._seat.rank)
        self._stop.sleep_until(began + DATA_SHARE * self._options.step_s)
        return batch

    def _compute(
        self, state: model.State, batch: model.Batch, step: int, faults: dict[str, Fault]
    ) -> tuple[float, NDArray[np.float32], float]:
        """Return loss, gradient and the seconds this took: the real arithmetic, then a wait up to what a GPU would take."""
        began = time.monotonic()
        if "crash" in faults:
            die(int(faults["crash"].value), f"rank {self._seat.rank} was asked to crash")
        loss, gradient = model.loss_and_gradient(state.parameters, batch, poison="nan" in faults)
        numbers = np.random.default_rng([self._options.seed, NOISE, step, self._seat.rank])
        wanted_s = COMPUTE_SHARE * self._options.step_s * max(1 + COMPUTE_NOISE * numbers.standard_normal(), 0.5)
        if "slow_rank" in faults:
            wanted_s *= faults["slow_rank"].value
        self._stop.sleep_until(began + wanted_s)
        self._hang(faults, inside=False)
        if "gc_pauses" in faults and numbers.random() < self._pause_p(faults["gc_pauses"]):
            collect_garbage(faults["gc_pauses"].value / 1000)
        return loss, gradient, time.monotonic() - began

    def _pause_p(self, fault: Fault) -> float:
        """Return the chance of a pause in this step, so that pauses cost the run about as much wherever they are set."""
        on_a_node = self._options.ranks_per_node
        ranks = 1 if fault.local_rank is not None else on_a_node if fault.node is not None else self._options.world_size
        return min(GC_PAUSES_A_STEP / ranks, GC_PAUSE_MOST_P)

    def _hang(self, faults: dict[str, Fault], *, inside: bool) -> None:
        """Stay in or before the collective without taking part, while the fault stands; the client's thread lives on."""
        while "hang" in faults and (faults["hang"].value < 1) == inside:
            self._stop.sleep_until(time.monotonic() + HANG_POLL_S)
            faults = self._faults.look()


def collect_garbage(at_least_s: float) -> None:
    """Let the interpreter collect, in full, until `at_least_s` have passed: every thread stands still meanwhile.

    Nothing is allocated for it: what that takes would be compute, and look like a slow machine.
    """
    until = time.monotonic() + at_least_s
    while time.monotonic() < until:
        gc.collect()


def die(exit_code: int, words: str) -> None:
    """End this process as a crash does: no farewell to anybody. Exit code 0 stands for a signal."""
    say(words, wrong=True)
    if exit_code:
        os._exit(exit_code)
    os.kill(os.getpid(), signal.SIGKILL)


def say(words: str, *, wrong: bool = False) -> None:
    """Write a line to the job's log; what went `wrong` goes where a launcher looks for the reason."""
    stream = sys.stderr if wrong else sys.stdout
    stream.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    stream.flush()
