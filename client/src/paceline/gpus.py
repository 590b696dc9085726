"""A node's GPUs as `nvidia-smi` tells them, in the names and units of the report format."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 10.0
"""nvidia-smi waits for the driver; on a sick GPU that can be for ever."""

MIB = 1024.0 * 1024.0
_INVALID_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')


def _number(text: str) -> float:
    return float(text)


def _share(text: str) -> float:
    return float(text) / 100.0


def _mebibytes(text: str) -> float:
    return float(text) * MIB


def _flag(text: str) -> float:
    words = {"yes": 1.0, "no": 0.0}
    return words[text.lower()] if text.lower() in words else float(min(int(text), 1))


def _mask(text: str) -> float:
    return float(int(text, 16))


@dataclass(frozen=True)
class Field:
    """One gauge: what nvidia-smi may call it (newest name first), and how its text becomes a number."""

    name: str
    queries: tuple[str, ...]
    read: Callable[[str], float] = _number


FIELDS = (
    Field("temperature_c", ("temperature.gpu",)),
    Field("memory_temperature_c", ("temperature.memory",)),
    Field("temperature_margin_c", ("temperature.gpu.tlimit",)),
    Field("sm_clock_mhz", ("clocks.current.sm",)),
    Field("memory_clock_mhz", ("clocks.current.memory",)),
    Field("power_w", ("power.draw",)),
    Field("power_limit_w", ("enforced.power.limit",)),
    Field("utilization", ("utilization.gpu",), _share),
    Field("memory_used_bytes", ("memory.used",), _mebibytes),
    Field("clock_reasons", ("clocks_event_reasons.active", "clocks_throttle_reasons.active"), _mask),
    Field("ecc_correctable", ("ecc.errors.corrected.aggregate.total",)),
    Field("ecc_uncorrectable", ("ecc.errors.uncorrected.aggregate.total",)),
    Field("remap_pending", ("remapped_rows.pending",), _flag),
    Field("remap_failed", ("remapped_rows.failure",), _flag),
    Field("remapped_correctable", ("remapped_rows.correctable",)),
    Field("remapped_uncorrectable", ("remapped_rows.uncorrectable",)),
    Field("pcie_width", ("pcie.link.width.current",)),
)
LABELS = ("uuid", "pci.bus_id", "index", "name")


@dataclass
class NvidiaSmi:
    """Asks nvidia-smi; learns which names this driver knows, since one unknown name makes it refuse them all."""

    program: str | None = field(default_factory=lambda: shutil.which("nvidia-smi"))
    unknown: set[str] = field(default_factory=set)

    def read(self) -> list[dict[str, Any]] | None:
        """Return the gauges of each GPU, or None if there is no nvidia-smi or it doesn't answer."""
        if self.program is None:
            return None
        for _ in range(len(FIELDS) + 1):
            queries = self._queries()
            text = self._ask(self.program, [*LABELS, *(query for _, query in queries)])
            if text is None:
                return None
            invalid = _INVALID_FIELD.search(text)
            if invalid is None:
                return gpus_read(text, [known for known, _ in queries])
            self.unknown.add(invalid.group(1))
        return None

    def _queries(self) -> list[tuple[Field, str]]:
        chosen = []
        for known in FIELDS:
            left = [query for query in known.queries if query not in self.unknown]
            if left:
                chosen.append((known, left[0]))
        return chosen

    def _ask(self, program: str, queries: Sequence[str]) -> str | None:
        command = [program, f"--query-gpu={','.join(queries)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = done.stdout + done.stderr
        return text if done.returncode == 0 or _INVALID_FIELD.search(text) else None


def gpus_read(text: str, fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return the gauges in nvidia-smi's lines of `LABELS` and `fields`; what it can't tell is left out, never zero."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(LABELS) + len(fields):
            continue  # a warning between the lines
        uuid, pci, index, name = (cell.strip() for cell in row[: len(LABELS)])
        gpu: dict[str, Any] = {"gpu": uuid, "pci": pci, "model": name}
        if index.isdecimal():
            gpu["index"] = int(index)
        for known, cell in zip(fields, row[len(LABELS) :]):
            value = _value(known, cell.strip())
            if value is not None:
                gpu[known.name] = int(value) if value.is_integer() else value
        gpus.append(gpu)
    return gpus


def _value(known: Field, text: str) -> float | None:
    """Return the number in a cell; `[N/A]`, `ERR!`, `[GPU is lost]` and their kin are no reading."""
    try:
        return known.read(text)
    except (ValueError, KeyError):
        return None


def gpus_by_index(smi: NvidiaSmi) -> dict[str, str]:
    """Return each GPU's identity by its index, for ranks that know only the index."""
    return {str(gpu["index"]): gpu["gpu"] for gpu in smi.read() or [] if "index" in gpu}
