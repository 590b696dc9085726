"""The `steps` of a report, packed or as arrays, as one form: float32 bytes [metric][rank][step].

0x7fc00000 is absent; any other NaN was produced by the training code and is told apart later.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from apps.common.clock import usable
from apps.engine.tiles.hot import ABSENT
from apps.telemetry.choices import Reason

PRODUCED_NAN = np.uint32(0x7FC00001).view(np.float32)
"""A NaN that the training code produced, as the packed form writes it."""

WORDS = {
    "nan": PRODUCED_NAN, "inf": np.float32(np.inf), "infinity": np.float32(np.inf), "-inf": np.float32(-np.inf),
    "-infinity": np.float32(-np.inf),
}  # fmt: skip

SAMPLE_LENGTH = 200
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./:-]{0,62}\Z")
_NOT_TOLD = float("nan")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that was not taken over: why, a sample, how many values."""

    reason: Reason
    sample: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of some ranks at some steps. `bits` float32 little-endian [metric][rank][step]; `ended_at` unix s a step."""

    names: tuple[str, ...]
    ranks: list[int]
    steps: list[int]
    bits: bytes
    ended_at: tuple[float, ...] | None = None


Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class Steps(msgspec.Struct):
    """The part as it comes."""

    ranks: list[Whole] = []
    steps: list[Whole] = []
    names: list[str] = []
    f32: bytes | None = None
    metrics: msgspec.Raw = msgspec.Raw(b"")
    ended_at: list[datetime | None] | None = None


_usual = msgspec.json.Decoder(dict[str, list[list[float | None]]])
_metrics = msgspec.json.Decoder(dict[str, msgspec.Raw])
_numbers = msgspec.json.Decoder(list[list[float | None]])
_anything = msgspec.json.Decoder(list[list[Any]])


def steps_parse(part: Steps, refused: list[Refused]) -> list[Samples]:
    """Return the part's values in the one form; what cannot be used is added to `refused`."""
    ended_at = _ended(part, refused)
    found = []
    if part.f32 is not None:
        found += _packed(part, ended_at, refused)
    if bytes(part.metrics) not in (b"", b"null"):
        found += _arrays(part, ended_at, refused)
    return found


def name_is_usable(name: str) -> bool:
    """Return whether a metric can be called that."""
    return _NAME.match(name) is not None


def _packed(part: Steps, ended_at: tuple[float, ...] | None, refused: list[Refused]) -> list[Samples]:
    names = tuple(part.names)
    assert part.f32 is not None
    cells = len(part.ranks) * len(part.steps)
    if len(part.f32) != 4 * len(names) * cells or len(set(names)) != len(names):
        told = f"{len(names)} names, {len(part.ranks)} ranks, {len(part.steps)} steps, {len(part.f32)} bytes"
        refused.append(Refused(Reason.SHAPE, told, max(1, len(names) * cells)))
        return []
    return [Samples(names, part.ranks, part.steps, part.f32, ended_at)] if cells and names else []


def _arrays(part: Steps, ended_at: tuple[float, ...] | None, refused: list[Refused]) -> list[Samples]:
    size = (len(part.ranks), len(part.steps))
    found = _usual_arrays(part, size)
    if found is None:
        found = _one_by_one(part, size, refused)
    names, values = found
    if not values.size:
        return []
    return [Samples(names, part.ranks, part.steps, values.astype("<f4", copy=False).tobytes(), ended_at)]


def _usual_arrays(part: Steps, size: tuple[int, int]) -> tuple[tuple[str, ...], NDArray[np.float32]] | None:
    """All arrays at once, if every one has the right form and only ordinary numbers; else None."""
    try:
        metrics = _usual.decode(part.metrics)
        values = np.array(list(metrics.values()), np.float64)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if values.shape != (len(metrics), *size) or (np.abs(values) > _LARGEST).any():
        return None
    return tuple(metrics), values.astype(np.float32)


def _one_by_one(
    part: Steps, size: tuple[int, int], refused: list[Refused]
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    try:
        metrics = _metrics.decode(part.metrics)
    except (msgspec.MsgspecError, RecursionError):
        refused.append(Refused(Reason.UNREADABLE, f"metrics: {_shown(part.metrics)}"))
        metrics = {}
    arrays = {name: _array(name, raw, size, refused) for name, raw in metrics.items()}
    kept = {name: array for name, array in arrays.items() if array is not None}
    if not kept:
        return (), np.empty(0, np.float32)
    return tuple(kept), np.stack(list(kept.values()))


def _shown(raw: msgspec.Raw) -> str:
    return bytes(raw)[:80].decode("utf-8", "replace")


def _array(name: str, raw: msgspec.Raw, size: tuple[int, int], refused: list[Refused]) -> NDArray[np.float32] | None:
    try:
        rows: list[list[Any]] = _numbers.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return _odd_array(name, raw, size, refused)
    if not _fits(name, rows, size, refused):
        return None
    return _narrowed(name, np.array(rows, np.float64).reshape(size), refused)


def _odd_array(
    name: str, raw: msgspec.Raw, size: tuple[int, int], refused: list[Refused]
) -> NDArray[np.float32] | None:
    """An array with words among its numbers, or with no numbers at all: value by value."""
    try:
        rows = _anything.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        refused.append(Refused(Reason.SHAPE, f"{name}: {_shown(raw)}"))
        return None
    if not _fits(name, rows, size, refused):
        return None
    out = np.full(size, ABSENT, np.float32)
    for row, line in enumerate(rows):
        for column, value in enumerate(line):
            found = _value(value)
            if found is None:
                refused.append(Refused(Reason.NOT_A_NUMBER, f"{name}: {str(value)[:80]}"))
            else:
                out[row, column] = found
    return out


def _value(value: Any) -> np.float32 | None:
    """A cell's value, absent for null, None for what is no number."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return WORDS.get(value.strip().lower().removeprefix("+"))
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        return None
    return np.float32(value)


def _narrowed(name: str, values: NDArray[np.float64], refused: list[Refused]) -> NDArray[np.float32]:
    over = np.abs(values) > _LARGEST
    if over.any():
        refused.append(Refused(Reason.IMPOSSIBLE, f"{name}: {values[over][0]:g}", int(over.sum())))
        values = np.where(over, np.nan, values)
    out = values.astype(np.float32)
    out[np.isnan(out)] = ABSENT
    return out


def _fits(name: str, rows: list[list[Any]], size: tuple[int, int], refused: list[Refused]) -> bool:
    if len(rows) == size[0] and all(len(row) == size[1] for row in rows):
        return True
    told = f"{name}: {len(rows)} rows for {size[0]} ranks and {size[1]} steps"
    refused.append(Refused(Reason.SHAPE, told, max(1, sum(len(row) for row in rows))))
    return False


def _ended(part: Steps, refused: list[Refused]) -> tuple[float, ...] | None:
    if not part.ended_at:
        return None
    if len(part.ended_at) != len(part.steps):
        refused.append(Refused(Reason.SHAPE, f"ended_at: {len(part.ended_at)} times for {len(part.steps)} steps"))
        return None
    try:
        return tuple([_unix(moment) for moment in part.ended_at])
    except ValueError:
        wrong = [moment for moment in part.ended_at if moment is not None and usable(moment) is None]
        refused.append(Refused(Reason.TIME, f"ended_at: {wrong[0].isoformat()}", len(wrong)))
        return tuple(_unix(usable(moment)) for moment in part.ended_at)


def _unix(moment: datetime | None) -> float:
    if moment is None:
        return _NOT_TOLD
    if usable(moment) is None:
        raise ValueError("a time that cannot be used")
    return moment.timestamp()
