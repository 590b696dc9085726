"""The door's heartbeat: each second, how full the inbox is, and since when reports could be taken."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from datetime import datetime

import psycopg
from django.conf import settings
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from apps.common.clock import now
from apps.common.errors import Busy, Unavailable
from apps.telemetry.door.commit import Committer

log = logging.getLogger(__name__)

PERIOD_S = 1.0
COUNT_SHARE = 0.05
"""Counting a very full inbox takes long; it is done so rarely that it takes at most this share of the time. The beat keeps
its period beside it: a door that is slow at counting still takes reports."""

_COUNT = "SELECT count(*), coalesce(sum(octet_length(body)), 0)::int8, min(received_at) FROM telemetry_inbox"

_BEAT = """INSERT INTO telemetry_doorbeat (instance, accepting_since, last_beat_at, inbox_rows, inbox_bytes,
oldest_received_at) VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (instance) DO UPDATE SET
accepting_since = excluded.accepting_since, last_beat_at = excluded.last_beat_at, inbox_rows = excluded.inbox_rows,
inbox_bytes = excluded.inbox_bytes, oldest_received_at = excluded.oldest_received_at"""

_FORGET = "DELETE FROM telemetry_doorbeat WHERE last_beat_at < %s - interval '1 hour'"


class Pulse:
    """Knows whether the door may accept, and writes it down for the clock-driven checks."""

    def __init__(self, pool: AsyncConnectionPool, committer: Committer) -> None:
        self._pool = pool
        self._committer = committer
        self._instance = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._rows = self._bytes = 0
        self._oldest: datetime | None = None
        self._count_at = 0.0
        self._counting: asyncio.Future[None] | None = None
        self._away = False
        self._accepting_since: datetime | None = now()
        self._task = asyncio.ensure_future(self._run())

    def check(self) -> None:
        """Let a report in, or say when to come again.

        Raises:
            Busy: the inbox is past its bounds.
            Unavailable: the database is away.
        """
        if self._away:
            raise Unavailable("The database does not answer at present.", retry_after_s=2)
        if self._is_full():
            raise Busy("More reports wait to be folded than may; keep this one and send it later.", retry_after_s=3)

    async def close(self) -> None:
        """Stop, and say that this process accepts no more."""
        tasks = [task for task in (self._task, self._counting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(psycopg.Error, PoolTimeout):
            async with self._pool.connection(timeout=1) as connection:
                await connection.execute("DELETE FROM telemetry_doorbeat WHERE instance = %s", (self._instance,))

    def _is_full(self) -> bool:
        limits = settings.PACELINE_LIMITS
        rows, size = self._rows + self._committer.rows, self._bytes + self._committer.bytes
        return bool(rows >= limits["inbox_rows"] or size >= limits["inbox_bytes"])

    async def _run(self) -> None:
        while True:
            if (self._counting is None or self._counting.done()) and time.monotonic() >= self._count_at:
                self._counting = asyncio.ensure_future(self._count())
            try:
                await self._beat()
                self._away = False
            except (psycopg.Error, PoolTimeout, OSError) as error:
                if not self._away:
                    log.warning("the report door cannot reach the database: %s", error)
                self._away, self._accepting_since = True, None
            await asyncio.sleep(PERIOD_S)

    async def _beat(self) -> None:
        async with self._pool.connection(timeout=2) as connection:
            moment = now()
            if self._is_full():
                self._accepting_since = None
            elif self._accepting_since is None:
                self._accepting_since = moment
            told = (self._instance, self._accepting_since, moment, self._rows, self._bytes, self._oldest)
            await connection.execute(_BEAT, told)
            await connection.execute(_FORGET, (moment,))

    async def _count(self) -> None:
        began = time.monotonic()
        self._committer.rows = self._committer.bytes = 0
        # Whether the database is away is the beat's to say.
        with contextlib.suppress(psycopg.Error, PoolTimeout, OSError):
            async with self._pool.connection(timeout=2) as connection:
                found = await (await connection.execute(_COUNT)).fetchone()
                assert found is not None
                self._rows, self._bytes, self._oldest = found
        ended = time.monotonic()
        self._count_at = ended + (ended - began) * (1 / COUNT_SHARE - 1)
