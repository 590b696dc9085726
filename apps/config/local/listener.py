"""The address people open. The supervisor itself listens, so that a dead web process loses no connection: they wait."""

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from apps.config.local.problems import LocalProblem, PortTaken

DEFAULT_BIND = "127.0.0.1:8000"

BACKLOG = 2048
"""One connection a sender at 16,384 ranks; the kernel cuts it to its own limit."""

TCP_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""


class AddressUnusable(LocalProblem):
    """PACELINE_BIND names no address of this machine."""

    code = "address_unusable"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_read(text: str) -> Address:
    """Return the address that `text` (HOST:PORT, :PORT or [V6]:PORT) names.

    >>> str(address_read("[::1]:8000")), str(address_read(":9000"))
    ('[::1]:8000', '127.0.0.1:9000')

    Raises: AddressUnusable.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise AddressUnusable(f"PACELINE_BIND={text} is no address. Write it as HOST:PORT, like {DEFAULT_BIND}.")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def listen(address: Address) -> socket.socket:
    """Return a socket that listens on `address`; port 0 takes a free one.

    Raises: PortTaken, AddressUnusable.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise problem_of_bind(address, error) from error
    return listener


def address_of(listener: socket.socket) -> Address:
    """Return where `listener` really listens."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def reachable(address: Address) -> Address:
    """Return an address to open for one that is listened on: "every address" is none that a browser can go to."""
    if address.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return address
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, address.port)
    except OSError:
        name = "127.0.0.1"
    return Address(name, address.port)


def problem_of_bind(address: Address, error: OSError) -> LocalProblem:
    """Return the sentence for a failed bind."""
    if error.errno == errno.EADDRINUSE:
        other = f"127.0.0.1:{address.port + 1 if address.port < 65535 else 8001}"
        return PortTaken(
            f"Port {address.port} on {address.host} is taken{owner_words(address.port)}. Stop that program, or choose "
            f"another address: PACELINE_BIND={other} make run"
        )
    if error.errno == errno.EACCES:
        return AddressUnusable(f"This user may not listen on port {address.port}. Choose one above 1023.")
    return AddressUnusable(f"PACELINE_BIND={address}: {error.strerror or error}.")


def owner_words(port: int) -> str:
    """Return ` by NAME (pid N)` of who listens on `port`, nothing where that cannot be seen."""
    inodes = {inode for inode, found in listening_inodes() if found == port}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and inodes & socket_inodes(entry):
            return f" by {process_name(entry)} (pid {entry.name})"
    return ""


def listening_inodes() -> list[tuple[str, int]]:
    """Return (socket inode, port) of every listening TCP socket."""
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == TCP_LISTEN:
                rows.append((fields[9], int(fields[1].rpartition(":")[2], 16)))
    return rows


def socket_inodes(process: Path) -> set[str]:
    """Return the inodes of the sockets a process holds; none where this user may not look."""
    found = set()
    try:
        for link in (process / "fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def process_name(process: Path) -> str:
    """Return a process's short name."""
    try:
        return (process / "comm").read_text("utf-8").strip()
    except OSError:
        return "another program"
