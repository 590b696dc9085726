"""Which columns of a picture changed since a reader saw it: the meaning of a heatmap's cursor."""

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.layout import TILE_COLUMNS, Bucket
from apps.telemetry.selectors.series import SeriesRow
from apps.telemetry.selectors.sql import cursor


def cursor_text(series: SeriesRow, *, form: str) -> str:
    """Return the cursor of an answer: the version it has read, what was hot then, and how its columns were made."""
    return f"{series.version:x}.{series.hot_floor:x}.{form}"


def changed_columns(series: SeriesRow, bucket: Bucket, *, since: str, form: str) -> NDArray[np.int64] | None:
    """Return which columns of the buckets hold a step that changed since, ascending from 0; None means all of them.

    A cursor that is none of ours, or of a picture made otherwise, means all.
    """
    told = since.split(".")
    try:
        version, floor, made = int(told[0], 16), int(told[1], 16), told[2]
    except (ValueError, IndexError):
        return None
    if made != form or version > series.version:
        return None
    if version == series.version:
        return np.zeros(0, np.int64)
    first = bucket.start * bucket.steps
    end = first + bucket.columns * bucket.steps
    steps = np.concatenate(
        [_written(series.id, max(first, floor), end, version), _late(series.id, first, end, version)]
    )
    columns = np.unique(steps // bucket.steps - bucket.start)
    return columns[(columns >= 0) & (columns < bucket.columns)]


def _written(series_id: int, first: int, end: int, version: int) -> NDArray[np.int64]:
    """Steps that were hot when the cursor was given and were written since."""
    with cursor() as c:
        c.execute(
            "SELECT step FROM telemetry_column WHERE series_id = %s AND step >= %s AND step < %s AND version > %s",
            (series_id, first, end, version),
        )
        return np.fromiter((row[0] for row in c), np.int64)


def _late(series_id: int, first: int, end: int, version: int) -> NDArray[np.int64]:
    """Steps of sealed tiles that got late values since, merged or not."""
    first_tile, end_tile = first // TILE_COLUMNS, -(-end // TILE_COLUMNS)
    with cursor() as c:
        c.execute(
            """SELECT tile FROM telemetry_patch
               WHERE series_id = %s AND tile >= %s AND tile < %s AND version > %s
               UNION SELECT tile FROM telemetry_tile WHERE series_id = %s AND version > %s AND tile >= %s AND tile < %s
                 AND NOT ratio AND level_columns = 0 AND level_entities = 0""",
            (series_id, first_tile, end_tile, version, series_id, version, first_tile, end_tile),
        )
        tiles = np.fromiter((row[0] for row in c), np.int64)
    return (tiles[:, None] * TILE_COLUMNS + np.arange(TILE_COLUMNS)).ravel()


def runs_of(bucket: Bucket, columns: NDArray[np.int64]) -> list[Bucket]:
    """Return some columns of a picture as stretches of neighbours, in order.

    >>> runs_of(Bucket(2, 10, 8), np.array([0, 1, 5]))
    [Bucket(steps=2, start=10, columns=2), Bucket(steps=2, start=15, columns=1)]
    """
    if not len(columns):
        return []
    parts = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    return [Bucket(bucket.steps, bucket.start + int(part[0]), len(part)) for part in parts]
