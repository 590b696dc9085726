"""What was lost on the way, by reason: counted, and told to the server."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class Drops:
    """Counts since the process began; cumulative, so that a lost message about losses is made good by the next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, reason: str, n: int = 1) -> None:
        if n > 0:
            with self._guard:
                self._counts[reason] = self._counts.get(reason, 0) + n

    def counts(self) -> dict[str, int]:
        with self._guard:
            return dict(self._counts)


def lost_sentence(counts: Mapping[str, int]) -> str:
    """Return the counts as a line for people."""
    parts = ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items()))
    return f"the client lost data since it started: {parts}"
