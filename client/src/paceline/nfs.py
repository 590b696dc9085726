"""NFS mounts from /proc/self/mountstats: what reads and writes waited for since the last look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_DEVICE = re.compile(r"^device (?P<export>\S+) mounted on (?P<mount>\S+) with fstype nfs")
OPERATIONS = ("READ", "WRITE")


@dataclass(frozen=True)
class Operation:
    """One operation's counters since the mount: requests, transmissions, bytes, and milliseconds summed over requests."""

    ops: int
    transmissions: int
    sent_bytes: int
    received_bytes: int
    queue_ms: int
    rtt_ms: int
    execute_ms: int


@dataclass
class Mount:
    """One NFS mount's counters."""

    export: str
    mount: str
    operations: dict[str, Operation] = field(default_factory=dict)
    retransmits: int = 0


def mounts_read(text: str) -> dict[str, Mount]:
    """Return the NFS mounts in the text of mountstats, by mount point."""
    mounts: dict[str, Mount] = {}
    current: Mount | None = None
    for line in text.splitlines():
        if line.startswith("device "):
            found = _DEVICE.match(line)
            current = Mount(found["export"], found["mount"]) if found else None
            if current is not None:
                mounts[current.mount] = current
        elif current is not None:
            _operation_read(current, line)
    return mounts


def _operation_read(mount: Mount, line: str) -> None:
    name, colon, rest = line.strip().partition(":")
    numbers = rest.split()
    if not colon or not name.isupper() or len(numbers) < 8 or not all(number.isdecimal() for number in numbers[:8]):
        return
    ops, transmissions, _timeouts, sent, received, queue_ms, rtt_ms, execute_ms = map(int, numbers[:8])
    mount.retransmits += max(transmissions - ops, 0)
    if name in OPERATIONS:
        mount.operations[name] = Operation(ops, transmissions, sent, received, queue_ms, rtt_ms, execute_ms)


def nfs_gauges(before: Mapping[str, Mount], now: Mapping[str, Mount], seconds: float) -> list[dict[str, Any]]:
    """Return per mount what its reads and writes did between two looks; means in ms a request, absent without requests."""
    gauges = []
    for path, mount in now.items():
        gauge: dict[str, Any] = {"mount": path, "export": mount.export, "retransmits": mount.retransmits}
        earlier = before.get(path)
        for name, operation in mount.operations.items():
            past = earlier.operations.get(name) if earlier else None
            if past is not None and operation.ops >= past.ops:
                gauge.update(_since(name.lower(), past, operation, seconds))
        gauges.append(gauge)
    return gauges


def _since(name: str, past: Operation, now: Operation, seconds: float) -> dict[str, Any]:
    ops = now.ops - past.ops
    moved = now.received_bytes - past.received_bytes if name == "read" else now.sent_bytes - past.sent_bytes
    gauge: dict[str, Any] = {f"{name}_ops": ops, f"{name}_bytes_per_s": max(moved, 0) / seconds}
    if ops:
        gauge[f"{name}_queue_ms"] = (now.queue_ms - past.queue_ms) / ops
        gauge[f"{name}_rtt_ms"] = (now.rtt_ms - past.rtt_ms) / ops
        gauge[f"{name}_execute_ms"] = (now.execute_ms - past.execute_ms) / ops
    return gauge


def nfs_worst(gauges: list[dict[str, Any]]) -> dict[str, float]:
    """Return the node's own figures: the slowest mount's waits, all mounts' bytes and retransmits."""
    host: dict[str, float] = {}
    for name in ("read_queue_ms", "read_rtt_ms", "write_queue_ms", "write_rtt_ms"):
        waits = [gauge[name] for gauge in gauges if name in gauge]
        if waits:
            host[f"nfs_{name}"] = max(waits)
    for name in ("read_bytes_per_s", "write_bytes_per_s", "retransmits"):
        amounts = [gauge[name] for gauge in gauges if name in gauge]
        if amounts:
            host[f"nfs_{name}"] = sum(amounts)
    return host
