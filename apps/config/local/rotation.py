"""Keeping the children's logs small: a log that has grown is copied aside and emptied in its place.

The children keep their files open in append mode, so they go on at the start of the emptied file by themselves.
"""

import shutil
from contextlib import suppress
from pathlib import Path

LOG_LIMIT_BYTES = 8 * 1024 * 1024
"""Two of these a child: weeks of quiet running, or the last minutes of a storm."""


def logs_rotate(folder: Path, *, limit_bytes: int = LOG_LIMIT_BYTES) -> list[Path]:
    """Copy every log of `folder` past `limit_bytes` over its `.1`, empty it, and return those that were."""
    grown = [log for log in sorted(folder.glob("*.log")) if log.stat().st_size > limit_bytes]
    for log in grown:
        with suppress(OSError):  # a full disk: emptying the log is what helps then
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        with log.open("r+b") as file:
            file.truncate(0)
    return grown
