"""Counting what is asked of the database, by whichever cursor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

QUIET = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT", "SET ")


@contextmanager
def asked(monkeypatch: Any) -> Iterator[list[str]]:
    """Give the list of the statements that are executed inside, savepoints left out.

    Django's own count would miss those of the binary cursors."""
    found: list[str] = []
    whole = psycopg.Cursor.execute

    def execute(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        text = str(query)
        if not text.lstrip().upper().startswith(QUIET):
            found.append(text)
        return whole(self, query, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", execute)
        yield found


@contextmanager
def asked_async(monkeypatch: Any) -> Iterator[list[str]]:
    """Give the same of asynchronous cursors, with what is copied."""
    found: list[str] = []
    execute, copy = psycopg.AsyncCursor.execute, psycopg.AsyncCursor.copy

    async def executing(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        found.append(str(query))
        return await execute(self, query, *args, **more)

    def copying(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        found.append(str(query))
        return copy(self, query, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.AsyncCursor, "execute", executing)
        patched.setattr(psycopg.AsyncCursor, "copy", copying)
        yield found
