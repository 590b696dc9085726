"""Keeping a report that cannot be folded from blocking the others."""

import logging
from collections.abc import Callable, MutableMapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from django.db import Error as DatabaseError

from apps.journal.services import recording
from apps.telemetry.stores.inbox import WaitingRow, rows_delete

log = logging.getLogger(__name__)

CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


def fold_isolating(
    rows: Sequence[WaitingRow],
    fold: Callable[[Sequence[WaitingRow]], None],
    *,
    now: datetime,
    kept: MutableMapping[Any, Any],
) -> list[tuple[WaitingRow, str]]:
    """Fold rows together; if that fails, in halves, until the one that cannot be folded is alone: it is deleted.

    Each try is a savepoint of its own; `kept` is taken back to what it was when one fails. Return the rows that were
    given up, and why.
    """
    if not rows:
        return []
    before = dict(kept)
    try:
        with recording(now=now):
            fold(rows)
        return []
    except Exception as error:
        if _is_lost(error):
            raise
        kept.clear()
        kept.update(before)
        if len(rows) > 1:
            middle = len(rows) // 2
            halves = (rows[:middle], rows[middle:])
            return [given_up for half in halves for given_up in fold_isolating(half, fold, now=now, kept=kept)]
        log.exception("report %d of %s %d cannot be folded", rows[0].id, rows[0].scope_kind, rows[0].scope_id)
        rows_delete([rows[0].id])
        return [(rows[0], f"{type(error).__name__}: {error}")]


def _is_lost(error: Exception) -> bool:
    """Whether the connection is gone, so that nothing can be tried again here: the rows wait for the next fold."""
    return isinstance(error, CONNECTION_LOST) or (
        isinstance(error, DatabaseError) and isinstance(error.__cause__, CONNECTION_LOST)
    )
