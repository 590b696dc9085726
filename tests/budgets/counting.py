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
