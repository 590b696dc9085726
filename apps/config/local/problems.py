"""What can stand in the way of `make run`, each said in one clear sentence instead of a traceback."""

import errno
from pathlib import Path

from apps.engine.errors import PacelineError


class LocalProblem(PacelineError):
    """Something on this machine keeps Paceline from starting; the message says what, and what to do."""

    code = "local_problem"


class FolderInUse(LocalProblem):
    """Another supervisor holds the data folder."""

    code = "folder_in_use"


class FolderOfAnotherVersion(LocalProblem):
    """The data folder was written by a version this one cannot go on from."""

    code = "folder_of_another_version"


class FolderUnusable(LocalProblem):
    """The data folder cannot be made, read or written."""

    code = "folder_unusable"


class DiskFull(LocalProblem):
    """The disk that holds the data folder has no room left."""

    code = "disk_full"
    retryable = True


class PortTaken(LocalProblem):
    """Another program listens where Paceline should."""

    code = "port_taken"


class SettingUnusable(LocalProblem):
    """A variable of the environment says something that cannot be used."""

    code = "setting_unusable"


class NoUserNamespaces(LocalProblem):
    """PostgreSQL refuses to run as root, and there is no other identity to give it."""

    code = "no_user_namespaces"


class NoServers(LocalProblem):
    """No PostgreSQL or no Redis-compatible server was found or named."""

    code = "no_servers"


class ServerFailed(LocalProblem):
    """A server did not come up; the message carries its own last words."""

    code = "server_failed"


class StepFailed(LocalProblem):
    """A step of the start, such as the migration, ended with an error."""

    code = "step_failed"


NO_SPACE_WORDS = ("No space left on device", "Disk quota exceeded", "could not extend file")
"""How PostgreSQL, Valkey and the C library say that a disk is full."""


def disk_full(folder: Path) -> DiskFull:
    """Return the problem of a full disk under `folder`."""
    return DiskFull(f"The disk that holds {folder} is full. Free some space there, then run the same command again.")


def problem_of_os_error(error: OSError, folder: Path) -> LocalProblem:
    """Return the sentence for `error`, raised while working in `folder`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(folder)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FolderUnusable(f"{folder} cannot be written by this user. Choose another with PACELINE_DATA_DIR.")
    return FolderUnusable(f"{folder} cannot be used: {error.strerror or error}.")


def last_words(log: Path, *, lines: int = 1, window_bytes: int = 8192) -> str:
    """Return the last `lines` lines with text of `log`, joined; an absent log has none.

    A command's refusal is a sentence; the name of Django's error before it is for nobody.
    """
    try:
        with log.open("rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(max(0, size_bytes - window_bytes))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    spoken = [line.strip().removeprefix("CommandError: ") for line in text.splitlines() if line.strip()]
    return " | ".join(spoken[-lines:])


def problem_of_log(what: str, log: Path, folder: Path) -> LocalProblem:
    """Return why `what` failed, as its `log` tells it."""
    words = last_words(log, lines=3)
    if any(sign in last_words(log, lines=40) for sign in NO_SPACE_WORDS):
        return disk_full(folder)
    return ServerFailed(f"{what} did not start. Its last words: {words or 'none'} (whole log: {log}).")
