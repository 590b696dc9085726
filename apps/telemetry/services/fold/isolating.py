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

OURS_FROM = 4
"""So many reports that all fail, each alone, are not poisoned: the fault is ours, and they wait until it is mended."""

GivenUp = tuple[WaitingRow, Exception]


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

    Raises:
        Exception: what every single one of several rows failed with.
    """
    given_up = _fold(rows, fold, now, kept)
    if len(given_up) == len(rows) >= OURS_FROM:
        raise given_up[-1][1]
    for row, error in given_up:
        log.error("report %d of %s %d cannot be folded", row.id, row.scope_kind, row.scope_id, exc_info=error)
    rows_delete([row.id for row, _ in given_up])
    return [(row, f"{type(error).__name__}: {error}") for row, error in given_up]


def _fold(
    rows: Sequence[WaitingRow],
    fold: Callable[[Sequence[WaitingRow]], None],
    now: datetime,
    kept: MutableMapping[Any, Any],
) -> list[GivenUp]:
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
        if len(rows) == 1:
            return [(rows[0], error)]
    middle = len(rows) // 2
    return [*_fold(rows[:middle], fold, now, kept), *_fold(rows[middle:], fold, now, kept)]


def _is_lost(error: Exception) -> bool:
    """Whether the connection is gone, so that nothing can be tried again here: the rows wait for the next fold."""
    return isinstance(error, CONNECTION_LOST) or (
        isinstance(error, DatabaseError) and isinstance(error.__cause__, CONNECTION_LOST)
    )
