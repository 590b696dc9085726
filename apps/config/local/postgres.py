"""A private PostgreSQL on a Unix socket in the data folder."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING
from urllib.parse import quote

from apps.config.local.binaries import PostgresPrograms
from apps.config.local.folder import DataFolder
from apps.config.local.problems import NO_SPACE_WORDS, DiskFull, FolderOfAnotherVersion, ServerFailed, problem_of_log
from apps.config.local.programs import Program, program_run
from apps.config.local.userns import NAMESPACE, SAME

if TYPE_CHECKING:
    import psycopg

USER = "paceline"
DATABASE = "paceline"
PORT = 5432

SETTINGS = {
    # Reachable through the private socket alone.
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "max_connections": "60",
    # Accepted means kept: said here so that nobody takes it for an oversight.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Two cores and a few gigabytes of memory, shared with everything else of Paceline.
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "max_worker_processes": "4",
    "max_parallel_workers_per_gather": "1",
    "random_page_cost": "1.1",
    "jit": "off",
    # One server without replicas: the shortest log that still survives a crash, and few, spread check points.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "min_wal_size": "256MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    # The inbox is filled and emptied all day: clean up early and often.
    "autovacuum_naptime": "15s",
    "autovacuum_max_workers": "2",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}
"""What the embedded server runs with. A site that wants other values brings its own server in DATABASE_URL."""

LEAVING_S = 15.0
"""How long a server whose supervisor was killed may take to stop by itself before a new one is started."""

RUN_TIME_START_S = 60.0
"""Recovery after a crash under full load takes seconds; far longer means that something else is wrong."""


def database_url(sockets: Path, name: str = DATABASE) -> str:
    """Return the address of database `name` behind the socket folder `sockets`."""
    return f"postgresql://{USER}@/{name}?host={quote(str(sockets), safe='')}&port={PORT}"


def postgres_initialise(
    folder: DataFolder,
    programs: PostgresPrograms,
    *,
    identity: str,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Make the database cluster where there is none yet; return whether one was made.

    It is made beside its place and then renamed, so that a start that is cut short leaves nothing half-made behind.

    Raises: FolderOfAnotherVersion, DiskFull, ServerFailed.
    """
    if folder.postgres.exists():
        version_check(folder, programs)
        return False
    draft = folder.postgres.with_name("postgres.new")
    rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    own(draft, identity)
    log = folder.logs / "initdb.log"
    # The C locale's collation is the fastest and never changes with the system's libraries.
    locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if programs.major >= 17 else []
    command = [
        str(programs.bin / "initdb"),
        *(f"--pgdata={draft}", f"--username={USER}", "--auth=trust", "--encoding=UTF8"),
        *("--locale=C.UTF-8", "--no-instructions", *locale),
    ]
    status = program_run(
        Program(name="initdb", command=tuple(command), log=log, folder=folder.root, identity=identity), pause=pause
    )
    if status != 0:
        raise problem_of_log("PostgreSQL", log, folder.root)
    draft.rename(folder.postgres)
    return True


def version_check(folder: DataFolder, programs: PostgresPrograms) -> None:
    """Refuse a cluster that another major version of PostgreSQL wrote."""
    found = (folder.postgres / "PG_VERSION").read_text("ascii").strip()
    if found != str(programs.major):
        raise FolderOfAnotherVersion(
            f"The database in {folder.postgres} was written by PostgreSQL {found}; this Paceline runs version "
            f"{programs.major}. Carry it over with pg_dump of version {found}, or choose another folder with "
            "PACELINE_DATA_DIR."
        )


def postgres_server(
    folder: DataFolder, programs: PostgresPrograms, *, identity: str, settings: dict[str, str] | None = None
) -> Program:
    """Return the database server of `folder` as a program; `settings` replace single ones of SETTINGS."""
    chosen = {**SETTINGS, "unix_socket_directories": str(folder.run), **(settings or {})}
    options = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
    own(folder.postgres, identity)
    own(folder.run, identity)
    return Program(
        name="postgres",
        command=(str(programs.bin / "postgres"), "-D", str(folder.postgres), *options),
        log=folder.logs / "postgres.log",
        folder=folder.root,
        identity=identity,
        stop_signal=signal.SIGINT,  # fast: sessions are ended, nothing is lost
        stop_grace_s=20.0,
        ready=lambda: postmaster(folder.postgres)[1],
        before_start=lambda: postmaster_clear(folder.postgres),
    )


def own(path: Path, identity: str) -> None:
    """Give `path` to the account PostgreSQL runs as, where that is not this user's own identity."""
    if identity not in (SAME, NAMESPACE):
        uid, gid = (int(part) for part in identity.split(":")[:2])
        os.chown(path, uid, gid)


def postmaster(cluster: Path) -> tuple[int, bool]:
    """Return (pid, accepts connections) of the server that holds `cluster`, (0, False) where its file names none."""
    try:
        lines = (cluster / "postmaster.pid").read_text("utf-8").splitlines()
        return int(lines[0]), len(lines) > 7 and lines[7].strip() == "ready"
    except (OSError, ValueError, IndexError):
        return 0, False


def postmaster_alive(cluster: Path) -> bool:
    """Return whether the process named in the cluster's pid file is a PostgreSQL on this very cluster."""
    pid, _ = postmaster(cluster)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(cluster) in command


def postmaster_clear(cluster: Path) -> None:
    """Wait for a server that is leaving, then take away a pid file that names somebody else.

    After a crash the old pid may belong to any other process of this user, and PostgreSQL would refuse to start;
    the supervisor's lock on the folder is what keeps two servers apart.
    """
    deadline = time.monotonic() + LEAVING_S
    while postmaster_alive(cluster) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not postmaster_alive(cluster):
        (cluster / "postmaster.pid").unlink(missing_ok=True)


def database_ensure(url: str, name: str = DATABASE) -> None:
    """Make database `name` beside the one `url` names, where it is missing, and turn on what this build offers.

    Raises: DiskFull, ServerFailed.
    """
    import psycopg

    try:
        with psycopg.connect(url, dbname="postgres", autocommit=True) as connection:
            database_make(connection, name)
    except psycopg.Error as error:
        words = " ".join(str(error).split())
        if any(sign in words for sign in NO_SPACE_WORDS):
            raise DiskFull(
                "The disk that holds the database is full. Free some space there, then try again."
            ) from error
        raise ServerFailed(f"PostgreSQL refuses to make the database {name}: {words}") from error


def database_make(connection: "psycopg.Connection[tuple[object, ...]]", name: str) -> None:
    """Make database `name` where it is missing, and turn on what this build offers."""
    from psycopg import sql

    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    offers = "SELECT 1 FROM pg_settings WHERE name = 'wal_compression' AND 'lz4' = ANY(enumvals)"
    if connection.execute(offers).fetchone():
        connection.execute("ALTER SYSTEM SET wal_compression = 'lz4'")
        connection.execute("SELECT pg_reload_conf()")
