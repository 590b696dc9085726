"""Who sends for the node: the ranks of one launch meet at a socket whose name carries a generation.

The newest generation is the sender. A rank that finds it dead or silent binds the next one; the file system lets only
one have a name, so there is no lock that a frozen process could keep. A sender that wakes up sees a newer name and steps down.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time

from paceline.digest import fresh_name, name_of
from paceline.settings import own_dir

_NAME = re.compile(r"^s-(\d{1,9})$")
CONNECT_S = 0.5
MAX_ROOT = 60
KEEP_S = 7 * 86400.0


class MeetingPlace:
    """The folder of a launch's sockets on this node."""

    def __init__(self, root: str, *, url: str, run: str, node: str, launch: str) -> None:
        name = name_of(root, url, run, node, launch)
        # A socket's path holds 107 bytes; a longer root gives way to the temporary folder, whose name is as good as any.
        self.folder = os.path.join(root if len(os.fsencode(root)) <= MAX_ROOT else own_dir("local"), name)

    @classmethod
    def at(cls, folder: str) -> MeetingPlace:
        """Return the place of another launch."""
        place = cls.__new__(cls)
        place.folder = folder
        return place

    def open(self) -> bool:
        """Make the folder, for this user only; return False where there can't be one that is safe."""
        try:
            os.makedirs(os.path.dirname(self.folder), mode=0o700, exist_ok=True)
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            found = os.lstat(self.folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

    def newest(self) -> int:
        """Return the newest generation there is a name for, 0 if none."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return 0
        return max((int(match.group(1)) for match in map(_NAME.match, names) if match), default=0)

    def connect(self, generation: int) -> socket.socket | None:
        """Return a connection to that generation's socket, or None if nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(self._path(generation))
        except OSError:
            sock.close()
            return None
        return sock

    def claim(self, generation: int) -> socket.socket | None:
        """Return a listening socket that is that generation, or None if another has it (or sockets can't be had here)."""
        own = os.path.join(self.folder, f"t-{fresh_name(12)}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(own)
            sock.listen(256)
            os.link(own, self._path(generation))  # listening before it can be found; only one can have the name
        except OSError:
            sock.close()
            return None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(own)
        for older in range(max(generation - 8, 1), generation):
            self.release(older)
        return sock

    def release(self, generation: int) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path(generation))

    def tidy(self) -> None:
        """Take away the folders of launches that were killed a week ago or longer."""
        with contextlib.suppress(OSError), os.scandir(os.path.dirname(self.folder)) as found:
            for item in found:
                if time.time() - item.stat().st_mtime > KEEP_S and not self._is_alive(item.path):
                    for name in os.listdir(item.path):
                        os.unlink(os.path.join(item.path, name))
                    os.rmdir(item.path)

    def _is_alive(self, folder: str) -> bool:
        other = MeetingPlace.at(folder)
        sock = other.connect(other.newest())
        if sock is not None:
            sock.close()
        return sock is not None

    def close(self) -> None:
        """Take the folder away if nobody is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def _path(self, generation: int) -> str:
        return os.path.join(self.folder, f"s-{generation}")
