"""Writing gauges into a cluster's series of GPU slots and of nodes, in columns of 15 s, each by its metric's reducer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import hot
from apps.engine.tiles.layout import BLOCK
from apps.engine.tiles.metrics import REPEATABLE, Reducer, limits_of, metric_of, within_limits
from apps.engine.tiles.scatter import Rule, Written, scatter, scatter_mean
from apps.telemetry.choices import Reason, SeriesKind
from apps.telemetry.selectors.gauges import column_of
from apps.telemetry.selectors.patches import PATCH
from apps.telemetry.services.parse import Refused
from apps.telemetry.stores.hot import Loaded, blocks_load, blocks_save, patches_add
from apps.telemetry.stores.series import Writing, metrics_add, series_open, series_save

KEPT = timedelta(days=7)
"""Older readings are not taken: nobody back-fills what every report has long passed."""

AHEAD = timedelta(minutes=5)
"""A reading from further ahead, its sender's skew taken out, has a time that is none."""

OPEN_COLUMNS = 4
"""Columns behind the present one that still get readings in the usual way: a minute; then they are settled."""

CHUNK_BLOCKS = 1024
_SCOPE = {SeriesKind.GPU: "gpu", SeriesKind.NODE: "node"}


@dataclass(frozen=True, slots=True)
class Gauge:
    """Readings of one entity at one moment of our own clock; `source` says whose they are, for counting refusals.

    late: it comes after later numbers of its sender, so last values only fill. numbered: its delivery has a number, so
    that a repeat was told apart before; others may feed only reducers that a repeat cannot change."""

    entity: int
    at_s: float
    values: dict[str, float]
    source: int = 0
    late: bool = False
    numbered: bool = True


@dataclass(slots=True)
class GaugesDone:
    """What writing gauges did: cells written, and what was refused, by source."""

    written: Written = field(default_factory=Written)
    refused: list[tuple[int, Refused]] = field(default_factory=list)


def gauges_write(
    *, kind: str, cluster_id: int, gauges: Sequence[Gauge], most_metrics: int, now: datetime
) -> GaugesDone:
    """Write readings of a cluster's GPU slots or nodes. The caller holds the cluster's fold lock.

    Of several readings in a column the metric's reducer decides: the last, any bit, the mean, the largest.
    """
    done = GaugesDone()
    usable = _in_time(gauges, done, now=now)
    if not usable:
        return done
    series = series_open(kind=kind, owner_id=cluster_id, now=now)
    names = list(dict.fromkeys(name for gauge in usable for name in gauge.values))
    without_room = metrics_add(series, names, most=most_metrics)
    names = [name for name in names if name not in without_room]
    for gauge in usable:
        for name in without_room & gauge.values.keys():
            done.refused.append((gauge.source, Refused(Reason.METRICS_MANY, name)))
    values = _possible(names, _matrix(names, usable), usable, done)
    entities = np.array([gauge.entity for gauge in usable], np.int64)
    cols = np.array([column_of(gauge.at_s) for gauge in usable], np.int64)
    series.row.width = max(series.row.width, int(entities.max()) + 1)
    order = np.argsort([gauge.at_s for gauge in usable], kind="stable")  # so that the last of a column is last
    batch = _Batch(series, names, values[:, order], entities[order], cols[order], _flags(usable, order), kind)
    _write_hot(batch, done)
    _write_cold(batch)
    row = series.row
    row.first_step = int(cols.min()) if row.first_step is None else min(row.first_step, int(cols.min()))
    row.last_step = int(cols.max()) if row.last_step is None else max(row.last_step, int(cols.max()))
    row.settled_step = max(row.settled_step or 0, column_of(now.timestamp()) - OPEN_COLUMNS)
    row.filled += done.written.filled
    row.rewritten += done.written.rewritten
    series_save(series, now=now, changed=True)
    return done


@dataclass(frozen=True, slots=True)
class _Batch:
    series: Writing
    names: list[str]
    values: NDArray[np.float32]
    entities: NDArray[np.int64]
    cols: NDArray[np.int64]
    late: NDArray[np.bool_]
    kind: str

    def reducer(self, name: str) -> Reducer:
        return metric_of(name, scope=_SCOPE[SeriesKind(self.kind)]).reducer  # type: ignore[arg-type]


def _in_time(gauges: Sequence[Gauge], done: GaugesDone, *, now: datetime) -> list[Gauge]:
    oldest, newest = (now - KEPT).timestamp(), (now + AHEAD).timestamp()
    usable = []
    for gauge in gauges:
        if not gauge.values:
            continue
        if gauge.at_s < oldest:
            done.refused.append((gauge.source, Refused(Reason.TOO_OLD, f"{gauge.at_s:.0f}", len(gauge.values))))
        elif gauge.at_s > newest:
            done.refused.append((gauge.source, Refused(Reason.TIME, f"{gauge.at_s:.0f}", len(gauge.values))))
        else:
            usable.append(gauge)
    return usable


def _matrix(names: Sequence[str], gauges: Sequence[Gauge]) -> NDArray[np.float64]:
    place = {name: row for row, name in enumerate(names)}
    values = np.full((len(names), len(gauges)), np.nan)
    for column, gauge in enumerate(gauges):
        for name, value in gauge.values.items():
            row = place.get(name)
            if row is not None:
                values[row, column] = value
    return values


def _possible(
    names: Sequence[str], values: NDArray[np.float64], gauges: Sequence[Gauge], done: GaugesDone
) -> NDArray[np.float32]:
    """Values that can be, as float32; the impossible are refused one by one and made absent."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    possible = within_limits(narrow, *limits_of(list(names))) & ~np.isinf(narrow)
    for row, column in np.argwhere(~possible).tolist():
        told = f"{names[row]}: {values[row, column]:g}"
        done.refused.append((gauges[column].source, Refused(Reason.IMPOSSIBLE, told)))
    narrow[~possible] = hot.ABSENT
    for row, name in enumerate(names):
        if metric_of(name).reducer not in REPEATABLE:
            # A delivery without number may come twice, and a mean would count it twice.
            narrow[row, [column for column, gauge in enumerate(gauges) if not gauge.numbered]] = hot.ABSENT
    return narrow


def _flags(gauges: Sequence[Gauge], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.array([gauge.late for gauge in gauges], bool)[order]


def _write_hot(batch: _Batch, done: GaugesDone) -> None:
    hot_ones = batch.cols >= batch.series.row.hot_floor
    if not hot_ones.any():
        return
    series = batch.series
    entities, cols, values, late = (
        batch.entities[hot_ones], batch.cols[hot_ones], batch.values[:, hot_ones], batch.late[hot_ones],
    )  # fmt: skip
    per_column = -(-series.row.width // BLOCK)
    keys = cols * per_column + entities // BLOCK
    unique = np.unique(keys)
    numbers = [series.numbers[name] for name in batch.names]
    means = [series.numbers[name] | hot.COUNT_BIT for name in batch.names if batch.reducer(name) is Reducer.MEAN]
    width = min(BLOCK, series.row.width)
    for start in range(0, len(unique), CHUNK_BLOCKS):
        chunk = unique[start : start + CHUNK_BLOCKS]
        inside = (keys >= chunk[0]) & (keys <= chunk[-1])
        at_cols, at_blocks = np.divmod(chunk, per_column)
        loaded = blocks_load(series, cols=at_cols, blocks=at_blocks, metric_ids=[*numbers, *means], width=width)
        blocks = np.searchsorted(chunk, keys[inside])
        done.written += _reduce(batch, loaded, blocks, entities[inside] % BLOCK, values[:, inside], late[inside])
        blocks_save(series, loaded, cols=at_cols, blocks=at_blocks, width=series.row.width)


def _reduce(
    batch: _Batch,
    loaded: Loaded,
    blocks: NDArray[np.int64],
    entities: NDArray[np.int64],
    values: NDArray[np.float32],
    late: NDArray[np.bool_],
) -> Written:
    """Write each metric's values by its reducer; of LAST, what is late only fills."""
    written = Written()
    place = {metric_id: row for row, metric_id in enumerate(loaded.metric_ids)}
    for reducer in Reducer:
        chosen = [row for row, name in enumerate(batch.names) if batch.reducer(name) is reducer]
        if not chosen:
            continue
        ids = [batch.series.numbers[batch.names[row]] for row in chosen]
        rows = np.array([place[metric_id] for metric_id in ids])
        at = {"blocks": blocks, "entities": entities, "rows": rows}
        if reducer is Reducer.MEAN:
            counts = np.array([place[metric_id | hot.COUNT_BIT] for metric_id in ids])
            written += scatter_mean(loaded.cells, count_rows=counts, values=values[chosen], **at)
        elif reducer is Reducer.LAST and late.any():
            for mask, rule in ((~late, Rule.OVERWRITE), (late, Rule.FILL)):
                part = {"blocks": blocks[mask], "entities": entities[mask], "rows": rows}
                written += scatter(loaded.cells, values=values[chosen][:, mask], rule=rule, **part)
        else:
            written += scatter(loaded.cells, values=values[chosen], rule=Rule.of(reducer), **at)
    return written


def _write_cold(batch: _Batch) -> None:
    """Readings for sealed columns fill what is empty there; they change no reading that was judged already."""
    cold = batch.cols < batch.series.row.hot_floor
    if not cold.any():
        return
    parts = []
    for name, values in zip(batch.names, batch.values[:, cold], strict=True):
        given = ~np.isnan(values)
        rows = np.zeros(int(given.sum()), PATCH)
        rows["metric"], rows["rule"] = batch.series.numbers[name], 1
        rows["entity"], rows["col"], rows["value"] = batch.entities[cold][given], batch.cols[cold][given], values[given]
        parts.append(rows)
    patches_add(batch.series, np.concatenate(parts))
