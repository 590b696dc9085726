"""Stacks of a process whose interpreter is held: no Python runs there, so the C library's watchdog writes them to a file.

Asked for by PACELINE_HELD_STACKS=1, because a process has only one such watchdog: a program that uses
`faulthandler.dump_traceback_later` itself would lose its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os

HELD_AFTER_S = 4.0
"""Shorter than the time after which the node's sender says that the process is silent: then the stacks are there."""
MAX_TEXT = 16_000


class HeldWatch:
    """Armed at each tick of the reporter; it fires when the ticks stop."""

    def __init__(self, file: str) -> None:
        self._path = file
        self._file = open(file, "w+b", buffering=0)  # noqa: SIM115  # held open: the watchdog writes to it by number

    def arm(self) -> None:
        """Start the watchdog anew."""
        faulthandler.dump_traceback_later(HELD_AFTER_S, file=self._file)

    def news(self) -> str | None:
        """Return what the watchdog wrote since the last call."""
        text = held_text(self._path)
        if text:
            self._file.seek(0)
            self._file.truncate()
        return text

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def held_file(folder: str, process: str) -> str:
    return os.path.join(folder, f"{process}.held")


def held_text(file: str) -> str | None:
    """Return the stacks in a watchdog's file, None if there are none."""
    try:
        with open(file, encoding="utf-8", errors="replace") as found:
            return found.read(MAX_TEXT) or None
    except OSError:
        return None
