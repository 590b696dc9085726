"""What was lost on the way, by reason: counted, and told to the server."""

from __future__ import annotations

import threading


class Drops:
    """Counts since the process began; cumulative, so that a lost message about losses is made good by the next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def add(self, reason: str, n: int = 1) -> None:
        if n > 0:
            with self._guard:
                self._counts[reason] = self._counts.get(reason, 0) + n

    def counts(self) -> dict[str, int]:
        with self._guard:
            return dict(self._counts)

    def news(self) -> str | None:
        """Return a sentence if anything was lost since the last call."""
        with self._guard:
            if self._counts == self._told:
                return None
            self._told = dict(self._counts)
            parts = ", ".join(f"{n} {reason}" for reason, n in sorted(self._counts.items()))
        return f"the client lost data since it started: {parts}"
