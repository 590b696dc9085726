"""Signed JSON over HTTP: how notices and webhook launchers speak to a site's own programs."""

import hashlib
import hmac
import http.client
import ssl
from collections.abc import Mapping
from contextlib import closing
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
        try:
            if connection.sock is not None:
                connection.sock.settimeout(answer_s)
            connection.request(method, target, body=body, headers={**headers, "User-Agent": "Paceline"})
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read(MOST_ANSWER_BYTES))
        except http.client.HTTPException as error:
            raise OSError(f"the answer was cut off: {error or type(error).__name__}") from error


def _connection(scheme: str, host: str, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout_s)
