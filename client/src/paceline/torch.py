"""Thin integration with PyTorch: the optimizer's time, the collectives' time, and phases timed on the device.

    from paceline.torch import DevicePhases, watch_collectives, watch_optimizer

    pace = paceline.start()
    watch_optimizer(pace, optimizer)
    watch_collectives(pace)
    phase = DevicePhases(pace)                       # on a CPU the same as pace.phase
    with pace.step(step):
        with phase("compute"): loss = ...

A kernel is only queued when Python goes on, so a wall clock around `loss.backward()` measures the queueing. `DevicePhases`
puts events into the stream and reads them when the device has passed them; it never waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import torch
import torch.distributed

from paceline.pace import Pace

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "recv",
    "scatter",
    "send",
)
MAX_OPEN = 512
"""Phases whose events the device has not passed yet; what is more is not measured."""


class Mark(Protocol):
    """A point in a device's stream."""

    def passed(self) -> bool: ...

    def seconds_since(self, earlier: Any) -> float: ...


class CudaMark:
    """A point in the current CUDA stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def passed(self) -> bool:
        return bool(self._event.query())

    def seconds_since(self, earlier: CudaMark) -> float:
        return float(earlier._event.elapsed_time(self._event)) / 1000.0


@dataclass(frozen=True)
class _Open:
    step: int
    name: str
    began: Mark
    ended: Mark


class DevicePhases:
    """Phases timed on the device: `phase = DevicePhases(pace)`, then `with phase("compute"):`.

    The time arrives with a later step, as a late value of its own. Nested phases are not subtracted from each other.
    """

    def __init__(self, pace: Pace, *, mark: Callable[[], Mark] | None = None) -> None:
        self._pace = pace
        self._mark = mark if mark is not None else (CudaMark if torch.cuda.is_available() else None)
        self._open: deque[_Open] = deque()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Measure a phase; on a CPU this is `pace.phase(name)`."""
        if self._mark is None or not self._pace.active:
            return self._pace.phase(name)
        return self._timed(name, self._mark)

    def read(self) -> None:
        """Log what the device has passed by now; called by itself with each phase."""
        while self._open and self._open[0].ended.passed():
            done = self._open.popleft()
            self._pace.log({f"{done.name}_s": done.ended.seconds_since(done.began)}, step=done.step)

    @contextmanager
    def _timed(self, name: str, mark: Callable[[], Mark]) -> Iterator[None]:
        self.read()
        step = self._pace.current_step
        began = mark()
        with self._pace.shown(name):
            yield
        if step is not None and len(self._open) < MAX_OPEN:
            self._open.append(_Open(step, name, began, mark()))


def watch_optimizer(pace: Pace, optimizer: torch.optim.Optimizer) -> None:
    """Measure every `optimizer.step()` as the phase `optimizer`."""
    phase = pace.phase("optimizer")
    optimizer.register_step_pre_hook(lambda *_: phase.__enter__())
    optimizer.register_step_post_hook(lambda *_: phase.__exit__(None, None, None))


def watch_collectives(pace: Pace) -> Callable[[], None]:
    """Measure torch.distributed's collectives as the phase `communication`; return what undoes it.

    An asynchronous call is measured where it is waited for. Collectives that a wrapper (DDP, FSDP) starts from C++ are not
    seen here: their waiting is in the backward pass.
    """
    originals = {name: getattr(torch.distributed, name) for name in COLLECTIVES if hasattr(torch.distributed, name)}
    for name, original in originals.items():
        setattr(torch.distributed, name, _watched(pace, original))

    def undo() -> None:
        for name, original in originals.items():
            setattr(torch.distributed, name, original)

    return undo


def _watched(pace: Pace, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        with pace.phase("communication"):
            work = original(*arguments, **named)
        return _WatchedWork(pace, work) if hasattr(work, "wait") else work

    return call


class _WatchedWork:
    """An asynchronous collective whose waiting is measured; everything else is the original's."""

    def __init__(self, pace: Pace, work: Any) -> None:
        self._pace = pace
        self._work = work

    def wait(self, *arguments: Any, **named: Any) -> Any:
        with self._pace.phase("communication"):
            return self._work.wait(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
