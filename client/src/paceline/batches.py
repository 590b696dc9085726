"""From a rank's rows to a batch, in the reporter thread."""

from __future__ import annotations

from array import array
from typing import Any

from paceline.floats import bits_of
from paceline.recorder import Row
from paceline.wire import Batch


def batch_of(
    number: int,
    rows: list[Row],
    names: list[str],
    *,
    checkpoints: list[dict[str, Any]],
    events: list[dict[str, Any]],
) -> Batch:
    """Return one batch of `rows`, ascending by step; rows of the same step are one, the later value wins."""
    merged: dict[int, Row] = {}
    for row in rows:
        known = merged.get(row.step)
        merged[row.step] = row if known is None else _joined(known, row)
    ordered = [merged[step] for step in sorted(merged)]
    width = max((len(row.values) for row in ordered), default=0)
    columns: list[array[int]] = []
    used: list[str] = []
    for slot in range(width):
        column: list[float | None] = [row.values[slot] if slot < len(row.values) else None for row in ordered]
        if any(value is not None for value in column):
            used.append(names[slot])
            columns.append(bits_of(column))
    bits = array("I")
    for bits_of_metric in columns:
        bits.extend(bits_of_metric)
    return Batch(
        number=number,
        names=tuple(used),
        steps=array("q", [row.step for row in ordered]),
        ended_at=array("d", [row.ended_at for row in ordered]),
        bits=bits,
        checkpoints=checkpoints,
        events=events,
    )


def _joined(earlier: Row, later: Row) -> Row:
    width = max(len(earlier.values), len(later.values))
    values = list(earlier.values) + [None] * (width - len(earlier.values))
    for slot, value in enumerate(later.values):
        if value is not None:
            values[slot] = value
    return Row(earlier.step, later.ended_at if len(later.values) >= len(earlier.values) else earlier.ended_at, values)
