"""The training thread's side: what a step costs is spent here, so everything is an append, a subtraction, a tuple.

One thread writes (the one that called `start`), one reads (the reporter). They share a deque and single attributes, whose
operations the interpreter makes atomic; there is no lock that training could wait for.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import deque
from dataclasses import dataclass
from time import perf_counter, time
from typing import Any

from paceline.phases import HALVES_OF_COMPUTE, phase_word

MAX_ROWS = 20_000
"""Rows kept while nobody takes them (a stuck reporter): below 10 MiB with a dozen metrics."""
MAX_FACTS = 1_000
"""Events and checkpoints kept while nobody takes them."""
MAX_METRICS = 48
"""Names a rank may use: a run takes 64, and other ranks may bring their own."""
MAX_NAME = 80
STEP_S, GC_S, COMPUTE_S, DATA_S = 0, 1, 2, 3
"""Slots every row has."""


class Row:
    """One step of this rank, or a late addition to one: values by slot, None where there is none."""

    __slots__ = ("ended_at", "step", "values")

    def __init__(self, step: int, ended_at: float, values: list[float | None]) -> None:
        self.step = step
        self.ended_at = ended_at
        self.values = values


@dataclass(frozen=True)
class Beat:
    """Where this rank is now."""

    step: int | None
    phase: str
    phase_age_s: float


class Recorder:
    """Holds what was measured until the reporter takes it; never blocks, never grows past its bounds."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.names: list[str] = ["step_s", "gc_s", "compute_s", "data_s"]
        self.slots: dict[str, int] = {name: slot for slot, name in enumerate(self.names)}
        self.rows: deque[Row] = deque()
        self.facts: deque[tuple[str, dict[str, Any]]] = deque()
        self.lost_rows = 0
        self.lost_facts = 0
        self.lost_values = 0
        self.last_step: int | None = None
        self.last_step_s = 0.0
        self.where: tuple[str, float] = ("startup", perf_counter())
        self._naming = threading.Lock()
        self._acc: list[float | None] = []
        self._stack: list[tuple[int, str, bool]] = []
        self._since = 0.0
        self._began = 0.0
        self._step: int | None = None
        self._data_before = 0.0
        self._gc_began = 0.0
        self._gc_s = 0.0
        self._gc_at_begin = 0.0

    # -- steps -----------------------------------------------------------------------------------------------------
    def step_begin(self, step: int) -> None:
        now = perf_counter()
        self._step = step
        self._acc = [None] * len(self.names)
        self._stack.clear()
        self._began = self._since = now
        self._gc_at_begin = self._gc_s
        self.where = ("first_step" if self.last_step is None else "unknown", now)

    def step_end(self, *, completed: bool) -> None:
        now = perf_counter()
        step, self._step = self._step, None
        self.where = ("unknown", now)
        self._stack.clear()
        if step is None or not completed:
            return
        before, self._data_before = self._data_before, 0.0
        values = self._acc
        values[STEP_S] = self.last_step_s = now - self._began + before
        values[GC_S] = self._gc_s - self._gc_at_begin
        if before:
            _add(values, DATA_S, before)
        self._append(Row(step, time(), values))
        self.last_step = step

    @property
    def current_step(self) -> int | None:
        """The step under way, else the last one."""
        return self._step if self._step is not None else self.last_step

    # -- phases: time is exclusive, what an inner phase takes is not the outer one's ------------------------------------
    def phase_begin(self, slot: int, word: str, half: bool) -> None:
        now = perf_counter()
        if self._stack:
            self._count(self._stack[-1], now - self._since)
        self._stack.append((slot, word, half))
        self._since = now
        self.where = (word if self.last_step is not None or self._step is None else "first_step", now)

    def phase_end(self) -> None:
        if not self._stack:
            return
        now = perf_counter()
        self._count(self._stack.pop(), now - self._since)
        self._since = now
        word = self._stack[-1][1] if self._stack else "unknown"
        self.where = (word if self.last_step is not None or self._step is None else "first_step", now)

    def _count(self, phase: tuple[int, str, bool], took: float) -> None:
        slot, word, half = phase
        if self._step is None:
            self._count_outside(slot, word, took)
            return
        _add(self._acc, slot, took)
        if half:
            _add(self._acc, COMPUTE_S, took)

    def _count_outside(self, slot: int, word: str, took: float) -> None:
        """Between steps: a batch fetched belongs to the step that uses it, a save or an evaluation to the one before."""
        if word == "data":
            self._data_before += took
        elif self.last_step is not None:
            self.set_last(slot, took)

    # -- values ----------------------------------------------------------------------------------------------------
    def slot(self, name: str) -> int | None:
        """Return the slot of a metric, made on first use; None when there are too many."""
        found = self.slots.get(name)
        if found is not None:
            return found
        with self._naming:  # once per name; two threads that name a metric at the same moment must not share a slot
            if len(self.names) >= MAX_METRICS or not 0 < len(name) <= MAX_NAME:
                self.lost_values += 1
                return None
            if name not in self.slots:
                self.names.append(name)
                self.slots[name] = len(self.names) - 1
            return self.slots[name]

    def set_now(self, slot: int, value: float) -> None:
        """Put a value to the step under way, else to the last one."""
        if self._step is None:
            self.set_last(slot, value)
            return
        _put(self._acc, slot, value)

    def set_last(self, slot: int, value: float) -> None:
        """Put a value to the step that ended last; taking the row back from the queue's end makes it ours alone."""
        step = self.last_step
        if step is None:
            self.lost_values += 1
            return
        try:
            row = self.rows.pop()
        except IndexError:
            row = Row(step, time(), [])
        if row.step != step:
            self.rows.append(row)
            row = Row(step, time(), [])
        _put(row.values, slot, value)
        self._append(row)

    def set_late(self, step: int, slot: int, value: float) -> None:
        """Put a value to an earlier step as a row of its own; callable from any thread."""
        values: list[float | None] = [None] * slot
        values.append(value)
        self._append(Row(step, time(), values))

    def fact(self, kind: str, fields: dict[str, Any]) -> None:
        """Keep an event or a checkpoint; callable from any thread."""
        if len(self.facts) >= MAX_FACTS:
            self.lost_facts += 1
            return
        self.facts.append((kind, fields))

    def _append(self, row: Row) -> None:
        if len(self.rows) >= MAX_ROWS:
            self.lost_rows += 1
            return
        self.rows.append(row)

    # -- the reporter's side ---------------------------------------------------------------------------------------
    def take_rows(self, limit: int) -> list[Row]:
        """Return the oldest rows, at most `limit`."""
        taken: list[Row] = []
        try:
            while len(taken) < limit:
                taken.append(self.rows.popleft())
        except IndexError:
            pass
        return taken

    def take_facts(self, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the oldest events and checkpoints, at most `limit`."""
        taken: list[tuple[str, dict[str, Any]]] = []
        try:
            while len(taken) < limit:
                taken.append(self.facts.popleft())
        except IndexError:
            pass
        return taken

    def beat(self) -> Beat:
        """Return where the rank is now: its last completed step, its phase and since when."""
        word, since = self.where
        return Beat(self.last_step, word, max(perf_counter() - since, 0.0))

    # -- garbage collection ----------------------------------------------------------------------------------------
    def on_gc(self, phase: str, _info: dict[str, int]) -> None:
        """Sum the interpreter's collections; they stop every thread, whichever started one."""
        if phase == "start":
            self._gc_began = perf_counter()
        elif self._gc_began:
            self._gc_s += perf_counter() - self._gc_began
            self._gc_began = 0.0

    def watch_gc(self) -> None:
        gc.callbacks.append(self.on_gc)

    def unwatch_gc(self) -> None:
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self.on_gc)


def _put(values: list[float | None], slot: int, value: float) -> None:
    if slot >= len(values):
        values.extend([None] * (slot + 1 - len(values)))
    values[slot] = value


def _add(values: list[float | None], slot: int, value: float) -> None:
    if slot >= len(values):
        values.extend([None] * (slot + 1 - len(values)))
    values[slot] = (values[slot] or 0.0) + value


class Phase:
    """What `with pace.phase(name)` enters; one object per name, used again and again."""

    __slots__ = ("_half", "_recorder", "_slot", "_word")

    def __init__(self, recorder: Recorder, name: str, slot: int) -> None:
        self._recorder = recorder
        self._slot = slot
        self._word = phase_word(name)
        self._half = name in HALVES_OF_COMPUTE

    def __enter__(self) -> None:
        self._recorder.phase_begin(self._slot, self._word, self._half)

    def __exit__(self, *_exc: object) -> None:
        self._recorder.phase_end()


class Step:
    """What `with pace.step(n)` enters; the one object of its recorder."""

    __slots__ = ("_recorder", "number")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.number = 0

    def __enter__(self) -> None:
        self._recorder.step_begin(self.number)

    def __exit__(self, kind: object, *_exc: object) -> None:
        self._recorder.step_end(completed=kind is None)
