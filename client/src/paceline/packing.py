"""From the batches of a node's ranks to the `steps` of a report: rectangles of metric × rank × step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from paceline.floats import ABSENT, base64_of
from paceline.wire import Batch

MAX_WASTE = 1.5
"""Ranks at different steps share a rectangle as long as it holds at most this many times what they measured."""


def utc_text(at: float) -> str:
    """Return a time of this machine's clock as the report format writes it."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def steps_packed(batches: dict[int, list[Batch]]) -> list[dict[str, Any]]:
    """Return the packed `steps` of one or more reports, from batches by rank in the order they came.

    Ranks that are far apart go to rectangles of their own, so that a straggler doesn't fill its peers' with gaps.
    """
    present = {rank: found for rank, found in batches.items() if any(len(batch.steps) for batch in found)}
    return [_rectangle(group) for group in _groups(present)]


def _groups(batches: dict[int, list[Batch]]) -> list[dict[int, list[Batch]]]:
    if not batches:
        return []
    steps = {rank: _steps_of(found) for rank, found in batches.items()}
    union = set().union(*steps.values())
    measured = sum(len(found) for found in steps.values())
    if len(union) * len(batches) <= MAX_WASTE * measured:
        return [batches]
    groups: dict[frozenset[int], dict[int, list[Batch]]] = {}
    for rank, found in batches.items():
        groups.setdefault(frozenset(steps[rank]), {})[rank] = found
    return list(groups.values())


def _steps_of(batches: Sequence[Batch]) -> set[int]:
    return {step for batch in batches for step in batch.steps}


def _rectangle(batches: dict[int, list[Batch]]) -> dict[str, Any]:
    ranks = sorted(batches)
    steps = sorted(set().union(*(_steps_of(batches[rank]) for rank in ranks)))
    names = list(dict.fromkeys(name for rank in ranks for batch in batches[rank] for name in batch.names))
    column = {step: index for index, step in enumerate(steps)}
    place = {name: index for index, name in enumerate(names)}
    bits = array("I", [ABSENT]) * (len(names) * len(ranks) * len(steps))
    ended_at = [0.0] * len(steps)
    for row, rank in enumerate(ranks):
        newest: int | None = None
        for batch in batches[rank]:
            if not batch.steps:
                continue
            starts = [(place[name] * len(ranks) + row) * len(steps) for name in batch.names]
            _fill(bits, starts, batch, column, fresh=newest is None or batch.steps[0] > newest)
            newest = batch.steps[-1] if newest is None else max(newest, batch.steps[-1])
            for step, at in zip(batch.steps, batch.ended_at):
                ended_at[column[step]] = max(ended_at[column[step]], at)
    return {
        "ranks": ranks,
        "steps": steps,
        "ended_at": [utc_text(at) for at in ended_at],
        "names": names,
        "f32": base64_of(bits),
    }


def _fill(bits: array[int], starts: list[int], batch: Batch, column: dict[int, int], *, fresh: bool) -> None:
    """Write a batch's values into the rectangle: as slices where its steps stand side by side, else cell by cell."""
    n = len(batch.steps)
    first = column[batch.steps[0]]
    if fresh and column[batch.steps[-1]] - first == n - 1:
        for metric, start in enumerate(starts):
            bits[start + first : start + first + n] = batch.bits[metric * n : (metric + 1) * n]
        return
    columns = [column[step] for step in batch.steps]
    for metric, start in enumerate(starts):
        for index, at in enumerate(columns):
            value = batch.bits[metric * n + index]
            if value != ABSENT:
                bits[start + at] = value
