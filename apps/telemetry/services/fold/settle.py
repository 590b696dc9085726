"""The law of settled columns (DESIGN §1): detectors see these only, in order, and never again."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from apps.telemetry.stores.series import ColumnRow, Writing, columns_open, columns_settle

MOST_COLUMNS = 5_000
"""Columns settled at once; the rest follows with the next fold or sweep."""


def columns_settle_due(
    series: Writing, *, world_size: int | None, settle_s: float, oldest_waiting: datetime | None, now: datetime
) -> int:
    """Settle the columns whose turn it is, in order, and return how many.

    A column is settled when all `world_size` ranks have reported it, or `settle_s` after its first value was received,
    once every report received before that moment is folded. It waits for the columns before it: what detectors have
    passed never changes. Steps that nobody logs are settled with the next one that is.
    """
    due: list[ColumnRow] = []
    wait = timedelta(seconds=settle_s)
    for column in columns_open(series, limit=MOST_COLUMNS):
        until = column.first_received_at + wait
        complete = world_size is not None and column.ranks >= world_size
        over = now >= until and (oldest_waiting is None or oldest_waiting > until)
        if not complete and not over:
            break
        due.append(column)
    if due:
        columns_settle(series, steps=[c.step for c in due], ended_at=_ends(due), now=now)
        series.row.settled_step = due[-1].step
    return len(due)


def _ends(columns: Sequence[ColumnRow]) -> list[datetime | None]:
    """When each column ended: the median of what its senders said, on their own clocks."""
    found: list[datetime | None] = []
    for column in columns:
        told = np.frombuffer(column.ended, "<f8")
        try:
            found.append(datetime.fromtimestamp(float(np.median(told)), UTC) if len(told) else None)
        except (ValueError, OverflowError, OSError):
            found.append(None)
    return found
