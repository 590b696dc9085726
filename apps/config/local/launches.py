"""Training runs that the local launcher started. They outlive Paceline; whoever stops it is told which go on."""

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WRAPPER = "wrapper.py"
"""The launcher's script that stays as the parent of a run; its first argument is the launch's folder."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One run that goes on: its pid, how it was called, and the wrapper that answers for it."""

    pid: int
    command: str
    wrapper_pid: int

    def stop(self) -> None:
        """Ask the wrapper to end the run, with the grace it was launched with."""
        with suppress(ProcessLookupError):
            os.kill(self.wrapper_pid, signal.SIGTERM)


def launches_alive(root: Path) -> list[Launch]:
    """Return the runs that were launched from the data folder `root` and still run, by pid."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        words = command_words(int(entry.name))
        folders = [word for before, word in pairwise(words) if before.endswith(f"/{WRAPPER}")]
        if folders and Path(folders[0]).is_relative_to(root):
            pid = program_pid(Path(folders[0])) or int(entry.name)
            found.append(Launch(pid, " ".join(command_words(pid)) or "unknown", int(entry.name)))
    return sorted(found, key=lambda launch: launch.pid)


def practice_alive(root: Path) -> list[Launch]:
    """Return what still runs of the practice run of the data folder `root`."""
    return [launch for launch in launches_alive(root) if f"{root / 'practice'}" in launch.command.split()]


def command_words(pid: int) -> list[str]:
    """Return the command line of a process; nothing where it is gone or hidden."""
    try:
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if word]
    except OSError:
        return []


def program_pid(launch: Path) -> int | None:
    """Return the pid of the program itself, as its wrapper wrote it down."""
    with suppress(OSError, ValueError, KeyError):
        return int(json.loads((launch / "started.json").read_text("utf-8"))["program_pid"])
    return None
