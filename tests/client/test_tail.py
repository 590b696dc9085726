"""The tailer: every line once, through rotation, restarts and a server that is away."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from paceline.lines import FileLines, KernelLines, PipeLines
from paceline.tail import Tail, TailSettings, settings_read

from tests.client.conftest import ROOT
from tests.client.server import eventually


class LogServer:
    """Takes logs, or answers `status`."""

    def __init__(self) -> None:
        self.text = b""
        self.paths: list[str] = []
        self.types: set[str] = set()
        self.status = 200
        keeper = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                keeper.paths.append(self.path)
                if keeper.status == 200:
                    keeper.text += gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
                    keeper.types.add(self.headers["Content-Type"])
                self.send_response(keeper.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def logs() -> Iterator[LogServer]:
    server = LogServer()
    yield server
    server.stop()


@pytest.fixture
def log(folder: Path) -> Path:
    return folder / "kern.log"


@pytest.fixture
def make_tail(folder: Path, log: Path, logs: LogServer) -> Callable[..., Tail]:
    """Make a tailer of the log as a new process would: it finds its place by itself."""

    def make(*arguments: str) -> Tail:
        from paceline.tail import source_open

        environ = {"PACELINE_URL": logs.url, "PACELINE_NODE": "gpu-17", "PACELINE_SPOOL_DIR": str(folder / "spool")}
        settings = settings_read([str(log), *arguments], environ)
        assert isinstance(settings, TailSettings)
        return Tail(settings, source_open(settings))

    return make


def turns(tail: Tail, *, now: float = 0.0) -> None:
    while tail.turn(now):
        pass


class TestFiles:
    def test_new_lines_are_sent_and_old_ones_are_the_past(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        log.write_text("old\n")
        tail = make_tail()

        with log.open("a") as file:
            file.write("first\nsecond\nhalf a li")
        turns(tail)
        before = logs.text
        with log.open("a") as file:
            file.write("ne\n")
        turns(tail)

        assert before == b"first\nsecond\n"
        assert logs.text == b"first\nsecond\nhalf a line\n"
        assert logs.types == {"text/plain; charset=utf-8"}

    def test_the_door_says_kind_run_and_that_this_is_live(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        log.write_text("line\n")

        turns(make_tail("--from-start", "--kind", "training", "--run", "dense-7b", "--zone", "Europe/Zurich"))

        parts = urlsplit(logs.paths[0])
        assert parts.path == "/api/v1/nodes/gpu-17/logs"
        assert parse_qs(parts.query) == {
            "kind": ["training"],
            "live": ["1"],
            "run": ["dense-7b"],
            "zone": ["Europe/Zurich"],
        }

    def test_a_restart_goes_on_where_it_was(self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]) -> None:
        log.write_text("one\n")
        turns(make_tail("--from-start"))

        with log.open("a") as file:
            file.write("two\n")
        turns(make_tail())

        assert logs.text == b"one\ntwo\n"

    def test_a_rotated_file_is_read_to_its_end(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        log.write_text("one\n")
        tail = make_tail("--from-start")
        turns(tail)

        with log.open("a") as file:
            file.write("two\nthree without an end")
        log.rename(log.with_suffix(".1"))
        log.write_text("four\n")
        turns(tail)
        turns(tail)

        assert logs.text == b"one\ntwo\nthree without an end\nfour\n"

    def test_a_file_rotated_while_nobody_looked_is_read_to_its_end_too(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        log.write_text("one\n")
        turns(make_tail("--from-start"))

        with log.open("a") as file:
            file.write("two\n")
        log.rename(log.with_suffix(".1"))
        log.write_text("three\n")
        tail = make_tail()
        turns(tail)
        turns(tail)

        assert logs.text == b"one\ntwo\nthree\n"

    def test_a_file_cut_short_is_read_from_its_start(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        log.write_text("a long first line\n")
        tail = make_tail("--from-start")
        turns(tail)

        log.write_text("new\n")
        turns(tail)

        assert logs.text == b"a long first line\nnew\n"

    def test_a_file_that_is_not_there_yet_is_waited_for(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        tail = make_tail()
        turns(tail)

        log.write_text("born\n")
        turns(tail)

        assert logs.text == b"born\n"

    def test_a_large_log_comes_whole_and_in_pieces(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        text = b"".join(b"line %d of a long log, with some words to make it longer\n" % n for n in range(20_000))
        log.write_bytes(text)

        turns(make_tail("--from-start"))

        assert logs.text == text
        assert len(logs.paths) > 3

    def test_a_line_without_end_does_not_stop_the_others(self, log: Path) -> None:
        log.write_bytes(b"x" * 100_000)
        lines = FileLines(str(log), {}, from_start=True)

        assert lines.read(200_000) == b"x" * 100_000 + b"\n"


class TestServer:
    @pytest.mark.parametrize("status", [503, 429, 401, 404])
    def test_lines_wait_for_a_server_that_cannot_take_them(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail], status: int
    ) -> None:
        log.write_text("one\n")
        logs.status = status
        tail = make_tail("--from-start")
        turns(tail, now=0.0)
        again = make_tail("--from-start")  # a restart meanwhile: nothing was taken, so nothing has moved on

        logs.status = 200
        turns(again, now=1000.0)

        assert logs.text == b"one\n"

    def test_lines_the_server_refuses_do_not_hold_up_the_rest(
        self, log: Path, logs: LogServer, make_tail: Callable[..., Tail]
    ) -> None:
        log.write_text("bad\n")
        logs.status = 422
        tail = make_tail("--from-start")
        turns(tail)

        logs.status = 200
        with log.open("a") as file:
            file.write("good\n")
        turns(tail)

        assert logs.text == b"good\n"


class TestKernel:
    def test_records_become_dated_lines(self, folder: Path) -> None:
        records = folder / "kmsg"
        os.mkfifo(records)
        writer = os.open(records, os.O_RDWR)
        os.write(
            writer, b"4,100,5000000,-;NVRM: Xid (PCI:0000:38:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
        )
        lines = KernelLines({}, path=str(records))

        text = lines.read(1000).decode()
        os.close(writer)

        assert text.startswith("kern  :warn  : 20")
        assert text.endswith("+00:00 NVRM: Xid (PCI:0000:38:00): 79, GPU has fallen off the bus.\n")
        assert lines.place()["seq"] == 101

    def test_what_was_sent_before_a_restart_is_left_out(self, folder: Path) -> None:
        records = folder / "kmsg"
        os.mkfifo(records)
        writer = os.open(records, os.O_RDWR)
        place = {**KernelLines({}, path=str(records)).place(), "seq": 8}
        again = KernelLines(place, path=str(records))
        found = b""
        for seq in (7, 8):
            os.write(writer, b"6,%d,1,-;number %d\n" % (seq, seq))
            found += again.read(1000)
        os.close(writer)

        assert found.endswith(b"number 8\n")
        assert b"number 7" not in found


class TestPipes:
    def test_a_pipe_is_read_to_its_end(self, folder: Path, logs: LogServer) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "paceline.tail", "-", "--kind", "health"],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "client" / "src"), "PYTHONDONTWRITEBYTECODE": "1",
                "PACELINE_URL": logs.url, "PACELINE_NODE": "gpu-17", "PACELINE_SPOOL_DIR": str(folder / "spool"),
            },
            input=b"one\ntwo\nthree",
            timeout=60,
            check=False,
        )  # fmt: skip

        assert done.returncode == 0
        assert logs.text == b"one\ntwo\nthree\n"

    def test_nothing_to_read_is_not_the_end(self) -> None:
        reads, writes = os.pipe()
        lines = PipeLines(reads)

        empty, ended = lines.read(100), lines.ended()
        os.close(writes)
        lines.read(100)

        assert (empty, ended) == (b"", False)
        assert lines.ended()
        os.close(reads)


class TestProgram:
    def test_it_follows_a_file_until_it_is_told_to_stop(self, folder: Path, log: Path, logs: LogServer) -> None:
        log.write_text("before\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.tail", str(log), "--from-start"],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "client" / "src"), "PYTHONDONTWRITEBYTECODE": "1",
                "PACELINE_URL": logs.url, "PACELINE_NODE": "gpu-17", "PACELINE_SPOOL_DIR": str(folder / "spool"),
            },
        )  # fmt: skip
        eventually(lambda: logs.text == b"before\n")
        with log.open("a") as file:
            file.write("after\n")
        eventually(lambda: logs.text == b"before\nafter\n")
        process.terminate()

        assert process.wait(20) == 0

    def test_a_log_that_cannot_be_read_is_said(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from paceline.tail import main

        monkeypatch.delenv("PACELINE_URL", raising=False)
        without_address = main([])
        monkeypatch.setenv("PACELINE_URL", "http://localhost:1")
        monkeypatch.setenv("PACELINE_SPOOL_DIR", str(folder))
        monkeypatch.setattr("paceline.tail.KMSG", "/nowhere/kmsg")
        unreadable = main(["/nowhere/kmsg"])

        assert (without_address, unreadable) == (2, 2)
        assert "/nowhere/kmsg can't be read" in capfd.readouterr().err

    def test_a_folder_is_no_log(self, folder: Path) -> None:
        assert FileLines(str(folder), {}, from_start=True).read(100) == b""
