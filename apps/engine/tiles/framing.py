"""The first 16 bytes of every stored blob: magic, version and a checksum of their own, the same in all versions.

Because these bytes never change their meaning, a newer version, a flipped byte and a cut blob can be told apart
before anything else in the blob is believed.
"""

import struct
import zlib
from typing import Final

from apps.engine.tiles.errors import TileCorrupt, TileCut, TileVersionUnknown

HEAD_BYTES: Final = 16
_HEAD = struct.Struct("<4sB7sI")
_CHECKED = HEAD_BYTES - 4


def head(magic: bytes, version: int, fields: bytes) -> bytes:
    """Return the 16 bytes that begin a blob. fields: 7 bytes that belong to the format itself.

    >>> head(b"PHOT", 1, bytes(7)).hex()
    '50484f540100000000000000002880a7'
    """
    bare = _HEAD.pack(magic, version, fields, 0)[:_CHECKED]
    return bare + struct.pack("<I", zlib.crc32(bare))


def open_head(blob: bytes | memoryview, magic: bytes, version: int) -> bytes:
    """Return the 7 bytes of fields of a blob that is of this magic and version.

    Raises `TileCut` when there are fewer than 16 bytes, `TileCorrupt` for another magic or checksum,
    `TileVersionUnknown` for a sound head of another version.

    >>> open_head(head(b"PHOT", 1, b"1234567"), b"PHOT", 1)
    b'1234567'
    """
    if len(blob) < HEAD_BYTES:
        raise TileCut("The blob ends inside its head.", have=len(blob), need=HEAD_BYTES)
    found, found_version, fields, checksum = _HEAD.unpack_from(blob)
    if zlib.crc32(blob[:_CHECKED]) != checksum:
        raise TileCorrupt("The blob's head has another checksum.")
    if found != magic:
        raise TileCorrupt("The blob is of another kind.", magic=found, expected=magic)
    if found_version != version:
        raise TileVersionUnknown("The blob has a version this code does not know.", version=found_version)
    return bytes(fields)


def need(blob: bytes | memoryview, length: int) -> None:
    """Raise `TileCut` unless `blob` has at least `length` bytes.

    >>> need(b"12", 2)
    """
    if len(blob) < length:
        raise TileCut("The blob ends too early.", have=len(blob), need=length)


def check_sum(part: bytes | memoryview, expected: int, what: str) -> None:
    """Raise `TileCorrupt` unless the CRC-32 of `part` is `expected`.

    >>> check_sum(b"", 0, "table")
    """
    if zlib.crc32(part) != expected:
        raise TileCorrupt(f"The blob's {what} has another checksum.", bytes=len(part))
