"""The ring as the training loop uses it: it can be stopped while it waits, and never returns once a member is dead."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from apps.rehearsal.trainer.ring import Ring, RingBroken, RingTimeout
from apps.rehearsal.trainer.stopping import Stop

Answer = TypeVar("Answer")


class Collectives:
    """One rank's collectives.

    A member that died closes its sockets, which real machines that lose their power do not. So a broken ring is waited
    for like a silent one: it is the parent that ends the others, as a job's launcher does.
    """

    def __init__(self, ring: Ring, stop: Stop) -> None:
        self._ring = ring
        self._stop = stop
        self.rank = ring.rank
        self.size = ring.size

    def all_reduce(self, values: NDArray[np.float32]) -> None:
        """Replace `values` by their sum over all ranks."""
        self._run(lambda: self._ring.all_reduce(values))

    def all_gather(self, blob: bytes) -> list[bytes]:
        """Return every rank's `blob`, by rank."""
        return self._run(lambda: self._ring.all_gather(blob))

    def barrier(self) -> None:
        """Return once every rank is here."""
        self.all_gather(b"x")

    def _run(self, collective: Callable[[], Answer]) -> Answer:
        try:
            with self._stop.waiting():
                return collective()
        except RingTimeout:
            raise
        except RingBroken:
            self._stop.sleep_until(time.monotonic() + self._ring.timeout_s)
            raise
