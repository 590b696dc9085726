"""What a drawing says about its columns besides values: no evidence, values that are not finite, when they ended."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.detection import PAUSES, skip_columns
from apps.engine.tiles.layout import Bucket
from apps.runs.selectors import AttemptRow, checkpoint_steps
from apps.telemetry.selectors.cells import cells_read
from apps.telemetry.selectors.pictures import Flag
from apps.telemetry.selectors.series import SeriesRow
from apps.telemetry.selectors.sql import cursor

MOST_FLAGS = 10_000
"""Marks of one answer: more would be a picture of its own; the newest are kept."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Which steps of an attempt are neither baseline nor evidence, as detectors see it."""

    first_step: int
    checkpoints: tuple[int, ...]

    def skip(self, steps: NDArray[np.int64], pauses_s: Sequence[NDArray[np.float32]] = ()) -> NDArray[np.bool_]:
        """Return which of these steps are left out, bool [step]; `pauses_s` as `pauses_read` gives them."""
        return skip_columns(
            steps,
            first_step=self.first_step,
            checkpoint_steps=self.checkpoints,
            pauses_s=pauses_s,
        )


def marks_of(attempt: AttemptRow) -> Marks:
    """Return an attempt's steps that are no evidence."""
    first = attempt.first_step if attempt.first_step is not None else attempt.resumed_from_step or 0
    return Marks(first_step=first, checkpoints=tuple(checkpoint_steps(attempt.id)))


def pauses_read(series: SeriesRow, *, first: int, end: int, width: int) -> list[NDArray[np.float32]]:
    """Return how long ranks stood in saves and evaluations in steps first..end-1, float32 [rank, step] in s each."""
    numbers = [series.numbers[name] for name in PAUSES if name in series.numbers]
    return [cells_read(series, number, first=first, end=end, width=width) for number in numbers]


def veiled_of(marks: Marks, series: SeriesRow, bucket: Bucket, *, world: int) -> NDArray[np.bool_]:
    """Return which columns are veiled, bool [column]: at least half of their steps are no evidence.

    Where single steps are drawn, a step in which a rank reports time in a save or an evaluation is left out as detectors
    leave it out.
    """
    first = bucket.start * bucket.steps
    steps = np.arange(first, first + bucket.columns * bucket.steps, dtype=np.int64)
    end = first + len(steps)
    paused = pauses_read(series, first=first, end=end, width=max(world, 1)) if bucket.level == 0 else ()
    skip = marks.skip(steps, paused)
    veiled: NDArray[np.bool_] = skip.reshape(bucket.columns, bucket.steps).mean(axis=1) >= 0.5
    return veiled


def flags_of(series: SeriesRow, metric: int, bucket: Bucket, row_of: NDArray[np.int64]) -> list[Flag]:
    """Return the cells in which a value was produced that is not finite, by row and column, each word once.

    row_of: int64 [rank], the drawn row of each rank, -1 = not drawn.
    """
    first = bucket.start * bucket.steps
    with cursor() as c:
        c.execute(
            """SELECT step, rank, which FROM telemetry_nonfinite WHERE series_id = %s AND metric = %s
               AND step >= %s AND step < %s ORDER BY step DESC, rank LIMIT %s""",
            (series.id, metric, first, first + bucket.columns * bucket.steps, MOST_FLAGS),
        )
        found = c.fetchall()
    out: dict[Flag, None] = {}
    for step, rank, which in found:
        row = int(row_of[rank]) if 0 <= rank < len(row_of) else -1
        if row >= 0:
            out[row, (step - first) // bucket.steps, which] = None
    return sorted(out)


_ENDED = """SELECT b.n, newest.at FROM generate_series(%s::int8, %s::int8) AS b(n) CROSS JOIN LATERAL (
    SELECT coalesce(ended_at, first_received_at) AS at FROM telemetry_column c
    WHERE c.series_id = %s AND c.step >= b.n * %s AND c.step < (b.n + 1) * %s ORDER BY c.step DESC LIMIT 1) newest"""


def ended_of(series: SeriesRow, bucket: Bucket) -> NDArray[np.float64]:
    """Return when each column's last step ended, float64 [column] in seconds since 1970; NaN for a column without a step.

    That is the ranks' median by their own clocks; until a step is settled, when it was first heard of.
    """
    out = np.full(bucket.columns, np.nan)
    with cursor() as c:
        last = bucket.start + bucket.columns - 1
        c.execute(_ENDED, (bucket.start, last, series.id, bucket.steps, bucket.steps))
        for number, at in c:
            out[number - bucket.start] = at.timestamp()
    return out
