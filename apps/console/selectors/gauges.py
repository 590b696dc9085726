"""Gauges of nodes: a sentence for now, values for the map's overlays, and charts."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from apps.console import figures, words
from apps.console.selectors.ranks import paces_by_node
from apps.engine.tiles.metrics import metric_of
from apps.fleet.selectors import NodeRow
from apps.runs.selectors import RunRow
from apps.telemetry.selectors.gauges import node_gauges

FRESH = timedelta(minutes=5)
SHOWN = timedelta(hours=2)
MOST_RUNS = 20
"""Runs whose ranks are compared for one map."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A chart of a node's page: its metric, its title, digits, and which end is worst."""

    metric: str
    title: str
    digits: int = 0


CHARTS: dict[str, Gauge] = {
    gauge.metric.replace("_", "-"): gauge
    for gauge in (
        Gauge("temperature_c", "GPU temperature"),
        Gauge("sm_clock_mhz", "SM clock"),
        Gauge("power_w", "GPU power"),
        Gauge("utilization", "GPU utilization", 2),
        Gauge("ecc_uncorrectable", "ECC errors, uncorrected"),
        Gauge("load1", "Load", 1),
        Gauge("cpu_share", "CPU busy", 2),
        Gauge("memory_available_bytes", "Memory available"),
        Gauge("nfs_write_queue_ms", "NFS write, queued", 1),
        Gauge("network_transmit_bytes_per_s", "Network sent"),
    )
}


def gauges_now(node: NodeRow, *, now: datetime) -> str:
    """Return a node's GPUs in a sentence: 86–88 °C, 1,455 MHz; empty without fresh gauges."""
    found = node_gauges(node.id, metrics=("temperature_c", "sm_clock_mhz"), since=now - FRESH, until=now)
    parts = []
    heat = _newest(found.get("temperature_c"))
    if heat is not None and np.isfinite(heat).any():
        low, high = int(np.nanmin(heat)), int(np.nanmax(heat))
        parts.append(f"{low}–{high}{words.NBSP}°C" if low != high else f"{low}{words.NBSP}°C")
    clock = _newest(found.get("sm_clock_mhz"))
    if clock is not None and np.isfinite(clock).any():
        parts.append(f"{np.nanmin(clock):,.0f}{words.NBSP}MHz")
    return ", ".join(parts)


def _newest(series: tuple[NDArray[np.float64], NDArray[np.float32]] | None) -> NDArray[np.float32] | None:
    """Return the newest value of each row, NaN where a row has none."""
    if series is None or not series[1].size:
        return None
    values = series[1]
    known = np.isfinite(values)
    last = values.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
    newest = values[np.arange(len(values)), last]
    return np.where(known.any(axis=1), newest, np.nan).astype(np.float32)


def overlay_values(
    nodes: list[NodeRow], runs: list[RunRow], *, now: datetime
) -> dict[int, dict[str, list[float | None]]]:
    """Return what the map's overlays draw for each node: GPU temperatures, and its ranks' pace against their peers."""
    found: dict[int, dict[str, list[float | None]]] = {}
    for run in runs[:MOST_RUNS]:
        for node_id, ratios in paces_by_node(run).items():
            found.setdefault(node_id, {}).setdefault("straggle", []).extend(ratios)
    for node in nodes:
        if node.telemetry_state != "FRESH":
            continue
        heat = _newest(
            node_gauges(node.id, metrics=("temperature_c",), since=now - FRESH, until=now).get("temperature_c")
        )
        if heat is not None and np.isfinite(heat).any():
            found.setdefault(node.id, {})["temperature"] = figures.gaps(heat)
    return found


def charts_listed(node: NodeRow, *, now: datetime) -> list[tuple[str, str]]:
    """Return the charts that have something to show, as (name, title), in their drawn order."""
    found = node_gauges(node.id, metrics=tuple(gauge.metric for gauge in CHARTS.values()), since=now - SHOWN, until=now)
    return [(name, gauge.title) for name, gauge in CHARTS.items() if _has(found.get(gauge.metric))]


def _has(series: tuple[NDArray[np.float64], NDArray[np.float32]] | None) -> bool:
    return series is not None and bool(np.isfinite(series[1]).any())


def chart_of(node: NodeRow, name: str, *, now: datetime) -> go.Figure:
    """Return one gauge over the last hours: the worst of its rows solid, their median dashed."""
    gauge = CHARTS[name]
    known = metric_of(gauge.metric)
    series = node_gauges(node.id, metrics=(gauge.metric,), since=now - SHOWN, until=now).get(gauge.metric)
    times: list[datetime] = []
    worst: list[float | None] = []
    middle: list[float | None] = []
    if series is not None and series[1].size:
        times = [datetime.fromtimestamp(at, now.tzinfo) for at in series[0]]
        values = series[1].astype(float)
        empty = np.isnan(values).all(axis=0)
        filled = np.where(empty, 0.0, values)
        reduce = np.nanmin if known.worst == "min" else np.nanmax
        worst = figures.gaps(np.where(empty, np.nan, reduce(filled, axis=0)))
        middle = figures.gaps(np.where(empty, np.nan, np.nanmedian(filled, axis=0)))
    return figures.gauges(times=times, worst=worst, median=middle, unit=known.unit, digits=gauge.digits)
