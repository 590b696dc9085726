"""Where a tailer's lines come from: a file that grows and is rotated, the kernel's own buffer, or a pipe."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from datetime import datetime, timezone
from time import CLOCK_MONOTONIC, clock_gettime, time
from typing import Any, Protocol

from paceline.say import say_once

KMSG = "/dev/kmsg"
KMSG_RECORD = 8 * 1024 + 1
MAX_LINE = 64 * 1024
"""A line longer than this is cut into several: nobody writes one that a person would read."""
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


class Source(Protocol):
    """Lines in order, and a place in them that survives a restart."""

    def read(self, limit: int) -> bytes:
        """Return whole lines that have come since, about `limit` bytes at most; empty when there are none."""

    def place(self) -> dict[str, Any]:
        """Return where the next read begins."""

    def ended(self) -> bool:
        """True when nothing will ever come again."""


class FileLines:
    """A file that others append to: followed through rotation (renamed and made anew) and truncation."""

    def __init__(self, path: str, place: dict[str, Any], *, from_start: bool) -> None:
        self._path = path
        self._file: int | None = None
        self._inode = 0
        self._offset = 0
        self._rest = b""
        before = self._renamed(place.get("inode"))
        if self._open(before or path):
            size = os.fstat(self._handle()).st_size
            if place.get("inode") == self._inode and 0 <= int(place.get("offset", -1)) <= size:
                self._offset = int(place["offset"])
            elif not from_start and not place:
                self._offset = size  # the first look at a file that is there: what is in it is the past

    def read(self, limit: int) -> bytes:
        if self._file is None and not self._open(self._path):
            return b""
        if os.fstat(self._handle()).st_size < self._offset + len(self._rest):
            self._offset, self._rest = 0, b""  # cut short by whoever writes it
        try:
            piece = os.pread(self._handle(), limit, self._offset + len(self._rest))
        except OSError as error:  # a folder, or a file system that went away
            say_once(self._path, f"{self._path} can't be read: {error}")
            self._close()
            return b""
        whole, self._rest = _split(self._rest + piece)
        self._offset += len(whole)
        if not piece and self._moved():
            last, self._rest = self._rest, b""
            self._close()
            return last + b"\n" if last else b""
        return whole

    def place(self) -> dict[str, Any]:
        return {"inode": self._inode, "offset": self._offset}

    def ended(self) -> bool:
        return False

    def _renamed(self, inode: int | None) -> str | None:
        """Return the name of the file that was being read, if it was rotated away meanwhile: its end comes first."""
        with contextlib.suppress(OSError), os.scandir(os.path.dirname(self._path) or ".") as found:
            return next((item.path for item in found if item.inode() == inode and item.is_file()), None)
        return None

    def _open(self, path: str) -> bool:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        self._inode, self._offset, self._rest = os.fstat(self._file).st_ino, 0, b""
        return True

    def _handle(self) -> int:
        assert self._file is not None
        return self._file

    def _moved(self) -> bool:
        """True when another file has the name now; the old one is read to its end first."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return False  # renamed, and the new one is still to come

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None


class KernelLines:
    """The kernel's buffer, record by record, written as `dmesg --decode --time-format iso` writes it."""

    def __init__(self, place: dict[str, Any], *, path: str = KMSG) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._boot = _boot_id()
        self._next = int(place.get("seq", 0)) if place.get("boot") == self._boot else 0
        self._began = time() - clock_gettime(CLOCK_MONOTONIC)

    def read(self, limit: int) -> bytes:
        lines = b""
        while len(lines) < limit:
            try:
                record = os.read(self._file, KMSG_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next read goes on behind them
            if not record:
                break
            lines += self._line(record)
        return lines

    def place(self) -> dict[str, Any]:
        return {"boot": self._boot, "seq": self._next}

    def ended(self) -> bool:
        return False

    def _line(self, record: bytes) -> bytes:
        """Return a record as a line, nothing if it was sent before or is none."""
        head, _, text = record.partition(b"\n")[0].partition(b";")
        try:
            priority, seq, at_us = (int(part) for part in head.split(b",")[:3])
        except ValueError:
            return b""
        if seq < self._next:
            return b""
        self._next = seq + 1
        at = datetime.fromtimestamp(self._began + at_us / 1e6, timezone.utc).isoformat(timespec="microseconds")
        level = LEVELS[priority & 7]
        return f"kern  :{level:<6}: {at.replace('.', ',')} ".encode() + text + b"\n"


class PipeLines:
    """Standard input: `journalctl -kf -o short-iso-precise | python -m paceline.tail -`."""

    def __init__(self, handle: int | None = None) -> None:
        self._file = sys.stdin.fileno() if handle is None else handle
        self._rest = b""
        self._ended = False

    def read(self, limit: int) -> bytes:
        ready, _, _ = select.select([self._file], [], [], 0)
        if not ready or self._ended:
            return b""
        piece = os.read(self._file, limit)
        if not piece:
            self._ended = True
            last, self._rest = self._rest, b""
            return last + b"\n" if last else b""
        whole, self._rest = _split(self._rest + piece)
        return whole

    def place(self) -> dict[str, Any]:
        return {}

    def ended(self) -> bool:
        return self._ended


def _split(text: bytes) -> tuple[bytes, bytes]:
    """Return (whole lines, the beginning of one)."""
    end = text.rfind(b"\n") + 1
    if end == 0 and len(text) > MAX_LINE:
        return text + b"\n", b""
    return text[:end], text[end:]


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
