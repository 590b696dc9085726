"""Group commit: the reports of some milliseconds go to the inbox in one COPY and one commit, each answered after it."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from apps.common.clock import now
from apps.common.errors import PacelineError, Unavailable, Unprocessable
from apps.telemetry.door.caller import Caller
from apps.telemetry.services.heads import Head
from apps.telemetry.services.targets import Target

log = logging.getLogger(__name__)

LINGER_S = 0.003
"""How long a group waits for others after its first report: less than a commit to disk takes."""

GROUP_ROWS = 2_000
GROUP_BYTES = 16 * 2**20
"""Bounds of one group; a single report may be larger and then goes alone."""

MOST_WAITING_BYTES = 64 * 2**20
"""Reports that wait in memory for their commit: while the database stands still, more are sent away, not piled up."""

CLOSE_S = 5.0
"""How long a door that closes waits for the commits under way."""

AWAY = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
"""The database is away, or was lost before it said that it committed. Senders send again; the fold drops repeats."""

_COPY = """COPY telemetry_inbox (owner_kind, owner_id, scope_kind, scope_id, sender, boot, seq, received_at, sent_at,
newest_step, beats, exits, body) FROM STDIN (FORMAT BINARY)"""

_TYPES = [
    "text", "int8", "text", "int8", "text", "text", "int8", "timestamptz", "timestamptz", "int8", "bytea", "bytea",
    "bytea",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiting:
    """A report that waits for its commit, and the future that is told of it."""

    head: Head
    target: Target
    received_at: datetime
    done: asyncio.Future[None]


class Committer:
    """Puts reports into the inbox. One connection, one group at a time; groups grow while one is being written."""

    def __init__(self, pool: AsyncConnectionPool, caller: Caller) -> None:
        self._pool = pool
        self._caller = caller
        self._queue: list[Waiting] = []
        self._wake = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self.rows = 0
        self.bytes = 0

    async def put(self, head: Head, target: Target) -> None:
        """Return once the report's row is committed.

        Raises:
            Unavailable: the database is away or stands still; nothing is known to be kept.
            Unprocessable: the database refuses this very row.
        """
        size = len(head.body)
        if self._waiting_rows and self._waiting_bytes + size > MOST_WAITING_BYTES:
            raise Unavailable("The database does not keep up at present.", retry_after_s=2)
        done = asyncio.get_running_loop().create_future()
        self._queue.append(Waiting(head, target, now(), done))
        self._waiting_rows += 1
        self._waiting_bytes += size
        self._wake.set()
        try:
            await done
        finally:
            self._waiting_rows -= 1
            self._waiting_bytes -= size

    async def close(self) -> None:
        """Write what waits, then stop."""
        until = asyncio.get_running_loop().time() + CLOSE_S
        while self._waiting_rows and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LINGER_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(LINGER_S)
            group = self._take()
            if not self._queue:
                self._wake.clear()
            try:
                await self._write(group)
            except Exception as error:
                log.exception("a group of %d reports was not written", len(group))
                _fail(group, Unavailable("The report was not kept.", retry_after_s=2), error)

    def _take(self) -> list[Waiting]:
        size = count = 0
        for waiting in self._queue[:GROUP_ROWS]:
            size += len(waiting.head.body)
            if count and size > GROUP_BYTES:
                break
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _write(self, group: Sequence[Waiting]) -> None:
        """Write a group; one that the database refuses is tried again in halves, so a bad row fails alone."""
        if not group:
            return
        try:
            await self._commit(group)
        except AWAY as error:
            _fail(group, Unavailable("The database does not answer at present.", retry_after_s=2), error)
            return
        except (psycopg.Error, ValueError, OverflowError) as error:
            if len(group) == 1:
                _fail(group, Unprocessable("The report holds text that cannot be stored."), error)
                return
            middle = len(group) // 2
            await self._write(group[:middle])
            await self._write(group[middle:])
            return
        self.rows += len(group)
        self.bytes += sum(len(waiting.head.body) for waiting in group)
        for waiting in group:
            if not waiting.done.done():
                waiting.done.set_result(None)
        self._caller.committed((waiting.target.owner_kind, waiting.target.owner_id) for waiting in group)

    async def _commit(self, group: Sequence[Waiting]) -> None:
        async with (
            self._pool.connection(timeout=2) as connection,
            connection.cursor() as cursor,
            cursor.copy(_COPY) as copy,
        ):
            copy.set_types(_TYPES)
            for waiting in group:
                await copy.write_row(_row(waiting))


def _row(waiting: Waiting) -> tuple[object, ...]:
    head, target = waiting.head, waiting.target
    return (
        target.owner_kind, target.owner_id, target.scope_kind, target.scope_id, head.sender, head.boot, head.seq,
        waiting.received_at, head.sent_at, head.newest_step, head.beats, head.exits, head.body,
    )  # fmt: skip


def _fail(group: Sequence[Waiting], error: PacelineError, cause: Exception) -> None:
    log.info("%d reports not kept: %s", len(group), cause)
    for waiting in group:
        if not waiting.done.done():
            waiting.done.set_exception(error)
