"""The words of a heatmap: what is asked for, which steps and ranks that means, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from apps.common.errors import BadRequest, NotFound
from apps.engine.tiles.heatgrid import How
from apps.engine.tiles.layout import Bucket
from apps.engine.tiles.metrics import KNOWN, Metric, metric_of
from apps.engine.tiles.pyramid import Pool, plane_of
from apps.engine.tiles.ratio import Relative
from apps.engine.tiles.rows import Order, RowLayout
from apps.telemetry.selectors.cells import Cells
from apps.telemetry.selectors.layouts import Layout
from apps.telemetry.selectors.series import SeriesRow

Axis = Literal["step", "time"]
AXES: Final = ("step", "time")
Flag = tuple[int, int, str]
"""Row, column, which."""

USUAL = ("compute_s", "step_s")
"""Drawn when no metric is asked for: step time is the same on all ranks and shows less."""

MOST_CELLS = 4_194_304
"""Cells of one answer, 16 MiB: what is asked beyond is pooled further, and the answer says so."""


class MetricUnknown(NotFound):
    """The attempt has no such metric; the facts list those it has."""

    code = "metric_unknown"


@dataclass(frozen=True, slots=True)
class Ask:
    """What picture is asked for. Steps first..end-1; without them the newest ones, as many as columns.

    `ranks`: pairs of first and last rank to draw, none for all. `since`: the cursor of an earlier answer. `redone`: of
    steps done twice show the first time, where several attempts are drawn.
    """

    metric: str = ""
    first: int | None = None
    end: int | None = None
    rows: int = 512
    columns: int = 600
    relative: Relative = "none"
    pool: Pool = "worst"
    axis: Axis = "step"
    order: Order = "rank"
    since: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    redone: bool = False


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric that an attempt has."""

    name: str
    label: str
    unit: str
    kind: str
    compared: bool
    worst: str


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """Columns of a picture. cells: float32 [row, column], absent is NaN. steps: the first step of each column. veiled:
    no evidence. ended_s: when its last step ended, NaN = unknown. attempts: the number of the attempt it is of.
    redone: steps that a later attempt did again."""

    cells: Cells
    steps: NDArray[np.int64]
    veiled: NDArray[np.bool_]
    ended_s: NDArray[np.float64]
    attempts: NDArray[np.int64]
    redone: NDArray[np.bool_]
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Heatmap:
    """A picture: its columns, and what its rows are. `ranks`: the ranks that `rows` counts, as they are numbered in the
    attempt. `cursor`: asks for what changes from here on. `began_s`: where a time axis begins and how wide a column is."""

    metric: Metric
    relative: Relative
    version: int
    layout: Layout
    ranks: NDArray[np.int64]
    rows: RowLayout
    drawn: Drawn
    steps_per_column: int
    how: How
    cursor: str
    metrics: tuple[MetricRow, ...]
    first_step: int | None
    last_step: int | None
    settled_step: int | None
    times_s: NDArray[np.float64] | None = None


def nothing_drawn(rows: int) -> Drawn:
    """Return no columns."""
    none = np.zeros(0, np.int64)
    no = np.zeros(0, np.bool_)
    return Drawn(np.empty((rows, 0), np.float32), none, no, np.zeros(0, np.float64), none, no)


def side_by_side(parts: Sequence[Drawn], rows: int) -> Drawn:
    """Return the columns of several drawings of the same rows, in order."""
    if not parts:
        return nothing_drawn(rows)
    flags: list[Flag] = []
    before = 0
    for part in parts:
        flags += [(row, column + before, which) for row, column, which in part.flags]
        before += len(part.steps)
    return Drawn(
        np.concatenate([part.cells for part in parts], axis=1),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.veiled for part in parts]),
        np.concatenate([part.ended_s for part in parts]),
        np.concatenate([part.attempts for part in parts]),
        np.concatenate([part.redone for part in parts]),
        tuple(flags),
    )


def metric_chosen(name: str, series: SeriesRow | None) -> str:
    """Return the metric to draw: the one asked for, else the usual one.

    Raises:
        MetricUnknown: the attempt has others, or nobody knows the name.
    """
    sent = list(series.numbers) if series else []
    if not name:
        return next((usual for usual in USUAL if usual in sent), sent[0] if sent else USUAL[0])
    if name in sent or (not sent and name in KNOWN):
        return name
    known = sorted(sent or KNOWN)
    raise MetricUnknown(
        f"This attempt has no metric “{name[:63]}”; it has {', '.join(known[:12])}{', …' if len(known) > 12 else ''}.",
        metric=name[:63],
        metrics=known,
    )


def metrics_in(series: SeriesRow | None) -> tuple[MetricRow, ...]:
    """Return the metrics of a series in the order in which they were first sent."""
    found = [metric_of(name) for name in series.numbers] if series else []
    return tuple(MetricRow(m.name, m.label, m.unit, m.kind.name, m.compared, m.worst) for m in found)


def bucket_asked(ask: Ask, *, first_step: int | None, last_step: int | None, rows: int) -> Bucket | None:
    """Return which steps each column holds, or None if there is nothing in the range.

    The width of a column follows from the range asked for, not from what is there of it, so that a reader who walks on
    past the end gets columns of the same width.
    """
    if first_step is None or last_step is None:
        return None
    columns = max(1, min(ask.columns, MOST_CELLS // max(1, rows)))
    first, last = _range(ask, columns, first_step, last_step)
    if first > last:
        return None
    steps = 1
    while last // steps - first // steps + 1 > columns:
        steps *= 2
    first, last = max(first, first_step), min(last, last_step)
    if first > last:
        return None
    return Bucket(steps, first // steps, last // steps - first // steps + 1)


def _range(ask: Ask, columns: int, first_step: int, last_step: int) -> tuple[int, int]:
    if ask.first is None:
        last = last_step if ask.end is None else min(ask.end - 1, last_step)
        return max(first_step, last - columns + 1), last
    return (max(ask.first, first_step), last_step) if ask.end is None else (ask.first, ask.end - 1)


def ranks_asked(pairs: Sequence[tuple[int, int]], world: int) -> NDArray[np.int64]:
    """Return the ranks that pairs of first and last name, ascending, each once.

    Raises:
        BadRequest: none of them is a rank of the attempt.
    """
    found = [np.arange(max(0, first), min(last, world - 1) + 1, dtype=np.int64) for first, last in pairs]
    ranks = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    if not len(ranks):
        raise BadRequest(f"ranks: the attempt has the ranks 0 to {world - 1}.")
    return ranks


def picture_empty(ask: Ask) -> Heatmap:
    """Return the picture of a run that has no attempt yet: no rows, no columns."""
    metric = metric_of(metric_chosen(ask.metric, None))
    none = np.zeros(0, np.int64)
    layout = Layout(none, none, (), 0)
    rows = RowLayout(none, none, none, none, none, none, 1)
    how = plane_of(ask.pool, metric.worst)
    return Heatmap(metric, ask.relative, 0, layout, none, rows, nothing_drawn(0), 1, how, "", (), None, None, None)
