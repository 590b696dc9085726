"""What the kernel says about another process of this machine: there or gone, stopped or waiting, and how it ended."""

from __future__ import annotations

import os
from dataclasses import dataclass

WORDS = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a disk or device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "I": "idle",
}


@dataclass(frozen=True)
class Process:
    """A process seen from outside: `state` is None if that can't be told here."""

    gone: bool
    state: str | None = None
    code: int | None = None
    signal: int | None = None


def process_look(pid: int) -> Process:
    """Return what is known about `pid`; a dead one that nobody has collected yet still tells how it ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except FileNotFoundError:
        return Process(gone=not _answers(pid))
    except ProcessLookupError:
        return Process(gone=True)
    except OSError:
        return Process(gone=not _answers(pid))
    state = fields[0].decode()
    if state not in "ZXx":
        return Process(gone=False, state=state)
    # The last field is the status the parent will collect (0 where we may not trace it, so 0 says nothing).
    status = int(fields[49]) if len(fields) > 49 else 0
    if status == 0:
        return Process(gone=True)
    signal = status & 0x7F
    return Process(gone=True, state=state, signal=signal or None, code=None if signal else status >> 8)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
