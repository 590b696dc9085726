"""The machine itself, from /proc and /sys: load, memory, processors, network, disks, InfiniBand, NFS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.nfs import Mount, mounts_read, nfs_gauges, nfs_worst

LOCAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"})
"""Only these are asked for their free space: asking a network file system can hang with it."""
MAX_DISKS = 32
VIRTUAL_LINKS = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tap", "tun")
IB_ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "local_link_integrity_errors")


@dataclass(frozen=True)
class Counters:
    """What only means something as a difference between two looks."""

    at: float
    cpu_busy: float = 0.0
    cpu_all: float = 0.0
    received: int | None = None
    transmitted: int = 0
    mounts: dict[str, Mount] = field(default_factory=dict)


class Host:
    """Reads the machine's gauges; what can't be read here is absent."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)
        self._before: Counters | None = None

    def read(self, at: float) -> dict[str, Any]:
        """Return the gauges at `at` (seconds of a steady clock); rates need an earlier look."""
        links = list(self._links())
        now = Counters(
            at,
            *self._processors(),
            received=sum(link[0] for link in links) if links else None,
            transmitted=sum(link[1] for link in links),
            mounts=mounts_read(self._text("proc/self/mountstats")),
        )
        gauges: dict[str, Any] = {
            **self._load(),
            **self._memory(),
            **self._disks(),
            **self._infiniband(),
            "network_errors": sum(link[2] for link in links) if links else None,
            "boot_id": self._text("proc/sys/kernel/random/boot_id").strip() or None,
        }
        if self._before is not None and at > self._before.at:
            gauges.update(self._rates(self._before, now))
        elif now.mounts:
            gauges["nfs"] = nfs_gauges({}, now.mounts, 1.0)
        self._before = now
        return {name: value for name, value in gauges.items() if value is not None}

    def _rates(self, before: Counters, now: Counters) -> dict[str, Any]:
        seconds = now.at - before.at
        gauges: dict[str, Any] = {}
        if now.cpu_all > before.cpu_all:
            gauges["cpu_share"] = min(max((now.cpu_busy - before.cpu_busy) / (now.cpu_all - before.cpu_all), 0.0), 1.0)
        if now.received is not None and before.received is not None and now.received >= before.received:
            gauges["network_receive_bytes_per_s"] = (now.received - before.received) / seconds
            gauges["network_transmit_bytes_per_s"] = max(now.transmitted - before.transmitted, 0) / seconds
        if now.mounts:
            mounts = nfs_gauges(before.mounts, now.mounts, seconds)
            gauges.update({**nfs_worst(mounts), "nfs": mounts})
        return gauges

    def _load(self) -> dict[str, float]:
        words = self._text("proc/loadavg").split()
        return {"load1": float(words[0])} if words else {}

    def _memory(self) -> dict[str, int]:
        sizes = {}
        for line in self._text("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdecimal():
                sizes[name] = int(words[0]) * 1024
        gauges = {}
        if "MemTotal" in sizes:
            gauges["memory_total_bytes"] = sizes["MemTotal"]
        if "MemAvailable" in sizes:
            gauges["memory_available_bytes"] = sizes["MemAvailable"]
        if "SwapTotal" in sizes and "SwapFree" in sizes:
            gauges["swap_used_bytes"] = sizes["SwapTotal"] - sizes["SwapFree"]
        return gauges

    def _processors(self) -> tuple[float, float]:
        """Return (busy, all) processor time so far; waiting for disks is not busy."""
        words = self._text("proc/stat").partition("\n")[0].split()
        if len(words) < 6 or words[0] != "cpu":
            return 0.0, 0.0
        times = [float(word) for word in words[1:9]]  # guest time is counted in user time already
        return sum(times) - times[3] - times[4], sum(times)

    def _links(self) -> Iterator[tuple[int, int, int]]:
        """Yield (received bytes, sent bytes, errors) of each real network link."""
        for line in self._text("proc/net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            numbers = rest.split()
            if len(numbers) >= 16 and not name.strip().startswith(VIRTUAL_LINKS):
                yield int(numbers[0]), int(numbers[8]), int(numbers[2]) + int(numbers[10])

    def _disks(self) -> dict[str, float]:
        """Return the free share of the fullest local file system."""
        paths: dict[str, str] = {}
        for line in self._text("proc/self/mounts").splitlines():
            words = line.split()
            if len(words) >= 3 and words[2] in LOCAL_FILESYSTEMS:
                paths.setdefault(words[0], words[1])
        shares = []
        for path in list(paths.values())[:MAX_DISKS]:
            try:
                found = os.statvfs(path)
            except OSError:
                continue
            if found.f_blocks:
                shares.append(found.f_bavail / found.f_blocks)
        return {"disk_free_share": min(shares)} if shares else {}

    def _infiniband(self) -> dict[str, float]:
        """Return the errors of all InfiniBand ports, and the rate of the slowest one that is up."""
        errors, rates = [], []
        for port in sorted(self._root.glob("sys/class/infiniband/*/ports/*")):
            counters = [_whole(_read(port / "counters" / name)) for name in IB_ERRORS]
            errors += [counter for counter in counters if counter is not None]
            rate = _read(port / "rate").split()
            if rate and "ACTIVE" in _read(port / "state"):
                rates.append(float(rate[0]))
        gauges: dict[str, float] = {}
        if errors:
            gauges["ib_link_errors"] = sum(errors)
        if rates:
            gauges["ib_rate_gbit"] = min(rates)
        return gauges

    def _text(self, path: str) -> str:
        return _read(self._root / path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
