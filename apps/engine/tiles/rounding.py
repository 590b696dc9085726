"""Rounding to 10 mantissa bits, and the whole numbers that stand for values while a tile is coded."""

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.metrics import Kind

Cells = NDArray[np.float32]
Codes = NDArray[np.int32]

MANTISSA_BITS: Final = 10
"""Mantissa bits that a ROUNDED value keeps: half a step of the last one is 2^-11 of the value, 0.0488 %."""

RELATIVE_ERROR: Final = 2.0**-11
"""The largest relative error of a ROUNDED value of normal size (above 2^-126)."""

DROPPED_BITS: Final = 23 - MANTISSA_BITS

_SIGN = np.int32(-(2**31))
_INFINITE = np.uint32(0x7F80_0000)
_LARGEST = np.uint32(0x7F7F_E000)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)


class Domain(IntEnum):
    """How values become whole numbers: ROUNDED float bits, all float bits, or the integers that they are."""

    FLOAT10 = 0
    FLOAT23 = 1
    INTEGER = 2

    @property
    def shift(self) -> int:
        """Bits that are zero at the low end of this domain's float bits."""
        return DROPPED_BITS if self is Domain.FLOAT10 else 0


def rounded(values: Cells) -> Cells:
    """Return `values` rounded to 10 mantissa bits, to the nearest, ties to even, in the same unit.

    values: float32, any shape; NaN stays NaN. A finite value stays finite. O(n), about 1 ns a value.

    Rounding twice changes nothing, so coding a decoded tile again gives the same values. The relative error is at
    most 2^-11 for normal numbers; below 2^-126 the absolute error is at most 2^-137.

    Source: ours; the store's declared error is 0.05 %, and 10 bits are the fewest that hold it.

    >>> rounded(np.array([1.00048, 1.0005, -3.14159], np.float32)).tolist()
    [1.0, 1.0009765625, -3.140625]
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd_last_bit = (bits >> np.uint32(DROPPED_BITS)) & np.uint32(1)
    out = bits + odd_last_bit
    out += np.uint32((1 << (DROPPED_BITS - 1)) - 1)
    out &= np.uint32(0xFFFF_FFFF << DROPPED_BITS & 0xFFFF_FFFF)
    magnitude = bits & _MAGNITUDE
    if magnitude.size and magnitude.max() > _LARGEST:
        over = (magnitude > _LARGEST) & (magnitude < _INFINITE)
        out[over] = (bits[over] & ~_MAGNITUDE) | _LARGEST
        special = magnitude >= _INFINITE
        out[special] = bits[special]
    return out.view(np.float32)


def to_codes(values: Cells, kind: Kind) -> tuple[Codes, Domain]:
    """Return whole numbers that stand for `values` in the same order, and the domain that turns them back.

    values: float32, any shape, without NaN (fill absent cells before); for ROUNDED already rounded.

    INTEGER is taken where every value is a whole number below 2^31 and its bits survive (so not for -0.0); for
    ROUNDED only below 2^11, where neighbouring values are neighbouring integers anyway. O(n).

    Source: ours; float bits read as integers grow with the value, so differences of near values are small numbers.

    >>> codes, domain = to_codes(np.array([61, 62, 60], np.float32), Kind.EXACT)
    >>> codes.tolist(), domain.name
    ([61, 62, 60], 'INTEGER')
    """
    largest = 2.0**31 if kind is Kind.EXACT else 2.0 ** (MANTISSA_BITS + 1)
    if values.size and np.abs(values).max() < largest:
        whole = values.astype(np.int32)
        if (whole.astype(np.float32).view(np.uint32) == values.view(np.uint32)).all():
            return whole, Domain.INTEGER
    bits = values.view(np.int32)
    ordered = np.where(bits < 0, _SIGN - bits - 1, bits) if (bits < 0).any() else bits
    domain = Domain.FLOAT23 if kind is Kind.EXACT else Domain.FLOAT10
    return ordered >> domain.shift, domain


def to_values(codes: Codes, domain: Domain) -> Cells:
    """Return the float32 values that `codes` stand for; the array of codes may be reused.

    codes: int32, any shape, as `to_codes` gave them. O(n).

    >>> to_values(*to_codes(np.array([-1.5, 0.0, 2.5], np.float32), Kind.EXACT)).tolist()
    [-1.5, 0.0, 2.5]
    """
    if domain is Domain.INTEGER:
        return codes.astype(np.float32)
    codes <<= domain.shift
    if codes.size and codes.min() < 0:
        negative = codes < 0
        codes[negative] = _SIGN - ((codes[negative] >> domain.shift) + 1 << domain.shift)
    return codes.view(np.float32)
