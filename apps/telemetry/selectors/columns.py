"""Columns of an attempt: which are settled, when they were heard, when they ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from apps.telemetry.choices import SeriesKind
from apps.telemetry.selectors.blocks import columns_read
from apps.telemetry.selectors.series import series_of
from apps.telemetry.selectors.sql import cursor


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """What is known of one step besides its values."""

    step: int
    first_received_at: datetime
    ranks: int
    version: int
    ended_at: datetime | None
    settled_at: datetime | None


@dataclass(frozen=True, eq=False, slots=True)
class SettledColumns:
    """Settled columns in step order.

    steps: int64 [c]. received_at, ended_at: float64 [c], unix s, by our clock and (the median) by the senders'; NaN =
    not told. values: metric → float32 [ranks, c], NaN = not reported. version: of the series as read.
    """

    steps: NDArray[np.int64]
    received_at: NDArray[np.float64]
    ended_at: NDArray[np.float64]
    values: dict[str, NDArray[np.float32]]
    version: int

    def __len__(self) -> int:
        return len(self.steps)


_COLUMNS = "SELECT step, first_received_at, ranks, version, ended_at, settled_at FROM telemetry_column"
_NEWEST = f"""{_COLUMNS} WHERE series_id = %s AND settled_at IS NOT NULL
AND step <= (SELECT settled_step FROM telemetry_series WHERE id = %s) ORDER BY step DESC LIMIT %s"""  # noqa: S608 - no value


def settled_watermark(attempt_id: int) -> int | None:
    """Return the highest settled step of an attempt, None if none is."""
    series = series_of(SeriesKind.RANK, attempt_id)
    return series.settled_step if series else None


def columns_settled(
    *, attempt_id: int, after_step: int | None, limit: int, metrics: Sequence[str] | None = None
) -> SettledColumns:
    """Return an attempt's settled columns past `after_step`, in step order, at most `limit`.

    `metrics` None means all; a name that the attempt never reported is left out.
    """
    series = series_of(SeriesKind.RANK, attempt_id)
    if series is None or series.settled_step is None:
        return SettledColumns(np.empty(0, np.int64), np.empty(0), np.empty(0), {}, 0)
    with cursor() as c:
        c.execute(
            _COLUMNS + " WHERE series_id = %s AND step > %s AND step <= %s ORDER BY step LIMIT %s",
            (series.id, -1 if after_step is None else after_step, series.settled_step, limit),
        )
        columns = [ColumnInfo(*row) for row in c]
    steps = np.array([column.step for column in columns], np.int64)
    wanted = series.numbers if metrics is None else {n: series.numbers[n] for n in metrics if n in series.numbers}
    return SettledColumns(
        steps=steps,
        received_at=np.array([column.first_received_at.timestamp() for column in columns]),
        ended_at=np.array([column.ended_at.timestamp() if column.ended_at else np.nan for column in columns]),
        values=columns_read(series_id=series.id, width=series.width, numbers=wanted, steps=steps),
        version=series.version,
    )


def columns_newest(series_id: int, *, limit: int) -> list[ColumnInfo]:
    """Return the newest settled columns of a series, lowest step first."""
    with cursor() as c:
        c.execute(
            _NEWEST,
            (series_id, series_id, limit),
        )
        return [ColumnInfo(*row) for row in c][::-1]


def columns_between(series_id: int, *, first: int, end: int, limit: int = 1_000_000) -> list[ColumnInfo]:
    """Return the columns first..end-1 that have values, lowest step first."""
    with cursor() as c:
        c.execute(
            _COLUMNS + " WHERE series_id = %s AND step >= %s AND step < %s ORDER BY step LIMIT %s",
            (series_id, first, end, limit),
        )
        return [ColumnInfo(*row) for row in c]
