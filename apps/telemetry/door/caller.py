"""Asking for folds: soon after a report, seldom enough, and at most one at a time for each owner.

A call is a row in the database until its fold begins; the message to the workers goes only with a new row. The last
reports of a burst get a call too: one is set for the end of the pause.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from time import monotonic

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from apps.common.clock import now
from apps.telemetry.door.bell import Bell

log = logging.getLogger(__name__)

PAUSE_S = 0.4
LONG_PAUSE_S = 1.0
"""An owner's fold is asked for at most this often by one process. A fold has a fixed cost, so fewer and longer ones are
cheaper: where many senders report, a second is waited; both are well below what a page may take to show a report."""

MANY = 40
"""Reports within a pause from which an owner counts as one with many senders: about a hundred a second."""

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
        self._due: dict[Owner, float] = {}
        self._reports: Counter[Owner] = Counter()
        self._waiting: dict[Owner, asyncio.Task[None]] = {}

    def committed(self, owners: Iterable[Owner]) -> None:
        """Note that reports of these owners wait (each as often as it has some): folds are called now, or after the pause."""
        for owner, reports in Counter(owners).items():
            self._reports[owner] += reports
            if owner not in self._waiting and len(self._waiting) < MOST_OWNERS:
                after_s = max(0.0, self._due.get(owner, 0.0) - monotonic())
                self._waiting[owner] = asyncio.ensure_future(self._call(owner, after_s))

    async def close(self) -> None:
        """Stop; calls not made yet are the sweep's."""
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)

    async def _call(self, owner: Owner, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            if len(self._due) > MOST_OWNERS:
                self._due.clear()
            self._due[owner] = monotonic() + (LONG_PAUSE_S if self._reports.pop(owner, 0) >= MANY else PAUSE_S)
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
