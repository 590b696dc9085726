"""Waiting in the supervisor's one thread: for a moment to pass, a child to end or a person to say stop."""

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans among our descendants become our children instead of init's, so that none is lost from sight."""

SAME_REQUEST_S = 0.5
"""`make` hands a signal on that its whole process group got already: two so close together are one request."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopAsked(Exception):
    """Somebody asked the supervisor to stop."""


class Watch:
    """Counts requests to stop, and wakes a wait when a signal comes."""

    def __init__(self) -> None:
        self.requests = 0
        self.asked_at_s = float("-inf")
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def on_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Take note of a request; the wait that it interrupts acts on it."""
        if time.monotonic() - self.asked_at_s > SAME_REQUEST_S:
            self.requests += 1
        self.asked_at_s = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait until a signal comes, `seconds` at most."""
        ready, _, _ = select.select([self.reader], [], [], max(0.0, seconds))
        if ready:
            with suppress(BlockingIOError):
                while os.read(self.reader, 512):
                    pass

    @contextmanager
    def installed(self) -> Iterator["Watch"]:
        """Listen to signals while the block runs; one that the caller had ignored (`nohup`) stays ignored."""
        before: dict[signal.Signals, Any] = {}
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                handler = self.on_stop if number in STOP_SIGNALS else lambda *_: None
                before[number] = signal.signal(number, handler)
        wakeup = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self.reader)
            os.close(self.writer)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_adopted(known: set[int]) -> None:
    """Clear away ended children other than the `known` ones, whose exit status somebody still wants."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in known:
                return  # one of the known hides others behind it until it is read; the next call sees them
            os.waitpid(ended.si_pid, 0)
