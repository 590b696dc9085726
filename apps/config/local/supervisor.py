"""Keeping programs alive: starts them, starts a dead one again with growing pauses, stops all and leaves none behind."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from apps.config.local.problems import NO_SPACE_WORDS, ServerFailed, disk_full, last_words
from apps.config.local.programs import Program, program_start, program_stop, session_kill
from apps.config.local.rotation import logs_rotate
from apps.config.local.voice import Voice
from apps.config.local.watch import StopAsked, Watch, reap_adopted

ROTATE_EVERY_S = 10.0
STEP_S = 0.05
"""How long a wait sleeps before it looks again; a signal wakes it earlier."""

FAILURES_AT_START = 3
"""A program that ends so often before it was ever ready will not come up by trying again."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses before a dead child is started again: doubling from `first_s` to `limit_s`; `stable_s` alive forgives."""

    first_s: float = 0.25
    limit_s: float = 15.0
    stable_s: float = 20.0

    def pause_s(self, failures: int) -> float:
        """Return the pause after the `failures`-th end in a row, in seconds.

        >>> [Backoff().pause_s(n) for n in (1, 2, 3, 9)]
        [0.25, 0.5, 1.0, 15.0]
        """
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, 30))


@dataclass(slots=True)
class Job:
    """A program that runs to its end beside the others, and whom to tell how it ended."""

    program: Program
    process: subprocess.Popen[bytes]
    tell: Callable[[int], None]


@dataclass(slots=True)
class Child:
    """One program and how it fares."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    started_at_s: float = 0.0
    due_at_s: float = 0.0
    failures: int = 0

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Tends the children in one thread. Every wait goes through `pause`, which keeps tending them meanwhile."""

    def __init__(self, *, watch: Watch, voice: Voice, logs: Path, backoff: Backoff | None = None) -> None:
        self.watch, self.voice, self.logs = watch, voice, logs
        self.backoff = backoff or Backoff()
        self.children: list[Child] = []
        self.jobs: list[Job] = []
        self.rotated_at_s = time.monotonic()

    def add(self, program: Program) -> Child:
        """Start `program` and tend it from now on."""
        child = Child(program)
        self.children.append(child)
        self.launch(child)
        return child

    def launch(self, child: Child) -> None:
        """Start the child's program; a start that the system refuses counts as an end."""
        child.started_at_s = time.monotonic()
        try:
            child.process = program_start(child.program)
        except OSError as error:
            child.process = None
            self.put_off(child, f"could not be started: {error.strerror or error}.")

    def begin(self, program: Program, tell: Callable[[int], None]) -> None:
        """Run `program` to its end in the background, then `tell` its exit status."""
        self.jobs.append(Job(program, program_start(program), tell))

    def run(self, program: Program, *, limit_s: float, stopping: bool = False) -> int | None:
        """Run `program` to its end and return its exit status, None when `limit_s` was not enough.

        Raises: StopAsked. While `stopping`, only a further request cuts it short, and then it is None too.
        """
        deadline_s, requests = time.monotonic() + limit_s, self.watch.requests if stopping else 0
        process = program_start(program)
        try:
            while process.poll() is None and time.monotonic() < deadline_s:
                self.tend({process.pid})
                self.watch.sleep(STEP_S)
                if self.watch.requests > requests:
                    break
        finally:
            ended = process.poll()
            program_stop(process, program)
        if ended is None and not stopping and self.watch.requests:
            raise StopAsked
        return ended

    def await_ready(self, child: Child, *, limit_s: float) -> None:
        """Wait until `child` is ready, restarts included.

        Raises: ServerFailed, DiskFull when it is not within `limit_s` or ends again and again; StopAsked.
        """
        deadline_s = time.monotonic() + limit_s
        while not (child.alive and child.program.ready()):
            if child.failures >= FAILURES_AT_START or time.monotonic() > deadline_s:
                raise self.failure(child)
            self.pause(STEP_S)
        child.failures = 0

    def failure(self, child: Child) -> Exception:
        """Return why `child` did not come up, as its log tells it."""
        log = child.program.log
        if says_disk_full(log):
            return disk_full(child.program.folder)
        words = last_words(log) or "none"
        return ServerFailed(f"{child.program.name} did not start. Its last words: {words} (whole log: {log}).")

    def pause(self, seconds: float) -> None:
        """Tend the children, then wait `seconds` or until a signal comes.

        Raises: StopAsked once somebody asked to stop.
        """
        self.tend()
        self.rest(seconds)

    def rest(self, seconds: float) -> None:
        """Wait `seconds` or until a signal comes, without looking at any child.

        Raises: StopAsked once somebody asked to stop.
        """
        self.watch.sleep(seconds)
        if self.watch.requests:
            raise StopAsked

    def serve(self) -> None:
        """Tend the children until somebody asks to stop."""
        with suppress(StopAsked):
            while True:
                self.tend()
                self.rest(self.next_due_s())

    def next_due_s(self) -> float:
        """Return in how many seconds there is something to do, signals apart."""
        now_s = time.monotonic()
        dues = [child.due_at_s - now_s for child in self.children if child.process is None]
        return max(STEP_S, min([ROTATE_EVERY_S, *dues]))

    def tend(self, others: Iterable[int] = ()) -> None:
        """Do what is due: notice who has ended, start again whose pause is over, keep the logs small.

        `others`: pids of further children whose exit status somebody waits for.
        """
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self.ended(child, child.process.returncode)
            elif child.process is None and time.monotonic() >= child.due_at_s:
                self.launch(child)
                if child.process is not None:
                    self.voice.say(child.program.name, f"started again (pid {child.process.pid}).")
        for job in [job for job in self.jobs if job.process.poll() is not None]:
            self.jobs.remove(job)
            job.tell(job.process.returncode)
        mine = {child.process.pid for child in self.children if child.process}
        reap_adopted(mine.union(others, (job.process.pid for job in self.jobs)))
        if time.monotonic() - self.rotated_at_s > ROTATE_EVERY_S:
            self.rotated_at_s = time.monotonic()
            with suppress(OSError):
                logs_rotate(self.logs)

    def ended(self, child: Child, status: int) -> None:
        """Note that a child ended by itself, and when to start it again."""
        if child.process is not None:
            session_kill(child.process.pid)  # what it had started must not run beside its successor
        child.process = None
        if time.monotonic() - child.started_at_s > self.backoff.stable_s:
            child.failures = 0
        self.put_off(child, end_sentence(status, child.program.log))

    def put_off(self, child: Child, what: str) -> None:
        """Plan the next start of a child and say so."""
        child.failures += 1
        pause_s = self.backoff.pause_s(child.failures)
        child.due_at_s = time.monotonic() + pause_s
        self.voice.say(child.program.name, f"{what} Starting it again in {pause_s:g} s.")

    def stop(self) -> None:
        """Stop every child, the last tier first, and kill what is left of their sessions."""
        for job in self.jobs:
            program_stop(job.process, job.program)
        self.jobs.clear()
        for tier in sorted({child.program.tier for child in self.children}, reverse=True):
            self.stop_tier([child for child in self.children if child.program.tier == tier])
        reap_adopted(set())

    def stop_tier(self, children: list[Child]) -> None:
        """Ask `children` to end, all at once; kill those that outstay their grace.

        A second request to stop cuts the grace of all but the lowest tier: a database that is killed has to recover.
        """
        began_s, requests = time.monotonic(), max(1, self.watch.requests)
        for child in children:
            if child.alive and child.process:
                child.process.send_signal(child.program.stop_signal)
        while left := [child for child in children if child.alive]:
            for child in left:
                hurry = child.program.tier > 0 and self.watch.requests > requests
                if child.process and (hurry or time.monotonic() - began_s > child.program.stop_grace_s):
                    self.voice.say(child.program.name, "did not stop in time and was killed.")
                    child.process.send_signal(signal.SIGKILL)
                    child.process.wait()
            self.watch.sleep(STEP_S)
        for child in children:
            if child.process is not None:
                session_kill(child.process.pid)
            child.process = None


def end_sentence(status: int, log: Path) -> str:
    """Return how a process ended, for people, with its own last words where it had any."""
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    if says_disk_full(log):
        return f"{how}: the disk that holds {log.parent} is full."
    words = last_words(log)
    return f"{how}. Last words: {words[:200]}" if status > 0 and words else f"{how}."


def says_disk_full(log: Path) -> bool:
    """Return whether the end of `log` speaks of a full disk."""
    return any(sign in last_words(log, lines=20) for sign in NO_SPACE_WORDS)
