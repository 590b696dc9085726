"""Gauges of nodes: a sentence for now, the newest values, and charts."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from apps.console import figures, words
from apps.engine.tiles.metrics import metric_of
from apps.fleet.selectors import NodeRow
from apps.telemetry.selectors import newest_of, node_gauges

FRESH = timedelta(minutes=5)
SHOWN = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A chart of a node's page: its metric, title and digits; `unit` it is drawn in, which is `per` of the metric's own."""

    metric: str
    title: str
    digits: int = 0
    unit: str = ""
    per: float = 1.0
    from_zero: bool = False


CHARTS: dict[str, Gauge] = {
    gauge.metric.replace("_", "-"): gauge
    for gauge in (
        Gauge("temperature_c", "GPU temperature"),
        Gauge("sm_clock_mhz", "SM clock"),
        Gauge("power_w", "GPU power"),
        Gauge("utilization", "GPU utilization", 2),
        Gauge("ecc_uncorrectable", "ECC errors, uncorrected", from_zero=True),
        Gauge("load1", "Load", 1, from_zero=True),
        Gauge("cpu_share", "CPU busy", 2),
        Gauge("memory_available_bytes", "Memory available", 1, unit="GiB", per=2**30),
        Gauge("nfs_write_queue_ms", "NFS write, queued", 1, from_zero=True),
        Gauge("network_transmit_bytes_per_s", "Network sent", 1, unit="MB/s", per=1e6, from_zero=True),
    )
}


def gauges_now(node: NodeRow, *, now: datetime) -> str:
    """Return a node's GPUs in a sentence: 86–88 °C, 1,455 MHz; empty without fresh gauges and of a silent node."""
    if node.telemetry_state != "FRESH":
        return ""  # what was measured before it fell silent says nothing of now
    found = gauges_newest(node, ("temperature_c", "sm_clock_mhz"), now=now)
    parts = []
    heat = found.get("temperature_c")
    if heat is not None and np.isfinite(heat).any():
        low, high = round(float(np.nanmin(heat))), round(float(np.nanmax(heat)))
        parts.append(f"{low}–{high}{words.NBSP}°C" if low != high else f"{low}{words.NBSP}°C")
    clock = found.get("sm_clock_mhz")
    if clock is not None and np.isfinite(clock).any():
        parts.append(f"{np.nanmin(clock):,.0f}{words.NBSP}MHz")
    return ", ".join(parts)


def gauges_newest(node: NodeRow, metrics: tuple[str, ...], *, now: datetime) -> dict[str, NDArray[np.float32]]:
    """Return the newest value of each row of some gauges, NaN where a row has none of late; absent gauges are left out."""
    found = node_gauges(node.id, metrics=metrics, since=now - FRESH, until=now)
    return {name: newest_of(values) for name, (_, values) in found.items() if values.size}


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
        values = series[1].astype(float) / gauge.per
        empty = np.isnan(values).all(axis=0)
        filled = np.where(empty, 0.0, values)
        reduce = np.nanmin if known.worst == "min" else np.nanmax
        worst = figures.gaps(np.where(empty, np.nan, reduce(filled, axis=0)))
        middle = figures.gaps(np.where(empty, np.nan, np.nanmedian(filled, axis=0)))
        first = next((place for place, value in enumerate(worst) if value is not None), 0)
        times, worst, middle = times[first:], worst[first:], middle[first:]
    return figures.gauges(
        times=times,
        worst=worst,
        median=middle,
        unit=gauge.unit or known.unit,
        digits=gauge.digits,
        from_zero=gauge.from_zero,
        until=now,
    )
