"""Simulated GPUs: gauges that follow the ranks' real load, and say in their model's name that nobody measured them."""

import json
import mmap
import os
import struct
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "Simulated GPU"
IDLE_C = 34.0
FULL_LOAD_C = 38.0
"""What full load adds to the idle temperature."""
IDLE_W, FULL_LOAD_W = 75.0, 525.0
IDLE_MHZ, BUSY_MHZ = 345.0, 1980.0
WARMING_S = 20.0
"""Time constant of a heat sink under a fan."""
IDLE_AFTER_S = 2.0
"""No step for so long: the load counts as gone."""
REASON_IDLE = 0x1
"""The bit of NVML's clock event reasons for "nothing is running"."""
SLOT = struct.Struct("=dd")


def gpu_name(node: str, local_rank: int) -> str:
    """Return the identity of a node's simulated GPU; it stays the same over restarts."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}.{local_rank}.simulated.invalid')}"


class LoadBoard:
    """Memory that ranks share with their parent: each one's busy share and when it last finished a step."""

    def __init__(self, ranks: int) -> None:
        self._memory = mmap.mmap(-1, max(ranks * SLOT.size, 1))

    def put(self, rank: int, busy_share: float) -> None:
        """Note that `rank` finished a step of which it was busy for `busy_share`."""
        SLOT.pack_into(self._memory, rank * SLOT.size, busy_share, time.monotonic())

    def load(self, rank: int, now: float) -> float:
        """Return the busy share of `rank`, 0 when it makes no steps."""
        share, at = SLOT.unpack_from(self._memory, rank * SLOT.size)
        return float(share) if at and now - at < IDLE_AFTER_S else 0.0


@dataclass(slots=True)
class SimulatedGpu:
    """One GPU: temperature follows power with a delay, as a heat sink's does."""

    name: str
    index: int
    offset_c: float
    temperature_c: float = IDLE_C
    at: float = 0.0

    def read(self, load: float, now: float) -> dict[str, Any]:
        """Return the gauges at `now` (monotonic seconds) under `load` (0..1)."""
        load = min(max(load, 0.0), 1.0)
        target_c = IDLE_C + self.offset_c + FULL_LOAD_C * load
        weight = min((now - self.at) / WARMING_S, 1.0) if self.at else 1.0
        self.temperature_c += (target_c - self.temperature_c) * weight
        self.at = now
        return {
            "gpu": self.name,
            "index": self.index,
            "pci": f"00000000:{self.index + 1:02X}:00.0",
            "model": MODEL,
            "temperature_c": round(self.temperature_c, 1),
            "memory_temperature_c": round(self.temperature_c + 7.0, 1),
            "sm_clock_mhz": BUSY_MHZ if load > 0 else IDLE_MHZ,
            "power_w": round(IDLE_W + (FULL_LOAD_W - IDLE_W) * load, 1),
            "utilization": round(load, 3),
            "clock_reasons": 0 if load > 0 else REASON_IDLE,
            "ecc_correctable": 0,
            "ecc_uncorrectable": 0,
            "remap_pending": 0,
        }


def gpus_make(node: str, count: int) -> list[SimulatedGpu]:
    """Return the GPUs of a node; each sits a little warmer or cooler than its neighbours, always the same."""
    return [
        SimulatedGpu(name=name, index=index, offset_c=uuid.UUID(name[4:]).int % 50 / 10)
        for index, name in enumerate(gpu_name(node, local) for local in range(count))
    ]


def gauges_write(path: Path, gauges: list[dict[str, Any]]) -> None:
    """Make `gauges` the content of the file that the node's sender reads."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(gauges), encoding="utf-8")
    os.replace(written, path)
