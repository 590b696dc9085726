"""The parent of a program that the local launcher starts. It outlives Paceline and answers for how the program ends.

Run as a script by an interpreter without site packages: `wrapper.py FOLDER TRY`, the order as JSON on standard input
(`command`, `directory`, `environment`, `stop_grace_s`); nothing of it is written to disk, since the environment holds a
token. It detaches, answers one line of JSON, and stays. In FOLDER it leaves, each written whole or not at all:

`begun-TRY`     made exclusively before anything else: whoever makes it first decides whether this try may begin
`lock`          held as long as it lives
`started.json`  who it is: boot, pid namespace, pid and start time, before the program starts; then the program's pid
`refused.json`  why the program could not be started
`exit.json`     how the program ended, once no descendant of it is left
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans among the descendants become children of this process, so that none is lost from sight."""

LEFTOVER_S = 5.0
"""What descendants get to leave once the program itself has ended."""

POLL_S = 0.05
SIGNALS = (signal.SIGCHLD, signal.SIGTERM)


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def pid_namespace() -> str:
    """Return the name of the namespace in which pids are meant."""
    return os.readlink("/proc/self/ns/pid")


def process_read(pid: int) -> tuple[str, int, int, int] | None:
    """Return (state letter, parent, session, start time in ticks since boot) of a process, None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may hold spaces and parentheses itself: read behind the last one.
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1]), int(fields[3]), int(fields[19])


def own_start_ticks() -> int:
    """Return this process's own start time in ticks since boot."""
    row = process_read(os.getpid())
    assert row is not None
    return row[3]


def pids_all() -> list[int]:
    """Return the pids of all processes in sight."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(of_pid: int) -> list[tuple[int, int]]:
    """Return (pid, start time) of every living descendant of a process."""
    rows = {pid: row for pid in pids_all() if (row := process_read(pid))}
    family, grown = {of_pid}, True
    while grown:
        more = {pid for pid, row in rows.items() if row[1] in family} - family
        grown = bool(more)
        family |= more
    return [(pid, rows[pid][3]) for pid in sorted(family - {of_pid}) if rows[pid][0] not in "ZX"]


def signal_exactly(pid: int, start_ticks: int, number: int) -> bool:
    """Send a signal to the process of this pid and this start time; return False if it is gone. Never hits another."""
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        # The handle is on one process for good; whether it is the right one is looked up after taking it.
        row = process_read(pid)
        if row is None or row[3] != start_ticks or row[0] in "ZX":
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def file_write(path: str, content: dict[str, Any]) -> None:
    """Write JSON so that a reader sees all of it or nothing, also after a crash."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)


def lock_taken(folder: str) -> int | None:
    """Return a handle that holds the folder's lock, or None if another wrapper lives."""
    handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


class Wrapper:
    """One program, from its start to the end of its last descendant."""

    def __init__(self, folder: str, order: dict[str, Any]) -> None:
        self.folder, self.order = folder, order
        self.started_path = os.path.join(folder, "started.json")
        self.identity = {
            "boot_id": boot_id(),
            "pid_namespace": pid_namespace(),
            "pid": os.getpid(),
            "start_ticks": own_start_ticks(),
            "started_at": time.time(),
        }
        self.pid = 0
        self.ended: tuple[int, float] | None = None
        self.deadline: float | None = None
        self.asked = self.killed = False

    def start(self) -> str | None:
        """Start the program; return the sentence why it could not be, or None."""
        file_write(self.started_path, self.identity)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with self._output("stdout.log") as out, self._output("stderr.log") as err:
                child = subprocess.Popen(
                    self.order["command"],
                    cwd=self.order["directory"] or None,
                    env=self.order["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    process_group=0,
                    preexec_fn=_signals_as_usual,
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            sentence = f"{self.order['command'][0]}: {getattr(error, 'strerror', None) or error}"
            file_write(os.path.join(self.folder, "refused.json"), {"error": sentence})
            os.unlink(self.started_path)
            return sentence
        child.returncode = 0  # this process collects its children itself
        self.pid = child.pid
        file_write(self.started_path, {**self.identity, "program_pid": child.pid})
        return None

    def tend(self) -> None:
        """Wait for the end of the program and of all its descendants, pass a request to stop on, and write it down."""
        while True:
            waits = POLL_S if self.deadline is not None or self.ended is not None else 3600.0
            heard = signal.sigtimedwait(SIGNALS, waits)
            if heard is not None and heard.si_signo == signal.SIGTERM:
                self._ask()
            self._collect()
            if self.ended is not None and not self._leftovers():
                return
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self.killed = True
                self._signal_all(signal.SIGKILL)

    def write_end(self) -> None:
        """Write down how it ended."""
        assert self.ended is not None
        status, ended_at = self.ended
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        file_write(
            os.path.join(self.folder, "exit.json"),
            {
                "status": None if number is not None else os.WEXITSTATUS(status),
                "signal": number,
                "ended_at": ended_at,
                "asked": self.asked,
                "killed": self.killed,
            },
        )

    def _ask(self) -> None:
        if self.asked:
            return
        self.asked = True
        self.deadline = time.monotonic() + float(self.order["stop_grace_s"])
        if self.ended is None:
            os.killpg(self.pid, signal.SIGTERM)  # not collected yet, so this group is still the program's

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.ended = (status, time.time())

    def _leftovers(self) -> list[tuple[int, int]]:
        left = descendants(os.getpid())
        if left and self.deadline is None:
            self.deadline = time.monotonic() + min(LEFTOVER_S, float(self.order["stop_grace_s"]))
            self._signal_all(signal.SIGTERM)
        return left

    def _signal_all(self, number: int) -> None:
        for pid, start_ticks in descendants(os.getpid()):
            signal_exactly(pid, start_ticks, number)

    def _output(self, name: str) -> BinaryIO:
        handle = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(handle, "wb")


def _signals_as_usual() -> None:
    """Give the program the signals a login shell would: nothing blocked, nothing ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def run(folder: str, try_number: int, order: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Begin this try if it may, say how that went through `tell`, and stay until the end."""
    try:
        os.close(os.open(os.path.join(folder, f"begun-{try_number}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        tell({"state": "FENCED"})
        return
    lock = lock_taken(folder)
    if lock is None or os.path.exists(os.path.join(folder, "started.json")):
        tell({"state": "STARTED"})  # by an earlier try
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    wrapper = Wrapper(folder, order)
    if error := wrapper.start():
        tell({"state": "REFUSED", "error": error})
        return
    tell({"state": "STARTED"})
    wrapper.tend()
    wrapper.write_end()


def detach(folder: str) -> None:
    """Leave the caller's session and its open files; what this process itself has to say goes to a file."""
    os.setsid()
    os.chdir("/")
    log = os.open(os.path.join(folder, "wrapper.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)


def main(arguments: list[str]) -> None:
    """Fork, let the child be the wrapper, and pass its first word on."""
    folder, try_number = arguments
    order = json.load(sys.stdin)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as answers:
            sys.stdout.write(answers.read().decode())
        return
    os.close(reader)
    detach(folder)

    def tell(answer: dict[str, Any]) -> None:
        os.write(writer, json.dumps(answer).encode())
        os.close(writer)

    run(folder, int(try_number), order, tell)


if __name__ == "__main__":
    main(sys.argv[1:])
