"""The way of a report: who and whose · unpacked with a bound · its head read · one row committed with others · 202.

Everything else goes to the inner application. No middleware and no Django request: at 16,384 ranks 2,048 senders
report every five seconds, and this costs a twentieth of a view. Budget: four database connections a process (three of
the pool: reports, heartbeat, calls for folds; one to look up callers).
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

import orjson
from django.conf import settings
from django.db import connections
from psycopg_pool import AsyncConnectionPool

from apps.common.errors import PacelineError
from apps.common.rest import error_body
from apps.telemetry.choices import ScopeKind
from apps.telemetry.door.access import Access
from apps.telemetry.door.bell import Bell
from apps.telemetry.door.body import Disconnected, body_read
from apps.telemetry.door.caller import Caller
from apps.telemetry.door.commit import Committer
from apps.telemetry.door.pulse import Pulse
from apps.telemetry.services.heads import head_read

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = {"/api/v1/attempts/": ScopeKind.ATTEMPT.value, "/api/v1/nodes/": ScopeKind.NODE.value}
ENDING = "/reports"
POOL = 3

ASIDE_BYTES = 256 * 1024
"""A body above this is read in a thread: its head may take longer than other requests should wait."""

_numbers = itertools.count(int.from_bytes(os.urandom(4)))
"""Request ids need to differ, not to be secret: a counter costs a tenth of fresh chance each time."""

_ACCEPTED = b'{"accepted":true,"ignored":[]}'
_JSON = (b"content-type", b"application/json")


class _Works:
    """What serves reports within one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        parameters = connections["default"].get_connection_params()
        # Django's own cursor class and adapters are for its connections; ours are bare.
        given = {name: value for name, value in parameters.items() if name not in ("cursor_factory", "context")}
        given["application_name"] = "paceline-door"
        self.pool = AsyncConnectionPool(kwargs=given, min_size=1, max_size=POOL, open=False, reconnect_timeout=5)
        self.access = Access()
        self.bell = Bell()

    async def start(self) -> None:
        await self.pool.open(wait=False)
        self.caller = Caller(self.pool, self.bell)
        self.committer = Committer(self.pool, self.caller)
        self.pulse = Pulse(self.pool, self.committer)

    async def close(self) -> None:
        await self.committer.close()
        await self.caller.close()
        await self.pulse.close()
        await self.pool.close(timeout=2)
        await asyncio.to_thread(self.access.close)
        self.bell.close()


class ReportDoor:
    """ASGI application: `POST attempts/{attempt}/reports` and `POST nodes/{node}/reports`; the rest is `inner`'s."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._works: _Works | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = _place(scope["path"])
            if found is None:
                await self._inner(scope, receive, send)
            else:
                await self._answer(scope, receive, send, *found)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._inner(scope, receive, send)

    async def close(self) -> None:
        """Finish what waits and let go of connections and threads."""
        works, self._works = self._works, None
        if works is not None and works.loop is asyncio.get_running_loop():
            await works.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        # Answered here: the router inside does not speak lifespan.
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._ready()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _ready(self) -> _Works:
        """The works of the present loop; servers that send no lifespan event get them with the first report."""
        if self._works is None or self._works.loop is not asyncio.get_running_loop():
            self._works = _Works()
            await self._works.start()
        return self._works

    async def _answer(self, scope: Scope, receive: Receive, send: Send, kind: str, code: str) -> None:
        request_id = _request_id()
        headers = [_JSON, (b"x-request-id", request_id.encode())]
        try:
            status, body = 202, await self._take(scope, receive, kind, code)
        except Disconnected:
            return
        except PacelineError as error:
            status = error.http_status
            headers += _headers_of(error)
            body = _error(error.code, error.message, error.facts, request_id)
        except Exception:
            log.exception("report %s failed", request_id)
            status = 500
            body = _error("internal", "Something failed on our side. Nothing of this request was kept.", {}, request_id)
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _take(self, scope: Scope, receive: Receive, kind: str, code: str) -> bytes:
        works = await self._ready()
        if scope["method"] != "POST":
            raise MethodNotAllowed("Reports are sent by POST.")
        headers = dict(scope["headers"])
        principal = await works.access.principal(headers)
        target = await works.access.target(kind, code, principal)
        works.pulse.check()
        raw = await body_read(headers, receive, most=settings.PACELINE_LIMITS["report_bytes"])
        read = partial(head_read, raw, scope_kind=kind, default_sender=principal.name)
        head = await asyncio.to_thread(read) if len(raw) > ASIDE_BYTES else read()
        await works.committer.put(head, target)
        return orjson.dumps({"accepted": True, "ignored": head.ignored}) if head.ignored else _ACCEPTED


class MethodNotAllowed(PacelineError):
    """Another method than POST."""

    code = "method_not_allowed"
    http_status = 405


def _request_id() -> str:
    """An id in the form that all answers have; neighbours look different, so that they are not mixed up on the phone."""
    text = f"{next(_numbers) * 2_654_435_761 & 0xFFFFFFFF:08x}"
    return f"{text[:4]}-{text[4:]}"


def _place(path: str) -> tuple[str, str] | None:
    """Whose report a path is for: (scope kind, code), or None for all other paths."""
    if not path.endswith(ENDING):
        return None
    for start, kind in PATHS.items():
        if path.startswith(start):
            code = path[len(start) : -len(ENDING)]
            return (kind, code) if code and "/" not in code else None
    return None


def _headers_of(error: PacelineError) -> list[tuple[bytes, bytes]]:
    if error.http_status in (429, 503):
        return [(b"retry-after", str(error.facts.get("retry_after_s", 5)).encode())]
    if error.http_status == 401:
        return [(b"www-authenticate", b"Bearer")]
    return [(b"allow", b"POST")] if error.http_status == 405 else []


def _error(code: str, message: str, facts: dict[str, Any], request_id: str) -> bytes:
    return orjson.dumps(error_body(code=code, message=message, facts=facts, request_id=request_id), default=str)
