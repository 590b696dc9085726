"""Signed JSON over HTTP: how notices and webhook launchers speak to a site's own programs."""

import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import orjson

HEADER = "Paceline-Signature"
MOST_ANSWER_BYTES = 64 * 1024
"""More of an answer than this is not read: nothing that is expected is longer."""

MOST_DIGITS = 12
"""Of a UNIX time in seconds: 30,000 years."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What the other side said; `body` is cut at MOST_ANSWER_BYTES."""

    status: int
    body: bytes


class NotReached(ConnectionError):
    """Nobody was reached: nothing of the request was heard, so that it is safe to try again."""


def signature_of(body: bytes, *, secret: str, at: int) -> str:
    """Return the signature header's value for a body sent at UNIX second `at`: `t=…,v1=HMAC-SHA256(secret, t.body)`.

    >>> signature_of(b"{}", secret="s", at=1)[:11]
    't=1,v1=b253'
    """
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


def signature_holds(header: str, body: bytes, *, secret: str, now: float, tolerance_s: float = 300.0) -> bool:
    """Return whether a header signs this body with this secret, not longer ago than the tolerance."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    at = parts.get("t", "")
    if not (at.isascii() and at.isdigit() and len(at) <= MOST_DIGITS) or abs(now - int(at)) > tolerance_s:
        return False
    return hmac.compare_digest(header, signature_of(body, secret=secret, at=int(at)))


def signed_post(url: str, content: dict[str, Any], *, secret: str, at: datetime, timeout_s: float) -> HttpAnswer:
    """POST `content` as JSON, signed as of `at`, and return the answer, whatever its status; errors as in `http_exchange`."""
    body = orjson.dumps(content)
    headers = {"Content-Type": "application/json", HEADER: signature_of(body, secret=secret, at=int(at.timestamp()))}
    return http_exchange("POST", url, body=body, headers=headers, connect_s=timeout_s, answer_s=timeout_s)


def http_exchange(
    method: str, url: str, *, headers: Mapping[str, str], connect_s: float, answer_s: float, body: bytes | None = None
) -> HttpAnswer:
    """Do one HTTP request. What is signed goes to the address that was configured: no redirect, no proxy.

    Raises:
        ValueError: the address is not http or https.
        NotReached: no connection came about; nothing was heard.
        OSError: it broke later, or no answer came in time (TimeoutError); it may have been heard.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("only http and https addresses are called")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with closing(_connection(parts.scheme, parts.hostname, parts.port, connect_s)) as connection:
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NotReached(f"no connection: {error or type(error).__name__}") from error
        with _ended_after(answer_s, connection.sock):
            try:
                connection.request(method, target, body=body, headers={**headers, "User-Agent": "Paceline"})
                response = connection.getresponse()
                return HttpAnswer(response.status, _body(response))
            except http.client.HTTPException as error:
                raise OSError(f"the answer was cut off: {error or type(error).__name__}") from error


@contextmanager
def _ended_after(seconds: float, connected: socket.socket) -> Iterator[None]:
    """Bound a whole exchange. A socket's time-out bounds one read only: a byte of a header now and then would last for ever.

    Raises:
        TimeoutError: the exchange had not ended by then, whatever came of its being cut off.
    """
    connected.settimeout(seconds)
    over = threading.Event()

    def cut() -> None:
        over.set()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    clock = threading.Timer(seconds, cut)
    clock.daemon = True
    clock.start()
    try:
        yield
    except (OSError, ValueError) as error:
        if over.is_set():
            raise TimeoutError("the answer did not end in time") from error
        raise
    finally:
        clock.cancel()
    if over.is_set():
        raise TimeoutError("the answer did not end in time")


def _body(response: http.client.HTTPResponse) -> bytes:
    """Return an answer's body, cut."""
    parts, left = [], MOST_ANSWER_BYTES
    while left and (part := response.read1(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def answer_words(body: bytes) -> dict[str, Any]:
    """Return the JSON object that an answer holds; nothing where it holds none, or one that nobody would write.

    >>> answer_words(b'{"receipt": "job-7"}'), answer_words(b"[" * 100_000), answer_words(b'{"receipt": NaN}')
    ({'receipt': 'job-7'}, {}, {})
    """
    try:
        words = orjson.loads(body)  # bounds how deep it goes, and takes neither NaN nor halves of a pair
    except ValueError:
        return {}
    return words if isinstance(words, dict) else {}


def answer_text(value: Any, *, most: int) -> str:
    r"""Return a text of an answer in one line that can be kept and shown; nothing where it is neither text nor a number.

    >>> answer_text("a\0b\nc", most=200), answer_text(77, most=200), answer_text({"job": 7}, most=200)
    ('a�b c', '77', '')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in value[:most]).strip()


def _connection(scheme: str, host: str, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout_s)
