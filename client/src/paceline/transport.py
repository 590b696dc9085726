"""HTTP to the server: one kept connection, time-outs everywhere, and what each answer means for a report."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import quote, urlsplit

from paceline.http1 import Connection, HttpError, Response
from paceline.version import VERSION

TIMEOUT_S = 10.0
GZIP_FROM = 4 * 1024
"""Below this a report fits into three packets anyway; unpacking would cost the server more than it saves the wire."""
BACKOFF_FIRST_S, BACKOFF_LAST_S = 0.5, 10.0
"""Shorter than a sender may be silent (15 s at least): when the server was away, nobody is taken for dead afterwards."""
RETRY_AFTER_MAX_S = 120.0


class Verdict(Enum):
    """What an answer means for the report that was sent."""

    DELIVERED = "delivered"
    AGAIN = "try again: the server is away or busy"
    DENIED = "try again, and tell somebody: the token is not accepted"
    NOT_YET = "try again: this target can't take it now"
    NEVER = "can't be taken, ever"


@dataclass(frozen=True)
class Answer:
    """What the server said; status 0 means that nothing was heard, and `message` says why."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    message: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    retry_after_s: float | None = None
    date: str = ""

    @property
    def verdict(self) -> Verdict:
        if 200 <= self.status < 300:
            return Verdict.DELIVERED
        if self.status in (401, 403):
            return Verdict.DENIED
        if self.status in (404, 409):
            return Verdict.NOT_YET
        if 400 <= self.status < 500 and self.status not in (408, 425, 429):
            return Verdict.NEVER
        return Verdict.AGAIN


class Server:
    """The server's address and token, and a connection that is kept while it works."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        secure = parts.scheme == "https"
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._base = parts.path.rstrip("/")
        self._token = token
        port = parts.port or (443 if secure else 80)
        self._connection = Connection(parts.hostname or "", port, secure=secure, timeout_s=timeout_s)

    def request(self, method: str, door: str, body: Any = None, *, content_type: str = "application/json") -> Answer:
        """Send `body` (bytes as they are, else as JSON) to `/api/v1/` + door and return the answer; never raises."""
        raw = body if isinstance(body, bytes) else json.dumps(body or {}, separators=(",", ":")).encode()
        headers = {
            "Content-Type": content_type,
            "Accept": "application/json",
            "User-Agent": f"paceline-client/{VERSION}",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if len(raw) >= GZIP_FROM:
            packed = _gzip(raw)
            if len(packed) < 0.9 * len(raw):
                raw = packed
                headers["Content-Encoding"] = "gzip"
        kept = self._connection.is_open
        answer = self._once(method, door, raw, headers)
        if answer.status == 0 and kept:
            # A kept connection that the server closed meanwhile says nothing about the server: reports may be repeated.
            answer = self._once(method, door, raw, headers)
        return answer

    def close(self) -> None:
        self._connection.close()

    def _once(self, method: str, door: str, raw: bytes, headers: dict[str, str]) -> Answer:
        try:
            return _answer(self._connection.request(method, f"{self._base}/api/v1/{door}", headers, raw))
        except HttpError as error:
            return Answer(0, message=str(error))


class Backoff:
    """Waits that double up to a limit, spread at random so that two thousand senders don't come back as one."""

    def __init__(self, *, first_s: float = BACKOFF_FIRST_S, last_s: float = BACKOFF_LAST_S) -> None:
        self.first_s = first_s
        self.last_s = last_s
        self._next_s = first_s
        self.until = 0.0

    def failed(self, now: float, *, retry_after_s: float | None = None, at_least_s: float = 0.0) -> None:
        wait = max(self._next_s, at_least_s) * (0.5 + 0.5 * _chance())
        self._next_s = min(2 * self._next_s, self.last_s)
        if retry_after_s is not None:
            wait = min(retry_after_s, RETRY_AFTER_MAX_S) * (1.0 + 0.2 * _chance())
        self.until = now + wait

    def worked(self) -> None:
        self._next_s = self.first_s
        self.until = 0.0

    def open(self, now: float) -> bool:
        """True while nothing should be sent."""
        return now < self.until


def longest_wait_s(interval_s: float) -> float:
    """Return how long a sender that reports each `interval_s` seconds waits at most before it tries again.

    Three intervals without a report count as silence: whoever waited longer would be missed when the server comes back.
    """
    return min(max(3 * interval_s, BACKOFF_FIRST_S), BACKOFF_LAST_S)


def path(*parts: str) -> str:
    """Return a door's path with each part quoted; a colon stays, for `CLUSTER:NAME`."""
    return "/".join(quote(part, safe=":") for part in parts)


def _answer(reply: Response) -> Answer:
    try:
        body = json.loads(reply.body) if reply.body else {}
    except ValueError:
        body = {}
    body = body if isinstance(body, dict) else {}
    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    facts = error.get("facts")
    return Answer(
        status=reply.status,
        body=body,
        code=str(error.get("code", "")).upper(),
        message=str(error.get("message", "")) or reply.reason,
        facts=facts if isinstance(facts, dict) else {},
        retry_after_s=_seconds(reply.headers.get("retry-after")),
        date=reply.headers.get("date", ""),
    )


def _seconds(text: str | None) -> float | None:
    try:
        return max(float(text), 0.0) if text else None
    except ValueError:
        return None


def _gzip(raw: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)  # 31: a gzip head and tail around it
    return packer.compress(raw) + packer.flush()


def _chance() -> float:
    """Return a number from 0 to 1; every process draws others."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
