"""The training thread's side: what a step costs is spent here, so there are few calls, and each only appends or subtracts.

One thread writes (the one that steps), one reads (the reporter). They share a deque and single attributes, whose
operations the interpreter makes atomic; there is no lock that training could wait for.
"""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from collections import deque
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter, time
from typing import Any

from paceline.phases import HALVES_OF_COMPUTE, phase_word

MAX_ROWS = 20_000
"""Rows kept while nobody takes them (a stuck reporter): below 10 MiB with a dozen metrics."""
MAX_FACTS = 1_000
"""Events and checkpoints kept while nobody takes them."""
MAX_METRICS = 48
"""Names a rank may use: a run takes 64, and other ranks may bring their own."""
MAX_NAME = 63
NO_NAME = re.compile(r"[^A-Za-z0-9_./:-]")
"""What a metric's name can't hold; it becomes an underscore."""
STEP_S, GC_S, COMPUTE_S, DATA_S = 0, 1, 2, 3
"""Slots every row has."""

Values = list["float | None"]
Row = tuple[int, float, Values]
"""A step of this rank, or a late addition to one: its number, when it ended, values by slot (None where there is none)."""


@dataclass(frozen=True)
class Beat:
    """Where this rank is now."""

    step: int | None
    phase: str
    phase_age_s: float


class Recorder:
    """Holds what was measured until the reporter takes it; never blocks, never grows past its bounds."""

    __slots__ = (
        "_gc_began", "_naming", "began", "data_before", "facts", "gc_at_begin", "gc_s", "idle_word", "last_step",
        "last_step_s", "lost_facts", "lost_rows", "lost_values", "names", "outer", "phase", "rows", "since", "slots",
        "step", "thread", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.thread = get_ident()
        self.names: list[str] = ["step_s", "gc_s", "compute_s", "data_s"]
        self.slots: dict[str, int] = {name: slot for slot, name in enumerate(self.names)}
        self.rows: deque[Row] = deque()
        self.facts: deque[tuple[str, dict[str, Any]]] = deque()
        self.lost_rows = 0
        self.lost_facts = 0
        self.lost_values = 0
        self.last_step: int | None = None
        self.last_step_s = 0.0
        self.step: int | None = None
        self.values: Values = []
        self.began = 0.0
        self.idle_word = "startup"
        # `since` is written before `phase` and read after it: a reader may see an old phase with a new time, never an
        # old time with a new phase, so that an age is never too large.
        self.phase: Phase | None = None
        self.since = perf_counter()
        self.outer: list[Phase] = []
        self.data_before = 0.0
        self.gc_s = 0.0
        self.gc_at_begin = 0.0
        self._gc_began = 0.0
        self._naming = threading.Lock()

    @property
    def current_step(self) -> int | None:
        """The step under way, else the last one."""
        return self.step if self.step is not None else self.last_step

    def end(self, word: str) -> None:
        """Measure no more; `word` is the phase from now on."""
        self.thread = -1
        self.idle_word, self.since, self.phase = word, perf_counter(), None

    # -- values ----------------------------------------------------------------------------------------------------
    def slot(self, name: str) -> int | None:
        """Return the slot of a metric, made on first use; None when there are too many."""
        found = self.slots.get(name)
        if found is not None:
            return found
        with self._naming:  # once per name; two threads that name a metric at the same moment must not share a slot
            word = NO_NAME.sub("_", name if name[:1].isalpha() else f"_{name}")[:MAX_NAME]
            if word not in self.names:
                if len(self.names) >= MAX_METRICS:
                    self.lost_values += 1
                    return None
                self.names.append(word)
            return self.slots.setdefault(name, self.names.index(word))

    def set_now(self, found: dict[int, float]) -> None:
        """Put values by slot to the step under way, else to the last one; for the training thread."""
        if self.step is not None:
            _put(self.values, found)
            return
        step = self.last_step
        if step is None:
            self.lost_values += len(found)
            return
        rows = self.rows
        try:
            row = rows.pop()  # taking the row back from the queue's end makes it ours alone
        except IndexError:
            row = (step, time(), [])  # the reporter was quicker
        if row[0] != step:
            rows.append(row)
            row = (step, time(), [])
        _put(row[2], found)
        rows.append(row)

    def set_late(self, step: int, slot: int, value: float) -> None:
        """Put a value to an earlier step as a row of its own; callable from any thread."""
        values: Values = [None] * slot
        values.append(value)
        self.append((step, time(), values))

    def add(self, phase: Phase, took: float) -> None:
        """Count a phase's time to its step."""
        if phase.slot is None:
            return
        if self.step is not None:
            _add(self.values, phase.slot, took)
            if phase.half:
                _add(self.values, COMPUTE_S, took)
        elif phase.word == "data":
            self.data_before += took  # a batch fetched between steps belongs to the step that uses it
        elif self.last_step is not None:
            self.set_now({phase.slot: took})  # a save or an evaluation, to the step before it

    def append(self, row: Row) -> None:
        if len(self.rows) >= MAX_ROWS:
            self.lost_rows += 1
            return
        self.rows.append(row)

    def fact(self, kind: str, fields: dict[str, Any]) -> None:
        """Keep an event or a checkpoint; callable from any thread."""
        if len(self.facts) >= MAX_FACTS:
            self.lost_facts += 1
            return
        self.facts.append((kind, fields))

    def lost(self) -> dict[str, int]:
        """Return what was lost since the start, by reason."""
        counts = {
            "steps nobody took in time": self.lost_rows,
            "events too many": self.lost_facts,
            "values that are no numbers or have no step": self.lost_values,
        }
        return {reason: n for reason, n in counts.items() if n}

    # -- the reporter's side ---------------------------------------------------------------------------------------
    def take_rows(self, limit: int) -> list[Row]:
        """Return the oldest rows, at most `limit`."""
        return _take(self.rows, limit)

    def take_facts(self, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the oldest events and checkpoints, at most `limit`."""
        return _take(self.facts, limit)

    def beat(self) -> Beat:
        """Return where the rank is now: its last completed step, its phase and since when."""
        phase, step, last = self.phase, self.step, self.last_step
        since = self.since
        if step is not None and last is None:
            word = "first_step"
        elif phase is not None:
            word = phase.word
        else:
            word = self.idle_word
        return Beat(last, word, max(perf_counter() - since, 0.0))

    # -- garbage collection ----------------------------------------------------------------------------------------
    def on_gc(self, phase: str, _info: dict[str, int]) -> None:
        """Sum the interpreter's collections; they stop every thread, whichever started one."""
        if phase == "start":
            self._gc_began = perf_counter()
        elif self._gc_began:
            self.gc_s += perf_counter() - self._gc_began
            self._gc_began = 0.0

    def watch_gc(self) -> None:
        gc.callbacks.append(self.on_gc)

    def unwatch_gc(self) -> None:
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self.on_gc)


class Phase:
    """What `with pace.phase(name)` enters; one object per name, used again and again.

    Time is exclusive: what an inner phase takes is not the outer one's. In another thread than the training's it is idle.
    Without a slot it only shows in beats: its time is measured by other means.
    """

    __slots__ = ("half", "recorder", "slot", "word")

    def __init__(self, recorder: Recorder, name: str, slot: int | None) -> None:
        self.recorder = recorder
        self.slot = slot
        self.word = phase_word(name)
        self.half = name in HALVES_OF_COMPUTE

    def __enter__(self) -> None:
        recorder = self.recorder
        if get_ident() != recorder.thread:
            return
        now = perf_counter()
        outer = recorder.phase
        if outer is not None:
            recorder.add(outer, now - recorder.since)
            recorder.outer.append(outer)
        recorder.since = now
        recorder.phase = self

    def __exit__(self, *_exc: object) -> None:
        recorder = self.recorder
        if recorder.phase is not self or get_ident() != recorder.thread:
            return
        now = perf_counter()
        took = now - recorder.since
        values, slot = recorder.values, self.slot
        if slot is None or recorder.step is None or self.half or slot >= len(values):
            recorder.add(self, took)
        else:
            values[slot] = took + (values[slot] or 0.0)
        recorder.since = now
        recorder.phase = recorder.outer.pop() if recorder.outer else None


class Step:
    """What `with pace.step(n)` enters; the one object of its recorder."""

    __slots__ = ("number", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.number = 0

    def __enter__(self) -> None:
        recorder = self.recorder
        recorder.values = [None] * len(recorder.names)
        recorder.step = self.number
        recorder.gc_at_begin = recorder.gc_s
        recorder.idle_word = "unknown"
        if recorder.outer:
            recorder.outer.clear()
        recorder.began = recorder.since = perf_counter()
        recorder.phase = None

    def __exit__(self, kind: object, *_exc: object) -> None:
        now = perf_counter()
        recorder = self.recorder
        step, recorder.step = recorder.step, None
        recorder.since = now
        recorder.phase = None
        if step is None or kind is not None:
            return  # a step left by an exception has not been completed
        values = recorder.values
        took = now - recorder.began
        if recorder.data_before:
            took += recorder.data_before
            _add(values, DATA_S, recorder.data_before)
            recorder.data_before = 0.0
        values[STEP_S] = recorder.last_step_s = took
        values[GC_S] = recorder.gc_s - recorder.gc_at_begin
        recorder.last_step = step
        rows = recorder.rows
        if len(rows) < MAX_ROWS:
            rows.append((step, time(), values))
        else:
            recorder.lost_rows += 1


def _put(values: Values, found: dict[int, float]) -> None:
    """Set values by slot; the list grows with the names."""
    for slot, value in found.items():
        if slot >= len(values):
            values.extend([None] * (slot + 1 - len(values)))
        values[slot] = value


def _add(values: Values, slot: int, value: float) -> None:
    if slot >= len(values):
        values.extend([None] * (slot + 1 - len(values)))
    values[slot] = value + (values[slot] or 0.0)


def _take(held: deque[Any], limit: int) -> list[Any]:
    taken: list[Any] = []
    with contextlib.suppress(IndexError):
        while len(taken) < limit:
            taken.append(held.popleft())
    return taken
