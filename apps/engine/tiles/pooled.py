"""Pooled tiles as bytes: one sealed tile per plane behind a directory, the plane that is drawn most first.

FORMAT.md describes the bytes. The first plane can be read from a prefix of the blob.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import codec
from apps.engine.tiles.errors import TileCorrupt
from apps.engine.tiles.framing import HEAD_BYTES, check_sum, head, need, open_head
from apps.engine.tiles.metrics import Kind, Worst
from apps.engine.tiles.pyramid import Pooled
from apps.engine.tiles.rounding import Cells

Plane = Literal["min", "max", "sum", "count"]

MAGIC: Final = b"PPYR"
VERSION: Final = 1

_PLANES: Final[tuple[Plane, ...]] = ("min", "max", "sum", "count")
_FIELDS = struct.Struct("<BBB4x")  # number of planes, column level, entity level
_TABLE = struct.Struct("<8s4B4I")  # order version, plane numbers, plane lengths
DIRECTORY_BYTES: Final = HEAD_BYTES + _TABLE.size + 4


@dataclass(frozen=True, slots=True)
class PooledInfo:
    """What a pooled tile's directory says. planes: name → (offset, length) in the blob, the worst plane first."""

    column_level: int
    entity_level: int
    order_version: str
    planes: dict[Plane, tuple[int, int]]

    @property
    def worst_bytes(self) -> int:
        """How many bytes from the blob's start hold the directory and the worst plane."""
        offset, length = next(iter(self.planes.values()))
        return offset + length


def encode(
    pooled: Pooled, kind: Kind, worst: Worst, *, column_level: int, entity_level: int, order_version: str
) -> bytes:
    """Return a pooled tile.

    pooled: float32 planes [row, column], rows up to 1,024, columns up to 64 (larger works and is slower to read in
    part). kind, worst: of the metric (ROUNDED for a ratio). column_level: 0 .. 4; entity_level: 0, 1, 2. order_version:
    the `StageNodeOrder.version` that the rows were pooled with; 16 hex digits.

    min and max are exact copies of stored level-0 values; a ROUNDED metric's sum has a relative error of at most 2^-11 a
    level; count is exact. O(n), about 3 ms for 1,024 × 64. Source: FORMAT.md.

    >>> from apps.engine.tiles.pyramid import Pooled
    >>> cells = Pooled.of(np.array([[3, np.nan]], np.float32))
    >>> blob = encode(cells, Kind.EXACT, "max", column_level=1, entity_level=0, order_version="0" * 16)
    >>> decode(blob, ("max",))["max"].tolist(), decode(blob).keys()
    ([[3.0, nan]], dict_keys(['max', 'min', 'sum', 'count']))
    """
    version = bytes.fromhex(order_version)
    if len(version) != 8:
        raise ArgumentInvalid("An order's version has 16 hex digits.", order_version=order_version)
    names: tuple[Plane, ...] = ("max", "min", "sum", "count") if worst == "max" else ("min", "max", "sum", "count")
    blobs = [codec.encode(getattr(pooled, name), Kind.EXACT if name == "count" else kind) for name in names]
    table = _TABLE.pack(version, *(_PLANES.index(name) for name in names), *map(len, blobs))
    start = head(MAGIC, VERSION, _FIELDS.pack(len(names), column_level, entity_level))
    return b"".join((start, table, struct.pack("<I", zlib.crc32(table)), *blobs))


def decode(blob: bytes | memoryview, planes: tuple[Plane, ...] = ("max", "min", "sum", "count")) -> dict[Plane, Cells]:
    """Return the planes asked for, float32 [row, column] each.

    blob: what `encode` gave, or a prefix of it that holds these planes (`read_info(...).worst_bytes`). O(n) a plane.

    Raises `TileCut`, `TileCorrupt`, `TileVersionUnknown`. Source: FORMAT.md. See `encode` for an example.
    """
    info = read_info(blob)
    found = {}
    for name in planes:
        offset, length = info.planes[name]
        need(blob, offset + length)
        found[name] = codec.decode(memoryview(blob)[offset : offset + length])
    if len(blob) > max(offset + length for offset, length in info.planes.values()):
        raise TileCorrupt("The pooled tile is longer than its directory says.", have=len(blob))
    return found


def read_info(blob: bytes | memoryview) -> PooledInfo:
    """Return what a pooled tile's directory says; its first `DIRECTORY_BYTES` are enough. Raises as `decode`. O(1).

    >>> blob = encode(Pooled.of(np.ones((1, 1), np.float32)), Kind.ROUNDED, "min",
    ...               column_level=1, entity_level=2, order_version="0" * 16)
    >>> list(read_info(blob).planes), read_info(blob).entity_level
    (['min', 'max', 'sum', 'count'], 2)
    """
    n_planes, column_level, entity_level = _FIELDS.unpack(open_head(blob, MAGIC, VERSION))
    need(blob, DIRECTORY_BYTES)
    table = blob[HEAD_BYTES : DIRECTORY_BYTES - 4]
    check_sum(table, struct.unpack_from("<I", blob, DIRECTORY_BYTES - 4)[0], "directory")
    version, *numbers = _TABLE.unpack(table)
    plane_numbers, lengths = numbers[:4], numbers[4:]
    if n_planes != len(_PLANES) or sorted(plane_numbers) != list(range(len(_PLANES))):
        raise TileCorrupt("The pooled tile's directory does not name the four planes.", planes=plane_numbers)
    offsets = np.cumsum([DIRECTORY_BYTES, *lengths[:-1]]).tolist()
    places = {_PLANES[n]: (o, size) for n, o, size in zip(plane_numbers, offsets, lengths, strict=True)}
    return PooledInfo(column_level, entity_level, version.hex(), places)
