"""What a detector remembers of one attempt between windows."""

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.engine.errors import EngineError

LARGEST_ARRAY_BYTES = 64 * 1024 * 1024
"""A stored array claims its size before it is unpacked; 131,072 ranks × 64 float64 is more than any detector keeps."""


class StateUnreadable(EngineError):
    """A stored detector state is not what `State.write` wrote."""

    code = "detector_state_unreadable"


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """Memory of one detector for one attempt.

    values: numbers, words, lists and mappings that JSON can hold (finite numbers only).
    arrays: numpy arrays, kept bit for bit.
    An empty state (`State.fresh`) is what every attempt starts with.
    """

    cause: str
    version: int
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def fresh(cls, cause: str, version: int) -> "State":
        """Return the memory of a detector that has seen nothing."""
        return cls(cause, version)

    def write(self) -> dict[str, Any]:
        """Return the state as a mapping that JSON can hold; `State.read` gives the same state back exactly.

        >>> s = State("hang", 1, {"step": 4}, {"bad": np.array([1, 3], np.uint32)})
        >>> State.read(s.write()).arrays["bad"].tolist()
        [1, 3]
        """
        return {
            "cause": self.cause,
            "version": self.version,
            "values": dict(self.values),
            "arrays": {name: _array_write(array) for name, array in self.arrays.items()},
        }

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "State":
        """Return the state that `write` gave. Raises StateUnreadable."""
        try:
            arrays = {name: _array_read(packed) for name, packed in data["arrays"].items()}
            return cls(str(data["cause"]), int(data["version"]), dict(data["values"]), arrays)
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error, binascii.Error) as error:
            raise StateUnreadable("The stored state of a detector cannot be read.", why=str(error)) from error


def _array_write(array: NDArray[Any]) -> dict[str, Any]:
    packed = zlib.compress(np.ascontiguousarray(array).tobytes(), 1)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "z": base64.b64encode(packed).decode("ascii")}


def _array_read(packed: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(packed["dtype"]), tuple(int(n) for n in packed["shape"])
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if dtype.hasobject or not 0 <= size <= LARGEST_ARRAY_BYTES:
        raise ValueError(f"an array of {size} bytes of {dtype}")
    raw = zlib.decompressobj().decompress(base64.b64decode(packed["z"], validate=True), size + 1)
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes where {size} belong")
    return np.frombuffer(raw, dtype).reshape(shape).copy()
