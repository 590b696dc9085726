"""The parent of a program that the local launcher starts. It outlives Paceline and answers for how the program ends.

Run as a script by an interpreter without site packages: `wrapper.py FOLDER TRY`, the order as JSON on standard input
(`command`, `directory`, `environment`, `stop_grace_s`, `limits`); nothing of it is written to disk, since the environment
holds a token. It detaches, answers one line of JSON, and stays. In FOLDER it leaves, each written whole or not at all:

`begun-TRY`     made exclusively before anything else: whoever makes it first decides whether this try may begin
`lock`          held as long as it lives
`started.json`  who it is: boot, pid namespace, pid and start time, before the program starts; then the program's pid
`refused.json`  why the program could not be started
`exit.json`     how the program ended, once no descendant of it is left
`stdout.log`, `stderr.log`  what it said: the newest part, at most `output_mib` each on disk
"""

import ctypes
import fcntl
import json
import os
import re
import resource
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
OUTPUT_LOOK_S = 2.0
"""How often the size of what a program says is looked at: it may write past its limit for so long."""

PUNCH_HOLE = 0x02 | 0x01
"""fallocate(2): give the blocks of a part of a file back, keep its size. Who reads the end or appends notices nothing."""

BLOCK = 4096
OUTPUT_MIB = 64
"""Default of what is kept of each of the two outputs."""

OUTPUTS = ("stdout.log", "stderr.log")

OOM_SCORE = 500
"""Where memory runs out, the kernel shall rather end what was launched than a database or this wrapper."""

KILLED = re.compile(r"Killed process (\d+) \(([^)]*)\)")
MIB = 1024 * 1024
LIMITS = {
    "memory_mib": (resource.RLIMIT_DATA, MIB),
    "open_files": (resource.RLIMIT_NOFILE, 1),
    "core_mib": (resource.RLIMIT_CORE, MIB),
}
"""Limits of each process by name: which one of setrlimit(2), in which unit."""

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


def output_cut(path: str, most_bytes: int) -> bool:
    """Give the older half of a file's blocks back once it has more than `most_bytes` on disk; return whether it was so.

    The program goes on writing at the end, whatever happens here: nothing it says meanwhile is lost. A file system that
    cannot do that (some network ones) gets the file emptied but for a copy of its end, and what is said in that instant is.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return False
    try:
        state = os.fstat(handle)
        if state.st_blocks * 512 <= most_bytes:
            return False
        upto = (state.st_size - most_bytes // 2) // BLOCK * BLOCK
        libc = ctypes.CDLL(None, use_errno=True)
        if upto > 0 and libc.fallocate(handle, PUNCH_HOLE, ctypes.c_longlong(0), ctypes.c_longlong(upto)) != 0:
            end = os.pread(handle, most_bytes // 2, state.st_size - most_bytes // 2)
            os.ftruncate(handle, 0)
            os.write(handle, end)
        return True
    finally:
        os.close(handle)


def oom_kills() -> int:
    """Return how often this machine's kernel has ended a process for want of memory, 0 where it does not say."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def oom_victims(since_us: int) -> list[tuple[int, str]]:
    """Return pid and name of what the kernel says it ended for want of memory since that microsecond of this boot.

    Nothing where its log may not be read.
    """
    found: list[tuple[int, str]] = []
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return found
    try:
        while True:
            head, _, text = os.read(handle, 16_384).decode("utf-8", "replace").partition(";")
            named = KILLED.search(text)
            if named and int(head.split(",")[2]) >= since_us:
                found.append((int(named[1]), named[2]))
    except (OSError, ValueError, IndexError):
        return found  # its end, or a record that was overwritten meanwhile
    finally:
        os.close(handle)


def limits_refused(limits: dict[str, int]) -> str:
    """Return the sentence why these limits cannot be set here, or nothing."""
    for name, (which, unit) in LIMITS.items():
        hard = resource.getrlimit(which)[1]
        if name in limits and hard != resource.RLIM_INFINITY and limits[name] * unit > hard and os.geteuid() != 0:
            return f"launcher.limits.{name}: {limits[name]:,} is more than this machine allows ({hard // unit:,})"
    return ""


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
        self.limits: dict[str, int] = order.get("limits") or {}
        self.most_output = int(self.limits.get("output_mib", OUTPUT_MIB)) * MIB
        self.looked_at = time.monotonic()
        self.kills_before, self.began_us = oom_kills(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    def start(self) -> str | None:
        """Start the program; return the sentence why it could not be, or None."""
        if refused := limits_refused(self.limits):
            file_write(os.path.join(self.folder, "refused.json"), {"error": refused})
            return refused
        file_write(self.started_path, self.identity)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with self._output(OUTPUTS[0]) as out, self._output(OUTPUTS[1]) as err:
                child = subprocess.Popen(
                    self.order["command"],
                    cwd=self.order["directory"] or None,
                    env=self.order["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    process_group=0,
                    preexec_fn=self._become,
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
            waits = POLL_S if self.deadline is not None or self.ended is not None else OUTPUT_LOOK_S
            heard = signal.sigtimedwait(SIGNALS, waits)
            self._outputs_cut()
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
                "oom": self._oom_words(status, number),
            },
        )

    def _oom_words(self, status: int, number: int | None) -> str:
        """Return what the kernel's want of memory has to do with this end, or nothing."""
        kills = oom_kills() - self.kills_before
        if kills <= 0 or self.killed or (status == 0 and number is None):
            return ""
        victims = oom_victims(self.began_us)
        if any(pid == self.pid for pid, _ in victims):
            return "the kernel ended it for want of memory"
        if victims:
            named = ", ".join(f"{name} (pid {pid})" for pid, name in victims[-3:])
            return f"meanwhile the kernel ended {named} for want of memory"
        return (
            f"meanwhile the kernel ended {kills} process{'es' if kills > 1 else ''} of this machine for want of memory"
        )

    def _outputs_cut(self) -> None:
        if time.monotonic() - self.looked_at < OUTPUT_LOOK_S:
            return
        self.looked_at = time.monotonic()
        for name in OUTPUTS:
            try:
                output_cut(os.path.join(self.folder, name), self.most_output)
            except OSError:
                continue  # a full disk is no reason to leave a program alone; it is looked at again

    def _become(self) -> None:
        """Between fork and exec: what the program shall be, and this process is not."""
        _signals_as_usual()
        for name, (which, unit) in LIMITS.items():
            if name in self.limits:
                bound = self.limits[name] * unit
                resource.setrlimit(which, (bound, bound))  # the hard one too: a program cannot take it back
        if self.limits.get("nice"):
            os.nice(self.limits["nice"])
        try:
            with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
                if int(file.read()) < OOM_SCORE:
                    file.write(str(OOM_SCORE))
        except (OSError, ValueError):
            pass  # a kernel that does not let it: the program runs all the same

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
