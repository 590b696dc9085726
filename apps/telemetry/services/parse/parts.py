"""The parts of a report that are lists of things: beats, places, saves, events."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from apps.common.clock import usable
from apps.telemetry.choices import Reason
from apps.telemetry.services.parse.steps import SAMPLE_LENGTH, Refused

TEXT_LENGTH = 4_000
"""Characters of one event's text: a traceback's end fits, a whole log does not."""

STACK_LENGTH = 64_000
INT4 = 2**31 - 1
COORD_LENGTH = 8
"""Letters of an axis of the layout, such as `dp` or `expert`."""

Item = TypeVar("Item", bound=msgspec.Struct)
Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Beat(msgspec.Struct):
    """Where a rank is."""

    rank: Rank
    step: Step | None = None
    phase: str = "unknown"
    phase_age_s: float | None = None


class Place(msgspec.Struct):
    """Where a rank sits."""

    rank: Rank
    node: str
    local_rank: int | None = None
    gpu: str | None = None
    coords: dict[str, int] | None = None


class Save(msgspec.Struct):
    """A word about a checkpoint."""

    step: Step
    state: str
    kind: str = "save"
    happened_at: datetime | None = None
    duration_s: float | None = None
    queue_s: float | None = None
    blocking_s: float | None = None
    bytes: float | None = None
    rank: Rank | None = None
    error: str | None = None


class Event(msgspec.Struct):
    """Something that happened."""

    kind: str
    happened_at: datetime | None = None
    rank: Rank | None = None
    node: str | None = None
    text: str | None = None
    code: int | None = None
    signal: int | None = None
    payload: dict[str, Any] | None = None


_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Beat, Place, Save, Event)
}
_lists: dict[type, msgspec.json.Decoder[Any]] = {
    Beat: msgspec.json.Decoder(list[Beat]),
    Place: msgspec.json.Decoder(list[Place]),
    Save: msgspec.json.Decoder(list[Save]),
    Event: msgspec.json.Decoder(list[Event]),
}
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def items_parse(kind: type[Item], raw: bytes | msgspec.Raw, refused: list[Refused]) -> list[Item]:
    """Return the items of a list; those that have another form are refused one by one."""
    if not bytes(raw) or bytes(raw) == b"null":
        return []
    try:
        found: list[Item] = _lists[kind].decode(raw)
        return found
    except (msgspec.MsgspecError, RecursionError):
        return list(_one_by_one(kind, raw, refused))


def times_check(items: Iterable[Save | Event], refused: list[Refused]) -> None:
    """Make a time that cannot be used absent; what was told with it stays."""
    for item in items:
        if item.happened_at is not None and usable(item.happened_at) is None:
            refused.append(Refused(Reason.TIME, f"happened_at: {item.happened_at.isoformat()}"))
            item.happened_at = None


def places_check(places: Iterable[Place], refused: list[Refused]) -> None:
    """Make what cannot be kept of a place absent; the rank's node and the report's other parts stay."""
    for place in places:
        coords = place.coords or {}
        wrong = {name: at for name, at in coords.items() if not _is_coordinate(name, at)}
        if wrong:
            refused.append(_beside(place, f"coords {wrong}", len(wrong)))
            place.coords = {name: at for name, at in coords.items() if name not in wrong}
        if place.local_rank is not None and not 0 <= place.local_rank <= INT4:
            refused.append(_beside(place, f"local_rank {place.local_rank}"))
            place.local_rank = None
        if place.gpu is not None and not place.gpu.isprintable():
            refused.append(_beside(place, f"gpu {place.gpu!r}"))
            place.gpu = None


def _is_coordinate(name: str, at: int) -> bool:
    return 0 < len(name) <= COORD_LENGTH and name.isprintable() and 0 <= at <= INT4


def _beside(place: Place, what: str, count: int = 1) -> Refused:
    return Refused(Reason.UNREADABLE, f"placement of rank {place.rank}: {what}"[:SAMPLE_LENGTH], count)


def text_clean(text: str | None, *, length: int = TEXT_LENGTH) -> str:
    """Return text as it can be stored and shown: bounded, without zero bytes."""
    return (text or "").replace("\x00", "\ufffd")[:length]


def int4(value: int | None) -> int | None:
    """Return a number if it fits into four bytes, else None."""
    return value if value is not None and -INT4 <= value <= INT4 else None


def _one_by_one(kind: type[Item], raw: bytes | msgspec.Raw, refused: list[Refused]) -> Iterable[Item]:
    try:
        items = _raws.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        refused.append(_unreadable(kind, raw))
        return
    for item in items:
        try:
            yield _decoders[kind].decode(item)
        except (msgspec.MsgspecError, RecursionError):
            timeless = timeless_read(item, "happened_at", _decoders[kind], refused)
            if timeless is None:
                refused.append(_unreadable(kind, item))
            else:
                yield timeless


def timeless_read(raw: bytes | msgspec.Raw, name: str, decoder: Any, refused: list[Refused]) -> Any:
    """Read something whose time alone has another form than times have: it is refused, the rest stays. None if it is not so."""
    try:
        parts = _fields.decode(raw)
        told = parts.pop(name, None)
        found = decoder.decode(msgspec.json.encode(parts))
    except (msgspec.MsgspecError, RecursionError):
        return None
    if told is not None:
        refused.append(Refused(Reason.TIME, f"{name}: {bytes(told)[:SAMPLE_LENGTH].decode('utf-8', 'replace')}"))
    return found


def _unreadable(kind: type, raw: bytes | msgspec.Raw) -> Refused:
    return Refused(Reason.UNREADABLE, f"{kind.__name__}: {bytes(raw)[:SAMPLE_LENGTH].decode('utf-8', 'replace')}")
