"""What a fold writes into the run's status: the head of its newest attempt."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.runs.selectors import AttemptRow, RunRow
from apps.runs.services import status_update
from apps.telemetry.selectors.blocks import columns_read
from apps.telemetry.selectors.columns import columns_newest
from apps.telemetry.selectors.counted import token_ranks
from apps.telemetry.stores.series import Writing

PACE_COLUMNS = 5
"""Settled columns whose median is the run's present step time: one slow step is no pace."""


def run_status_write(
    series: Writing, *, attempt: AttemptRow, run: RunRow, last_report_at: datetime | None, settled: bool
) -> None:
    """Write the run's head; pace and loss only when a column settled. Nothing for an attempt that is not the newest."""
    if run.attempt_id != attempt.id:
        return
    fields: dict[str, Any] = {"series_version": series.row.version}
    if series.row.last_step is not None:
        fields |= {"step": series.row.last_step, "first_step": series.row.first_step}
    if last_report_at is not None:
        fields["last_report_at"] = max(last_report_at, run.last_report_at or last_report_at)
    if settled:
        fields |= _pace(series, attempt=attempt, run=run)
    status_update(run_id=run.id, **fields)


def _pace(series: Writing, *, attempt: AttemptRow, run: RunRow) -> dict[str, Any]:
    newest = columns_newest(series.id, limit=PACE_COLUMNS)
    steps = np.array([column.step for column in newest], np.int64)
    wanted = [name for name in ("step_s", "loss", "tokens") if name in series.numbers]
    values = columns_read(
        series_id=series.id,
        width=series.row.width,
        numbers={name: series.numbers[name] for name in wanted},
        steps=steps,
    )
    step_s = _step_s(values.get("step_s"), newest)
    fields: dict[str, Any] = {"ranks_reporting": newest[-1].ranks if newest else None, "step_s": step_s}
    if "loss" in values:
        fields["loss"] = _last(values["loss"])
    if step_s:
        tokens = run.tokens_per_step or _tokens(values.get("tokens"), attempt.id)
        fields["tokens_per_s"] = tokens / step_s if tokens else None
    return fields


def _step_s(values: NDArray[np.float32] | None, newest: Sequence[Any]) -> float | None:
    """The median over ranks, then over the newest columns; without that metric what the columns' ends say."""
    if values is not None:
        known = values[:, ~np.isnan(values).all(axis=0)]
        if known.size:
            return float(np.median(np.nanmedian(known, axis=0)))
    ends = [(column.step, column.ended_at) for column in newest if column.ended_at is not None]
    if len(ends) < 2 or ends[-1][0] <= ends[0][0]:
        return None
    took_s = (ends[-1][1] - ends[0][1]).total_seconds() / (ends[-1][0] - ends[0][0])
    return took_s if took_s > 0 else None


def _last(values: NDArray[np.float32]) -> float | None:
    for column in values.T[::-1]:
        known = column[~np.isnan(column)]
        if len(known):
            return float(np.median(known))
    return None


def _tokens(values: NDArray[np.float32] | None, attempt_id: int) -> float | None:
    """The tokens of the newest step that told any."""
    if values is None:
        return None
    ranks = token_ranks(attempt_id, size=len(values))
    sums = [float(np.nansum(column[ranks])) for column in values.T if not np.isnan(column[ranks]).all()]
    return sums[-1] if sums else None
