"""The live feeds. A message carries log rows, or says that a series or a status changed; it never carries cells.

A page names the streams it follows and the last number it has of each, so a reconnect brings what the gap held, once.
Pokes can be lost: each tick reads the streams again.
"""

import asyncio
import json
import logging
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import redis
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error as DatabaseError

from apps.accounts.selectors import principal_of_session
from apps.common.access import READ, Principal
from apps.common.clock import now, rfc3339
from apps.common.errors import PacelineError
from apps.common.live import FLEET_GROUP, poke_async, stream_group
from apps.console.selectors.feed import FeedStream, rows_after, streams_named
from apps.console.words import whole_of

log = logging.getLogger(__name__)

TICK_S = 4.0
"""How often a page hears that it is alive; pages turn stale after ten seconds without a word."""
MOST_STREAMS = 16
MOST_PRESENCE = 120

SIGNED_OUT, NOT_ALLOWED, NOT_FOUND = 4401, 4403, 4404
TRY_LATER = 1013
"""The page comes again by itself, after longer and longer waits."""


class Feed(AsyncWebsocketConsumer):
    """Base: who may listen, the tick, and what both feeds send."""

    groups_wanted: set[str]
    groups_joined: set[str]
    ticking: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self.groups_wanted, self.groups_joined = set(), set()
        await self.accept()
        who = await self._who()
        if who is None:
            await self.close(SIGNED_OUT)
            return
        if not who.may(READ):
            await self.close(NOT_ALLOWED)
            return
        self.who = who
        try:
            await self.begin(dict(self._query()), self._query())
        except PacelineError as error:
            await self.tell({"type": "error", "code": error.code, "message": str(error)})
            await self.close(NOT_FOUND)
            return
        self.ticking = asyncio.create_task(self._tick())

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        if self.ticking is not None:
            self.ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self.ticking
        with suppress(redis.RedisError, OSError):
            for group in self.groups_joined:
                await self.channel_layer.group_discard(group, self.channel_name)

    def _query(self) -> list[tuple[str, str]]:
        return parse_qsl(self.scope["query_string"].decode("utf-8", "replace"))

    async def _who(self) -> Principal | None:
        session: Any = self.scope.get("session")
        return await database_sync_to_async(principal_of_session)(session.session_key if session else None)

    async def join(self, group: str) -> None:
        """Listen to a group. While the channel layer is away each tick tries again, and the sweep stands in for pokes."""
        self.groups_wanted.add(group)
        try:
            await self.channel_layer.group_add(group, self.channel_name)
            self.groups_joined.add(group)
        except (redis.RedisError, OSError) as error:
            log.info("a feed could not join %s: %s", group, error)

    async def tell(self, message: dict[str, Any]) -> None:
        """Send one message with the server's clock in it."""
        await self.send(text_data=json.dumps({"at": rfc3339(now()), **message}, default=str))

    async def _tick(self) -> None:
        """Tell the time and look again, until the reader may no longer listen or the database is away."""
        try:
            while True:
                await self.tell({"type": "tick"})
                await asyncio.sleep(TICK_S)
                if await self._who() is None:  # signed out, shut out, or another password, while the page stood open
                    await self.close(SIGNED_OUT)
                    return
                for group in self.groups_wanted - self.groups_joined:
                    await self.join(group)
                await self.sweep()
        except DatabaseError as error:
            log.info("a feed lost the database: %s", error)
            await self.close(TRY_LATER)
        except OSError:  # the reader is gone; the server tells of that in its own time
            log.debug("a feed's reader went away in the middle of a word")

    async def begin(self, single: dict[str, str], query: list[tuple[str, str]]) -> None:
        """Join groups and send what the page lacks."""
        raise NotImplementedError

    async def sweep(self) -> None:
        """Look for what a lost poke would have told."""


class FleetFeed(Feed):
    """`/ws/fleet`: which run, node or incident has a new version. A reconnect reads again by ETag."""

    async def begin(self, single: dict[str, str], query: list[tuple[str, str]]) -> None:  # noqa: ARG002
        await self.join(FLEET_GROUP)

    async def feed_poke(self, event: dict[str, Any]) -> None:
        """Pass on what changed."""
        await self.tell({"type": "fleet", "what": event.get("what"), "id": event.get("id")})


class StreamFeed(Feed):
    """`/ws/feed?stream=run:SLUG@SEQ&stream=node:CLUSTER:NAME@SEQ…&page=incident:214`."""

    async def begin(self, single: dict[str, str], query: list[tuple[str, str]]) -> None:
        names = [value for name, value in query if name == "stream"][:MOST_STREAMS]
        self.reading = asyncio.Lock()
        self.streams: dict[str, FeedStream] = await database_sync_to_async(streams_named)(names)
        self.subjects = {(stream.key.kind.lower(), stream.key.id) for stream in self.streams.values()}
        self.page_group = _page_group(single.get("page", ""))
        # Groups first, then the rows: what is written in between is poked and read once more, not lost.
        for stream in self.streams.values():
            await self.join(stream_group(stream.key.kind, stream.key.id))
        await self.join(FLEET_GROUP)
        if self.page_group:
            await self.join(self.page_group)
        await self.sweep()

    async def sweep(self) -> None:
        """Send the rows that each stream has after its cursor. One reader at a time, so that none is sent twice."""
        async with self.reading:
            for name, stream in self.streams.items():
                more = True
                while more:
                    rows, more = await database_sync_to_async(rows_after)(stream.key, after=stream.seq)
                    if rows:
                        stream.seq = rows[-1]["seq"]
                        await self.tell({"type": "rows", "stream": name, "seq": stream.seq, "rows": rows})

    async def feed_poke(self, event: dict[str, Any]) -> None:
        """Read the log, or pass on that a series or a status has a new version."""
        if event.get("what") == "series":
            await self.tell({"type": "series", "attempt": event.get("attempt"), "version": event.get("version")})
        elif event.get("what") == "log":
            await self.sweep()
        elif (event.get("what"), event.get("id")) in self.subjects:
            await self.tell({"type": "fleet", "what": event.get("what"), "id": event.get("id")})

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:  # noqa: ARG002
        """Take what a page says of its reader: reading, or inserting at a time. It is passed on and never kept."""
        if not self.page_group or text_data is None or len(text_data) > 1000:
            return
        with suppress(ValueError):
            said = json.loads(text_data)
            if isinstance(said, dict) and said.get("type") == "presence":
                doing = str(said.get("doing", ""))[:MOST_PRESENCE]
                await poke_async(self.page_group, {"type": "feed.presence", "who": self.who.name, "doing": doing})

    async def feed_presence(self, event: dict[str, Any]) -> None:
        """Say who else looks at this page."""
        await self.tell({"type": "presence", "who": event["who"], "doing": event["doing"]})

    async def disconnect(self, code: int) -> None:
        if getattr(self, "page_group", ""):
            await poke_async(self.page_group, {"type": "feed.presence", "who": self.who.name, "doing": "left"})
        await super().disconnect(code)


class Nowhere(AsyncWebsocketConsumer):
    """Every other address: refused, where the router alone would fail."""

    async def connect(self) -> None:
        await self.close(NOT_FOUND)


def _page_group(text: str) -> str:
    kind, _, number = text.partition(":")
    return f"page.{kind}.{number}" if kind == "incident" and whole_of(number) is not None else ""
