"""A real Slurm on this machine for tests: munge, a controller and as many nodes as asked for, all in one folder.

`slurm` is one of a session, given clean to each test; `slurm_own` is one that a test may break. Where Slurm is not
installed such tests are skipped with a sentence, except in CI, which installs it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from apps.config.local import child

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch")
SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
TRAIN = "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"
FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Below the ports that the kernel gives out by itself."""


class Slurm:
    """One Slurm with nodes `node1`, `node2`, … of two cores each; everything it writes lies in `folder`."""

    def __init__(self, folder: Path, *, nodes: int = 4, limits: str = "", partitions: Sequence[str] = ()) -> None:
        self.folder = folder
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self.conf = folder / "slurm.conf"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = free_ports(nodes + 1)
        self._limits = limits
        self._partitions = partitions or (TRAIN,)
        self._made = False

    def start(self) -> None:
        """Start everything and wait until every node is idle."""
        self._make()
        self._munge_start()
        self.controller_start()
        for name in self.names:
            self.node_start(name)
        wait_for(lambda: self.idle() == set(self.names), "all nodes to be idle", 60)

    def stop(self) -> None:
        """End every process that was started here: jobs, then daemons."""
        if self.children.get("slurmctld") is not None and self.children["slurmctld"].poll() is None:
            os.kill(self.children["slurmctld"].pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run("scancel", f"--user={getpass.getuser()}", limit_s=5)
                wait_for(lambda: not self.queue(), "the jobs to end", 15, or_else=False)
        for name in sorted(self.children, key=("munged", "slurmctld").__contains__):
            self.end(name)
        for pid in self.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> list[int]:
        """Return what still runs of jobs whose node's daemon was killed: they have this Slurm's configuration in their environment."""
        mark, found = f"SLURM_CONF={self.conf}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one process of this Slurm; what does not go is killed."""
        child = self.children.pop(name, None)
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGCONT)
        child.send_signal(number)
        try:
            child.wait(8)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def controller_start(self) -> None:
        """Start the controller and wait until it answers."""
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        wait_for(lambda: self._run("scontrol", "ping", limit_s=3).returncode == 0, "the controller to answer", 30)

    def controller_signal(self, number: int) -> None:
        """Send the controller a signal; a killed one is collected."""
        self.children["slurmctld"].send_signal(number)
        if number == signal.SIGKILL:
            self.children.pop("slurmctld").wait()

    def saved(self) -> None:
        """Wait until the controller has written its jobs down, or has nothing to write: it does so within five seconds."""
        state, asked = self.folder / "state" / "job_state", time.time()
        wait_for(lambda: state.exists() and state.stat().st_mtime >= asked, "the jobs to be saved", 7, or_else=False)

    def node_start(self, name: str) -> None:
        """Start a node's daemon."""
        (self.folder / "spool" / name).mkdir(parents=True, exist_ok=True)
        self._spawn(name, "slurmd", "-D", "-f", str(self.conf), "-N", name)

    def scontrol(self, *words: str) -> str:
        """Run `scontrol`; return what it printed."""
        done = self._run("scontrol", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, script: str, *words: str, name: str = "train") -> int:
        """Submit a job as somebody other than Paceline does; return its number."""
        done = self._run(
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--chdir={self.folder}",
            *words,
            stdin=f"#!/bin/sh\n{script}\n",
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def let_go(self, job_id: int) -> None:
        """Let a requeued job begin soon, but not within the second in which its old credential was revoked."""
        self.scontrol("update", f"JobId={job_id}", "StartTime=now+2")

    def job(self, job_id: int) -> Any:
        """Return a job as Paceline reads it."""
        from datetime import UTC

        from apps.engine.readers.slurm import jobs_read

        return jobs_read(self.scontrol("show", "job", str(job_id)), zone=UTC).jobs[0]

    def node(self, name: str) -> Any:
        """Return a node as Paceline reads it."""
        from datetime import UTC

        from apps.engine.readers.slurm import nodes_read

        return nodes_read(self.scontrol("show", "node", name), zone=UTC).nodes[0]

    def queue(self) -> list[str]:
        """Return the numbers of jobs that are not over."""
        return self._run("squeue", "--noheader", "--format=%A").stdout.split()

    def idle(self) -> set[str]:
        """Return the nodes that are up and free."""
        lines = self._run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
        return {line.split()[0] for line in lines if line.split()[1] == "idle"}

    def clean(self) -> None:
        """Bring it back to nothing running and every node in service."""
        self._run("scancel", f"--user={getpass.getuser()}")
        wait_for(lambda: not self.queue(), "the jobs to end", 30)
        for name in set(self.names) - self.idle():
            self._run("scontrol", "update", f"nodename={name}", "state=resume")
        wait_for(lambda: self.idle() == set(self.names), "all nodes to be idle", 30)

    def _run(self, program: str, *words: str, stdin: str = "", limit_s: float = 30) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": SEARCH, "SLURM_CONF": str(self.conf), "LC_ALL": "C", "TZ": "UTC"}
        return subprocess.run(
            [program, *words],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def _spawn(self, name: str, program: str, *words: str) -> None:
        path = shutil.which(program, path=SEARCH)
        assert path is not None
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.children[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    child.__file__,
                    str(os.getpid()),
                    str(int(signal.SIGTERM)),
                    "same",
                    path,
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": SEARCH, "SLURM_CONF": str(self.conf), "LC_ALL": "C"},
            )

    def _munge_start(self) -> None:
        run = self.folder / "run"
        self._spawn(
            "munged",
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--key-file={self.folder / 'munge.key'}",
            f"--socket={run / 'munge.sock'}",
            f"--pid-file={run / 'munged.pid'}",
            f"--log-file={self.folder / 'log' / 'munged.log'}",
            f"--seed-file={self.folder / 'munge.seed'}",
        )
        wait_for((run / "munge.sock").exists, "munge to listen", 10)

    def _make(self) -> None:
        if self._made:
            return
        for part in ("state", "spool", "log", "run", "dev"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        (self.folder / "log").chmod(0o700)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        self.conf.write_text(self._configuration())
        self._made = True

    def _configuration(self) -> str:
        here, who, host = self.folder, getpass.getuser(), socket.gethostname().partition(".")[0]
        lines = [
            "ClusterName=paceline",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={self._ports[0]}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={here}/run/munge.sock,cred_expire=15",
            f"SlurmUser={who}",
            f"SlurmdUser={who}",
            f"StateSaveLocation={here}/state",
            f"SlurmdSpoolDir={here}/spool/%n",
            f"SlurmctldPidFile={here}/run/slurmctld.pid",
            f"SlurmdPidFile={here}/run/slurmd-%n.pid",
            f"SlurmctldLogFile={here}/log/slurmctld.log",
            f"SlurmdLogFile={here}/log/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=1,bf_interval=2,requeue_delay=1",
            "MpiDefault=none",
            "ReturnToService=1",
            "SlurmdTimeout=8",
            "SlurmctldTimeout=30",
            "InactiveLimit=0",
            "KillWait=2",
            "MinJobAge=300",
            "JobRequeue=1",
            "BatchStartTimeout=20",
            "AccountingStorageType=accounting_storage/none",
            self._limits,
            "NodeName=DEFAULT CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=500 State=UNKNOWN",
            *(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
                for name, port in zip(self.names, self._ports[1:], strict=True)
            ),
            *self._partitions,
        ]
        return "\n".join(line for line in lines if line) + "\n"


def free_ports(count: int) -> list[int]:
    """Return ports in a row that nobody listens on."""
    for _ in range(200):
        first = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    taken = held.enter_context(socket.socket())
                    taken.bind(("127.0.0.1", port))
            except OSError:
                continue
        return list(range(first, first + count))
    raise AssertionError(f"no {count} free ports in a row")


def wait_for(holds: Callable[[], Any], what: str, seconds: float = 20.0, *, or_else: bool = True) -> Any:
    """Return what `holds()` gives once it is true; after `seconds` fail with `what`, or go on where not `or_else`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.05)
    assert not or_else, f"waited {seconds:g} s for {what}"
    return None


def missing() -> list[str]:
    """Return the programs of Slurm that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]


def slurm_needed() -> None:
    """Skip where Slurm is not installed; in CI it has to be."""
    if absent := missing():
        assert not os.environ.get("CI"), f"CI has no {', '.join(absent)}"
        pytest.skip(
            f"Slurm is not installed here ({', '.join(absent)}): apt-get install slurmctld slurmd slurm-client munge"
        )


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[Slurm]:
    slurm_needed()
    # A short path: a Unix socket's must stay below 108 characters.
    with tempfile.TemporaryDirectory(prefix="paceline-slurm-") as folder:
        started = Slurm(Path(folder))
        try:
            started.start()
            yield started
        finally:
            started.stop()


@pytest.fixture
def slurm(slurm_session: Slurm) -> Iterator[Slurm]:
    """A real Slurm of four nodes on which nothing runs."""
    slurm_session.clean()
    yield slurm_session
    slurm_session.clean()


@pytest.fixture
def slurm_own() -> Iterator[Slurm]:
    """A real Slurm of three nodes for this test alone; its controller and its nodes may be killed."""
    slurm_needed()
    with tempfile.TemporaryDirectory(prefix="paceline-slurm-") as folder:
        started = Slurm(Path(folder), nodes=3)
        try:
            started.start()
            yield started
        finally:
            started.stop()
