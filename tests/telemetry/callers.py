"""How tests speak to the report door: a whole ASGI application, in the test's own event loop."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from apps.telemetry.door import ReportDoor


async def inner(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    """The application behind the door: says that the request came through."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"inner"})


class Caller:
    """Posts reports with one token."""

    def __init__(self, http: httpx.AsyncClient, token: str | None) -> None:
        self.http = http
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def post(
        self, path: str, body: Any, *, packed: bool = False, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send `body` (bytes as they are, else as JSON) to `/api/v1/` + path."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        sent = {**self.headers, "Content-Type": "application/json", **(headers or {})}
        if packed:
            raw, sent = gzip.compress(raw), {**sent, "Content-Encoding": "gzip"}
        return await self.http.post(f"/api/v1/{path}", content=raw, headers=sent)


@asynccontextmanager
async def door_open(token: str | None = None) -> AsyncIterator[Caller]:
    """A door of its own for one test."""
    door = ReportDoor(inner)
    transport = httpx.ASGITransport(app=door)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as http:
        try:
            yield Caller(http, token)
        finally:
            await door.close()
