"""Paceline's own processes: who serves what, and what they are told."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from apps.config.local.folder import DataFolder
from apps.config.local.listener import Address
from apps.config.local.problems import SettingUnusable
from apps.config.local.processes import (
    WORKERS,
    site_environment,
    web_answers,
    web_processes,
    web_program,
    worker_program,
)
from apps.config.pipeline import QUEUES, SWEEPS


class TestWorkers:
    def test_every_queue_is_served_by_exactly_one_kind(self) -> None:
        served = [queue for kind in WORKERS for queue in kind.queues.split(",")]

        assert sorted(served) == sorted(QUEUES)

    def test_no_kind_of_work_waits_for_another(self) -> None:
        assert [kind.queues for kind in WORKERS if "," in kind.queues] == []

    def test_every_sweep_has_a_worker(self) -> None:
        served = {queue for kind in WORKERS for queue in kind.queues.split(",")}

        assert {queue for queue, _ in SWEEPS.values()} <= served

    def test_a_kind_of_one_task_at_a_time_is_one_process_without_children(self) -> None:
        programs = [worker_program(DataFolder(Path("/data")), {}, kind) for kind in WORKERS]

        assert all({"--pool=solo", "--pool=threads"} & set(program.command) for program in programs)


class TestWebProcesses:
    def test_as_many_as_asked_for_else_one(self) -> None:
        assert [web_processes(given) for given in ({}, {"PACELINE_WEB_PROCESSES": "4"})] == [1, 4]

    @pytest.mark.parametrize("text", ["two", "0", "-1", "²", "9" * 30])
    def test_what_is_no_number_is_refused_in_a_sentence(self, text: str) -> None:
        with pytest.raises(SettingUnusable, match="Write a number from 1 to 64"):
            web_processes({"PACELINE_WEB_PROCESSES": text})


class TestEnvironment:
    def make(self, *, host: str = "127.0.0.1", **given: str) -> dict[str, str]:
        return site_environment(
            DataFolder(Path("/data")),
            database_url="postgresql://d",
            redis_url="unix://r",
            address=Address(host, 8000),
            given=given,
        )

    def test_names_the_servers_and_the_address(self) -> None:
        made = self.make()

        assert (made["DATABASE_URL"], made["REDIS_URL"]) == ("postgresql://d", "unix://r")
        assert made["PACELINE_PUBLIC_URL"] == "http://127.0.0.1:8000"

    def test_a_given_public_address_stays(self) -> None:
        assert self.make(PACELINE_PUBLIC_URL="https://pace.example")["PACELINE_PUBLIC_URL"] == "https://pace.example"

    def test_every_address_is_told_as_one_that_can_be_opened(self) -> None:
        assert "0.0.0.0" not in self.make(host="0.0.0.0")["PACELINE_PUBLIC_URL"]


class TestWeb:
    def test_processes_share_the_listening_socket(self) -> None:
        with socket.socket() as listener:
            programs = [
                web_program(DataFolder(Path("/data")), {}, listener, Address("127.0.0.1", 1), number=number)
                for number in (1, 2)
            ]

            assert [program.name for program in programs] == ["web", "web-2"]
            assert {program.keep_fds for program in programs} == {(listener.fileno(),)}

    @pytest.mark.parametrize(("status", "ready"), [(200, True), (302, True), (404, True), (500, False), (503, False)])
    def test_is_ready_when_a_page_is_no_failure(self, status: int, ready: bool) -> None:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Answer) as server:
            threading.Thread(target=server.handle_request).start()

            assert web_answers(Address("127.0.0.1", server.server_port)) is ready

    def test_is_not_ready_while_nobody_answers(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()

            assert not web_answers(Address("127.0.0.1", listener.getsockname()[1]), patience_s=0.1)
