"""What is known about each metric: unit, coding, which end is worst, how 15 s samples meet in one cell."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from apps.engine.checks import shape


class Kind(IntEnum):
    """How a metric's values are kept; the number stands in sealed tiles."""

    ROUNDED = 0
    EXACT = 1


class Reducer(StrEnum):
    """How several samples of one 15 s cell become one value."""

    LAST = "LAST"
    OR = "OR"
    MEAN = "MEAN"
    MAX = "MAX"


Scope = Literal["rank", "gpu", "node"]
Worst = Literal["max", "min"]

REPEATABLE = frozenset({Reducer.LAST, Reducer.OR, Reducer.MAX})
"""Reducers that hearing a sample twice cannot change: the only ones that unnumbered deliveries may feed."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric's nature. `compared` metrics also get pooled levels of their ratio to peers."""

    name: str
    label: str
    unit: str
    scope: Scope
    kind: Kind = Kind.ROUNDED
    compared: bool = False
    worst: Worst = "max"
    reducer: Reducer = Reducer.LAST
    lo: float = 0.0
    hi: float = float("inf")


_EXACT = Kind.EXACT
_WEEK_S = 604_800.0
"""A phase of one step that claims to last longer than a week is a clock that jumped, not a measurement."""
_MEMORY = float(2**50)
"""One pebibyte: more memory than any node has."""
_QUEUE_MS = 3_600_000.0
"""NFS waits are averages over 15 s; an hour is already absurd."""


def _seconds(name: str, label: str, *, compared: bool = True, worst: Worst = "max") -> Metric:
    return Metric(name, label, "s", "rank", compared=compared, worst=worst, hi=_WEEK_S)


_RANK = (
    _seconds("step_s", "Step time"),
    _seconds("compute_s", "Compute without waiting"),
    _seconds("forward_s", "Forward"),
    _seconds("backward_s", "Backward"),
    # The culprit waits least: everybody else waits for it.
    _seconds("communication_s", "Communication, waiting included", worst="min"),
    _seconds("waiting_s", "Waiting for others", worst="min"),
    _seconds("data_s", "Data loading"),
    _seconds("optimizer_s", "Optimizer"),
    _seconds("checkpoint_s", "Checkpoint, blocking part", compared=False),
    _seconds("evaluation_s", "Evaluation", compared=False),
    _seconds("gc_s", "Garbage collection", compared=False),
    Metric("tokens", "Tokens", "tokens", "rank", kind=_EXACT, hi=float(2**40)),
    Metric("tokens_squared", "Sum of squared lengths", "tokens²", "rank", compared=True, hi=float(2**60)),
    Metric("loss", "Loss", "", "rank", lo=-float("inf")),
    Metric("grad_norm", "Gradient norm", "", "rank"),
)

_GPU = (
    Metric("temperature_c", "GPU temperature", "°C", "gpu", compared=True, reducer=Reducer.MAX, lo=-50, hi=150),
    Metric(
        "memory_temperature_c", "Memory temperature", "°C", "gpu", compared=True, reducer=Reducer.MAX, lo=-50, hi=150
    ),
    Metric("temperature_margin_c", "Margin to slowdown", "°C", "gpu", worst="min", lo=-150, hi=200),
    Metric("sm_clock_mhz", "SM clock", "MHz", "gpu", compared=True, worst="min", hi=10_000),
    Metric("memory_clock_mhz", "Memory clock", "MHz", "gpu", worst="min", hi=20_000),
    Metric("power_w", "Power", "W", "gpu", compared=True, hi=2_000),
    Metric("power_limit_w", "Enforced power limit", "W", "gpu", worst="min", hi=2_000),
    Metric("utilization", "Utilization", "share", "gpu", worst="min", reducer=Reducer.MEAN, hi=1),
    Metric("memory_used_bytes", "Memory used", "bytes", "gpu", reducer=Reducer.MAX, hi=_MEMORY),
    Metric("clock_reasons", "Clock event reasons", "mask", "gpu", kind=_EXACT, reducer=Reducer.OR, hi=float(2**24 - 1)),
    Metric("ecc_correctable", "ECC errors, corrected", "count", "gpu", kind=_EXACT, hi=float(2**32)),
    Metric("ecc_uncorrectable", "ECC errors, uncorrected", "count", "gpu", kind=_EXACT, hi=float(2**32)),
    Metric("remap_pending", "Row remap pending", "flag", "gpu", kind=_EXACT, reducer=Reducer.MAX, hi=1),
    Metric("remap_failed", "Row remap failed", "flag", "gpu", kind=_EXACT, reducer=Reducer.MAX, hi=1),
    Metric("remapped_correctable", "Rows remapped, correctable", "count", "gpu", kind=_EXACT, hi=65_536),
    Metric("remapped_uncorrectable", "Rows remapped, uncorrectable", "count", "gpu", kind=_EXACT, hi=65_536),
    Metric("pcie_replays", "PCIe replays", "count", "gpu", kind=_EXACT, hi=float(2**32)),
    Metric("pcie_width", "PCIe lanes", "lanes", "gpu", kind=_EXACT, worst="min", hi=64),
    Metric("nvlink_errors", "NVLink errors", "count", "gpu", kind=_EXACT, hi=float(2**40)),
    Metric("xid", "Last XID", "code", "gpu", kind=_EXACT, hi=65_536),
)


def _wait(name: str, label: str) -> Metric:
    return Metric(name, label, "ms", "node", compared=True, reducer=Reducer.MAX, hi=_QUEUE_MS)


_NODE = (
    Metric("gpu_count", "GPUs seen", "count", "node", kind=_EXACT, worst="min", hi=64),
    Metric("load1", "Load, 1 min", "", "node", hi=100_000),
    Metric("cpu_share", "CPU busy", "share", "node", reducer=Reducer.MEAN, hi=1),
    Metric("memory_total_bytes", "Memory", "bytes", "node", worst="min", hi=_MEMORY),
    Metric("memory_available_bytes", "Memory available", "bytes", "node", worst="min", hi=_MEMORY),
    Metric("swap_used_bytes", "Swap used", "bytes", "node", reducer=Reducer.MAX, hi=_MEMORY),
    Metric("disk_free_share", "Disk free, fullest", "share", "node", worst="min", hi=1),
    _wait("nfs_read_queue_ms", "NFS read, queued"),
    _wait("nfs_read_rtt_ms", "NFS read, round trip"),
    _wait("nfs_write_queue_ms", "NFS write, queued"),
    _wait("nfs_write_rtt_ms", "NFS write, round trip"),
    Metric("nfs_read_bytes_per_s", "NFS read", "bytes/s", "node", hi=1e15),
    Metric("nfs_write_bytes_per_s", "NFS written", "bytes/s", "node", hi=1e15),
    Metric("nfs_retransmits", "NFS retransmits", "count", "node", kind=_EXACT, hi=float(2**40)),
    Metric("network_receive_bytes_per_s", "Network received", "bytes/s", "node", hi=1e15),
    Metric("network_transmit_bytes_per_s", "Network sent", "bytes/s", "node", hi=1e15),
    Metric("network_errors", "Network errors", "count", "node", kind=_EXACT, hi=float(2**40)),
    Metric("ib_link_errors", "InfiniBand link errors", "count", "node", kind=_EXACT, hi=float(2**40)),
    Metric("ib_rate_gbit", "InfiniBand rate", "Gbit/s", "node", kind=_EXACT, worst="min", hi=10_000),
)

KNOWN: dict[str, Metric] = {metric.name: metric for metric in (*_RANK, *_GPU, *_NODE)}
"""Every metric that Paceline knows by name; others get `metric_of`'s default."""

_UNITS = {
    "_s": "s", "_ms": "ms", "_c": "°C", "_mhz": "MHz", "_w": "W", "_bytes": "bytes", "_share": "share",
    "_bytes_per_s": "bytes/s", "_count": "count", "_total": "count",
}  # fmt: skip


def metric_of(name: str, *, integral: bool = False, scope: Scope = "rank") -> Metric:
    """Return what is known about a metric, or a careful default for a name nobody declared.

    name: str, as senders write it. integral: whether every value seen is a whole number; such an unknown metric is
    kept exactly, since it may be a counter or a mask. scope: "rank", "gpu" or "node", for unknown names only.

    Returns a `Metric`; an unknown one has no limits and takes its unit from the name's ending. O(1).

    Source: ours; rounding an unknown counter would invent events, so only fractions are rounded.

    >>> metric_of("communication_s").worst, metric_of("clock_reasons").reducer.value
    ('min', 'OR')
    >>> unknown = metric_of("shard_read_ms", integral=True)
    >>> unknown.kind.name, unknown.unit, unknown.lo
    ('EXACT', 'ms', -inf)
    """
    known = KNOWN.get(name)
    if known is not None:
        return known
    endings = sorted((ending for ending in _UNITS if name.endswith(ending)), key=len)
    unit = _UNITS[endings[-1]] if endings else ""
    kind = Kind.EXACT if integral else Kind.ROUNDED
    label = name.replace("_", " ")
    return Metric(name, label, unit, scope, kind=kind, lo=-float("inf"))


def is_integral(values: NDArray[np.float32]) -> bool:
    """Return whether all present values are whole numbers (true when none is present).

    values: float32, any shape, any unit; NaN means absent.

    O(n). Source: ours, see `metric_of`.

    >>> is_integral(np.array([1, 2, np.nan], np.float32)), is_integral(np.array([0.5], np.float32))
    (True, False)
    """
    with np.errstate(invalid="ignore"):
        return bool(((values == np.rint(values)) | np.isnan(values)).all())


def within_limits(values: NDArray[np.float32], lo: NDArray[np.float32], hi: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which values are physically possible, one flag a value.

    values: float32 [metric, n], each row in its metric's unit; NaN means absent and is always possible. lo, hi: float32
    [metric], the limits of `limits_of`, both inclusive.

    An impossible value (a sentinel such as 9.2e18 °C, a blank printed as -1) is a refused one, to be counted by the
    caller, never a reading. O(n).

    Source: cases, "Sentinels, blanks and N/A": exporters print 9223372036854775794 for a blank.

    >>> lo, hi = limits_of(["temperature_c"])
    >>> within_limits(np.array([[61.0, 9.2e18, np.nan]], np.float32), lo, hi).tolist()
    [[True, False, True]]
    """
    shape("values", values, len(lo), None)
    outside: NDArray[np.bool_] = (values < lo[:, None]) | (values > hi[:, None])
    return ~outside


def limits_of(names: list[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lowest and highest possible value of each metric, float32 [metric], in the metric's own unit.

    names: the metrics, in the order of the rows that `within_limits` will see.

    O(n). Source: cases, "Sentinels, blanks and N/A", for temperature, power and count; the others are ours, wide
    enough that only a broken reading falls outside.

    >>> [float(limit[0]) for limit in limits_of(["power_w"])]
    [0.0, 2000.0]
    """
    found = [metric_of(name) for name in names]
    return np.array([m.lo for m in found], np.float32), np.array([m.hi for m in found], np.float32)
