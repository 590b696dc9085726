"""A private Valkey (or Redis) on a Unix socket: the broker and the channel layer. It keeps nothing."""

import socket
from pathlib import Path
from urllib.parse import quote

from apps.config.local.folder import DataFolder
from apps.config.local.programs import Program

OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "no",
    # PostgreSQL is the only state: whatever is lost here is found again by the sweeps.
    "save": "",
    "appendonly": "no",
    # Never evicted: the broker's routing table lives here too, and without it nothing can be queued any more.
    "maxmemory": "128mb",
    "maxmemory-policy": "noeviction",
}


def valkey_socket(folder: DataFolder) -> Path:
    """Return where the server of `folder` listens."""
    return folder.run / "valkey.sock"


def valkey_url(folder: DataFolder) -> str:
    """Return the address of the server of `folder`."""
    return f"unix://{quote(str(valkey_socket(folder)))}"


def valkey_server(folder: DataFolder, binary: Path) -> Program:
    """Return the broker of `folder` as a program."""
    path = valkey_socket(folder)
    options = {**OPTIONS, "unixsocket": str(path), "dir": str(folder.run)}
    return Program(
        name="valkey",
        command=(str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))),
        log=folder.logs / "valkey.log",
        folder=folder.root,
        stop_grace_s=5.0,
        ready=lambda: answers(path),
        before_start=lambda: path.unlink(missing_ok=True),
    )


def answers(path: Path) -> bool:
    """Return whether a server behind the socket `path` answers a PING."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
