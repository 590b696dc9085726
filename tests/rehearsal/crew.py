"""Ranks as threads of one process, with a client that only notes what it is told."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apps.rehearsal.trainer.faults import Fault, Place, Placement, fault_make, faults_write
from apps.rehearsal.trainer.model import State
from apps.rehearsal.trainer.options import Options, options_read
from apps.rehearsal.trainer.rank import Seat, Trainer
from apps.rehearsal.trainer.stopping import Stop, Stopped

KEY = b"k" * 16


def wait_until(true: Callable[[], bool], *, within_s: float = 30) -> None:
    """Look again and again until `true`; a test whose condition never comes fails."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


class NotingPace:
    """Has the client's surface; keeps phases entered per step, values logged and checkpoints told."""

    def __init__(self) -> None:
        self.phases: list[tuple[int | None, str]] = []
        self.values: dict[int, dict[str, float]] = {}
        self.checkpoints: list[dict[str, Any]] = []
        self.steps_done: list[int] = []
        self._step: int | None = None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        self._step = step
        yield
        self.steps_done.append(step)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append((self._step, name))
        yield

    def log(self, **values: float) -> None:
        assert self._step is not None
        self.values[self._step] = values

    def checkpoint(self, **fields: Any) -> None:
        self.checkpoints.append(fields)

    def told(self, state: str) -> list[dict[str, Any]]:
        return [fields for fields in self.checkpoints if fields["state"] == state]


class ThreadCrew:
    """An attempt whose ranks are threads, so that a test can look inside."""

    def __init__(self, folder: Path, *, nodes: str = "a,b", first_step: int = 0, attempt: str = "try-1", **more: Any):
        arguments = ["--directory", str(folder), "--nodes", nodes, "--ranks-per-node", "2", "--step-s", "0"]
        for name, value in more.items():
            arguments += [f"--{name.replace('_', '-')}", str(value)]
        self.options: Options = options_read(arguments, {"PACELINE_ATTEMPT_KEY": attempt})
        size = self.options.world_size
        names = self.options.nodes
        self.placement = Placement(attempt, 1, first_step, tuple(Place(r, names[r // 2], r % 2) for r in range(size)))
        self.paces = [NotingPace() for _ in range(size)]
        self.stops = [Stop() for _ in range(size)]
        self.states: list[State | None] = [None] * size
        self.loads: list[float] = [0.0] * size
        self._ring = folder / f"ring-{attempt}"
        self._ring.mkdir()
        self._threads = [
            threading.Thread(target=self._run, args=(place,), daemon=True) for place in self.placement.ranks
        ]

    def fault(self, kind: str, **target: Any) -> Fault:
        fault = fault_make(self.placement, kind=kind, **{"rank": None, "node": None, "value": None, **target})
        faults_write(self.options.directory, (fault,))
        return fault

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> list[State]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert None not in self.states
        return [state for state in self.states if state is not None]

    def run(self) -> list[State]:
        self.start()
        return self.join()

    def _run(self, place: Place) -> None:
        seat = Seat(place.rank, place.node, place.local_rank, self.placement.resumed_from_step, self._ring, KEY)
        trainer = Trainer(
            self.options,
            seat,
            pace=self.paces[place.rank],
            stop=self.stops[place.rank],
            note_load=lambda share: self.loads.__setitem__(place.rank, share),
        )
        try:
            self.states[place.rank] = trainer.run()
        except Stopped:
            self.states[place.rank] = None
