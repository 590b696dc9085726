"""Reports on disk until the server has them: one file each, a bound for all, and a count of what the bound cost.

A file is a line of JSON (the target, who holds it, what it acknowledges) and the body exactly as it will be sent.
Its name carries the target, the sender's boot and the number, so whoever delivers it delivers the same report.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.digest import name_of

SUFFIX = ".json"
LOCK_SUFFIX = ".lock"
RECOUNT_S = 15.0
"""How often the folder is read again: other senders write to it too."""
KEEP_S = 7 * 86400.0
"""A report that could not be delivered for a week is of no use to anybody."""
KEEPS_S = {SUFFIX: KEEP_S, ".part": KEEP_S, ".attempt": 30 * 86400.0}


@dataclass(frozen=True)
class Target:
    """Where a report goes: an attempt (opened by key when its id isn't known yet), a node, or (`check`) nowhere: the server
    only says whether it would take it."""

    kind: str
    name: str
    key: str = ""
    world_size: int = 0
    resumed_from_step: int | None = None
    external_id: str | None = None
    creates: bool = False
    run_fields: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short word that is the same for the same target, whoever writes it."""
        return name_of(self.kind, self.name, self.key, length=12)


@dataclass(frozen=True)
class Entry:
    """One report (door `reports`), or the end of an attempt (door `end`)."""

    target: Target
    boot: str
    seq: int
    door: str
    body: bytes
    acks: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.target.label}-{self.boot}-{self.seq:012d}-{self.door}{SUFFIX}"


class Spool:
    """A folder of entries shared by the senders of one node and user."""

    def __init__(self, folder: str, *, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._bytes = 0
        self._counted_at = -RECOUNT_S

    def write(self, entry: Entry) -> list[str]:
        """Write an entry and return the names dropped to make room; raise OSError where the disk refuses."""
        head = {**asdict(entry), "body": None}
        text = json.dumps(head, separators=(",", ":")).encode() + b"\n"
        path = os.path.join(self.folder, entry.name)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with open(path + ".part", "wb") as file:
            file.write(text)
            file.write(entry.body)
        os.replace(path + ".part", path)
        self._bytes += len(text) + len(entry.body)
        if self._bytes > self.max_bytes or time.monotonic() - self._counted_at > RECOUNT_S:
            return self._make_room()
        return []

    def read(self, name: str) -> Entry | None:
        """Return the entry of that name, or None if it is gone or unreadable (then it is taken away)."""
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                head = json.loads(file.readline())
                body = file.read()
            return Entry(**{**head, "target": Target(**head["target"]), "body": body})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            self.remove(name)
            return None

    def remove(self, name: str) -> None:
        path = os.path.join(self.folder, name)
        try:
            size = os.path.getsize(path)
            os.unlink(path)
        except OSError:
            return
        self._bytes = max(self._bytes - size, 0)

    def names(self, boot: str | None = None) -> list[str]:
        """Return the names of the entries (of one boot), in the order they were numbered."""
        return sorted(name for name, _ in self._scan() if boot is None or boot_of(name) == boot)

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with os.scandir(self.folder) as found:
                for item in found:
                    if item.name.endswith(SUFFIX):
                        try:
                            yield item.name, item.stat()
                        except OSError:
                            continue
        except OSError:
            return

    def _make_room(self) -> list[str]:
        """Drop the oldest reports until all are within the bound: the newest say what is going on."""
        found = sorted((stat.st_mtime, name, stat.st_size) for name, stat in self._scan())
        self._counted_at = time.monotonic()
        self._bytes = sum(size for _, _, size in found)
        dropped = []
        for _, name, _ in found[:-1]:
            if self._bytes <= self.max_bytes:
                break
            self.remove(name)
            dropped.append(name)
        return dropped

    # -- who holds what: a boot's lock is held as long as its process lives ---------------------------------------------
    def hold(self, boot: str) -> int | None:
        """Mark a boot's entries as held by this process; the kernel lets go when it dies."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            path = os.path.join(self.folder, boot + LOCK_SUFFIX)
            handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            return None

    def let_go(self, boot: str, handle: int | None) -> None:
        if handle is not None:
            os.close(handle)
        if not self.names(boot):
            self._unlink_lock(boot)

    def orphans(self, mine: set[str]) -> list[str]:
        """Return the names of entries whose sender is gone."""
        by_boot: dict[str, list[str]] = {}
        for name in self.names():
            by_boot.setdefault(boot_of(name), []).append(name)
        return [name for boot, names in by_boot.items() if boot not in mine and self._is_free(boot) for name in names]

    def _is_free(self, boot: str) -> bool:
        handle = self.hold(boot)
        if handle is None:
            return False
        os.close(handle)
        self._unlink_lock(boot)
        return True

    def _unlink_lock(self, boot: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, boot + LOCK_SUFFIX))

    # -- attempt ids found, for whoever delivers next ---------------------------------------------------------------
    def attempt_remember(self, label: str, attempt: str) -> None:
        path = os.path.join(self.folder, f"{label}.attempt")
        try:
            with open(path + f".{os.getpid()}", "w", encoding="utf-8") as file:
                file.write(attempt)
            os.replace(path + f".{os.getpid()}", path)
        except OSError:
            pass

    def attempt_forget(self, label: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, f"{label}.attempt"))

    def attempt_recall(self, label: str) -> str | None:
        try:
            with open(os.path.join(self.folder, f"{label}.attempt"), encoding="utf-8") as file:
                return file.read().strip() or None
        except OSError:
            return None

    def tidy(self) -> int:
        """Take away what nobody came for in a week; return how many reports were among it."""
        dropped = 0
        now = time.time()
        with contextlib.suppress(OSError), os.scandir(self.folder) as found:
            for item in found:
                with contextlib.suppress(OSError):
                    age_s = now - item.stat().st_mtime
                    name, suffix = os.path.splitext(item.name)
                    if suffix == LOCK_SUFFIX and age_s > KEEP_S:
                        self._is_free(name)  # takes it away if its process is gone
                    elif age_s > KEEPS_S.get(suffix, float("inf")):
                        os.unlink(item.path)
                        dropped += suffix == SUFFIX
        return dropped


def label_of(name: str) -> str:
    return name.split("-", 1)[0]


def boot_of(name: str) -> str:
    parts = name.split("-")
    return parts[1] if len(parts) == 4 else ""


def is_end(name: str) -> bool:
    return name.endswith(f"-end{SUFFIX}")
