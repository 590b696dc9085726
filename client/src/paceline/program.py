"""What the long-running commands share: settings or a sentence, and an orderly end on SIGTERM and SIGINT."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

Settings = TypeVar("Settings")


def until_told(settings: Settings | str, run: Callable[[Settings, Callable[[float], bool]], int]) -> int:
    """Return the exit status of `run(settings, wait)`; `wait(seconds)` is true once the process is told to end.

    Settings that are a sentence say what is missing: it is printed, and the status is 2.
    """
    if isinstance(settings, str):
        print(f"paceline: {settings}", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return run(settings, stop.wait)
