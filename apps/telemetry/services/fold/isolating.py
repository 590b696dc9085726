"""Keeping a report that cannot be folded from blocking the others, within a bounded number of tries."""

import logging
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
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

PROBES = 8
"""Reports tried alone to tell a fault of ours from poisoned ones; another turn probes others."""

MOST_TRIES = 64
"""Tries of one fold. Enough to find four poisoned reports among 20,000; with more of them the next fold goes on."""


class NothingFolds(Exception):
    """None of several reports can be folded, though each was tried alone: the fault is ours."""


@dataclass(slots=True)
class Isolated:
    """What came of it. refused: the reports that were given up, and why. left: those that were not tried any more."""

    refused: list[tuple[WaitingRow, str]] = field(default_factory=list)
    left: list[WaitingRow] = field(default_factory=list)


@dataclass(slots=True)
class _Trying:
    fold: Callable[[Sequence[WaitingRow]], None]
    now: datetime
    kept: MutableMapping[Any, Any]
    tries: int = 0
    given_up: list[tuple[WaitingRow, Exception]] = field(default_factory=list)
    left: list[WaitingRow] = field(default_factory=list)

    def together(self, rows: Sequence[WaitingRow]) -> Exception | None:
        """Fold rows in a savepoint of their own; return what they failed with."""
        self.tries += 1
        before = dict(self.kept)
        try:
            with recording(now=self.now):
                self.fold(rows)
        except Exception as error:
            if _is_lost(error):
                raise
            self.kept.clear()
            self.kept.update(before)
            return error
        return None

    def apart(self, rows: Sequence[WaitingRow]) -> None:
        """Fold rows in halves until those that fail are alone."""
        if not rows:
            return
        if self.tries >= MOST_TRIES:
            self.left += rows
            return
        error = self.together(rows)
        if error is not None and len(rows) == 1:
            self.given_up.append((rows[0], error))
        elif error is not None:
            self.halves(rows)

    def halves(self, rows: Sequence[WaitingRow]) -> None:
        """Fold both halves of rows that failed together."""
        middle = len(rows) // 2
        self.apart(rows[:middle])
        self.apart(rows[middle:])


def fold_isolating(
    rows: Sequence[WaitingRow],
    fold: Callable[[Sequence[WaitingRow]], None],
    *,
    now: datetime,
    kept: MutableMapping[Any, Any],
    turn: int = 0,
) -> Isolated:
    """Fold rows together; if that fails, in halves, until the one that cannot be folded is alone: it is deleted.

    Each try is a savepoint of its own; `kept` is taken back to what it was when one fails. First some rows are tried
    alone (`turn` chooses which): if all of several fail, so would the others, and none is given up.

    Raises:
        NothingFolds: from what the last of them failed with.
    """
    trying = _Trying(fold, now, kept)
    error = trying.together(rows) if rows else None
    if error is not None and len(rows) == 1:
        trying.given_up.append((rows[0], error))
    elif error is not None:
        probes = _probes(rows, turn)
        for row in probes:
            trying.apart([row])
        if len(trying.given_up) == len(probes) >= OURS_FROM:
            raise NothingFolds(f"none of {len(rows):,} reports can be folded") from trying.given_up[-1][1]
        tried = {row.id for row in probes}
        trying.apart([row for row in rows if row.id not in tried])
    for row, reason in trying.given_up:
        log.error("report %d of %s %d cannot be folded", row.id, row.scope_kind, row.scope_id, exc_info=reason)
    rows_delete([row.id for row, _ in trying.given_up])
    return Isolated([(row, f"{type(why).__name__}: {why}") for row, why in trying.given_up], trying.left)


def _probes(rows: Sequence[WaitingRow], turn: int) -> list[WaitingRow]:
    """Return up to `PROBES` rows, of as many senders as there are: one sender's poison says nothing of the others."""
    by_sender: dict[str, list[WaitingRow]] = {}
    for row in rows:
        by_sender.setdefault(row.sender, []).append(row)
    senders = list(by_sender.values())
    deepest = max(map(len, senders))
    found: dict[int, WaitingRow] = {}
    for n in range(turn * PROBES, turn * PROBES + len(senders) * deepest):
        own = senders[n % len(senders)]
        row = own[(n // len(senders)) % len(own)]
        found[row.id] = row
        if len(found) == min(PROBES, len(rows)):
            break
    return list(found.values())


def _is_lost(error: Exception) -> bool:
    """Whether the connection is gone, so that nothing can be tried again here: the rows wait for the next fold."""
    return isinstance(error, CONNECTION_LOST) or (
        isinstance(error, DatabaseError) and isinstance(error.__cause__, CONNECTION_LOST)
    )
