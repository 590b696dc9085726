"""What the doors read of a report before it is kept: who sends it, which number it has, and what clock checks need.

Everything else stays bytes until the fold. Pure functions: bytes in, a row for the inbox out.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from apps.common.clock import usable
from apps.common.errors import BadRequest

MOST_SEQ = 2**62
"""Above this a range of folded numbers would reach the end of int8."""

SENDER_LENGTH = 255
BOOT_LENGTH = 64
MOST_STEP = 2**53
"""The largest step that JavaScript and float64 can tell from its neighbour."""

_EMPTY = msgspec.Raw(b"")
_NOTHING = (b"", b"null", b"[]", b"{}")

PARTS = {
    "ATTEMPT": ("placement", "steps", "beats", "checkpoints", "events", "drops"),
    "NODE": ("at", "gpus", "host", "samples", "events", "drops"),
}
"""The names beside sender, boot, seq and sent_at that a report may have, by whose it is."""

IDENTITY = ("sender", "boot", "seq", "sent_at")


@dataclass(frozen=True, slots=True)
class Head:
    """A report as the inbox keeps it; `ignored` names what nobody will read."""

    sender: str
    boot: str
    seq: int
    sent_at: datetime | None
    newest_step: int | None
    beats: bytes | None
    exits: bytes | None
    body: bytes
    ignored: tuple[str, ...] = ()


class _Steps(msgspec.Struct):
    steps: list[int] = []


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
    """The usual report of an attempt; whatever is not like this takes the slow way."""

    sender: str = ""
    boot: str = ""
    seq: int = -1
    sent_at: datetime | None = None
    steps: _Steps | None = None
    beats: msgspec.Raw = _EMPTY
    events: msgspec.Raw = _EMPTY
    placement: msgspec.Raw = _EMPTY
    checkpoints: msgspec.Raw = _EMPTY
    drops: msgspec.Raw = _EMPTY


_usual = msgspec.json.Decoder(_Attempt)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_steps = msgspec.json.Decoder(_Steps)
_events = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def head_read(body: bytes, *, scope_kind: str, default_sender: str) -> Head:
    """Return what is kept of a report's body.

    Only what cannot be a report at all is refused here; everything finer is refused value by value when it is folded.

    Raises:
        BadRequest: no JSON object, or sender, boot or seq have another form.
    """
    if scope_kind == "ATTEMPT":
        try:
            usual = _usual.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return _slow(body, scope_kind, default_sender)
        if usual.sender and usual.boot and usual.seq >= 0:
            steps = usual.steps.steps if usual.steps else ()
            return Head(
                _short("sender", usual.sender, SENDER_LENGTH),
                _short("boot", usual.boot, BOOT_LENGTH),
                _seq(usual.seq),
                usable(usual.sent_at),
                _newest(steps),
                _some(usual.beats),
                _exits(usual.events),
                body,
            )
    return _slow(body, scope_kind, default_sender)


def _slow(body: bytes, scope_kind: str, default_sender: str) -> Head:
    parts, body = _parts_of(body)
    known = PARTS[scope_kind]
    ignored = tuple(sorted(name[:80] for name in parts if name not in known and name not in IDENTITY)[:50])
    sender = _text(parts, "sender", SENDER_LENGTH) or default_sender[:SENDER_LENGTH]
    boot, seq = _text(parts, "boot", BOOT_LENGTH), _number(parts, "seq")
    if not boot or seq is None:
        # Without a number a report is known by its content, so that the same one sent twice is one.
        boot, seq = "sha256:" + hashlib.sha256(body).hexdigest()[:32], 0
    return Head(
        sender,
        boot,
        seq,
        _time(parts.get("sent_at")),
        _newest(_steps_of(parts.get("steps"))),
        _some(parts.get("beats", _EMPTY)),
        _exits(parts.get("events", _EMPTY)),
        body,
        ignored,
    )


def _parts_of(body: bytes) -> tuple[dict[str, msgspec.Raw], bytes]:
    try:
        return _parts.decode(body), body
    except (msgspec.MsgspecError, RecursionError) as error:
        if b"NaN" in body or b"Infinity" in body:
            return _with_words(body)
        raise BadRequest(f"The body is no report: {_said(error)}.") from error


def _with_words(body: bytes) -> tuple[dict[str, msgspec.Raw], bytes]:
    """Python's own writer makes bare NaN and Infinity, which are not JSON: kept as the words that stand for them."""
    try:
        value = json.loads(body, parse_constant={"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.__getitem__)
        body = msgspec.json.encode(value)
        return _parts.decode(body), body
    except (ValueError, OverflowError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise BadRequest(f"The body is no report: {_said(error)}.") from error


def _said(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")[:200]


def _text(parts: dict[str, msgspec.Raw], name: str, length: int) -> str:
    raw = parts.get(name)
    if raw is None or bytes(raw) == b"null":
        return ""
    try:
        return _short(name, msgspec.json.decode(raw, type=str), length)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{name}: must be a text.") from error


def _short(name: str, text: str, length: int) -> str:
    if len(text) > length or "\x00" in text:
        raise BadRequest(f"{name}: must have 1 to {length} characters and no zero byte.")
    return text


def _number(parts: dict[str, msgspec.Raw], name: str) -> int | None:
    raw = parts.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return _seq(msgspec.json.decode(raw, type=int))
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{name}: must be a whole number.") from error


def _seq(seq: int) -> int:
    if not 0 <= seq <= MOST_SEQ:
        raise BadRequest("seq: must be a whole number from 0 to 2^62.")
    return seq


def _time(raw: msgspec.Raw | None) -> datetime | None:
    """A time that cannot be read is refused by the fold, with a sample; here it is merely not known."""
    if raw is None:
        return None
    try:
        moment = msgspec.json.decode(raw, type=datetime)
    except msgspec.MsgspecError:
        return None
    return usable(moment)


def _steps_of(raw: msgspec.Raw | None) -> list[int]:
    try:
        return _steps.decode(raw).steps if raw is not None else []
    except (msgspec.MsgspecError, RecursionError):
        return []


def _newest(steps: Any) -> int | None:
    newest = max(steps, default=None)
    return newest if newest is not None and 0 <= newest <= MOST_STEP else None


def _some(raw: msgspec.Raw) -> bytes | None:
    part = bytes(raw)
    return None if part in _NOTHING else part


def _exits(raw: msgspec.Raw) -> bytes | None:
    """The exit events alone: a lost rank must be seen however long the inbox is."""
    part = bytes(raw)
    if b'"exit"' not in part:
        return None
    try:
        found = [event for event in _events.decode(part) if bytes(event.get("kind", _EMPTY)) == b'"exit"']
    except (msgspec.MsgspecError, RecursionError):
        return None
    return msgspec.json.encode(found) if found else None
