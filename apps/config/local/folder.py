"""The data folder: what lies where in it, which version wrote it, and one supervisor at a time."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from apps.config.local.problems import (
    FolderInUse,
    FolderOfAnotherVersion,
    FolderUnusable,
    disk_full,
    problem_of_os_error,
)
from apps.config.local.userns import server_account_ids

LAYOUT_VERSION = 1
"""Grows when a folder of an older layout can no longer be used as it is."""

SOCKET_PATH_BYTES = 107
"""sun_path of a Unix socket holds 108 bytes with its final zero."""

LONGEST_SOCKET_NAME = "/.s.PGSQL.5432"
"""The longest file name among our sockets."""

MADE_BEFORE_A_FIRST_START = {"lock", "logs", "run", "secret_key", "mail", "launches", "practice"}
"""What a start that was cut short, or a command beside servers of one's own, may have left in the folder."""

ROOM_NEEDED_BYTES = 192 * 1024 * 1024
"""A fresh PostgreSQL takes 40 MB and its first log files 64 MB; below this a start is sure to fail half-way."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where everything of one local installation lies. `run` is short enough for Unix sockets, wherever `root` is."""

    root: Path

    @property
    def postgres(self) -> Path:
        """The database cluster."""
        return self.root / "postgres"

    @property
    def logs(self) -> Path:
        """One log per child."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Sockets and what else ends with the supervisor, mode 0700."""
        inside = self.root / "run"
        if len(os.fsencode(f"{inside}{LONGEST_SOCKET_NAME}")) <= SOCKET_PATH_BYTES:
            return inside
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 - owner and mode are checked
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return base / f"paceline-{os.getuid()}-{digest}"

    @property
    def lock(self) -> Path:
        """Held by the running supervisor; says who it is."""
        return self.root / "lock"

    @property
    def stamp(self) -> Path:
        """Which layout the folder has."""
        return self.root / "folder.json"

    @property
    def environment(self) -> Path:
        """KEY=VALUE lines with which a second terminal finds the running servers."""
        return self.root / "env"


def folder_open(root: Path) -> DataFolder:
    """Make or check the data folder at `root` and return it.

    Raises: FolderOfAnotherVersion, FolderUnusable, DiskFull.
    """
    folder = DataFolder(root.resolve())
    try:
        root_make(folder.root)
        if not os.access(folder.root, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable")
        stamp_check(folder)
        folder.logs.mkdir(mode=0o700, exist_ok=True)
        run_folder_make(folder)
        if shutil.disk_usage(folder.root).free < ROOM_NEEDED_BYTES:
            raise disk_full(folder.root)
    except OSError as error:
        raise problem_of_os_error(error, folder.root) from error
    return folder


def root_make(root: Path) -> None:
    """Make the data folder: others may pass through (PostgreSQL may run as another account) and see nothing in it."""
    if not root.is_dir():
        root.mkdir(mode=0o711, parents=True)


def stamp_check(folder: DataFolder) -> None:
    """Write the layout's version into a fresh folder; refuse one that another version wrote."""
    try:
        found = json.loads(folder.stamp.read_text("utf-8"))["layout"]
    except FileNotFoundError:
        foreign = sorted({entry.name for entry in folder.root.iterdir()} - MADE_BEFORE_A_FIRST_START)
        if foreign:
            raise FolderUnusable(
                f"{folder.root} is not empty and not a data folder of Paceline (it holds {', '.join(foreign[:3])}). "
                "Choose another with PACELINE_DATA_DIR."
            ) from None
        replace_file(folder.stamp, json.dumps({"layout": LAYOUT_VERSION}) + "\n", mode=0o600)
        return
    except (ValueError, KeyError, TypeError):
        found = "unknown"
    if found != LAYOUT_VERSION:
        raise FolderOfAnotherVersion(
            f"{folder.root} was written by another version of Paceline (layout {found}, this one reads "
            f"{LAYOUT_VERSION}). Run that version, or choose another folder with PACELINE_DATA_DIR."
        )


def run_folder_make(folder: DataFolder) -> None:
    """Make the run folder private to this user; one that another user made is never used."""
    folder.run.mkdir(mode=0o700, exist_ok=True)
    owners = {os.getuid(), *(server_account_ids() if os.getuid() == 0 else ())}
    if folder.run.is_symlink() or folder.run.lstat().st_uid not in owners:
        raise FolderUnusable(f"{folder.run} belongs to another user. Remove it, or set XDG_RUNTIME_DIR.")
    folder.run.chmod(0o700)


@contextmanager
def folder_claim(root: Path, *, address: str) -> Iterator[None]:
    """Hold the data folder at `root` for this process and note `address` for whoever comes second.

    The lock is the kernel's: it ends with this process, however that dies, and children do not inherit it.

    Raises: FolderInUse, FolderUnusable, DiskFull.
    """
    try:
        root_make(root)
        file = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise problem_of_os_error(error, root) from error
    try:
        lock_take(file, root, address)
        yield
    finally:
        os.close(file)


def lock_take(file: int, root: Path, address: str) -> None:
    """Lock `file` and note who holds it now, or say who holds it already."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()} {address}\n".encode(), 0)
    except BlockingIOError:
        pid, _, where = os.pread(file, 200, 0).decode("utf-8", "replace").strip().partition(" ")
        raise FolderInUse(
            f"Paceline already runs on {root} (pid {pid or 'unknown'}, {where or 'address unknown'}). Open that, "
            "stop it first, or start a second one with its own PACELINE_DATA_DIR and PACELINE_BIND."
        ) from None
    except OSError as error:
        raise problem_of_os_error(error, root) from error


def replace_file(path: Path, text: str, *, mode: int) -> None:
    """Write `text` to `path` whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
