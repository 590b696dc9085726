"""Pace strips: a run's last four hours in 48 cells of five minutes, its step time against its own best."""

from datetime import datetime, timedelta
from typing import Any

from apps.runs.selectors import RunRow

CELLS = 48
CELL = timedelta(minutes=5)


def strip_of(run: RunRow, *, now: datetime) -> dict[str, Any]:
    """Return a run's strip and its words, to be set on its line."""
    del run, now
    return {}
