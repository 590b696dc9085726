"""Residuals as bytes: a high byte that zstd's Huffman stage codes close to its entropy, low bits as planes of their own.

A plane is [column, entity], one byte a cell. Residuals that do not fit are exceptions, written apart, so that one
straggler's spike does not widen every other cell.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numcodecs import zstd
from numpy.typing import NDArray

from apps.engine.tiles.errors import TileCorrupt
from apps.engine.tiles.predict import Mode, Predicted
from apps.engine.tiles.rounding import Codes

Mask = NDArray[np.bool_]

ZERO: Final = 127
"""The high byte of residuals 0 .. 2^low_bits − 1; 255 marks an exception."""

_ESCAPE = 255
_LEVEL = 1
"""zstd's first level: with higher ones the match finder finds little in noise and spoils its Huffman coding (measured)."""

_EXCEPTIONS_ONE_IN = 256
"""At most one cell in so many is an exception: 6 bytes each then cost less than one more low bit for all."""


@dataclass(frozen=True, slots=True)
class Split:
    """A tile's payload. parts: zstd frames: side (prediction, mask, exceptions), high bytes, then low bytes."""

    low_bits: int
    n_exceptions: int
    parts: tuple[bytes, ...]


NOTHING: Final = Split(0, 0, ())
"""The payload of a tile in which nothing is present."""


def split(found: Predicted, absent: Mask | None) -> Split:
    """Return the frames that hold a prediction and its residuals. O(n).

    found: of `predict`. absent: bool [column, entity], or None when every cell is present.

    Source: ours. Byte planes cut at bit 8 leave a noise of 9 to 11 bits in two half-full bytes (1.44 bytes a value
    for 10.2 bits of entropy); cutting below the high byte costs the entropy plus about 1 %.
    """
    residual = found.residual
    low_bits = _low_bits(residual)
    high = residual >> low_bits
    high += ZERO
    outside = (high < 0) | (high >= _ESCAPE)
    places = np.flatnonzero(outside)
    high.reshape(-1)[places] = _ESCAPE
    side = [_split_bytes(found.column), _split_bytes(found.row)]
    if absent is not None:
        side.append(np.packbits(absent, bitorder="little").tobytes())
    side += [_split_bytes(np.diff(places, prepend=0)), _split_bytes(residual.reshape(-1)[places])]
    frames = [b"".join(side), high.astype(np.uint8).tobytes()]
    low = residual & np.int32((1 << low_bits) - 1)
    low.reshape(-1)[places] = 0
    frames += [(low >> shift).astype(np.uint8).tobytes() for shift in range(0, low_bits, 8)]
    return Split(low_bits, len(places), tuple(zstd.compress(frame, _LEVEL) for frame in frames))


def join(parts: Split, mode: Mode, size: tuple[int, int], *, has_mask: bool) -> tuple[Predicted, Mask | None]:
    """Return what `split` took: the prediction with its residuals, and the mask of absent cells. O(n).

    parts: of a tile whose checksum holds. size: (columns, entities). Raises `TileCorrupt` where lengths disagree.
    """
    n_columns, n_entities = size
    n_cells = n_columns * n_entities
    n_row = 0 if mode is Mode.COLUMN else n_entities
    n_mask = (n_cells + 7) // 8 if has_mask else 0
    sizes = [4 * n_columns, 4 * n_row, n_mask, 4 * parts.n_exceptions, 4 * parts.n_exceptions]
    wanted = [sum(sizes)] + [n_cells] * (1 + (parts.low_bits + 7) // 8)
    if len(parts.parts) != len(wanted):
        raise TileCorrupt("The tile has another number of planes than its head says.", have=len(parts.parts))
    side, high, *low = (_expand(frame, length) for frame, length in zip(parts.parts, wanted, strict=True))
    column, row, mask, places, values = _cut(np.frombuffer(side, np.uint8), sizes)
    residual = _residual(high, low, parts.low_bits)
    if parts.n_exceptions:
        residual[np.cumsum(_join_bytes(places))] = _join_bytes(values)
    absent = None
    if has_mask:
        absent = np.unpackbits(mask, count=n_cells, bitorder="little").view(np.bool_).reshape(size)
    return Predicted(mode, _join_bytes(column), _join_bytes(row), residual.reshape(size)), absent


def _cut(side: NDArray[np.uint8], sizes: list[int]) -> list[NDArray[np.uint8]]:
    ends = list(accumulate(sizes))
    return [side[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _residual(high: bytes, low: list[bytes], low_bits: int) -> Codes:
    residual = np.frombuffer(high, np.uint8).astype(np.int32)
    residual -= ZERO
    if low_bits:
        residual <<= low_bits
    for i, plane in enumerate(low):
        part = np.frombuffer(plane, np.uint8)
        residual |= np.left_shift(part, 8 * i, dtype=np.int32) if i else part
    return residual


def _low_bits(residual: Codes) -> int:
    """The fewest low bits with which all but a few residuals fit beside the high byte."""
    size = np.abs(residual.astype(np.float32))
    for low_bits in range(24):
        outside = np.count_nonzero(size >= float(ZERO << low_bits))
        if outside * _EXCEPTIONS_ONE_IN <= residual.size:
            return low_bits
    return 24


def _split_bytes(numbers: NDArray[np.integer]) -> bytes:
    """int32 as four planes of bytes, small negative numbers as odd ones, so that the upper planes are mostly 0."""
    wide = numbers.astype(np.int32)
    folded = ((wide << 1) ^ (wide >> 31)).astype("<u4")
    return folded.view(np.uint8).reshape(-1, 4).T.tobytes()


def _join_bytes(planes: NDArray[np.uint8]) -> Codes:
    folded = np.ascontiguousarray(planes.reshape(4, -1).T).view("<u4").reshape(-1)
    return ((folded >> 1) ^ -(folded & 1).astype(np.int32).view(np.uint32)).view(np.int32)


def _expand(frame: bytes, length: int) -> bytes:
    try:
        found: bytes = zstd.decompress(frame)
    except RuntimeError as error:
        raise TileCorrupt("A plane of the tile cannot be unpacked.", reason=str(error)) from error
    if len(found) != length:
        raise TileCorrupt("A plane of the tile has another length.", have=len(found), need=length)
    return found
