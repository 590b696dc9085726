"""The packed form of numbers: float32 bit patterns in which "absent" and "not a number" are two different things."""

from __future__ import annotations

import base64
import math
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import cast

ABSENT = 0x7FC00000
"""No value: the quiet NaN that every float library writes by itself."""
PRODUCED_NAN = 0x7FC00001
"""A NaN that the training produced: a fact about the run, not a gap."""

_FLOAT = struct.Struct("=f")
_BITS = struct.Struct("=I")


def bits_of(values: Sequence[float | None]) -> array[int]:
    """Return float32 bit patterns of `values`; None is absent, a NaN is kept as produced, what overflows is infinite."""
    try:
        bits = array("I", array("f", cast("Sequence[float]", values)).tobytes())  # a None goes the slow way below
    except (TypeError, OverflowError):
        return array("I", [_bits(value) for value in values])
    for index, value in enumerate(values):
        if value != value:
            bits[index] = PRODUCED_NAN
    return bits


def _bits(value: float | None) -> int:
    if value is None:
        return ABSENT
    if math.isnan(value):
        return PRODUCED_NAN
    try:
        raw = _FLOAT.pack(value)
    except OverflowError:
        raw = _FLOAT.pack(math.copysign(math.inf, value))
    return int(_BITS.unpack(raw)[0])


def base64_of(bits: array[int]) -> str:
    """Return base64 of the patterns as little-endian float32."""
    if sys.byteorder == "big":
        bits = bits[:]
        bits.byteswap()
    return base64.b64encode(bits).decode("ascii")
