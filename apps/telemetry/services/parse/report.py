"""A whole report of an attempt."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from apps.telemetry.choices import Reason
from apps.telemetry.services.parse.parts import (
    Beat,
    Event,
    Place,
    Save,
    ends_check,
    items_parse,
    places_check,
    timeless_read,
    times_check,
)
from apps.telemetry.services.parse.steps import SAMPLE_LENGTH, Refused, Samples, Steps, steps_parse

_EMPTY = msgspec.Raw(b"")


class _Usual(msgspec.Struct):
    steps: Steps | None = None
    beats: list[Beat] = []
    placement: msgspec.Raw = _EMPTY
    checkpoints: msgspec.Raw = _EMPTY
    events: msgspec.Raw = _EMPTY
    drops: msgspec.Raw = _EMPTY


@dataclass(slots=True)
class Parsed:
    """What a report says, and what of it could not be read."""

    samples: list[Samples] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)


_usual = msgspec.json.Decoder(_Usual)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_steps = msgspec.json.Decoder(Steps)
_drops = msgspec.json.Decoder(dict[str, int])


def report_parse(body: bytes) -> Parsed:
    """Return what a report of an attempt says. Never raises for what it says: that is refused, part by part."""
    found = Parsed()
    try:
        usual = _usual.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        _slow(body, found)
        return found
    if usual.steps is not None:
        found.samples = steps_parse(usual.steps, found.refused)
    found.beats = usual.beats
    _lists(found, usual.placement, usual.checkpoints, usual.events, usual.drops)
    return found


def _slow(body: bytes, found: Parsed) -> None:
    try:
        parts = _parts.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        found.refused.append(Refused(Reason.UNREADABLE, str(error)[:SAMPLE_LENGTH]))
        return
    raw = parts.get("steps", _EMPTY)
    if bytes(raw) not in (b"", b"null"):
        try:
            found.samples = steps_parse(_steps.decode(raw), found.refused)
        except (msgspec.MsgspecError, RecursionError) as error:
            steps = timeless_read(raw, "ended_at", _steps, found.refused)
            if steps is None:
                found.refused.append(Refused(Reason.UNREADABLE, f"steps: {error}"[:SAMPLE_LENGTH]))
            else:
                found.samples = steps_parse(steps, found.refused)
    found.beats = items_parse(Beat, parts.get("beats", _EMPTY), found.refused)
    _lists(found, *(parts.get(name, _EMPTY) for name in ("placement", "checkpoints", "events", "drops")))


def _lists(found: Parsed, placement: Any, checkpoints: Any, events: Any, drops: Any) -> None:
    if bytes(placement):
        found.places = items_parse(Place, placement, found.refused)
        places_check(found.places, found.refused)
    if bytes(checkpoints):
        found.saves = items_parse(Save, checkpoints, found.refused)
        times_check(found.saves, found.refused)
    if bytes(events):
        found.events = items_parse(Event, events, found.refused)
        times_check(found.events, found.refused)
        ends_check(found.events, found.refused)
    if bytes(drops) not in (b"", b"null"):
        try:
            found.drops = {name[:80].replace("\x00", ""): n for name, n in list(_drops.decode(drops).items())[:32]}
        except (msgspec.MsgspecError, RecursionError) as error:
            found.refused.append(Refused(Reason.UNREADABLE, f"drops: {error}"[:SAMPLE_LENGTH]))
