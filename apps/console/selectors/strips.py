"""Pace strips: a run's last four hours in 48 cells of five minutes, its step time against its own best."""

from datetime import datetime
from typing import Any

import numpy as np

from apps.console import words
from apps.runs.selectors import RunRow, attempts_of
from apps.telemetry.selectors.lines import line_open, line_read

CELLS = 48
CELL_S = 300.0
MOST_ATTEMPTS = 4
COLUMNS = 480
NO_DATA = "none"

Cells = list[float | str | None]


def strip_of(run: RunRow, *, now: datetime) -> dict[str, Any]:
    """Return a run's strip and its words: a ratio, "none" for no data, None for not running; nothing without a best."""
    best = run.own_best_step_s
    if not best:
        return {}
    began = now.timestamp() - CELLS * CELL_S
    cells: Cells = [None] * CELLS
    for attempt in reversed(attempts_of(run.id, limit=MOST_ATTEMPTS)):
        ended = attempt.ended_at or now
        if ended.timestamp() < began:
            continue
        alive = range(_cell(attempt.started_at.timestamp(), began), _cell(ended.timestamp(), began) + 1)
        for place in alive:
            cells[place] = NO_DATA
        if attempt.last_step is None:
            continue
        first = max(attempt.first_step or 0, attempt.last_step - int(CELLS * CELL_S / best) - 1)
        end = attempt.last_step + 1
        view = line_open(attempt, metric="step_s", first=first, end=end, columns=COLUMNS, missing_is_empty=True)
        read = line_read(view)
        _fill(cells, read.median.astype(float), read.ended_s, began=began, best_s=best)
    return {"strip": cells, "strip_words": strip_words(cells)}


def _cell(at_s: float, began_s: float) -> int:
    return min(CELLS - 1, max(0, int((at_s - began_s) // CELL_S)))


def _fill(cells: Cells, values: np.ndarray, ended_s: np.ndarray, *, began: float, best_s: float) -> None:
    """Put the median of the steps that ended in each cell; a step longer than a cell fills those it ran through."""
    known = np.isfinite(values) & np.isfinite(ended_s) & (ended_s >= began)
    place = ((ended_s[known] - began) // CELL_S).astype(int)
    ratio = values[known] / best_s
    for cell in np.unique(place[(place >= 0) & (place < CELLS)]):
        cells[cell] = round(float(np.median(ratio[place == cell])), 3)
    for cell, took in zip(place, values[known], strict=True):
        for before in range(max(0, cell - int(took // CELL_S)), min(cell, CELLS)):
            if cells[before] == NO_DATA:
                cells[before] = round(float(took / best_s), 3)


def strip_words(cells: Cells) -> str:
    """Return a strip in words, for those who cannot see it.

    >>> strip_words([None, 1.0, 1.25, 1.25])
    'now 1.25\\xa0× its own best, for the last 10\\xa0min'
    """
    last = cells[-1]
    if last is None:
        return "not running"
    same = 1
    while same < len(cells) and _alike(cells[-1 - same], last):
        same += 1
    lasting = words.spell(same * CELL_S)
    if isinstance(last, str):
        return f"no data for the last {lasting}"
    if last < 1.05:
        return "at its own best"
    return f"now {words.times(last)} its own best, for the last {lasting}"


def _alike(one: float | str | None, other: float | str | None) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 0.05
    return one == other
