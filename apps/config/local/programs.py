"""A program the supervisor can start, as data, and the two ways to run one: as a child, or to its end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from apps.config.local.userns import SAME, child_command

POLL_S = 0.02
"""How often a short wait looks again."""

KILL_LIMIT_S = 5.0
"""A killed process can linger in an unfinished disk operation; nobody waits for it longer than this."""


def always_ready() -> bool:
    """Return True: a program that needs no readiness check is ready as soon as it runs."""
    return True


def nothing_to_do() -> None:
    """Do nothing before a start."""


@dataclass(frozen=True, slots=True)
class Program:
    """One long-lived child: what to start, how to tell that it is ready, how to stop it, how long that may take."""

    name: str
    command: tuple[str, ...]
    log: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    identity: str = SAME
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0
    ready: Callable[[], bool] = always_ready
    before_start: Callable[[], None] = nothing_to_do
    keep_fds: tuple[int, ...] = ()
    tier: int = 0
    """Programs of a higher tier need those of a lower one, and are stopped before them."""


def program_start(program: Program) -> subprocess.Popen[bytes]:
    """Start `program` in a session of its own, its words appended to its log; it dies when this process does.

    Call it from the main thread: the kernel ties a child's life to the thread that made it.
    """
    program.before_start()
    program.log.parent.mkdir(parents=True, exist_ok=True)
    command = child_command(list(program.command), signal_number=program.stop_signal, identity=program.identity)
    with program.log.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=program.folder,
            env={**os.environ, **program.environment},
            start_new_session=True,
            pass_fds=program.keep_fds,
        )


def program_stop(child: subprocess.Popen[bytes], program: Program) -> None:
    """Stop `child` the way `program` likes it; after its grace, kill it and its whole session."""
    if child.poll() is None:
        child.send_signal(program.stop_signal)
        try:
            child.wait(program.stop_grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    session_kill(child.pid)


def session_kill(session_id: int) -> None:
    """Kill what is left of a child's session, until nothing is. Programs that made a session of their own are not in it.

    Do it as soon as the session's leader has ended: a session's number is free for others once its last member is gone.
    """
    deadline_s = time.monotonic() + KILL_LIMIT_S
    while (pids := session_members(session_id)) and time.monotonic() < deadline_s:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def session_members(session_id: int) -> list[int]:
    """Return the pids of all live processes of session `session_id`, ascending."""
    return [pid for pid, sid, state in process_table() if sid == session_id and state not in "ZX"]


def process_table() -> list[tuple[int, int, str]]:
    """Return (pid, session, state letter) of every process that can be seen, by pid."""
    rows = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                # The name in parentheses may hold spaces and parentheses itself: read behind the last one.
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        rows.append((int(entry), int(fields[3]), fields[0]))
    return sorted(rows)


def program_run(program: Program, *, pause: Callable[[float], None] = time.sleep) -> int:
    """Run `program` to its end and return its exit status; `pause` waits a moment and may raise to give up."""
    child = program_start(program)
    try:
        while child.poll() is None:
            pause(POLL_S)
    finally:
        program_stop(child, program)
    return child.returncode


def program_await(
    child: subprocess.Popen[bytes], program: Program, *, limit_s: float, pause: Callable[[float], None] = time.sleep
) -> bool:
    """Return whether `child` became ready before it ended and within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while child.poll() is None and time.monotonic() < deadline:
        if program.ready():
            return True
        pause(POLL_S)
    return False
