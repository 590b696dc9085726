"""Running Slurm's programs: never through a shell, never for longer than allowed, never more output than fits.

What goes wrong is told apart by what it means for whoever asked: refused is for good; unavailable means that the
controller heard nothing; uncertain that it may have heard a call which changes something.
"""

import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from apps.engine.readers.slurm import SlurmJob, SlurmNode, accounting_read, jobs_read, nodes_read
from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain
from apps.remediation.selectors.schedulers import SchedulerRow

READ_S = 5.0
"""A controller with thousands of jobs answers within a second; a busy one may take a few."""

CHANGE_S = 15.0
"""Longer than Slurm's own MessageTimeout (10 s), so that its sentence comes before our axe."""

BUDGET_S = 45.0
"""All calls of one order together: below the time after which whoever has it in hand counts as dead."""

MOST_OUTPUT = 64 * 1024 * 1024
MOST_ERROR = 65_536

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Source: slurm_errno.c and what 22.05 printed when its controller was killed, stopped, or not yet up.
_NOT_HEARD = re.compile(
    r"unable to contact slurm controller|connect failure|connection refused|no route to host|"
    r"unable to resolve|name or service not known|could not resolve|unable to establish|"
    r"controller not responding|no slurmctld|in standby mode|temporarily unable to accept",
    re.IGNORECASE,
)
_PERHAPS_HEARD = re.compile(
    r"socket timed out|zero bytes|connection reset|broken pipe|transport endpoint|unexpected message|"
    r"communication|connection timed out|time limit exceeded for response",
    re.IGNORECASE,
)
ENDED_ALREADY = re.compile(r"already completing or completed|invalid job id|job has already finished", re.IGNORECASE)
"""What is said of a job that is over: whoever wants it stopped has what they want."""

_NO_SUCH_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_NO_SUCH_NODE = re.compile(r"node \S+ not found", re.IGNORECASE)


ONE_BY_ONE = 3
"""So many jobs are asked for by number; one listing of all is cheaper from there on, for Slurm as well."""

LISTING_S = 15.0
"""A listing of ten thousands of jobs takes some seconds."""

MOST_ACCOUNTED = 500
"""Jobs in one question to the accounting: a list of numbers that fits into a command line many times over."""


_NO_ACCOUNTING = re.compile(r"accounting storage is disabled|accounting_storage/none", re.IGNORECASE)


class ProgramMissing(LaunchUnavailable):
    """A program that is not installed where Paceline looks for it."""


class ListingTooLarge(LaunchUnavailable):
    """A program printed more than is read of it."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a program printed and its exit status."""

    status: int
    output: bytes
    error: str

    @property
    def text(self) -> str:
        """Return the output as text, bytes that are none replaced."""
        return self.output.decode("utf-8", "replace")


class SlurmCli:
    """Slurm's programs as one cluster's settings name them. One object serves one order: its calls share a budget.

    Everything is asked with `--all`: what stands in a hidden partition, or in one of other groups, is there all the same.

    `has_changed`: a call of this order changed something that stands, so that a later failure leaves nothing as it was.
    """

    def __init__(self, where: SchedulerRow, *, budget_s: float = BUDGET_S) -> None:
        self._where = where
        self._end = time.monotonic() + budget_s
        self.has_changed = False

    def jobs(self, *job_ids: int) -> dict[int, SlurmJob]:
        """Return jobs by number; those that the controller does not know (any more) are left out.

        More than a few are read from one listing of all jobs: hundreds of runs cost one call. A listing that is larger than
        may be read is asked for job by job.
        """
        if len(set(job_ids)) > ONE_BY_ONE:
            try:
                said = self.ask("scontrol", "--all", "show", "job", limit_s=LISTING_S)
                wanted = set(job_ids)
                return {job.id: job for job in jobs_read(said.text, zone=UTC).jobs if job.id in wanted}
            except ListingTooLarge:
                pass
        found: dict[int, SlurmJob] = {}
        for job_id in job_ids:
            said = self.ask("scontrol", "--all", "show", "job", str(job_id), may_fail=_NO_SUCH_JOB)
            found |= {job.id: job for job in jobs_read(said.text, zone=UTC).jobs if job.id == job_id}
        return found

    def job(self, job_id: int) -> SlurmJob | None:
        """Return a job, None if the controller does not know it (any more)."""
        return self.jobs(job_id).get(job_id)

    def jobs_named(self, name: str) -> list[SlurmJob]:
        """Return the jobs of a name that the controller knows, ended ones included, by number."""
        said = self.ask("squeue", "--noheader", "--all", "--states=all", f"--name={name}", "--format=%A")
        numbers = sorted({int(word) for word in said.text.split() if word.isdecimal()})
        return sorted(self.jobs(*numbers).values(), key=lambda job: job.id)

    def nodes(self, *names: str) -> dict[str, SlurmNode]:
        """Return nodes by name, all of them if none is named; unknown ones are left out."""
        words = ["--all", "show", "node", *([",".join(names)] if names else [])]
        listed = self.ask("scontrol", *words, may_fail=_NO_SUCH_NODE)
        return {node.name: node for node in nodes_read(listed.text, zone=UTC).nodes}

    def node_names(self) -> set[str]:
        """Return the names of all nodes as Slurm spells them, those of no partition included."""
        return set(self.nodes())

    def accounted_named(self, name: str, *, since: datetime) -> int | None:
        """Return a job of a name that has run since a moment, from the accounting; None where there is none or no accounting.

        Raises: LaunchUnavailable. An accounting that does not answer says nothing about what has run.
        """
        begin = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        words = ("--noheader", "--parsable2", "--allocations", f"--name={name}", f"--starttime={begin}")
        said = self._accounting(*words, "--format=JobIDRaw,NodeList")
        rows = [line.split("|") for line in said.text.splitlines()]
        ran = [row[0] for row in rows if len(row) == 2 and row[0].isdecimal() and row[1] not in ("", "None assigned")]
        return int(ran[0]) if ran else None

    def accounted(self, *job_ids: int) -> dict[int, list[SlurmJob]]:
        """Return every start of jobs that the accounting knows, by number, oldest first; none where there is no accounting.

        A job about which it did not answer is left out.
        """
        columns = "JobIDRaw,State,ExitCode,Start,End,Submit,NodeList"
        known: dict[int, list[SlurmJob]] = {}
        wanted = sorted(set(job_ids))
        for at in range(0, len(wanted), MOST_ACCOUNTED):
            some = wanted[at : at + MOST_ACCOUNTED]
            words = ("--parsable2", "--duplicates", "--allocations", f"--jobs={','.join(map(str, some))}")
            try:
                said = self._accounting(*words, f"--format={columns}")
            except LaunchUnavailable:
                break
            known |= {job_id: [] for job_id in some}
            for job in accounting_read(said.output, zone=UTC).jobs:
                if job.id in known and not job.step:
                    known[job.id].append(job)
        return known

    def _accounting(self, *words: str) -> Said:
        """Ask the accounting. Where there is none it knows nothing; one that does not answer, or not well, is unavailable."""
        try:
            return self.ask("sacct", *words)
        except ProgramMissing:
            return Said(0, b"", "")
        except LaunchRefused as error:
            if _NO_ACCOUNTING.search(error.message):
                return Said(0, b"", "")
            raise LaunchUnavailable(error.message) from error

    def ask(
        self, program: str, *words: str, may_fail: re.Pattern[str] | None = None, limit_s: float | None = None
    ) -> Said:
        """Run a program that changes nothing.

        Raises: LaunchUnavailable, LaunchRefused. A failure that says what `may_fail` matches is an answer.
        """
        try:
            said = self._run(program, words, limit_s=READ_S if limit_s is None else limit_s)
        except _TooLong as error:
            raise LaunchUnavailable(f"{program} did not answer within {error.args[0]:.0f} s") from error
        if said.status == 0 or (may_fail is not None and may_fail.search(said.error + said.text)):
            return said
        sentence = _sentence(said)
        if _NOT_HEARD.search(sentence) or _PERHAPS_HEARD.search(sentence):
            raise LaunchUnavailable(f"Slurm's controller does not answer: {sentence}")
        raise LaunchRefused(f"{program}: {sentence}")

    def change(
        self,
        program: str,
        *words: str,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
        already: re.Pattern[str] | None = None,
    ) -> Said:
        """Run a program that changes something. A failure that says what `already` matches is no failure.

        Raises: LaunchRefused, LaunchUnavailable, LaunchUncertain.
        """
        try:
            said = self._run(program, words, limit_s=CHANGE_S, stdin=stdin, environment=environment)
        except _TooLong as error:
            raise LaunchUncertain(f"{program} did not come back within {error.args[0]:.0f} s") from error
        sentence = _sentence(said)
        if said.status == 0 or (already is not None and already.search(sentence)):
            self.has_changed = True
            return said
        if _PERHAPS_HEARD.search(sentence):
            raise LaunchUncertain(f"Slurm's controller did not answer: {sentence}")
        if _NOT_HEARD.search(sentence):
            raise LaunchUnavailable(f"Slurm's controller does not answer: {sentence}")
        raise LaunchRefused(f"Slurm refuses: {sentence}")

    def _run(
        self,
        program: str,
        words: Sequence[str],
        *,
        limit_s: float,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Said:
        limit_s = min(limit_s, self._end - time.monotonic())
        if limit_s <= 0:
            raise LaunchUnavailable("Slurm was too slow: the time for this order is used up")
        path = os.path.join(self._where.programs, program) if self._where.programs else program
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode())
            given.seek(0)
            try:
                child = subprocess.Popen(
                    [path, *words],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    env=self._environment(program, environment or {}),
                    start_new_session=True,
                )
            except OSError as error:
                kind = ProgramMissing if isinstance(error, FileNotFoundError) else LaunchUnavailable
                raise kind(f"{path} cannot be started: {error.strerror or error}") from error
        with child:
            try:
                return _collect(child, limit_s)
            except BaseException:
                # Not collected yet, so that the group is still this child's.
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                raise

    def _environment(self, program: str, more: Mapping[str, str]) -> dict[str, str]:
        own = {"PATH": SEARCH_PATH, "LC_ALL": "C"}
        if self._where.conf:
            own["SLURM_CONF"] = self._where.conf
        if program != "sbatch":
            # Slurm's programs write times in their own zone: UTC, and with the offset where the version can.
            own |= {"TZ": "UTC", "SLURM_TIME_FORMAT": "%Y-%m-%dT%H:%M:%S%z"}
        return {**more, **own} if program != "sbatch" else {**own, **more}


class _TooLong(Exception):
    """A program was killed because it took longer than this many seconds."""


def _collect(child: subprocess.Popen[bytes], limit_s: float) -> Said:
    """Read what a child prints until it ends; too long or too much ends it."""
    end = time.monotonic() + limit_s
    parts: dict[str, bytearray] = {"output": bytearray(), "error": bytearray()}
    assert child.stdout is not None
    assert child.stderr is not None
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ, "output")
        ready.register(child.stderr, selectors.EVENT_READ, "error")
        while ready.get_map():
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise _TooLong(limit_s)
            for key, _ in ready.select(left_s):
                data = os.read(key.fd, 65_536)
                if not data:
                    ready.unregister(key.fileobj)
                parts[key.data] += data
            del parts["error"][MOST_ERROR:]
            if len(parts["output"]) > MOST_OUTPUT:
                raise ListingTooLarge(f"a listing of Slurm is larger than {MOST_OUTPUT // 2**20} MiB")
    try:
        status = child.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise _TooLong(limit_s) from error
    return Said(status, bytes(parts["output"]), parts["error"].decode("utf-8", "replace"))


def _sentence(said: Said) -> str:
    """Return what a program complained about, as one line."""
    lines = [line.strip() for line in (said.error or said.text).splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))[:500] or f"exit status {said.status}"
