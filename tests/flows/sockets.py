"""Raw websocket clients, for what no browser would do."""

from __future__ import annotations

import json

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

WAIT_S = 60.0
SIGNED_OUT, TRY_LATER = 4401, 1013


class Caller:
    """A raw websocket client with whatever cookie and origin it likes."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url, self.key = url, key

    def connect(self, path: str, *, origin: str | None) -> ClientConnection:
        headers = {"Cookie": f"sessionid={self.key}"} if self.key else {}
        address = self.url.replace("http", "ws", 1) + path
        return connect(address, additional_headers=headers, origin=Origin(origin) if origin else None)

    def rows_until_closed(self, path: str) -> tuple[int, int]:
        """Return how many log rows came before the server closed, and with which code."""
        with self.connect(path, origin=self.url) as socket:
            return rows_until_closed(socket)


def rows_until_closed(socket: ClientConnection) -> tuple[int, int]:
    """Return how many log rows come before the server closes, and with which code it does."""
    rows = 0
    try:
        while True:
            rows += len(json.loads(socket.recv(timeout=WAIT_S)).get("rows", ()))
    except ConnectionClosed:
        return rows, socket.close_code or 0
