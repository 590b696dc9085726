"""What ranks and the node's sender say to each other over the local socket: length, kind, payload.

    rank → sender   HELLO who I am · BATCH steps and facts, numbered · BEAT where I am · LEAVE how I go
    sender → rank   WELCOME who I am, who is here · ROSTER the same when it changes · ACK kept on disk up to n · PING ·
                    REFUSED another process is this rank

A batch stays with its rank until it is acknowledged, so a sender's death costs nothing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from array import array
from dataclasses import dataclass
from typing import Any

HELLO, WELCOME, ROSTER, BATCH, BEAT, ACK, PING, LEAVE, REFUSED = range(1, 10)
MAX_FRAME = 4 * 1024 * 1024
MAX_UNSENT = 8 * 1024 * 1024
"""A peer that takes nothing off its socket for this long a queue is as good as gone."""

_HEAD = struct.Struct("<IB")
_BATCH = struct.Struct("<QIII")
_ACK = struct.Struct("<Q")


class LinkClosed(Exception):
    """The other end is gone, or speaks something else."""


class Link:
    """One end of a local connection: frames in, frames out, never blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._in = bytearray()
        self._out = bytearray()

    @property
    def unsent(self) -> int:
        return len(self._out)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Queue a frame and push what the socket takes; raise LinkClosed if the other end is gone or doesn't read."""
        self._out += _HEAD.pack(len(payload), kind)
        self._out += payload
        if len(self._out) > MAX_UNSENT:
            raise LinkClosed("the other end takes nothing")
        self.flush()

    def flush(self) -> None:
        """Push what is queued."""
        try:
            while self._out:
                sent = self.sock.send(memoryview(self._out)[: 256 * 1024])
                del self._out[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the whole frames that have arrived; raise LinkClosed once the other end is gone and all is read."""
        closed = self._fill()
        frames = []
        while len(self._in) >= _HEAD.size:
            size, kind = _HEAD.unpack_from(self._in)
            if size > MAX_FRAME:
                raise LinkClosed("not a frame")
            if len(self._in) < _HEAD.size + size:
                break
            frames.append((kind, bytes(self._in[_HEAD.size : _HEAD.size + size])))
            del self._in[: _HEAD.size + size]
        if closed and not frames:
            raise LinkClosed("closed")
        return frames

    def _fill(self) -> bool:
        """Read what is there; return True at the end of the stream."""
        try:
            while True:
                piece = self.sock.recv(256 * 1024)
                if not piece:
                    return True
                self._in += piece
                if len(self._in) > 2 * MAX_FRAME:
                    return False
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.sock.close()


class Waker:
    """Wakes a thread that waits on sockets."""

    def __init__(self) -> None:
        self.reads, self._writes = socket.socketpair()
        self.reads.setblocking(False)
        self._writes.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe means that the thread is about to wake anyway
            self._writes.send(b"x")

    def drain(self) -> None:
        with contextlib.suppress(OSError):
            while self.reads.recv(4096):
                pass

    def sockets(self) -> list[socket.socket]:
        return [self.reads, self._writes]


@dataclass(frozen=True)
class Batch:
    """Steps of one rank since its last batch, and what it noted besides.

    `bits` is [metric][step], float32 patterns.
    """

    number: int
    names: tuple[str, ...]
    steps: array[int]
    ended_at: array[float]
    bits: array[int]
    checkpoints: list[dict[str, Any]]
    events: list[dict[str, Any]]

    @property
    def size(self) -> int:
        return 4 * len(self.bits) + 16 * len(self.steps) + 300 * (len(self.events) + len(self.checkpoints))


def batch_encode(batch: Batch) -> bytes:
    """Return a batch as bytes, in this machine's byte order: both ends are on it."""
    tail = json.dumps(
        {"names": batch.names, "checkpoints": batch.checkpoints, "events": batch.events}, separators=(",", ":")
    ).encode()
    head = _BATCH.pack(batch.number, len(batch.steps), len(batch.names), len(tail))
    return b"".join((head, batch.steps.tobytes(), batch.ended_at.tobytes(), batch.bits.tobytes(), tail))


def batch_decode(payload: bytes) -> Batch:
    """Return the batch in `payload`; raise LinkClosed if it is none."""
    try:
        number, n_steps, n_names, n_tail = _BATCH.unpack_from(payload)
        if _BATCH.size + 16 * n_steps + 4 * n_steps * n_names + n_tail != len(payload):
            raise LinkClosed("not a batch")
        at = _BATCH.size
        steps, ended_at, bits = array("q"), array("d"), array("I")
        steps.frombytes(payload[at : at + 8 * n_steps])
        ended_at.frombytes(payload[at + 8 * n_steps : at + 16 * n_steps])
        bits.frombytes(payload[at + 16 * n_steps : at + 16 * n_steps + 4 * n_steps * n_names])
        tail = json.loads(payload[len(payload) - n_tail :])
        return Batch(number, tuple(tail["names"]), steps, ended_at, bits, tail["checkpoints"], tail["events"])
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise LinkClosed("not a batch") from error


def ack_encode(number: int) -> bytes:
    return _ACK.pack(number)


def ack_decode(payload: bytes) -> int:
    return int(_ACK.unpack(payload)[0])


def json_encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_decode(payload: bytes) -> dict[str, Any]:
    """Return the object in `payload`; raise LinkClosed if it is none."""
    try:
        value = json.loads(payload)
    except ValueError as error:
        raise LinkClosed("not an object") from error
    if not isinstance(value, dict):
        raise LinkClosed("not an object")
    return value


def peer_pid(sock: socket.socket) -> int | None:
    """Return the process at the other end as the kernel knows it; None where it can't be told (another pid space)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    pid = int(struct.unpack("3i", raw)[0])
    return pid or None
