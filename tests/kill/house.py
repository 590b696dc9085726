"""An installation as `make run` starts it, whose processes the kill tests kill by name."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from apps.config.local.binaries import valkey_program
from tests.marked import REPOSITORY, Marked
from tests.rest import rest_ask
from tests.slurm import Slurm

HERE = Path(__file__).parent
LONG_S = 180.0
"""A bound against waiting for ever; how fast things happen is measured elsewhere."""

NAMES = {
    "web": "-m apps.config.local.web ",
    "fold": "--queues=fold",
    "watch": "--queues=watch",
    "orders": "--queues=orders",
    "slow": "--queues=slow",
    "beat": "celery.beat:Scheduler",
    "valkey": valkey_program().name,
    "postgres": "/postgres -D",
    "supervisor": "-m apps.config.local ",
}


class House:
    """One installation and one receiver, over a folder of their own."""

    def __init__(self, marked: Marked, folder: Path) -> None:
        self.marked, self.folder = marked, folder
        self.data, self.runs = folder / "data", folder / "runs"
        self.runs.mkdir(parents=True, exist_ok=True)
        self.port, self.receiver_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = self.report_token = self.database_url = ""
        self.receiver: subprocess.Popen[bytes] | None = None
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.slurm: Slurm | None = None
        self._known: dict[str, int] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and make the tokens."""
        self.supervisor_start()
        scopes = [word for scope in ("admin", "operate", "read", "report") for word in ("--scope", scope)]
        self.token = self.manage("token_create", "--name", "kill", *scopes)
        self.report_token = self.manage("token_create", "--name", "receiver", "--scope", "report")
        self.receiver_start()

    def supervisor_start(self) -> None:
        """Start the installation and wait until it answers and all its processes are there."""
        self.supervisor = self.marked.start(
            sys.executable,
            "-m",
            "apps.config.local",
            PACELINE_DATA_DIR=str(self.data),
            PACELINE_BIND=f"127.0.0.1:{self.port}",
            PACELINE_PRACTICE="0",
            PACELINE_OPEN="0",
        )
        threading.Thread(target=drain, args=(self.supervisor, self.folder / "supervisor.log"), daemon=True).start()
        self.wait(lambda: self.is_whole() or self.gave_up(), "the installation to be up", 300)
        assert not self.gave_up(), self.last_words()
        self.database_url = dict(line.partition("=")[::2] for line in (self.data / "env").read_text().splitlines())[
            "DATABASE_URL"
        ]

    def slurm_start(self) -> None:
        """Start a real Slurm, and set it as the scheduler of the cluster `slurm`."""
        self.slurm = Slurm(self.folder / "slurm")
        self.slurm.start()
        self.insist("PUT", "runs/in-slurm", {"cluster": "slurm"})
        self.insist("PUT", "clusters/slurm/scheduler", {"conf": str(self.slurm.conf), "poll_s": 2})

    def foreign_submit(self, slug: str) -> None:
        """Submit a run's job as somebody other than Paceline does."""
        assert self.slurm is not None
        told = {
            "PACELINE_URL": self.url,
            "PACELINE_TOKEN": self.report_token,
            "PACELINE_RUN": slug,
            "PACELINE_ATTEMPT_KEY": "slurm:$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}",
        }
        lines = [f'export {name}="{value}"' for name, value in told.items()]
        program = [sys.executable, "-I", "-S", str(HERE / "program.py"), str(self.run_folder(slug))]
        self.slurm.submit("\n".join([*lines, f"exec {shlex.join(program)}"]), "--ntasks=1", "--requeue", name=slug)

    def receiver_start(self) -> None:
        program = str(HERE / "program.py")
        words = (str(self.receiver_port), str(self.runs), program, self.report_token, self.url)
        self.receiver = self.marked.start(sys.executable, "-I", "-S", str(HERE / "receiver.py"), *words)
        self.wait(lambda: listens(self.receiver_port), "the receiver to listen")

    def gave_up(self) -> bool:
        """Return whether the supervisor ended by itself."""
        return self.supervisor is not None and self.supervisor.poll() is not None

    def is_whole(self) -> bool:
        """Return whether every process is there and pages are served."""
        return all(self.pid(name) for name in NAMES) and (self.data / "env").exists() and answers(self.url)

    def pid(self, name: str) -> int:
        """Return the pid of a process, 0 while there is none."""
        known = self._known.get(name, 0)
        part = NAMES[name]
        if known and part in f"{command_of(known)} ":
            return known
        found = [p for p, line in self.marked.pids().items() if part in f"{line} " and "child.py" not in line]
        self._known[name] = max(found, key=ticks_of, default=0)  # one that is still leaving is the older one
        return self._known[name]

    def kill(self, name: str) -> None:
        """Kill a process of the installation; a supervisor that is killed takes all along, and somebody starts it anew."""
        pid = self.pid(name)
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if name == "supervisor" and self.supervisor is not None:
            self.supervisor.wait(30)
        self._known.pop(name, None)

    def receiver_kill(self) -> None:
        """Kill the receiver."""
        assert self.receiver is not None
        self.receiver.kill()
        self.receiver.wait()

    def mend(self) -> None:
        """Start again what nobody else does: a supervisor, the receiver."""
        assert self.supervisor is not None
        assert self.receiver is not None
        if self.receiver.poll() is not None:
            self.receiver_start()
        if self.slurm is not None and "slurmctld" not in self.slurm.children:
            self.slurm.controller_start()
        old = [self.pid("web"), self.pid("postgres")]
        if self.supervisor.poll() is not None or not self.pid("supervisor"):
            self.supervisor.wait(30)
            # Whoever has the port or the database's folder is waited for, as a person would; workers may still be leaving.
            self.wait(lambda: not any(map(command_of, old)), "web and postgres to follow the supervisor")
            self._known.clear()
            self.supervisor_start()

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Stop a process while the block runs, if it still lives afterwards."""
        pid = self.wait(lambda: self.pid(name), f"{name} to be there")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def slurm_kill(self) -> None:
        """Kill Slurm's controller once it has written down what it knows: what it forgets is no fault of ours.

        It writes within five seconds of a change; killed before, it would give a job's number out a second time.
        """
        assert self.slurm is not None
        self.slurm.saved()
        self.slurm.controller_signal(signal.SIGKILL)

    @contextmanager
    def slurm_paused(self) -> Iterator[None]:
        """Stop Slurm's controller while the block runs: whoever calls it waits."""
        assert self.slurm is not None
        self.slurm.controller_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if "slurmctld" in self.slurm.children:
                self.slurm.controller_signal(signal.SIGCONT)

    # -- reading and asking -------------------------------------------------------------------------------------------

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.database_url, autocommit=True, connect_timeout=10)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, as soon as the database answers."""

        def read() -> list[tuple[Any, ...]] | None:
            with suppress(psycopg.OperationalError), self.connect() as connection:
                return connection.execute(statement, values or None).fetchall()
            return None

        end = time.monotonic() + LONG_S
        while (rows := read()) is None:
            assert time.monotonic() < end, "the database does not come back"
            time.sleep(0.1)
        return rows

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and answer of a REST request; 0 where none came."""
        return rest_ask(self.url, self.token, method, path, body, **headers)

    def insist(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Ask again and again, as a careful client does with one Idempotency-Key, until there is an answer that counts."""

        def answer() -> tuple[int, Any] | None:
            found = self.ask(method, path, body, **headers)
            return found if found[0] not in (0, 429, 500, 502, 503, 504) else None

        status, found = self.wait(answer, f"an answer to {method} {path}", 180)
        assert status < 300, f"{method} {path}: {status} {found}"
        return found

    def manage(self, *words: str) -> str:
        """Run a command of the installation."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=REPOSITORY,
            env={**self.marked.inherited(), "PACELINE_DATA_DIR": str(self.data)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait(self, holds: Callable[[], Any], what: str, seconds: float = LONG_S, *, step_s: float = 0.02) -> Any:
        """Return what `holds()` gives once it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := holds():
                return found
            time.sleep(step_s)
        raise AssertionError(f"waited {seconds:g} s for {what}\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the ends of all logs."""
        logs = [*self.folder.glob("*.log"), *(self.data / "logs").glob("*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(logs))

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run_folder(self, slug: str) -> Path:
        return self.runs / slug

    def evidence(self, slug: str) -> list[list[str]]:
        """Return what the programs and the receiver wrote down about a run, oldest first."""
        path = self.run_folder(slug) / "evidence"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def alive(self, slug: str) -> list[str]:
        """Return the attempt keys of the programs of a run that live now."""
        begun = [words for words in self.evidence(slug) if words[0] in ("begun", "double")]
        return [words[1] for words in begun if ticks_of(int(words[2])) == int(words[3])]

    def programs_end(self) -> None:
        """Kill every program that was started."""
        for folder in self.runs.iterdir():
            for words in self.evidence(folder.name):
                if words[0] in ("begun", "double") and ticks_of(int(words[2])) == int(words[3]):
                    with suppress(ProcessLookupError):
                        os.kill(int(words[2]), signal.SIGKILL)

    def stop(self) -> None:
        """Stop everything at once."""
        self.programs_end()
        for process in (self.supervisor, self.receiver):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (self.supervisor, self.receiver):
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(60)
        if self.slurm is not None:
            self.slurm.stop()


def drain(process: subprocess.Popen[bytes], path: Path) -> None:
    """Keep what a process says, so that it never waits for a reader."""
    assert process.stdout is not None
    with path.open("ab", buffering=0) as log:
        while chunk := process.stdout.read(4096):
            log.write(chunk)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/sign-in", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def command_of(pid: int) -> str:
    """Return the command line of a process, nothing where there is none."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        return "" if state in "ZX" else Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").replace("\0", " ")
    except OSError:
        return ""


def ticks_of(pid: int) -> int:
    """Return when a living process started, in ticks since boot; 0 where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
