"""This process's own Python stacks, shown when a phase lasts too long; bounded in size and in number."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque

from paceline.phases import phase_limit_s
from paceline.recorder import Recorder

MAX_FRAMES = 40
MAX_THREADS = 12
MAX_TEXT = 16_000
MAX_SHOWN = 20
"""Stacks of one process in its life: after that they say nothing new."""
MAX_IN_A_ROW = 3


def stacks_text(first_thread: int) -> str:
    """Return the stacks of this process's threads, the training thread's first, innermost frame last; at most 16 kB."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    order = sorted(frames, key=lambda ident: (ident != first_thread, ident))
    parts = []
    for ident in order:
        name = names.get(ident, "unnamed")
        if name.startswith("paceline-"):
            continue
        stack = traceback.format_list(traceback.extract_stack(frames[ident])[-MAX_FRAMES:])
        parts.append(f"thread {name}\n{''.join(stack)}")
    return "\n".join(parts[:MAX_THREADS])[:MAX_TEXT]


class StackWatch:
    """Decides when to show the stacks: past the phase's limit, and again at twice and four times of it."""

    def __init__(self, recorder: Recorder, *, limit_s: float) -> None:
        self._recorder = recorder
        self._limit_s = limit_s
        self._recent: deque[float] = deque(maxlen=32)
        self._last_step: int | None = None
        self._since = 0.0
        self._in_a_row = 0
        self._shown = 0

    def check(self) -> str | None:
        """Return what to tell if the phase under way has lasted too long since it was last told."""
        beat = self._recorder.beat()
        if beat.step != self._last_step:
            self._last_step = beat.step
            self._recent.append(self._recorder.last_step_s)
        began = self._recorder.since
        if began != self._since:
            self._since, self._in_a_row = began, 0
        usual_s = max(self._recent, default=0.0)
        limit_s = phase_limit_s(beat.phase, limit_s=self._limit_s, usual_step_s=usual_s) * 2**self._in_a_row
        if beat.phase_age_s < limit_s or self._in_a_row >= MAX_IN_A_ROW or self._shown >= MAX_SHOWN:
            return None
        self._in_a_row += 1
        self._shown += 1
        where = f"in {beat.phase} for {beat.phase_age_s:.0f} s, last step {beat.step}"
        return f"{where}\n{stacks_text(self._recorder.thread)}"
