"""The client's few words on stderr: one line each, each once."""

from __future__ import annotations

import contextlib
import sys
import threading

_said: set[str] = set()
_guard = threading.Lock()


def say_once(key: str, sentence: str) -> None:
    """Print `paceline: sentence` the first time `key` comes up in this process."""
    with _guard:
        if key in _said:
            return
        _said.add(key)
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # stderr may be closed; there is nowhere left to say so
        print(f"paceline: {sentence}", file=sys.stderr, flush=True)
