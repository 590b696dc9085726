"""Signed JSON over HTTP: how notices and webhook launchers speak to a site's own programs."""

import hashlib
import hmac
import http.client
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import orjson

HEADER = "Paceline-Signature"
MOST_ANSWER_BYTES = 64 * 1024
"""More of an answer than this is not read: nothing that is expected is longer."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What the other side said; `body` is cut at MOST_ANSWER_BYTES."""

    status: int
    body: bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A signed body goes to the address that was configured, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


class NotReached(ConnectionError):
    """Nobody was reached: nothing of the request was heard, so that it is safe to try again."""


_opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))


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
    if not at.isdigit() or abs(now - int(at)) > tolerance_s:
        return False
    return hmac.compare_digest(header, signature_of(body, secret=secret, at=int(at)))


def signed_post(url: str, content: dict[str, Any], *, secret: str, timeout_s: float) -> HttpAnswer:
    """POST `content` as signed JSON and return the answer, whatever its status.

    Raises:
        ValueError: the address is not http or https.
        TimeoutError: no answer in time; it may have been heard.
        NotReached: nobody was reached.
        OSError: the connection broke later; it may have been heard.
    """
    body = orjson.dumps(content)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Paceline",
        HEADER: signature_of(body, secret=secret, at=int(time.time())),
    }
    request = urllib.request.Request(_checked(url), data=body, headers=headers, method="POST")  # noqa: S310 - checked
    return http_call(request, timeout_s=timeout_s)


def http_call(request: urllib.request.Request, *, timeout_s: float) -> HttpAnswer:
    """Do one HTTP request without redirects and proxies; errors as in `signed_post`."""
    _checked(request.full_url)
    try:
        with _opener.open(request, timeout=timeout_s) as answer:
            return HttpAnswer(answer.status, answer.read(MOST_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(error.code, error.read(MOST_ANSWER_BYTES))
    except urllib.error.URLError as error:
        raise _unwrapped(error.reason) from error
    except http.client.HTTPException as error:
        raise OSError(f"the answer was cut off: {error}") from error


def _checked(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("only http and https addresses are called")
    return url


def _unwrapped(reason: object) -> OSError:
    """Return what urllib hid: a time-out, "not reached", or a connection that broke later."""
    if isinstance(reason, TimeoutError):
        return reason
    if isinstance(reason, ConnectionRefusedError | socket.gaierror):
        return NotReached(str(reason))
    return OSError(str(reason))
