"""Sealed tiles: 1,024 entities × 64 columns of one metric as few bytes as the declared error allows.

FORMAT.md describes the bytes. The way of a value: round (`rounding`), take the predictable away (`predict`), split what
is left into a high byte and low bits (`planes`), zstd each.
"""

import struct
import zlib
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from apps.engine.checks import shape
from apps.engine.errors import ArgumentInvalid
from apps.engine.tiles import planes
from apps.engine.tiles.errors import TileCorrupt
from apps.engine.tiles.framing import HEAD_BYTES, check_sum, head, need, open_head
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.metrics import Kind
from apps.engine.tiles.planes import Split
from apps.engine.tiles.predict import Mode, predict, restore
from apps.engine.tiles.rounding import Cells, Domain, rounded, to_codes, to_values
from apps.engine.tiles.turning import turned

MAGIC: Final = b"PTIL"
VERSION: Final = 1

_FIELDS = struct.Struct("<BBBBBxx")  # kind, domain, mode, low bits, presence
_TABLE = struct.Struct("<HHII5II")  # entities, columns, exceptions, side length, 5 plane lengths, payload checksum
_PAYLOAD = HEAD_BYTES + _TABLE.size + 4

_ALL, _SOME, _NONE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class TileInfo:
    """What a tile's head says. n_bytes: of the whole blob."""

    kind: Kind
    domain: Domain
    mode: Mode
    low_bits: int
    presence: int
    n_entities: int
    n_columns: int
    n_exceptions: int
    lengths: tuple[int, ...]
    checksum: int

    @property
    def n_bytes(self) -> int:
        return _PAYLOAD + sum(self.lengths)


def encode(cells: Cells, kind: Kind) -> bytes:
    """Return a sealed tile.

    cells: float32 [entity, column], in the metric's unit; NaN of any payload means absent. Any shape up to 65,535 a
    side; a transposed [column, entity] array is taken without a copy. kind: ROUNDED keeps 10 mantissa bits (relative
    error ≤ 2^-11), EXACT every bit.

    Encoding what `decode` returned gives the same values again. O(n), about 1.5 ms for 1,024 × 64.

    Source: FORMAT.md; the variants that were measured stand in docs/decisions.md.

    >>> decode(encode(np.array([[5.01, np.nan], [5.02, 5.03]], np.float32), Kind.EXACT)).tolist()[0]
    [5.010000228881836, nan]
    """
    shape("cells", cells, None, None)
    if max(cells.shape) > 0xFFFF:
        raise ArgumentInvalid("A tile has at most 65,535 entities and columns.", shape=cells.shape)
    by_column = turned(np.asarray(cells, "<f4"))
    absent = np.isnan(by_column)
    if absent.all():
        return _frame(kind, Domain.INTEGER, Mode.COLUMN, _NONE, by_column.shape, planes.NOTHING)
    presence = _SOME if absent.any() else _ALL
    if presence == _SOME:
        by_column = np.where(absent, np.float32(0), by_column)
    codes, domain = to_codes(rounded(by_column) if kind is Kind.ROUNDED else by_column, kind)
    found = predict(codes, absent if presence == _SOME else None)
    split = planes.split(found, absent if presence == _SOME else None)
    return _frame(kind, domain, found.mode, presence, by_column.shape, split)


def decode(blob: bytes | memoryview) -> Cells:
    """Return a tile's values as a new float32 array [entity, column] in the metric's unit; absent is NaN 0x7fc00000.

    blob: what `encode` gave. The array is the transpose of a contiguous [column, entity] one.

    O(n), about 80 µs for 1,024 × 64. Raises `TileCut`, `TileCorrupt` or `TileVersionUnknown`.

    Source: FORMAT.md.

    >>> decode(encode(np.full((2, 1), 8192, np.float32), Kind.EXACT)).tolist()
    [[8192.0], [8192.0]]
    """
    info = read_info(blob)
    need(blob, info.n_bytes)
    payload = memoryview(blob)[_PAYLOAD : info.n_bytes]
    check_sum(payload, info.checksum, "payload")
    if len(blob) > info.n_bytes:
        raise TileCorrupt("The tile is longer than its head says.", have=len(blob), need=info.n_bytes)
    size = (info.n_columns, info.n_entities)
    if info.presence == _NONE:
        return np.full(size, ABSENT, np.float32).T
    split = Split(info.low_bits, info.n_exceptions, _parts(payload, info.lengths))
    found, absent = planes.join(split, info.mode, size, has_mask=info.presence == _SOME)
    values = to_values(restore(found), info.domain)
    if absent is not None:
        values[absent] = ABSENT
    return values.T


def read_info(blob: bytes | memoryview) -> TileInfo:
    """Return what a tile's head says, without touching the values. Raises as `decode` does. O(1).

    >>> info = read_info(encode(np.zeros((3, 2), np.float32), Kind.ROUNDED))
    >>> info.kind.name, info.n_entities, info.n_columns
    ('ROUNDED', 3, 2)
    """
    fields = open_head(blob, MAGIC, VERSION)
    need(blob, _PAYLOAD)
    table = blob[HEAD_BYTES : _PAYLOAD - 4]
    check_sum(table, struct.unpack_from("<I", blob, _PAYLOAD - 4)[0], "table")
    kind, domain, mode, low_bits, presence = _FIELDS.unpack(fields)
    n_entities, n_columns, n_exceptions, *lengths, checksum = _TABLE.unpack(table)
    shape_of_it = (n_entities, n_columns, n_exceptions, tuple(lengths), checksum)
    try:
        return TileInfo(Kind(kind), Domain(domain), Mode(mode), low_bits, presence, *shape_of_it)
    except ValueError as error:
        raise TileCorrupt("The tile's head names a coding that does not exist.", reason=str(error)) from error


def _frame(kind: Kind, domain: Domain, mode: Mode, presence: int, size: tuple[int, ...], split: Split) -> bytes:
    payload = b"".join(split.parts)
    lengths = [len(part) for part in split.parts] + [0] * (6 - len(split.parts))
    n_columns, n_entities = size
    table = _TABLE.pack(n_entities, n_columns, split.n_exceptions, *lengths, zlib.crc32(payload))
    fields = _FIELDS.pack(kind, domain, mode, split.low_bits, presence)
    return b"".join((head(MAGIC, VERSION, fields), table, struct.pack("<I", zlib.crc32(table)), payload))


def _parts(payload: memoryview, lengths: tuple[int, ...]) -> tuple[bytes, ...]:
    ends = accumulate(lengths)
    return tuple(bytes(payload[end - length : end]) for length, end in zip(lengths, ends, strict=True) if length)
