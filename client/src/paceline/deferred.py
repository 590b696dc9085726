"""Values that live on a device: read by a thread of their own, because reading one waits for the device.

In the training thread that wait would be a stall; in the reporter it would stop the beats in exactly the moment a device
hangs. Here it costs nothing but the value.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from paceline.recorder import Recorder

MAX_WAITING = 256


class DeferredReader:
    """Reads device values into late rows of the recorder; what doesn't fit is counted as lost."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: queue.Queue[tuple[int, int, Any]] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def put(self, step: int, slot: int, value: Any) -> None:
        """Take a value to be read later."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="paceline-values", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait((step, slot, value.detach()))
        except queue.Full:
            self._recorder.lost_values += 1

    def drain(self, timeout_s: float) -> None:
        """Wait until what was put is read, at most `timeout_s`."""
        if self._thread is None:
            return
        waiter = threading.Thread(target=self._waiting.join, daemon=True)
        waiter.start()
        waiter.join(timeout_s)

    def _run(self) -> None:
        while True:
            step, slot, value = self._waiting.get()
            try:
                self._recorder.set_late(step, slot, float(value))
            except Exception:  # whatever a foreign type raises: it is one value, and counted
                self._recorder.lost_values += 1
            del value
            self._waiting.task_done()
