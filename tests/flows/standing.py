"""An installation of real processes over a PostgreSQL and a Valkey of its own, which a test may kill in the middle of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import redis

from apps.config.local.servers import RunningServers
from tests.rest import rest_ask
from tests.site import LiveSite

LONG_S = 120.0
"""A bound against waiting for ever; how fast things happen is measured elsewhere."""


@dataclass
class Standing:
    """An installation over servers that may die."""

    site: LiveSite
    servers: RunningServers
    token: str = ""

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, read straight from the database."""
        with psycopg.connect(self.servers.servers.database_url) as connection:
            return connection.execute(statement, values or None).fetchall()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and answer of a REST request; 0 where none came."""
        return rest_ask(self.site.url, self.token, method, path, body, **headers)

    def read(self, path: str) -> Any:
        """Return what REST answers, once it answers."""

        def answer() -> Any:
            status, body = self.ask("GET", path)
            return body if status == 200 else None

        return self.site.wait(answer, f"an answer to {path}", LONG_S)

    def broker(self) -> redis.Redis:
        return redis.Redis.from_url(self.servers.servers.redis_url)

    def broker_lost(self) -> None:
        """Empty the broker, then kill it: messages on their way are gone for good."""
        self.broker().flushall()
        self.servers.kill("valkey")

    def events(self, run: str) -> list[dict[str, Any]]:
        """Return the whole log of a run, oldest first."""
        rows: list[dict[str, Any]] = []
        while more := self.read(f"runs/{run}/events?after={rows[-1]['seq'] if rows else 0}&limit=1000")["results"]:
            rows += more
        return rows
