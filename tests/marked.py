"""Processes that a test starts carry a mark in their environment, so that none can hide when it is over."""

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MARK = "PACELINE_TEST_MARK"
PATIENCE_S = 60.0
OUTPUT_PATIENCE_S = 300.0


def eventually(holds: Callable[[], object]) -> bool:
    """Return whether `holds` becomes true before patience ends."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.02)
    return False


@dataclass(frozen=True)
class ProcessRow:
    """What tells one live process from another."""

    parent: int
    start_ticks: int
    command: str


def process_row(pid: int) -> ProcessRow | None:
    """Return a process's row, None where there is none or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").replace("\0", " ").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else ProcessRow(int(fields[1]), int(fields[19]), command)


@dataclass
class Marked:
    """Starts processes under one mark and finds every descendant of them."""

    folder: Path
    hidden: tuple[str, ...] = ()
    """Variables of this test session that the processes must not see."""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    seen: dict[int, int] = field(default_factory=dict)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start `command` in a process group of its own, its output readable byte by byte."""
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd=REPOSITORY,
            env={**self.inherited(), "PYTHONPATH": str(REPOSITORY), MARK: self.mark, **environment},
        )

    def inherited(self) -> dict[str, str]:
        """Return this session's environment without what is hidden."""
        return {name: value for name, value in os.environ.items() if name not in self.hidden}

    def keeper(self, *programs: str) -> subprocess.Popen[bytes]:
        """Start a supervisor over `programs` (NAME:TIER:COMMAND)."""
        return self.start(sys.executable, "-m", "tests.config.local.keeper", str(self.folder), *programs)

    def pids(self) -> dict[int, str]:
        """Return pid and command line of every live process that carries the mark, or descends from one that did.

        Servers write their title over their own environment, and orphans lose their parent: whoever was seen once is
        known by pid and start time from then on.
        """
        table = {pid: row for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (row := process_row(pid))}
        family = {pid for pid in table if self.carries_mark(pid) or self.seen.get(pid) == table[pid].start_ticks}
        while more := {pid for pid, row in table.items() if row.parent in family} - family:
            family |= more
        self.seen = {pid: table[pid].start_ticks for pid in family}
        return {pid: table[pid].command for pid in sorted(family)}

    def carries_mark(self, pid: int) -> bool:
        """Return whether a process has this test's mark in its environment."""
        try:
            return f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def running(self, command: str) -> set[int]:
        """Return the pids under the mark whose whole command line is `command`."""
        return {pid for pid, line in self.pids().items() if line == command}

    def gone(self) -> bool:
        """Return whether nothing is left under the mark, soon."""
        return eventually(lambda: not self.pids())


@contextmanager
def marking(folder: Path, *, hidden: tuple[str, ...] = ()) -> Iterator[Marked]:
    """Start processes while the block runs; end what is left of them behind it."""
    found = Marked(folder, hidden)
    try:
        yield found
    finally:
        for pid in found.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def read_until(process: subprocess.Popen[bytes], words: str) -> str:
    """Return the output of `process` up to the line that holds `words`, or to its end; fail when neither comes."""
    assert process.stdout is not None
    output, deadline_s = b"", time.monotonic() + OUTPUT_PATIENCE_S
    while not (output.endswith(b"\n") and words.encode() in output.rsplit(b"\n", 2)[-2]):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, f"{words!r} was never said: {output.decode()}"
        byte = process.stdout.read(1)
        if not byte:
            break
        output += byte
    return output.decode()
