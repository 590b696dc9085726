"""One kept HTTP/1.1 connection. The standard library's own client brings OpenSSL and the mail parser along, which is more
memory than all the rest of this package; this one loads TLS only for an https address.
"""

from __future__ import annotations

import contextlib
import socket
from time import monotonic
from typing import NamedTuple

MAX_HEAD = 64 * 1024
MAX_ANSWER = 1024 * 1024
NO_BODY = (204, 304)


class HttpError(Exception):
    """The other end is gone, too slow, or does not speak HTTP."""


class Response(NamedTuple):
    """An answer; header names in lower case."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes


class Connection:
    """A connection to one server, opened by the first request and kept while the server keeps it."""

    def __init__(self, host: str, port: int, *, secure: bool, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._secure = secure
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._buffer = b""
        self._deadline = 0.0

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    def close(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock, self._buffer = None, b""

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response:
        """Send a request and return its answer; raise HttpError if there is none in time."""
        self._deadline = monotonic() + self._timeout_s
        try:
            sock = self._connect()
            head = [f"{method} {path} HTTP/1.1", f"Host: {self._authority()}", f"Content-Length: {len(body)}"]
            head += [f"{name}: {value}" for name, value in headers.items()]
            sock.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
            response, keep = self._response()
        except (OSError, ValueError, HttpError) as error:
            self.close()
            raise HttpError(f"{type(error).__name__}: {error}") from error
        if not keep:
            self.close()
        return response

    def _authority(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def _connect(self) -> socket.socket:
        if self._sock is None:
            sock = socket.create_connection((self._host, self._port), self._timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                import ssl

                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self._host)
            self._sock = sock
        return self._sock

    # -- reading ---------------------------------------------------------------------------------------------------
    def _response(self) -> tuple[Response, bool]:
        """Return the answer, and whether the connection may be used again."""
        status = 100
        while 100 <= status < 200:
            version, status, reason, headers = self._head()
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        if status in NO_BODY:
            body = b""
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            body = self._chunks()
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body, keep = self._to_the_end(), False
        return Response(status, reason, headers, body), keep

    def _head(self) -> tuple[str, int, str, dict[str, str]]:
        lines = self._until(b"\r\n\r\n", MAX_HEAD).decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        status, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not (status.isdecimal() and len(status) == 3):
            raise HttpError("this is no HTTP answer")
        pairs = [line.partition(":") for line in lines[1:] if ":" in line]
        return version, int(status), reason, {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int(self._until(b"\r\n", MAX_HEAD).split(b";")[0], 16)
            if size == 0:
                while self._until(b"\r\n", MAX_HEAD):
                    pass  # trailers
                return body
            if len(body) + size > MAX_ANSWER:
                raise HttpError("the answer is too long")
            body += self._exactly(size)
            self._exactly(2)

    def _until(self, mark: bytes, limit: int) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > limit:
                raise HttpError("the answer's head is too long")
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        if not 0 <= size <= MAX_ANSWER:
            raise HttpError("the answer is too long")
        while len(self._buffer) < size:
            self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _to_the_end(self) -> bytes:
        with contextlib.suppress(EOFError):
            while len(self._buffer) <= MAX_ANSWER:
                self._more()
        found, self._buffer = self._buffer[:MAX_ANSWER], b""
        return found

    def _more(self) -> None:
        sock = self._sock
        left_s = self._deadline - monotonic()
        if sock is None or left_s <= 0:
            raise HttpError("no whole answer in time")
        sock.settimeout(left_s)
        piece = sock.recv(64 * 1024)
        if not piece:
            raise ConnectionEnded("the connection was closed")
        self._buffer += piece


class ConnectionEnded(EOFError, HttpError):
    """The other end closed; the end of an answer that has no length, else an error."""
