"""The client's own HTTP: answers of every shape, and everything that is none."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paceline.http1 import Connection, HttpError
from paceline.transport import Answer, Backoff, Server, Verdict, longest_wait_s, path

Serve = Callable[..., int]
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve raw bytes, a piece for each request: `port = serve(b"HTTP/1.1 ...")`; `each` on a connection of its own."""
    listeners: list[socket.socket] = []
    stop = threading.Event()

    def begin(*pieces: bytes, hold: bool = False, each: bool = False, context: ssl.SSLContext | None = None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer(pieces: tuple[bytes, ...]) -> None:
            caller, _ = listener.accept()
            if context is not None:
                caller = context.wrap_socket(caller, server_side=True)
            with caller:
                for piece in pieces:
                    caller.recv(65536)
                    caller.sendall(piece)
                if hold:
                    stop.wait(20)

        def answer_all() -> None:
            with contextlib.suppress(OSError):
                for some in [(piece,) for piece in pieces] if each else [pieces]:
                    answer(some)

        threading.Thread(target=answer_all, daemon=True).start()
        return int(listener.getsockname()[1])

    yield begin
    stop.set()
    for listener in listeners:
        listener.close()


def connect(port: int, *, timeout_s: float = 10.0) -> Connection:
    return Connection("127.0.0.1", port, secure=False, timeout_s=timeout_s)


def ask(connection: Connection, body: bytes = b"{}") -> bytes:
    return connection.request("POST", "/api", {}, body).body


class TestAnswers:
    def test_a_length_is_kept_to_and_the_connection_with_it(self, serve: Serve) -> None:
        connection = connect(
            serve(HEAD + b"Content-Length: 3\r\n\r\nabc", HEAD + b"content-length: 0\r\n\r\n", hold=True)
        )

        assert ask(connection) == b"abc"
        assert connection.is_open
        assert ask(connection) == b""
        connection.close()

    def test_chunks_are_joined_and_trailers_left(self, serve: Serve) -> None:
        chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
        connection = connect(serve(chunked, HEAD + b"Content-Length: 1\r\n\r\nz", hold=True))

        assert ask(connection) == b"abcde"
        assert ask(connection) == b"z"
        connection.close()

    def test_an_answer_without_a_length_ends_with_its_connection(self, serve: Serve) -> None:
        connection = connect(serve(HEAD + b"\r\nall of it"))

        assert ask(connection) == b"all of it"
        assert not connection.is_open

    def test_a_server_that_says_close_is_believed(self, serve: Serve) -> None:
        connection = connect(serve(HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok"))

        assert ask(connection) == b"ok"
        assert not connection.is_open

    def test_what_comes_before_the_answer_is_passed_over(self, serve: Serve) -> None:
        connection = connect(serve(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok"))

        assert ask(connection) == b"ok"

    def test_an_answer_without_a_body_needs_no_length(self, serve: Serve) -> None:
        connection = connect(serve(b"HTTP/1.1 204 No Content\r\n\r\n", hold=True))

        assert ask(connection) == b""
        connection.close()

    @pytest.mark.parametrize(
        "piece",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 yes OK\r\n\r\n",
            HEAD + b"Content-Length: much\r\n\r\n",
            HEAD + b"Content-Length: 99999999999\r\n\r\n",
            HEAD + b"Content-Length: 10\r\n\r\nabc",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
            b"",
        ],
    )
    def test_what_is_no_whole_answer_is_an_error(self, serve: Serve, piece: bytes) -> None:
        connection = connect(serve(piece))

        with pytest.raises(HttpError):
            ask(connection)
        assert not connection.is_open

    def test_a_server_that_says_nothing_is_given_up(self, serve: Serve) -> None:
        connection = connect(serve(HEAD + b"Content-Length: 10\r\n\r\nabc", hold=True), timeout_s=0.2)

        with pytest.raises(HttpError):
            ask(connection)


class TestServer:
    def test_a_connection_the_server_closed_meanwhile_is_no_failure(self, serve: Serve) -> None:
        answer = HEAD + b"Content-Length: 2\r\n\r\n{}"
        server = Server(f"http://127.0.0.1:{serve(answer, answer, each=True)}", "t")

        first, second = server.request("POST", "x"), server.request("POST", "x")

        assert (first.status, second.status) == (200, 200)

    def test_nobody_there_is_an_answer_too(self) -> None:
        free = socket.create_server(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()

        answer = Server(f"http://127.0.0.1:{port}", "t").request("POST", "x")

        assert (answer.status, answer.verdict) == (0, Verdict.AGAIN)
        assert "refused" in answer.message.lower()

    def test_an_error_in_the_contract_s_shape_is_understood(self, serve: Serve) -> None:
        body = b'{"error": {"code": "busy", "message": "too much", "facts": {"n": 3}}}'
        head = f"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: {len(body)}\r\n\r\n".encode()

        answer = Server(f"http://127.0.0.1:{serve(head + body)}", "t").request("POST", "x")

        assert (answer.code, answer.message, answer.facts) == ("BUSY", "too much", {"n": 3})
        assert (answer.verdict, answer.retry_after_s) == (Verdict.AGAIN, 7.0)

    def test_a_page_where_json_was_expected_is_judged_by_its_status(self, serve: Serve) -> None:
        page = b"<html>bad gateway</html>"
        head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Length: {len(page)}\r\n\r\n".encode()

        answer = Server(f"http://127.0.0.1:{serve(head + page)}", "t").request("POST", "x")

        assert (answer.verdict, answer.message, answer.body) == (Verdict.AGAIN, "Bad Gateway", {})

    @pytest.mark.parametrize(
        ("status", "verdict"),
        [
            (202, Verdict.DELIVERED), (401, Verdict.DENIED), (403, Verdict.DENIED), (404, Verdict.NOT_YET),
            (409, Verdict.NOT_YET), (400, Verdict.NEVER), (413, Verdict.NEVER), (422, Verdict.NEVER), (408, Verdict.AGAIN),
            (429, Verdict.AGAIN), (500, Verdict.AGAIN), (503, Verdict.AGAIN), (0, Verdict.AGAIN), (302, Verdict.AGAIN),
        ],
    )  # fmt: skip
    def test_each_answer_means_one_thing_for_a_report(self, status: int, verdict: Verdict) -> None:
        assert Answer(status).verdict is verdict

    def test_names_in_a_path_are_quoted(self) -> None:
        assert path("nodes", "north:gpu 1/2", "reports") == "nodes/north:gpu%201%2F2/reports"

    def test_https_is_spoken_to_who_can_prove_its_name(
        self, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        try:
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost",
                 "-addext", "subjectAltName=DNS:localhost"],
                check=True, capture_output=True,
            )  # fmt: skip
        except FileNotFoundError:
            pytest.skip("the openssl program, which makes this test's certificate, is not installed")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        answer = HEAD + b"Content-Length: 2\r\n\r\n{}"

        unknown = Server(f"https://localhost:{serve(answer, context=context)}", "t").request("POST", "x")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        known = Server(f"https://localhost:{serve(answer, context=context)}", "t").request("POST", "x")

        assert (unknown.status, known.status) == (0, 200)
        assert "certificate" in unknown.message.lower()


class TestBackoff:
    def test_waits_double_up_to_a_limit_and_start_anew_once_it_works(self) -> None:
        backoff = Backoff(first_s=1.0, last_s=8.0)
        waits = []
        for _ in range(6):
            backoff.failed(100.0)
            waits.append(backoff.until - 100.0)

        backoff.worked()
        backoff.failed(100.0)

        limits = [1, 2, 4, 8, 8, 8]
        assert all(limits[i] / 2 <= wait <= limits[i] for i, wait in enumerate(waits))
        assert backoff.until - 100.0 <= 1.0
        assert backoff.open(100.1)
        assert not backoff.open(backoff.until)

    @pytest.mark.parametrize(("interval_s", "longest_s"), [(0.1, 0.5), (1.0, 3.0), (2.0, 6.0), (15.0, 10.0)])
    def test_nobody_waits_until_the_server_takes_them_for_silent(self, interval_s: float, longest_s: float) -> None:
        assert longest_wait_s(interval_s) == pytest.approx(longest_s)

    def test_the_server_s_word_counts_within_reason(self) -> None:
        backoff = Backoff()

        backoff.failed(0.0, retry_after_s=10.0)
        said = backoff.until
        backoff.failed(0.0, retry_after_s=86_400.0)

        assert 10.0 <= said <= 12.0
        assert backoff.until <= 144.0
