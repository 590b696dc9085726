"""A report of a node: gauges of its GPUs and of the host, now or back-filled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from apps.common.clock import usable
from apps.fleet.services import MOST_GPUS, GpuSeen
from apps.telemetry.choices import Reason
from apps.telemetry.services.parse.parts import Event, ends_check, items_parse, text_clean, times_check
from apps.telemetry.services.parse.steps import SAMPLE_LENGTH, WORDS, Refused, name_is_usable

LABELS = frozenset({"gpu", "pci", "index", "model", "boot_id"})
BLANKS = frozenset(
    {"", "n/a", "[n/a]", "na", "none", "null", "not supported", "[not supported]", "not active", "unknown"}
)
KEY_LENGTH = 64
_EMPTY = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read at one moment of the sender's clock (None: when it was sent): of GPUs by key, and of the host."""

    at: datetime | None
    gpus: dict[str, dict[str, float]]
    host: dict[str, float]


@dataclass(slots=True)
class NodeParsed:
    """What a node's report says, and what of it could not be read."""

    readings: list[Reading] = field(default_factory=list)
    devices: dict[str, GpuSeen] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)
    boot_id: str = ""
    refused: list[Refused] = field(default_factory=list)


_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[Any])
_object = msgspec.json.Decoder(dict[str, Any])
_samples = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_moment = msgspec.json.Decoder(datetime)
_drops = msgspec.json.Decoder(dict[str, int])


def node_parse(body: bytes) -> NodeParsed:
    """Return what a report of a node says. Never raises for what it says: that is refused, part by part."""
    found = NodeParsed()
    try:
        parts = _parts.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        found.refused.append(Refused(Reason.UNREADABLE, str(error)[:SAMPLE_LENGTH]))
        return found
    _reading(parts, found)
    if _given(parts, "samples"):
        try:
            for sample in _samples.decode(parts["samples"]):
                _reading(sample, found)
        except (msgspec.MsgspecError, RecursionError) as error:
            found.refused.append(Refused(Reason.UNREADABLE, f"samples: {error}"[:SAMPLE_LENGTH]))
    found.events = items_parse(Event, parts.get("events", _EMPTY), found.refused)
    times_check(found.events, found.refused)
    ends_check(found.events, found.refused)
    if _given(parts, "drops"):
        try:
            found.drops = {
                text_clean(name, length=80): n for name, n in list(_drops.decode(parts["drops"]).items())[:32]
            }
        except (msgspec.MsgspecError, RecursionError) as error:
            found.refused.append(Refused(Reason.UNREADABLE, f"drops: {error}"[:SAMPLE_LENGTH]))
    return found


def _reading(parts: Mapping[str, msgspec.Raw], found: NodeParsed) -> None:
    if not _given(parts, "gpus") and not _given(parts, "host"):
        return
    gpus: dict[str, dict[str, float]] = {}
    for item in _decoded(_objects, parts, "gpus", found) or ():
        key = _device(item, found)
        if key is not None:
            gpus[key] = _numbers(item, found)
    host = _decoded(_object, parts, "host", found) or {}
    boot_id = host.get("boot_id")
    if isinstance(boot_id, str):
        found.boot_id = text_clean(boot_id, length=64)
    found.readings.append(Reading(_at(parts, found), gpus, _numbers(host, found)))


def _device(item: Any, found: NodeParsed) -> str | None:
    """The GPU's key: its UUID, else its full PCI id with domain. An index is only a label."""
    if not isinstance(item, dict):
        found.refused.append(Refused(Reason.UNREADABLE, f"gpu: {str(item)[:80]}"))
        return None
    uuid, pci = item.get("gpu"), item.get("pci")
    pci = pci if isinstance(pci, str) and pci.count(":") == 2 else ""
    key = uuid if isinstance(uuid, str) and uuid.strip() else pci
    if not key or len(key) > KEY_LENGTH or "\x00" in key:
        found.refused.append(
            Refused(Reason.DEVICE, str({name: item.get(name) for name in ("gpu", "pci", "index")})[:80])
        )
        return None
    if key not in found.devices and len(found.devices) >= MOST_GPUS:
        found.refused.append(Refused(Reason.DEVICES_MANY, key[:80]))
        return None
    index, model = item.get("index"), item.get("model")
    found.devices[key] = GpuSeen(
        key=key,
        pci=text_clean(pci, length=32),
        index=index if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < 2**31 else None,
        model=text_clean(model, length=100) if isinstance(model, str) else "",
    )
    return key


def _numbers(item: Mapping[str, Any], found: NodeParsed) -> dict[str, float]:
    """The gauges among an object's fields. A blank is no reading; what is nested is detail for people."""
    numbers: dict[str, float] = {}
    for name, value in item.items():
        if name in LABELS or value is None or isinstance(value, dict | list):
            continue
        if isinstance(value, bool):
            value = float(value)
        if isinstance(value, str) and (value.strip().lower() in BLANKS or value.strip().lower() in WORDS):
            continue
        if not isinstance(value, int | float):
            found.refused.append(Refused(Reason.NOT_A_NUMBER, f"{name[:63]}: {value[:80]}"))
        elif not name_is_usable(name):
            found.refused.append(Refused(Reason.METRIC_NAME, name[:80]))
        else:
            numbers[name] = _float(value)
    return numbers


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")  # refused as impossible, with its metric's limits


def _at(parts: Mapping[str, msgspec.Raw], found: NodeParsed) -> datetime | None:
    if not _given(parts, "at"):
        return None
    try:
        moment = usable(_moment.decode(parts["at"]))
        if moment is not None:
            return moment
    except msgspec.MsgspecError:
        pass
    found.refused.append(Refused(Reason.TIME, bytes(parts["at"])[:80].decode("utf-8", "replace")))
    return None


def _decoded(decoder: Any, parts: Mapping[str, msgspec.Raw], name: str, found: NodeParsed) -> Any:
    if not _given(parts, name):
        return None
    try:
        return decoder.decode(parts[name])
    except (msgspec.MsgspecError, RecursionError) as error:
        found.refused.append(Refused(Reason.UNREADABLE, f"{name}: {error}"[:SAMPLE_LENGTH]))
        return None


def _given(parts: Mapping[str, msgspec.Raw], name: str) -> bool:
    return bytes(parts.get(name, _EMPTY)) not in (b"", b"null")
