"""Reading a request's body with bounds that hold while it arrives and while it expands."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from apps.common.errors import PacelineError
from apps.common.unpack import too_large, unpacked

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

MOST_DIGITS = 18
"""Of a length that is read as a number; a longer one is too large in any case."""
ASIDE_BYTES = 64 * 1024
"""A packed body above this is unpacked in a thread: it could expand into milliseconds of work."""


class UnsupportedBody(PacelineError):
    """A body of another type or encoding than this door reads."""

    code = "unsupported_media_type"
    http_status = 415


class Disconnected(Exception):
    """The sender went away before its request was whole; it still holds the report."""


async def body_read(headers: Mapping[bytes, bytes], receive: Receive, *, most: int) -> bytes:
    """Return a request's body, unpacked.

    Raises:
        BadRequest: what calls itself gzip is none.
        TooLarge: more than `most` bytes, packed or unpacked.
        UnsupportedBody: not JSON, or packed in another way.
        Disconnected: the sender went away.
    """
    _check_type(headers.get(b"content-type", b""))
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b"gzip", b""):
        raise UnsupportedBody(f"Content-Encoding: “{encoding.decode('latin-1')[:40]}” is not read here; gzip is.")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and (len(length) > MOST_DIGITS or int(length) > most):
        raise too_large(most)
    raw = await _receive(receive, most)
    if encoding != b"gzip":
        return raw
    if len(raw) > ASIDE_BYTES:
        return await asyncio.to_thread(unpacked, raw, most=most)
    return unpacked(raw, most=most)


async def _receive(receive: Receive, most: int) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        whole: bytes = message.get("body", b"")
        _check_size(whole, most)
        return whole
    parts = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts += message.get("body", b"")
        _check_size(parts, most)
        if not message.get("more_body"):
            return bytes(parts)
        message = await receive()


def _check_size(raw: bytes | bytearray, most: int) -> None:
    if len(raw) > most:
        raise too_large(most)


def _check_type(content_type: bytes) -> None:
    kind = content_type.partition(b";")[0].strip().lower()
    if kind and kind != b"application/json" and not kind.endswith(b"+json"):
        raise UnsupportedBody("A report is JSON: send Content-Type: application/json.")
