"""Gauges of nodes and their GPUs over time, in columns of 15 s."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.metrics import Metric
from apps.fleet.selectors import NodeRow, node_by_id
from apps.telemetry.choices import SeriesKind
from apps.telemetry.selectors.blocks import columns_read, entities_read
from apps.telemetry.selectors.series import SeriesRow, series_of

COLUMN_S = 15
MOST_COLUMNS = 24 * 240
"""A day of a node's gauges at once; longer stretches are asked for in parts."""

Gauges = dict[str, tuple[NDArray[np.float64], NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class GaugeRow:
    """A gauge that a node has sent: what is known of it, and whether its rows are the node's GPUs."""

    metric: Metric
    of_gpus: bool


def column_of(moment_s: float) -> int:
    """Return the column that holds a moment, unix s.

    >>> column_of(45.0), column_of(44.9)
    (3, 2)
    """
    return int(moment_s // COLUMN_S)


def node_gauges(node_id: int, *, metrics: Sequence[str], since: datetime, until: datetime) -> Gauges:
    """Return metric → (times float64 unix s [t], values float32 [row, t]) from `since` to `until`, at most a day.

    A row is one GPU of the node, by index, or the node itself for gauges of the host. NaN = no reading. A metric that
    the node's cluster never sent is left out.
    """
    node = node_by_id(node_id)
    first, end = column_of(since.timestamp()), column_of(until.timestamp()) + 1
    first = max(first, end - MOST_COLUMNS)
    times = np.arange(first, end, dtype=np.float64) * COLUMN_S
    found: Gauges = {}
    for series, entities in _series_of(node):
        numbers = {name: series.numbers[name] for name in metrics if name in series.numbers}
        if numbers and len(entities):
            values = entities_read(series_id=series.id, numbers=numbers, entities=entities, first=first, end=end)
            found |= {name: (times, cells) for name, cells in values.items()}
    return found


def gauges_newest(
    nodes: Collection[NodeRow], *, metric: str, since: datetime, until: datetime
) -> dict[int, NDArray[np.float32]]:
    """Return for each node the newest value of each row of a gauge since `since`, NaN where a row has none.

    A row is one GPU of the node, by index, or the node itself. Nodes without any value are left out. One read a cluster,
    however many nodes it has.
    """
    steps = np.arange(column_of(since.timestamp()), column_of(until.timestamp()) + 1, dtype=np.int64)[-MOST_COLUMNS:]
    found: dict[int, NDArray[np.float32]] = {}
    for cluster_id in sorted({node.cluster_id for node in nodes}):
        mine = [node for node in nodes if node.cluster_id == cluster_id]
        for kind in (SeriesKind.GPU, SeriesKind.NODE):
            series = series_of(kind, cluster_id)
            if series is None or metric not in series.numbers:
                continue
            numbers = {metric: series.numbers[metric]}
            newest = newest_of(
                columns_read(series_id=series.id, width=series.width, numbers=numbers, steps=steps)[metric]
            )
            for node in mine:
                slots = _slots(node)[kind]
                values = np.full(len(slots), np.nan, np.float32)
                known = slots < len(newest)
                values[known] = newest[slots[known]]
                if np.isfinite(values).any():
                    found[node.id] = values
    return found


def newest_of(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the newest value of each row of [row, t], NaN where a row has none.

    >>> newest_of(np.array([[1.0, 2.0, np.nan], [np.nan, np.nan, np.nan]], np.float32))
    array([ 2., nan], dtype=float32)
    """
    if not values.size:
        return np.full(len(values), np.nan, np.float32)
    known = np.isfinite(values)
    last = values.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.where(known.any(axis=1), values[np.arange(len(values)), last], np.nan).astype(np.float32)


def gauges_known(node_id: int) -> list[GaugeRow]:
    """Return the gauges that the node's cluster has, those of GPUs first, each in the order first heard."""
    rows = []
    for series, _ in _series_of(node_by_id(node_id)):
        rows += [GaugeRow(series.metric(name), series.kind == SeriesKind.GPU) for name in series.numbers]
    return rows


def gauges_version(node_id: int) -> tuple[int, ...]:
    """Return the versions of the series that a node's gauges stand in: equal as long as nothing new was written."""
    return tuple(series.version for series, _ in _series_of(node_by_id(node_id)))


def _series_of(node: NodeRow) -> Iterator[tuple[SeriesRow, NDArray[np.int64]]]:
    for kind, entities in _slots(node).items():
        series = series_of(kind, node.cluster_id)
        if series is not None:
            yield series, entities


def _slots(node: NodeRow) -> dict[SeriesKind, NDArray[np.int64]]:
    return {
        SeriesKind.GPU: np.array([gpu.slot for gpu in node.gpus], np.int64),
        SeriesKind.NODE: np.array([node.slot], np.int64),
    }
