"""Unpacking what senders packed, with a bound that holds while it expands."""

import zlib

from apps.common.errors import BadRequest, TooLarge

GZIP_WINDOW = 16 + zlib.MAX_WBITS


def unpacked(raw: bytes, *, most: int) -> bytes:
    """Return what the gzip stream `raw` holds, all of its members; never more than `most` bytes are made.

    Raises:
        BadRequest: no gzip, cut short, or with something behind it.
        TooLarge: more than `most` bytes.
    """
    parts: list[bytes] = []
    left = most
    while raw:
        member = zlib.decompressobj(GZIP_WINDOW)
        try:
            part = member.decompress(raw, left + 1)
        except zlib.error as error:
            raise BadRequest("The body says it is gzip and is not.") from error
        if len(part) > left:
            raise too_large(most)
        if not member.eof:
            raise BadRequest("The gzip body is cut short.")
        parts.append(part)
        left -= len(part)
        raw = member.unused_data.lstrip(b"\0")  # tar and some proxies pad with zeros
    return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(most: int) -> TooLarge:
    """Return the error of a body past its bound."""
    return TooLarge(f"A body may have {most:,} bytes unpacked.", most_bytes=most)
