"""Collectives over a ring of loopback sockets: each rank speaks to the next one and listens to the one before."""

import os
import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LOOPBACK = "127.0.0.1"
POLL_S = 0.01
BUFFER_BYTES = 1 << 18
KEY_BYTES = 16
HELLO_BYTES = KEY_BYTES + 4


class RingBroken(Exception):
    """A neighbour is gone: no collective of this ring can end any more."""


class RingTimeout(RingBroken):
    """A neighbour said nothing for the whole time-out."""


@dataclass(slots=True)
class Ring:
    """One rank's place in the ring."""

    rank: int
    size: int
    to_next: socket.socket | None
    from_previous: socket.socket | None
    timeout_s: float

    def all_reduce(self, values: NDArray[np.float32]) -> None:
        """Replace `values` by their sum over all ranks, in place; every rank gets the same bits.

        Reduce-scatter, then all-gather: 2 (size - 1) exchanges of 1/size of the numbers.

        Raises: RingBroken.
        """
        chunks = np.array_split(values, self.size)
        for turn in range(self.size - 1):
            mine = chunks[(self.rank - turn) % self.size]
            target = chunks[(self.rank - turn - 1) % self.size]
            arrived = np.empty_like(target)
            self._exchange(_bytes_of(mine), _bytes_of(arrived))
            target += arrived
        self._gather([_bytes_of(chunk) for chunk in chunks], first=self.rank + 1)

    def all_gather(self, blob: bytes) -> list[bytes]:
        """Return every rank's `blob`, by rank; all must have the same length.

        Raises: RingBroken.
        """
        places = [bytearray(len(blob)) for _ in range(self.size)]
        places[self.rank][:] = blob
        self._gather([memoryview(place) for place in places], first=self.rank)
        return [bytes(place) for place in places]

    def close(self) -> None:
        """Leave the ring; the neighbours notice."""
        for end in (self.to_next, self.from_previous):
            if end is not None:
                end.close()

    def _gather(self, places: list[memoryview], *, first: int) -> None:
        """Send places round; `first` is the one this rank already holds."""
        for turn in range(self.size - 1):
            self._exchange(places[(first - turn) % self.size], places[(first - turn - 1) % self.size])

    def _exchange(self, outgoing: memoryview, incoming: memoryview) -> None:
        """Send `outgoing` on and fill `incoming`, both at once, so that no size of message can block the ring."""
        if self.to_next is None or self.from_previous is None:
            raise RingBroken("a ring of one has no neighbours")
        deadline = time.monotonic() + self.timeout_s
        try:
            sent = self._send(outgoing)
            received = self._receive(incoming) if sent == len(outgoing) else 0
            while sent < len(outgoing) or received < len(incoming):
                self._wait(writing=sent < len(outgoing), reading=received < len(incoming), deadline=deadline)
                if sent < len(outgoing):
                    sent += self._send(outgoing[sent:])
                if received < len(incoming):
                    received += self._receive(incoming[received:])
        except OSError as error:
            raise RingBroken(f"rank {self.rank} lost a neighbour: {error}") from error

    def _send(self, part: memoryview) -> int:
        assert self.to_next is not None
        try:
            return self.to_next.send(part) if len(part) else 0
        except BlockingIOError:
            return 0

    def _receive(self, part: memoryview) -> int:
        assert self.from_previous is not None
        try:
            count = self.from_previous.recv_into(part) if len(part) else 0
        except BlockingIOError:
            return 0
        if not count and len(part):
            raise RingBroken(f"rank {(self.rank - 1) % self.size} has left the ring")
        return count

    def _wait(self, *, writing: bool, reading: bool, deadline: float) -> None:
        poller = select.poll()
        if writing and self.to_next is not None:
            poller.register(self.to_next, select.POLLOUT)
        if reading and self.from_previous is not None:
            poller.register(self.from_previous, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise RingTimeout(f"rank {self.rank} waited {self.timeout_s:g} s for a neighbour")


def ring_join(
    folder: Path, *, rank: int, size: int, key: bytes, timeout_s: float, join_timeout_s: float = 60.0
) -> Ring:
    """Return this rank's place in a ring of `size`, met through `folder`, which all ranks see and which is fresh.

    `key` tells this ring's members from anybody else who finds the port.

    Raises: RingBroken when the neighbours don't come in time.
    """
    if size == 1:
        return Ring(rank=rank, size=1, to_next=None, from_previous=None, timeout_s=timeout_s)
    deadline = time.monotonic() + join_timeout_s
    with socket.create_server((LOOPBACK, 0), backlog=8) as listener:
        _port_publish(folder, rank, listener.getsockname()[1])
        next_rank, previous_rank = (rank + 1) % size, (rank - 1) % size
        to_next = _connect(folder, next_rank, hello=_hello(key, rank), deadline=deadline)
        from_previous = _accept(listener, hello=_hello(key, previous_rank), deadline=deadline)
    for end in (to_next, from_previous):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setblocking(False)
    return Ring(rank=rank, size=size, to_next=to_next, from_previous=from_previous, timeout_s=timeout_s)


def _bytes_of(chunk: NDArray[np.float32]) -> memoryview:
    return chunk.view(np.uint8).data


def _hello(key: bytes, rank: int) -> bytes:
    return key[:KEY_BYTES].ljust(KEY_BYTES, b"\0") + rank.to_bytes(4, "little")


def _port_publish(folder: Path, rank: int, port: int) -> None:
    written = folder / f"{rank}.new"
    written.write_text(str(port), encoding="ascii")
    os.replace(written, folder / f"{rank}.port")


def _connect(folder: Path, rank: int, *, hello: bytes, deadline: float) -> socket.socket:
    path = folder / f"{rank}.port"
    while not path.exists():
        if time.monotonic() > deadline:
            raise RingTimeout(f"rank {rank} did not come to the ring")
        time.sleep(POLL_S)
    try:
        end = socket.create_connection((LOOPBACK, int(path.read_text(encoding="ascii"))), timeout=5)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        end.sendall(hello)
    except OSError as error:
        raise RingBroken(f"rank {rank} cannot be reached: {error}") from error
    return end


def _accept(listener: socket.socket, *, hello: bytes, deadline: float) -> socket.socket:
    """Return the connection of the one who says `hello`; strangers are sent away."""
    while (left_s := deadline - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            end, _ = listener.accept()
        except TimeoutError:
            break
        end.settimeout(min(5.0, left_s))
        try:
            if end.recv(HELLO_BYTES, socket.MSG_WAITALL) == hello:
                return end
        except OSError:
            pass
        end.close()
    raise RingTimeout("the neighbour before did not come to the ring")
