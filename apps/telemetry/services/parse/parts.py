"""The parts of a report that are lists of things: beats, places, saves, events."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from apps.common.clock import usable
from apps.engine.readers.exits import code_usable, signal_usable
from apps.engine.readers.partial import partly_read
from apps.telemetry.choices import Reason
from apps.telemetry.services.parse.steps import SAMPLE_LENGTH, Refused

TEXT_LENGTH = 4_000
"""Characters of one event's text: a traceback's end fits, a whole log does not."""

STACK_LENGTH = 64_000
INT4 = 2**31 - 1
COORD_LENGTH = 8
"""Letters of an axis of the layout, such as `dp` or `expert`."""

ABOUT = frozenset({"kind", "state", "rank", "step", "node", "text"})
"""What says of whom or of what something is told: where that cannot be read, nothing is told. Of the rest a part may miss."""

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
    """Return the items of a list; what has another form is refused: of an item the part, or the item if that is `ABOUT` it."""
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


def ends_check(events: Iterable[Event], refused: list[Refused]) -> None:
    """Make a signal or an exit code absent that no process can have; what was told with it stays."""
    for event in events:
        who = event.kind if event.rank is None else f"{event.kind} of rank {event.rank}"
        if event.signal is not None and not signal_usable(event.signal):
            refused.append(Refused(Reason.SIGNAL, f"{who}: signal {event.signal}"[:SAMPLE_LENGTH]))
            event.signal = None
        if event.code is not None and not code_usable(event.code):
            refused.append(Refused(Reason.SIGNAL, f"{who}: code {event.code}"[:SAMPLE_LENGTH]))
            event.code = None


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
            found, wrong = partly_read(item, kind, about=ABOUT)
            if found is None:
                refused.append(_unreadable(kind, item))
                continue
            refused += [_of_part(kind, name, part) for name, part in wrong.items()]
            yield found


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


def _of_part(kind: type, name: str, raw: bytes) -> Refused:
    said = raw.decode("utf-8", "replace")
    if name == "happened_at":
        return Refused(Reason.TIME, f"{name}: {said}"[:SAMPLE_LENGTH])
    return Refused(Reason.UNREADABLE, f"{kind.__name__}: {name}: {said}"[:SAMPLE_LENGTH])


def _unreadable(kind: type, raw: bytes | msgspec.Raw) -> Refused:
    return Refused(Reason.UNREADABLE, f"{kind.__name__}: {bytes(raw)[:SAMPLE_LENGTH].decode('utf-8', 'replace')}")
