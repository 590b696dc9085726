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
