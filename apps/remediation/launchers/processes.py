"""Knowing a process again: by boot, pid namespace, pid and start time together, never by a pid alone."""

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


def process_signal(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; return False if it is gone or out of sight."""
    if process_look(process) != Seen.ALIVE:
        return False
    return wrapper.signal_exactly(process.pid, process.start_ticks, number)


def orphans_of(process: Process, *, mark: str) -> list[Process]:
    """Return what a wrapper that was killed left running: processes with `mark` in their environment.

    `mark` is a text `NAME=value` that only this launch was given; children inherit it unless a program takes it away.
    """
    if process_look(process) == Seen.HIDDEN or process.boot_id != wrapper.boot_id():
        return []
    found = []
    for pid in wrapper.pids_all():
        row = wrapper.process_read(pid)
        if row is None or row[0] in "ZX" or pid == process.pid or row[3] < process.start_ticks:
            continue
        if _has_mark(pid, mark):
            found.append(Process(process.boot_id, process.pid_namespace, pid, row[3]))
    return found


def _has_mark(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.encode() in file.read().split(b"\0")
    except (OSError, ProcessLookupError):
        return False
