"""Values in a series without reports: what a fold and a settlement leave behind, for tests that read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from apps.engine.tiles.layout import BLOCK
from apps.telemetry.choices import SeriesKind
from apps.telemetry.selectors.patches import PATCH
from apps.telemetry.selectors.series import SeriesRow, series_of
from apps.telemetry.stores.hot import blocks_load, blocks_save, patches_add
from apps.telemetry.stores.series import columns_note, columns_settle, metrics_add, series_open, series_save


def series_write(
    attempt_id: int,
    metrics: Mapping[str, NDArray[Any]],
    *,
    first: int = 0,
    now: datetime,
    settled: bool = True,
    step_s: float = 5.0,
) -> SeriesRow:
    """Write arrays [rank, step] as steps first, first + 1, …; a step in which every cell is NaN is not written."""
    arrays = {name: np.asarray(array, np.float32) for name, array in metrics.items()}
    world = len(next(iter(arrays.values())))
    given = np.flatnonzero(~np.all([np.isnan(array).all(axis=0) for array in arrays.values()], axis=0))
    steps = given + first
    with transaction.atomic():
        series = series_open(kind=SeriesKind.RANK, owner_id=attempt_id, now=now)
        metrics_add(series, list(arrays), most=64)
        series.row.width = max(series.row.width, world)
        _blocks_write(series, arrays, given, steps)
        columns_note(
            series, steps=steps.tolist(), received_at=[now + timedelta(seconds=step_s * int(step)) for step in steps],
            ranks=[world] * len(steps), ended={}, now=now,
        )  # fmt: skip
        if settled:
            ended = [now + timedelta(seconds=step_s * (int(step) + 1)) for step in steps]
            columns_settle(series, steps=steps.tolist(), ended_at=ended, now=now)
            series.row.settled_step = max(
                int(steps[-1]), -1 if series.row.settled_step is None else series.row.settled_step
            )
        row = series.row
        row.first_step = int(steps[0]) if row.first_step is None else min(row.first_step, int(steps[0]))
        row.last_step = int(steps[-1]) if row.last_step is None else max(row.last_step, int(steps[-1]))
        series_save(series, now=now, changed=True)
    found = series_of(SeriesKind.RANK, attempt_id)
    assert found is not None
    return found


def _blocks_write(series: Any, arrays: Mapping[str, NDArray[Any]], given: NDArray[Any], steps: NDArray[Any]) -> None:
    world = next(iter(arrays.values())).shape[0]
    blocks = np.arange(-(-world // BLOCK))
    cols = np.repeat(steps, len(blocks))
    which = np.tile(blocks, len(steps))
    ids = [series.numbers[name] for name in arrays]
    loaded = blocks_load(series, cols=cols, blocks=which, metric_ids=ids, width=min(BLOCK, world))
    for number, (place, block) in enumerate(zip(np.repeat(given, len(blocks)), which, strict=True)):
        for name, array in arrays.items():
            part = array[BLOCK * block : BLOCK * (block + 1), place]
            target = loaded.cells[number, loaded.metric_ids.index(series.numbers[name]), : len(part)]
            target[:] = np.where(np.isnan(part), target, part)
    blocks_save(series, loaded, cols=cols, blocks=which, width=world)


def patch_write(
    attempt_id: int, metric: str, values: list[tuple[int, int, float]], *, now: datetime, fill: bool = False
) -> None:
    """Write late values (rank, step, value) below the hot floor, as the fold does."""
    with transaction.atomic():
        series = series_open(kind=SeriesKind.RANK, owner_id=attempt_id, now=now)
        rows = np.zeros(len(values), PATCH)
        rows["metric"], rows["rule"] = series.numbers[metric], int(fill)
        for at, (rank, step, value) in enumerate(values):
            rows[at]["entity"], rows[at]["col"], rows[at]["value"] = rank, step, value
        patches_add(series, rows)
        steps = sorted({step for _, step, _ in values})
        columns_note(series, steps=steps, received_at=[now] * len(steps), ranks=[0] * len(steps), ended={}, now=now)
        series_save(series, now=now, changed=True)
