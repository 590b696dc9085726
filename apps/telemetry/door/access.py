"""Who sends, and whose report it is: looked up in a thread of its own and remembered for seconds."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from django.db import Error as DatabaseError
from django.db import connections

from apps.accounts.selectors import principal_by_token_digest
from apps.accounts.services import digest_of, token_used
from apps.common.access import REPORT, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, Forbidden, PacelineError, Unavailable
from apps.telemetry.services.targets import Target, target_of_attempt, target_of_node

TOKEN_LIFE_S = 5.0
"""A revoked token ends within this."""

ATTEMPT_LIFE_S = 5.0
NODE_LIFE_S = 60.0
"""Nodes are never deleted; only an alias that is given to another node takes this long."""

MOST_ENTRIES = 200_000
"""More senders than any site has; past it the memory is emptied rather than grown."""

Found = TypeVar("Found")


class Unauthenticated(PacelineError):
    """No token, or one that is unknown or was revoked."""

    code = "unauthenticated"
    http_status = 401


@dataclass(slots=True)
class _Entry(Generic[Found]):
    value: Found
    until: float


class Remembered(Generic[Found]):
    """Answers of a slow question, remembered for `life_s`; many who ask the same at once ask once."""

    def __init__(self, ask: Callable[..., Found], *, life_s: float, thread: ThreadPoolExecutor) -> None:
        self._ask = ask
        self._life_s = life_s
        self._thread = thread
        self._entries: dict[Any, _Entry[Found]] = {}
        self._asking: dict[Any, asyncio.Future[Found]] = {}

    async def get(self, *key: Any) -> Found:
        """Return the answer for `key`; what is not found is asked again each time."""
        entry = self._entries.get(key)
        if entry is not None and entry.until > monotonic():
            return entry.value
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.ensure_future(self._fetch(key))
            self._asking[key] = asking
        # Shielded: the one who asked first may hang up while others wait for the same answer.
        return await asyncio.shield(asking)

    async def _fetch(self, key: Any) -> Found:
        try:
            value = await asyncio.get_running_loop().run_in_executor(self._thread, _in_thread, self._ask, key)
            if len(self._entries) >= MOST_ENTRIES:
                self._entries.clear()
            self._entries[key] = _Entry(value, monotonic() + self._life_s)
            return value
        finally:
            del self._asking[key]


def _in_thread(ask: Callable[..., Found], key: Any) -> Found:
    try:
        return ask(*key)
    except DatabaseError as error:
        raise Unavailable("The database does not answer at present.", retry_after_s=2) from error
    finally:
        connections.close_all()  # back to the pool: this thread asks only now and then


class Access:
    """Checks callers and finds targets. One database connection, in one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="report-door-access")
        self._principals = Remembered(_principal, life_s=TOKEN_LIFE_S, thread=self._thread)
        self._attempts = Remembered(target_of_attempt, life_s=ATTEMPT_LIFE_S, thread=self._thread)
        self._nodes = Remembered(_node, life_s=NODE_LIFE_S, thread=self._thread)

    async def principal(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Return who holds the bearer token in the headers, if they may report.

        Raises:
            Unauthenticated: no token, or no living one.
            Forbidden: the token lacks the scope.
        """
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not secret.strip():
            raise Unauthenticated("A bearer token is needed.")
        principal = await self._principals.get(secret.strip())
        if not principal.may(REPORT):
            held = ", ".join(sorted(principal.scopes))
            raise Forbidden(f"This needs the scope “{REPORT}”; {principal.name} has {held}.")
        return principal

    async def target(self, kind: str, code: str, principal: Principal) -> Target:
        """Return whose report it is, if the caller's token is for its cluster.

        Raises:
            NotFound, Conflict, BadRequest: as `targets` says.
            Forbidden: the token is for another cluster.
        """
        if "\0" in code:  # PostgreSQL takes none, and would seem to be away
            raise BadRequest("The address holds a zero byte.")
        if kind == "ATTEMPT":
            target = await self._attempts.get(code)
        else:
            target = await self._nodes.get(code, principal.cluster_id)
        if principal.cluster_id not in (None, target.cluster_id):
            raise Forbidden("This token is for another cluster.")
        return target

    def close(self) -> None:
        """Let go of the thread; waits for the lookup that is under way."""
        self._thread.shutdown(wait=True)


def _principal(secret: bytes) -> Principal:
    principal = principal_by_token_digest(digest_of(secret.decode("latin-1")))
    if principal is None:
        raise Unauthenticated("This token is unknown or was revoked.")
    token_used(token_id=principal.id, now=now())
    return principal


def _node(code: str, cluster_id: int | None) -> Target:
    return target_of_node(code, cluster_id=cluster_id, now=now())
