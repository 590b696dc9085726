"""Paceline's own processes, as programs: web, a worker for each kind of work, beat."""

import http.client
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from apps.config.local.folder import DataFolder
from apps.config.local.listener import Address, reachable
from apps.config.local.problems import SettingUnusable
from apps.config.local.programs import Program

REPOSITORY = Path(__file__).resolve().parents[3]
TIER = 1
"""Everything of ours needs the servers, which are of tier 0."""

MOST_WEB_PROCESSES = 64

CELERY = (sys.executable, "-m", "celery", "--app")

QUIET = (
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
    f"--loglevel={os.environ.get('PACELINE_LOG_LEVEL', 'INFO')}",
)
"""Workers need no news of each other: every stage finds its work in the database."""


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Which queues a worker serves, in order, how many tasks at once, and how long one may take to finish at a stop."""

    name: str
    queues: str
    concurrency: int = 1
    stop_grace_s: float = 10.0


WORKERS = (
    WorkerKind("fold", "fold", concurrency=2),
    WorkerKind("slow", "slow", concurrency=2),
    WorkerKind("watch", "watch"),
    WorkerKind("orders", "orders", concurrency=2, stop_grace_s=30.0),
)
"""Each kind has a process of its own: a full inbox, a long clean-up or a scheduler that hardly answers delays nothing else."""


def site_environment(
    folder: DataFolder, *, database_url: str, redis_url: str, address: Address, given: dict[str, str]
) -> dict[str, str]:
    """Return what every process of this installation gets beside the `given` environment."""
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "PACELINE_DATA_DIR": str(folder.root),
        "PACELINE_BIND": str(address),
        "PACELINE_PUBLIC_URL": given.get("PACELINE_PUBLIC_URL") or f"http://{reachable(address)}",
        "DJANGO_SETTINGS_MODULE": "apps.config.settings",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), given.get("PYTHONPATH", "")])),
        # One thread of arithmetic a process: several processes share few cores.
        "OPENBLAS_NUM_THREADS": given.get("OPENBLAS_NUM_THREADS", "1"),
        "MALLOC_ARENA_MAX": given.get("MALLOC_ARENA_MAX", "2"),
    }


def web_program(
    folder: DataFolder, environment: dict[str, str], listener: socket.socket, address: Address, *, number: int = 1
) -> Program:
    """Return a web process on the supervisor's `listener`."""
    name = "web" if number == 1 else f"web-{number}"
    return Program(
        name=name,
        command=(sys.executable, "-m", "apps.config.local.web", str(listener.fileno())),
        log=folder.logs / f"{name}.log",
        folder=REPOSITORY,
        environment=environment,
        keep_fds=(listener.fileno(),),
        ready=lambda: web_answers(reachable(address)),
        tier=TIER,
    )


def web_processes(given: Mapping[str, str]) -> int:
    """Return how many web processes the environment asks for.

    >>> web_processes({}), web_processes({"PACELINE_WEB_PROCESSES": "4"})
    (1, 4)

    Raises: SettingUnusable.
    """
    text = given.get("PACELINE_WEB_PROCESSES") or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_WEB_PROCESSES):
        raise SettingUnusable(
            f"PACELINE_WEB_PROCESSES={text} cannot be used. Write a number from 1 to {MOST_WEB_PROCESSES}."
        )
    return int(text)


def web_answers(address: Address, *, patience_s: float = 2.0) -> bool:
    """Return whether an HTTP request to `address` gets an answer that is no failure of the server."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=patience_s)
    try:
        connection.request("GET", "/sign-in", headers={"Host": f"{address}"})
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def worker_program(folder: DataFolder, environment: dict[str, str], kind: WorkerKind) -> Program:
    """Return the worker of `kind`: one process, its tasks one after the other or in a few threads."""
    pool = ("--pool=solo",) if kind.concurrency == 1 else ("--pool=threads", f"--concurrency={kind.concurrency}")
    return Program(
        name=kind.name,
        command=(
            *CELERY,
            "apps.config.celery:app",
            "worker",
            f"--queues={kind.queues}",
            f"--hostname={kind.name}@paceline",
            *pool,
            *QUIET,
        ),
        log=folder.logs / f"{kind.name}.log",
        folder=REPOSITORY,
        environment=environment,
        stop_grace_s=kind.stop_grace_s,
        tier=TIER,
    )


def beat_program(folder: DataFolder, environment: dict[str, str]) -> Program:
    """Return the clock; `apps.config.beat` says how it differs from the workers."""
    return Program(
        name="beat",
        command=(
            *CELERY,
            "apps.config.beat:app",
            "beat",
            "--scheduler=celery.beat:Scheduler",
            "--pidfile=",
            "--loglevel=WARNING",
        ),
        log=folder.logs / "beat.log",
        folder=REPOSITORY,
        environment=environment,
        tier=TIER,
    )


def command_program(folder: DataFolder, environment: dict[str, str], *words: str) -> Program:
    """Return `manage.py WORDS`, a program that runs to its end."""
    return Program(
        name=words[0],
        command=(sys.executable, str(REPOSITORY / "manage.py"), *words),
        log=folder.logs / f"{words[0]}.log",
        folder=REPOSITORY,
        environment=environment,
    )


def module_program(folder: DataFolder, environment: dict[str, str], *words: str) -> Program:
    """Return `python -m WORDS`, a program that runs to its end."""
    return Program(
        name=words[0],
        command=(sys.executable, "-m", *words),
        log=folder.logs / f"{words[0]}.log",
        folder=REPOSITORY,
        environment=environment,
    )
