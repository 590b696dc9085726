"""The rows that describe a series: its state, the numbers of its metrics, its columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from apps.telemetry.models import Series, SeriesMetric
from apps.telemetry.selectors.sql import cursor

MOST_NAME = 63


@dataclass(slots=True)
class Writing:
    """A series that is being written under its owner's lock: its row, and the numbers of its metrics."""

    row: Series
    numbers: dict[str, int]
    version: int

    @property
    def id(self) -> int:
        return self.row.pk


def series_open(*, kind: str, owner_id: int, now: datetime) -> Writing:
    """Return a series for writing, made at first need; its version is already that of the write that begins."""
    row, _ = Series.objects.get_or_create(kind=kind, owner_id=owner_id, defaults={"changed_at": now})
    numbers = dict(SeriesMetric.objects.filter(series=row).values_list("name", "number"))
    return Writing(row, numbers, row.version + 1)


def metrics_add(series: Writing, names: Collection[str], *, most: int) -> set[str]:
    """Give numbers to names that have none, up to `most` in all; return the names for which there is no room."""
    missing = [name for name in dict.fromkeys(names) if name not in series.numbers]
    room = max(0, most - len(series.numbers))
    start = max(series.numbers.values(), default=-1) + 1
    rows = [SeriesMetric(series=series.row, number=start + n, name=name) for n, name in enumerate(missing[:room])]
    SeriesMetric.objects.bulk_create(rows)
    series.numbers.update({row.name: row.number for row in rows})
    return set(missing[room:])


def series_save(series: Writing, *, now: datetime, changed: bool) -> None:
    """Write the series' row; with `changed` its version is the one its blocks were written with."""
    if changed:
        series.row.version, series.row.changed_at, series.row.closed = series.version, now, False
    series.row.save()


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A column that is not settled."""

    step: int
    first_received_at: datetime
    ranks: int
    ended: bytes


_NOTE = """INSERT INTO telemetry_column AS c (series_id, step, first_received_at, ranks, version, ended, settled_at)
SELECT %s, s, r, n, %s, e, t FROM unnest(%b::int8[], %b::timestamptz[], %b::int4[], %b::bytea[], %b::timestamptz[])
    AS t(s, r, n, e, t)
ON CONFLICT (series_id, step) DO UPDATE SET first_received_at = least(c.first_received_at, excluded.first_received_at),
    ranks = c.ranks + excluded.ranks, version = excluded.version,
    ended = CASE WHEN c.settled_at IS NULL AND octet_length(c.ended) < 65536 THEN c.ended || excluded.ended
                 ELSE c.ended END"""


def columns_note(
    series: Writing,
    *,
    steps: Sequence[int],
    received_at: Sequence[datetime],
    ranks: Sequence[int],
    ended: Mapping[int, list[float]],
    now: datetime,
) -> None:
    """Note that columns were written: how many more ranks each has, when it was first heard, when it ended.

    A column at or below the settled step is settled from birth: what comes for it now is late.
    """
    floor = series.row.settled_step
    settled = [now if floor is not None and step <= floor else None for step in steps]
    blobs = [np.array(ended.get(step, ()), "<f8").tobytes() for step in steps]
    with cursor() as c:
        c.execute(
            _NOTE,
            (series.id, series.version, list(steps), list(received_at), list(ranks), blobs, settled),
        )


def columns_open(series: Writing, *, limit: int) -> list[ColumnRow]:
    """Return the columns past the settled step, lowest first."""
    with cursor() as c:
        c.execute(
            """SELECT step, first_received_at, ranks, ended FROM telemetry_column
               WHERE series_id = %s AND step > %s ORDER BY step LIMIT %s""",
            (series.id, -1 if series.row.settled_step is None else series.row.settled_step, limit),
        )
        return [ColumnRow(*row) for row in c]


def columns_settle(
    series: Writing, *, steps: Sequence[int], ended_at: Sequence[datetime | None], now: datetime
) -> None:
    """Settle columns: their end is the median of what was heard."""
    with cursor() as c:
        c.execute(
            """UPDATE telemetry_column c SET settled_at = %s, ended_at = t.e, ended = ''
               FROM unnest(%b::int8[], %b::timestamptz[]) AS t(s, e) WHERE c.series_id = %s AND c.step = t.s""",
            (now, list(steps), list(ended_at), series.id),
        )


def columns_write(
    series: Writing, *, steps: NDArray[np.int64], at: Sequence[datetime], ranks: int, now: datetime
) -> None:
    """Write whole settled columns of an import, all with the same number of ranks."""
    with cursor() as c:
        c.execute(
            """INSERT INTO telemetry_column (series_id, step, first_received_at, ranks, version, ended, ended_at, settled_at)
               SELECT %s, s, a, %s, %s, '', a, %s FROM unnest(%b::int8[], %b::timestamptz[]) AS t(s, a)
               ON CONFLICT (series_id, step) DO UPDATE SET version = excluded.version,
                   ranks = greatest(telemetry_column.ranks, excluded.ranks)""",
            (series.id, ranks, series.version, now, steps.tolist(), list(at)),
        )


def attempts_unsettled() -> list[int]:
    """Return the attempts with a column past their settled step, oldest series first."""
    with cursor() as c:
        c.execute(
            """SELECT owner_id FROM telemetry_series s WHERE kind = 'RANK' AND last_step > coalesce(settled_step, -1)
               ORDER BY id"""
        )
        return [owner_id for (owner_id,) in c]
