"""Arrays kept in a process's memory as long as there is room: what was read of hot columns is asked for each second."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.float32]

MOST_BYTES = 64 * 2**20
"""One metric's hot columns of 16,384 ranks and their ratios to peers are 25 MB; a web process has 300 (DESIGN §9)."""


class Kept:
    """Read-only arrays by key, the longest unused let go first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._found: OrderedDict[Hashable, Cells] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def take(self, keys: Sequence[Hashable], make: Callable[[list[int]], Sequence[Cells]]) -> list[Cells]:
        """Return the arrays of some keys; `make` gives those of the places it is told, which nobody kept.

        A key must say everything that its array depends on.

        >>> kept = Kept()
        >>> [cells.tolist() for cells in kept.take(["a", "b"], lambda at: [np.full(1, n, np.float32) for n in at])]
        [[0.0], [1.0]]
        >>> [cells.tolist() for cells in kept.take(["c", "b"], lambda at: [np.full(1, 9 + n, np.float32) for n in at])]
        [[9.0], [1.0]]
        """
        with self._lock:
            found = [self._get(key) for key in keys]
        missing = [at for at, cells in enumerate(found) if cells is None]
        if missing:
            made = make(missing)
            with self._lock:
                for at, cells in zip(missing, made, strict=True):
                    found[at] = cells
                    self._put(keys[at], cells)
        return [cells for cells in found if cells is not None]

    def _get(self, key: Hashable) -> Cells | None:
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key]

    def _put(self, key: Hashable, cells: Cells) -> None:
        cells.flags.writeable = False
        if key not in self._found:
            self._found[key] = cells
            self._bytes += cells.nbytes
        while self._bytes > self._most_bytes and self._found:
            self._bytes -= self._found.popitem(last=False)[1].nbytes


hot = Kept()
"""Hot columns and what was computed of them; keys hold the versions of what they were read from."""
