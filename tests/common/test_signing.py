"""Signed HTTP: whoever has the secret can check it, nobody follows a redirect with it."""

import http.server
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.common.signing import HEADER, NotReached, signature_holds, signature_of, signed_post

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers with the status that its path names and keeps what it heard."""

    heard: list[tuple[str, str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.heard.append((self.path, self.headers[HEADER], body))
        status = int(self.path.strip("/"))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[str]:
    Receiver.heard = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class TestSignature:
    def test_holds_for_the_body_it_was_made_for(self) -> None:
        header = signature_of(b"body", secret="s", at=100)

        assert signature_holds(header, b"body", secret="s", now=130)

    @pytest.mark.parametrize(
        ("body", "secret", "now"),
        [(b"other", "s", 130), (b"body", "t", 130), (b"body", "s", 1000)],
        ids=["another body", "another secret", "too old"],
    )
    def test_does_not_hold_for_anything_else(self, body: bytes, secret: str, now: float) -> None:
        header = signature_of(b"body", secret="s", at=100)

        assert not signature_holds(header, body, secret=secret, now=now)

    @pytest.mark.parametrize(
        "header", ["", "t=", "t=x,v1=y", "v1=1", "t=100", "t=²,v1=1", "t=" + 5000 * "9", "garbage"]
    )
    def test_does_not_hold_for_what_is_no_signature(self, header: str) -> None:
        assert not signature_holds(header, b"body", secret="s", now=100)


class TestSignedPost:
    def test_sends_a_body_that_its_signature_holds_for(self, receiver: str) -> None:
        answer = signed_post(f"{receiver}/200", {"a": 1}, secret="s", at=NOW, timeout_s=5)

        _, header, body = Receiver.heard[0]
        assert answer.status == 200
        assert signature_holds(header, body, secret="s", now=NOW.timestamp())

    @pytest.mark.parametrize("status", [302, 404, 503])
    def test_gives_the_status_as_it_is_and_follows_nothing(self, receiver: str, status: int) -> None:
        answer = signed_post(f"{receiver}/{status}", {}, secret="s", at=NOW, timeout_s=5)

        assert answer.status == status
        assert len(Receiver.heard) == 1

    @pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "https://127.0.0.1:9/"], ids=["closed", "closed, TLS"])
    def test_says_so_when_nobody_was_reached(self, url: str) -> None:
        with pytest.raises(NotReached):
            signed_post(url, {}, secret="s", at=NOW, timeout_s=5)

    def test_says_so_when_no_safe_connection_came_about(self, receiver: str) -> None:
        with pytest.raises(NotReached):
            signed_post(receiver.replace("http:", "https:") + "/200", {}, secret="s", at=NOW, timeout_s=5)

        assert Receiver.heard == []

    def test_does_not_take_silence_after_the_message_for_nobody(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"

            with pytest.raises(TimeoutError):
                signed_post(url, {}, secret="s", at=NOW, timeout_s=0.2)

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/", "x"])
    def test_calls_nothing_but_http(self, url: str) -> None:
        with pytest.raises(ValueError, match="http"):
            signed_post(url, {}, secret="s", at=NOW, timeout_s=5)
