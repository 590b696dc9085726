"""Which identity PostgreSQL gets: it refuses to run as root, and its data must stay ours."""

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from apps.config.local.problems import NoUserNamespaces

CHILD = Path(__file__).with_name("child.py")
"""The script that becomes a child; see there."""

SAME = "same"
NAMESPACE = "namespace"
ACCOUNTS = ("postgres", "nobody")
"""Accounts that exist on ordinary systems and own nothing that Paceline must protect from them."""

REACH = "reach"
"""Added to an account where our folders are closed to it (root's own home, say): it may open them all the same."""

PROBE_S = 10.0
"""A probe is one fork and exec; far longer means a machine in trouble."""


def child_command(command: list[str], *, signal_number: int, identity: str = SAME) -> list[str]:
    """Return `command` wrapped so that it gets `signal_number` when this process dies, and runs as `identity`."""
    return [sys.executable, "-I", "-S", str(CHILD), str(os.getpid()), str(signal_number), identity, *command]


def identity_works(identity: str, reachable: tuple[Path, ...]) -> bool:
    """Return whether a child can become `identity` and then enter every folder of `reachable`."""
    # No Python: the account may not be allowed to enter the folder in which this one lies.
    command = ["/bin/sh", "-c", 'for place; do test -x "$place" || exit 1; done', "sh", *map(str, reachable)]
    wrapped = child_command(command, signal_number=9, identity=identity)
    try:
        done = subprocess.run(wrapped, capture_output=True, timeout=PROBE_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def account_identity(name: str) -> str | None:
    """Return `UID:GID` of the account `name`, None where there is no such account."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return f"{entry.pw_uid}:{entry.pw_gid}"


def server_account_ids() -> set[int]:
    """Return the user ids PostgreSQL may have been given by an earlier start as root."""
    return {int(identity.partition(":")[0]) for name in ACCOUNTS if (identity := account_identity(name))}


def server_identity(
    *,
    reachable: tuple[Path, ...],
    user_id: int | None = None,
    works: Callable[[str, tuple[Path, ...]], bool] = identity_works,
) -> str:
    """Return how PostgreSQL is to run: as this user, in a user namespace, or as an existing account.

    `reachable`: folders the server must be able to enter (its programs, the folder above its data).

    Raises: NoUserNamespaces when this is root and nothing else works.
    """
    if (os.geteuid() if user_id is None else user_id) != 0:
        return SAME
    if works(NAMESPACE, reachable):
        return NAMESPACE
    accounts = [identity for name in ACCOUNTS if (identity := account_identity(name))]
    for identity in (*accounts, *(f"{account}:{REACH}" for account in accounts)):
        if works(identity, reachable):
            return identity
    raise NoUserNamespaces(
        "PostgreSQL refuses to run as root, and this machine allows no user namespaces. Run Paceline as an ordinary "
        "user, or name a PostgreSQL server in DATABASE_URL (postgresql://user:password@host/database)."
    )
