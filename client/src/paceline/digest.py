"""Short names for long things. `hashlib` would load OpenSSL, which is more memory than all the rest of this package."""

from __future__ import annotations

import os
from typing import Any

blake2b: Any
try:
    from _blake2 import (
        blake2b,  # the interpreter's own implementation, as the standard library's `random` does with SHA-2
    )
except ImportError:
    from hashlib import blake2b


def name_of(*parts: str, length: int = 16) -> str:
    """Return a name of hexadecimal digits that is the same for the same parts, and for no others."""
    return str(blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()[:length])


def fresh_name(length: int = 16) -> str:
    """Return a name that nobody had before."""
    return os.urandom((length + 1) // 2).hex()[:length]
