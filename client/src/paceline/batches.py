"""From a rank's rows to a batch, in the reporter thread."""

from __future__ import annotations

from array import array
from typing import Any

from paceline.floats import bits_of
from paceline.recorder import STEP_S, Row
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
        known = merged.get(row[0])
        merged[row[0]] = row if known is None else _joined(known, row)
    ordered = [merged[step] for step in sorted(merged)]
    width = max((len(values) for _, _, values in ordered), default=0)
    columns: list[array[int]] = []
    used: list[str] = []
    for slot in range(width):
        column: list[float | None] = [values[slot] if slot < len(values) else None for _, _, values in ordered]
        if any(value is not None for value in column):
            used.append(names[slot])
            columns.append(bits_of(column))
    bits = array("I")
    for bits_of_metric in columns:
        bits.extend(bits_of_metric)
    return Batch(
        number=number,
        names=tuple(used),
        steps=array("q", [step for step, _, _ in ordered]),
        ended_at=array("d", [ended_at for _, ended_at, _ in ordered]),
        bits=bits,
        checkpoints=checkpoints,
        events=events,
    )


def _joined(earlier: Row, later: Row) -> Row:
    values = list(earlier[2]) + [None] * (len(later[2]) - len(earlier[2]))
    for slot, value in enumerate(later[2]):
        if value is not None:
            values[slot] = value
    whole = later if later[2] and later[2][STEP_S] is not None else earlier  # a late value doesn't end a step anew
    return earlier[0], whole[1], values
