"""Asking for folds: soon after a report, seldom enough, and at most one at a time for each owner.

A call is a row in the database until its fold begins; the message to the workers goes only with a new row. The last
reports of a burst get a call too: one is set for the end of the pause.
"""

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from time import monotonic

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from apps.common.clock import now
from apps.telemetry.door.bell import Bell

log = logging.getLogger(__name__)

PAUSE_S = 0.4
"""An owner's fold is asked for at most this often by one process: a fold has a fixed cost, so fewer and longer ones are
cheaper, and this is well below the second in which a page shows a report."""

CALL_AGAIN = timedelta(seconds=2)
"""A call that no fold has answered for this long may have been lost with the broker and is made again."""

MOST_OWNERS = 10_000

_CALL = """INSERT INTO telemetry_foldcall AS c (owner_kind, owner_id, asked_at) VALUES (%s, %s, %s)
ON CONFLICT (owner_kind, owner_id) DO UPDATE SET asked_at = excluded.asked_at WHERE c.asked_at < %s
RETURNING 1"""

Owner = tuple[str, int]


class Caller:
    """Calls for the folds of owners whose reports were just committed."""

    def __init__(self, pool: AsyncConnectionPool, bell: Bell) -> None:
        self._pool = pool
        self._bell = bell
        self._called: dict[Owner, float] = {}
        self._waiting: dict[Owner, asyncio.Task[None]] = {}

    def committed(self, owners: Iterable[Owner]) -> None:
        """Note that reports of these owners wait: their folds are called now, or when the pause is over."""
        for owner in owners:
            if owner not in self._waiting and len(self._waiting) < MOST_OWNERS:
                due = self._called.get(owner, 0.0) + PAUSE_S
                task = asyncio.ensure_future(self._call(owner, max(0.0, due - monotonic())))
                self._waiting[owner] = task

    async def close(self) -> None:
        """Stop; calls not made yet are the sweep's."""
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)

    async def _call(self, owner: Owner, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            if len(self._called) > MOST_OWNERS:
                self._called.clear()
            self._called[owner] = monotonic()
            moment = now()
            async with self._pool.connection(timeout=2) as connection:
                # A call that is lost with the server costs one sweep, so nobody waits for the disk.
                await connection.execute("SET LOCAL synchronous_commit = off")
                made = await (await connection.execute(_CALL, (*owner, moment, moment - CALL_AGAIN))).fetchone()
            if made:
                self._bell.ring([owner])
        except (psycopg.Error, PoolTimeout, OSError) as error:
            log.info("a fold could not be called, the sweep will: %s", error)
        finally:
            del self._waiting[owner]
