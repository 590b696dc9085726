"""A server on loopback that speaks the report contract, keeps what it was sent, and misbehaves on request."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ABSENT = 0x7FC00000
PATIENCE_S = 30.0
"""How long a test waits for something that must happen: far longer than it takes, so that a busy machine fails none."""


@dataclass(frozen=True)
class Request:
    """What arrived."""

    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    zipped: bool
    at: float


@dataclass
class Reply:
    """What to answer; `hang` keeps the caller waiting until the server stops or the event is set."""

    status: int = 202
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    hang: threading.Event | None = None


def refusal(status: int, code: str, **headers: str) -> Reply:
    """An error in the contract's shape."""
    return Reply(status, {"error": {"code": code, "message": f"{code} said the test.", "facts": {}}}, headers)


class RecordingServer:
    """Answers like Paceline unless a test says otherwise; only what it answers 2xx counts as accepted."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.accepted: list[Request] = []
        self.runs: set[str] = set()
        self.attempts: dict[str, str] = {}
        self.answer: Callable[[Request], Reply | None] = lambda request: None
        self._guard = threading.Lock()
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_POST(self) -> None:
                recorder._serve(self)

            do_PUT = do_GET = do_POST

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: object) -> None:
                return  # a client killed in mid-sentence is what these tests are about

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        zipped = handler.headers.get("Content-Encoding") == "gzip"
        body = json.loads(gzip.decompress(raw) if zipped else raw or b"{}")
        request = Request(handler.command, handler.path, body, dict(handler.headers), zipped, time.monotonic())
        with self._guard:
            self.requests.append(request)
        reply = self.answer(request) or self._usual(request)
        if reply.hang is not None:
            reply.hang.wait(PATIENCE_S)
        if 200 <= reply.status < 300:
            with self._guard:
                self.accepted.append(request)
        text = json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _usual(self, request: Request) -> Reply:
        parts = request.path.removeprefix("/api/v1/").split("/")
        if parts == ["check"]:
            return Reply(200, {"cluster": "main", "refused": [], "kept": False, "ignored": []})
        if request.method == "PUT" and parts[0] == "runs":
            self.runs.add(parts[1])
            return Reply(201, {"slug": parts[1]})
        if parts[0] == "runs" and parts[-1] == "attempts":
            if parts[1] not in self.runs:
                return refusal(404, "not_found")
            known = self.attempts.setdefault(request.body["key"], f"att_{len(self.attempts) + 1}")
            return Reply(201, {"id": known})
        if parts[-1] == "end":
            return Reply(200, {})
        return Reply(202, {})

    # -- what was said ---------------------------------------------------------------------------------------------
    def checks(self) -> list[dict[str, Any]]:
        """Return the questions whether a report would be taken."""
        with self._guard:
            return [one.body for one in self.accepted if one.path == "/api/v1/check"]

    def reports(self, *, accepted: bool = True) -> list[dict[str, Any]]:
        """Return the attempt reports, in the order of their arrival."""
        with self._guard:
            found = list(self.accepted if accepted else self.requests)
        return [one.body for one in found if one.path.startswith("/api/v1/attempts/") and one.path.endswith("/reports")]

    def part(self, name: str) -> list[dict[str, Any]]:
        """Return all entries of one part of all reports: `beats`, `events`, `checkpoints`, `placement`."""
        return [entry for report in self.reports() for entry in report.get(name, [])]

    def ends(self) -> list[dict[str, Any]]:
        with self._guard:
            return [one.body for one in self.accepted if one.path.endswith("/end")]

    def cells(self, metric: str) -> dict[tuple[int, int], int]:
        """Return float32 patterns by (rank, step) of a metric, absent cells left out."""
        found: dict[tuple[int, int], int] = {}
        for report in self.reports():
            found.update(cells_of(report, metric))
        return found

    def values(self, metric: str) -> dict[tuple[int, int], float]:
        return {cell: struct.unpack("<f", struct.pack("<I", bits))[0] for cell, bits in self.cells(metric).items()}


def cells_of(report: dict[str, Any], metric: str) -> dict[tuple[int, int], int]:
    """Return a metric's patterns by (rank, step) in one report, read as the contract describes the packed form."""
    steps = report.get("steps")
    if not steps or metric not in steps["names"]:
        return {}
    raw = base64.b64decode(steps["f32"])
    n_ranks, n_steps = len(steps["ranks"]), len(steps["steps"])
    assert len(raw) == 4 * len(steps["names"]) * n_ranks * n_steps
    assert len(steps["ended_at"]) == n_steps
    start = steps["names"].index(metric) * n_ranks * n_steps
    patterns = struct.unpack(f"<{len(raw) // 4}I", raw)
    return {
        (rank, step): patterns[start + row * n_steps + column]
        for row, rank in enumerate(steps["ranks"])
        for column, step in enumerate(steps["steps"])
        if patterns[start + row * n_steps + column] != ABSENT
    }


def eventually(what: Callable[[], Any], *, because: str = "", within_s: float = PATIENCE_S) -> Any:
    """Return the first true value of `what`; fail with `because` if there is none in time."""
    until = time.monotonic() + within_s
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < until, because or "it did not happen"
        time.sleep(0.02)
