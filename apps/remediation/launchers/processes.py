"""Knowing a process again: by boot, pid namespace, pid and start time together, never by a pid alone."""

import os
from dataclasses import dataclass
from enum import StrEnum

from apps.remediation.launchers import wrapper


class Seen(StrEnum):
    """What a look for a process found."""

    ALIVE = "ALIVE"
    GONE = "GONE"
    HIDDEN = "HIDDEN"
    """It belongs to another pid namespace of this boot: from here nothing can be said."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one boot."""

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int


def process_look(process: Process) -> Seen:
    """Return whether a process still runs; one of an earlier boot does not."""
    if process.boot_id != wrapper.boot_id():
        return Seen.GONE
    if process.pid_namespace != wrapper.pid_namespace():
        return Seen.HIDDEN
    row = wrapper.process_read(process.pid)
    alive = row is not None and row[3] == process.start_ticks and row[0] not in "ZX"
    return Seen.ALIVE if alive else Seen.GONE


def process_own() -> Process:
    """Return this process itself."""
    return Process(wrapper.boot_id(), wrapper.pid_namespace(), os.getpid(), wrapper.own_start_ticks())


def process_name(process: Process) -> str:
    """Return a process as one text, which `process_named` reads."""
    return f"{process.boot_id} {process.pid_namespace} {process.pid} {process.start_ticks}"


def process_named(name: str) -> Process | None:
    """Return the process that a text names, None if it names none.

    >>> process_named("b5e0 pid:[4026531836] 77 123456")
    Process(boot_id='b5e0', pid_namespace='pid:[4026531836]', pid=77, start_ticks=123456)
    """
    words = name.split(" ")
    if len(words) != 4 or not (words[2].isdecimal() and words[3].isdecimal()):
        return None
    return Process(words[0], words[1], int(words[2]), int(words[3]))


def process_died_here(name: str) -> bool:
    """Return whether a text names a process of this boot and in sight that is gone. Of other machines nothing is said."""
    process = process_named(name)
    return process is not None and process.boot_id == wrapper.boot_id() and process_look(process) == Seen.GONE


def process_signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; return False if it is gone or out of sight."""
    if process_look(process) != Seen.ALIVE:
        return False
    return wrapper.signal_exactly(process.pid, process.start_ticks, number)


def orphans_of(process: Process, *, mark: str) -> list[Process]:
    """Return what a wrapper that was killed left running: processes with `mark` in their environment.

    `mark` is a text `NAME=value` that only this launch was given; children inherit it unless a program takes it away.
    """
    return [
        Process(process.boot_id, process.pid_namespace, pid, row[3])
        for pid, row in _later_than(process)
        if _has_mark(pid, mark)
    ]


def is_all_gone(process: Process, *, mark: str) -> bool:
    """Return whether neither a wrapper nor anything it left behind runs any more.

    A process that is just being killed has lost its environment but not yet its session, which is the wrapper's.
    """
    if process_look(process) != Seen.GONE:
        return False
    # A pid is not given out again while it names a session: if it was, no one of the wrapper's session is left.
    leader = wrapper.process_read(process.pid)
    is_again = leader is not None and leader[3] != process.start_ticks
    return not any(
        _has_mark(pid, mark) or (row[2] == process.pid and not is_again) for pid, row in _later_than(process)
    )


def _later_than(process: Process) -> list[tuple[int, tuple[str, int, int, int]]]:
    """Return what lives of all that can have come from a wrapper; nothing if it is of another boot or out of sight."""
    if process.boot_id != wrapper.boot_id() or process.pid_namespace != wrapper.pid_namespace():
        return []
    rows = [(pid, wrapper.process_read(pid)) for pid in wrapper.pids_all() if pid != process.pid]
    return [(pid, row) for pid, row in rows if row is not None and row[0] not in "ZX" and row[3] >= process.start_ticks]


def _has_mark(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.encode() in file.read().split(b"\0")
    except (OSError, ProcessLookupError):
        return False
