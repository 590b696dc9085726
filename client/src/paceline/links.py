"""The sender's end of the local connections: accepts, reads frames, notices who is gone."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

from paceline.wire import Link, LinkClosed, Waker


class Links:
    """All connections of one sender, and what wakes it."""

    def __init__(self, listener: socket.socket | None) -> None:
        self.waker = Waker()
        self._listener = listener
        self._links: set[Link] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.waker.reads, selectors.EVENT_READ)
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def attach(self, sock: socket.socket) -> None:
        """Take a connection, whether or not it came through the listener."""
        link = Link(sock)
        self._links.add(link)
        self._selector.register(sock, selectors.EVENT_READ, link)

    def hear(
        self, timeout_s: float, *, frame: Callable[[Link, int, bytes], None], lost: Callable[[Link], None]
    ) -> None:
        """Wait at most `timeout_s`; call `frame` with all that was said and `lost` with who is gone or talks nonsense."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept_all()
            elif key.fileobj is self.waker.reads:
                self.waker.drain()
            else:
                link: Link = key.data
                try:
                    for kind, payload in link.receive():
                        frame(link, kind, payload)
                except LinkClosed:
                    lost(link)

    def drop(self, link: Link) -> None:
        """Close a connection; harmless twice."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.sock)
        link.close()
        self._links.discard(link)

    def close(self) -> None:
        """Close everything; also what a forked child does with its copy."""
        held = [link.sock for link in list(self._links)] + self.waker.sockets()
        for sock in held + ([self._listener] if self._listener is not None else []):
            sock.close()

    def _accept_all(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            while True:
                self.attach(self._listener.accept()[0])
