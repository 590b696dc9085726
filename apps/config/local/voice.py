"""What the supervisor says: one line an event, for a person who watches a terminal or reads it later in a log."""

import sys
from contextlib import suppress
from typing import TextIO

NAME_WIDTH = 10
"""Longer than every name that speaks, so that the sentences stand under each other."""


class Voice:
    """Writes lines. A terminal that is gone, or a full disk behind it, never stops the one who speaks."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout

    def say(self, who: str, sentence: str) -> None:
        """Write one event."""
        self.write(f"{who:<{NAME_WIDTH}} {sentence}")

    def block(self, *lines: str) -> None:
        """Write lines that belong together, set apart."""
        self.write("\n".join(("", *(f"  {line}".rstrip() for line in lines), "")))

    def write(self, text: str) -> None:
        """Write `text` and a line's end, at once."""
        with suppress(OSError, ValueError):
            self.stream.write(f"{text}\n")
            self.stream.flush()
