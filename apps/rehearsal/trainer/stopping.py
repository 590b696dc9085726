"""Stopping when asked to, and never outliving one's parent."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when the thread that made it ends."""

ASKED_TO_STOP = 128 + signal.SIGTERM
"""The exit status of a program that was told to stop and did: not success, or the run would count as finished."""


ANOTHER_FAILED = signal.SIGUSR1
"""How a parent tells its ranks to leave because one of them is dead."""


class Stopped(BaseException):
    """A signal to leave came. Not an `Exception`, so that nothing on the way takes it for an ordinary failure."""


class Stop:
    """Hears that it is time to leave. That interrupts only where this process waits; elsewhere `check` is called.

    `reason` is the word for the attempt's end: CANCELLED, or CRASHED where another rank has died.
    """

    def __init__(self) -> None:
        self.asked = False
        self.reason = "CANCELLED"
        self._waiting = False

    def listen(self) -> None:
        """Take the signals from now on; Ctrl-C is the parent's to hear, which tells its children by SIGTERM."""
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(ANOTHER_FAILED, self._hear)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def check(self) -> None:
        """Raise Stopped if a signal to leave came."""
        if self.asked:
            raise Stopped

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait: a signal to leave ends it at once."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False

    def sleep_until(self, moment: float) -> None:
        """Sleep until `moment` of the monotonic clock, or until asked to stop."""
        with self.waiting():
            if (left_s := moment - time.monotonic()) > 0:
                time.sleep(left_s)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == ANOTHER_FAILED and not self.asked:
            self.reason = "CRASHED"
        self.asked = True
        if self._waiting:
            raise Stopped


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies; end at once if that has happened already."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(ASKED_TO_STOP)
