"""The web process: uvicorn on a socket that the supervisor listens on. Run as `python -m apps.config.local.web FD`."""

import os
import socket
import sys

import uvicorn

KEEP_ALIVE_S = 75
"""Senders report every 1-5 s and pages poll every 10 s: their connections must not end between two requests."""

STOP_S = 5
"""How long open requests may take once the process is asked to stop; websockets are told at once."""


def main(descriptor: int) -> None:
    """Serve on the inherited socket `descriptor` until asked to stop."""
    listener = socket.socket(fileno=descriptor)
    config = uvicorn.Config(
        "apps.config.asgi:application",
        log_config=None,  # Django's settings say how to log
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        # Whose word about a request's origin counts must be said by the site; by default nobody's.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]))
