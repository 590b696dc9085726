"""From the sender to a server that is away, busy, in doubt or broken."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paceline.courier import Courier
from paceline.drops import Drops, lost_sentence
from paceline.spool import KEEP_S, Entry, Spool, Target
from paceline.transport import Server

from tests.client.server import PATIENCE_S, RecordingServer, Reply, Request, eventually, refusal

MakeCourier = Callable[..., Courier]


@pytest.fixture
def make_courier(folder: Path) -> Iterator[MakeCourier]:
    """Make a started courier: `make_courier(server.url, boot="b1")`."""
    made: list[Courier] = []

    def make(url: str, *, boot: str = "b1", max_bytes: int = 10_000_000, timeout_s: float = 10.0) -> Courier:
        server = Server(url, "a-token", timeout_s=timeout_s)
        spool = Spool(str(folder / "spool"), max_bytes=max_bytes)
        courier = Courier(server, spool, boot=boot, drops=Drops(), interval_s=5.0)
        courier.start()
        made.append(courier)
        return courier

    yield make
    for courier in made:
        courier.stop(0.0)


def report(seq: int, *, boot: str = "b1", key: str = "k1", creates: bool = True, size: int = 10) -> Entry:
    target = Target(
        "attempt", "a-run", key=key, world_size=8, creates=creates, run_fields={"name": "n"} if creates else {}
    )
    body = json.dumps({"sender": "n1", "boot": boot, "seq": seq, "note": "x" * size}).encode()
    return Entry(target, boot, seq, "reports", body)


NOWHERE = Target("attempt", "no/such", key="k1", world_size=8, creates=True)
NOWHERE_OF_OTHERS = Target("attempt", "no/such", key="k0", world_size=8)


def spooled(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "spool").glob("*.json"))


def seqs(server: RecordingServer) -> list[int]:
    return [one["seq"] for one in server.reports()]


class TestAway:
    def test_what_a_server_missed_comes_later_under_its_own_number(
        self, folder: Path, make_courier: MakeCourier
    ) -> None:
        first = RecordingServer()
        port = first.port
        first.stop()
        courier = make_courier(first.url)
        for seq in range(1, 6):
            courier.post(report(seq))
        eventually(lambda: len(spooled(folder)) == 5)
        eventually(lambda: courier.away)

        second = RecordingServer(port)
        eventually(lambda: sorted(seqs(second)) == [1, 2, 3, 4, 5])
        eventually(lambda: not spooled(folder))
        second.stop()

        assert {one["boot"] for one in second.reports()} == {"b1"}
        assert courier.drops.counts() == {}

    def test_another_sender_delivers_what_a_dead_one_left(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        spool = Spool(str(folder / "spool"), max_bytes=10_000_000)
        for seq in (7, 8):
            spool.write(report(seq, boot="dead"))

        make_courier(server.url, boot="b2").post(report(1, boot="b2"))
        eventually(lambda: len(server.reports()) == 3)

        assert {(one["boot"], one["seq"]) for one in server.reports()} == {("dead", 7), ("dead", 8), ("b2", 1)}
        assert eventually(lambda: not spooled(folder))

    def test_a_living_sender_keeps_its_own(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        spool = Spool(str(folder / "spool"), max_bytes=10_000_000)
        lock = spool.hold("alive")
        spool.write(report(7, boot="alive"))

        make_courier(server.url, boot="b2").post(report(1, boot="b2"))
        eventually(lambda: len(server.reports()) == 1)

        assert spool.orphans({"b2"}) == []
        assert lock is not None
        assert eventually(lambda: [name.split("-")[1] for name in spooled(folder)] == ["alive"])

    @pytest.mark.parametrize("answer", [refusal(409, "ATTEMPT_LIVE"), Reply(404, {})])
    def test_ending_does_not_wait_for_what_others_left_and_nobody_takes(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier, answer: Reply
    ) -> None:
        server.answer = lambda request: answer if "no%2Fsuch" in request.path else None
        spool = Spool(str(folder / "spool"), max_bytes=10_000_000)
        spool.write(Entry(NOWHERE_OF_OTHERS, "dead", 7, "reports", b'{"seq":7}'))
        courier = make_courier(server.url, boot="b2")
        courier.post(report(1, boot="b2"))
        eventually(lambda: seqs(server) == [1])
        eventually(lambda: [one for one in server.requests if "no%2Fsuch" in one.path])

        began = time.monotonic()
        courier.stop(PATIENCE_S)
        took_s = time.monotonic() - began

        assert took_s < PATIENCE_S / 2
        assert not courier._thread.is_alive()
        assert [name.split("-")[1] for name in spooled(folder)] == ["dead"]

    def test_ending_waits_for_its_own_as_long_as_it_may(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        live = threading.Event()
        live.set()
        server.answer = lambda request: (
            refusal(409, "ATTEMPT_LIVE") if live.is_set() and request.path.endswith("/attempts") else None
        )
        courier = make_courier(server.url)
        courier.post(report(1))
        eventually(lambda: any(request.path.endswith("/attempts") for request in server.requests))

        ending = threading.Thread(target=courier.stop, args=(PATIENCE_S,))
        ending.start()
        asked = len(server.requests)
        eventually(lambda: len(server.requests) >= asked + 2)
        live.clear()
        ending.join()

        assert seqs(server) == [1]

    def test_fresh_reports_go_before_the_backlog(self, make_courier: MakeCourier, server: RecordingServer) -> None:
        gate = threading.Event()
        server.answer = lambda request: None if gate.is_set() else refusal(503, "unavailable")
        courier = make_courier(server.url)
        for seq in range(1, 40):
            courier.post(report(seq))
        eventually(lambda: courier.away)

        gate.set()
        courier.post(report(40))
        eventually(lambda: len(server.reports()) == 40)

        assert seqs(server)[0] == 40
        assert seqs(server)[1:] == list(range(1, 40))


class TestAnswers:
    def test_busy_is_waited_out_as_long_as_the_server_says(
        self, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        busy = [True, True]
        server.answer = lambda request: refusal(429, "busy", Retry_After="0.3") if busy and busy.pop() else None

        make_courier(server.url).post(report(1))
        eventually(lambda: seqs(server) == [1])
        asked = [request.at for request in server.requests][:3]

        assert asked[1] - asked[0] >= 0.3
        assert asked[2] - asked[1] >= 0.3

    def test_a_server_error_costs_nothing(self, server: RecordingServer, make_courier: MakeCourier) -> None:
        broken = [True, True]
        server.answer = lambda request: refusal(500, "oops") if broken and broken.pop() else None
        courier = make_courier(server.url)

        courier.post(report(1))

        assert eventually(lambda: seqs(server) == [1])
        assert courier.drops.counts() == {}

    def test_a_report_that_is_none_is_dropped_and_counted(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        server.answer = lambda request: refusal(400, "bad_request") if request.body.get("seq") == 2 else None
        courier = make_courier(server.url)

        for seq in (1, 2, 3):
            courier.post(report(seq))
        eventually(lambda: sorted(seqs(server)) == [1, 3])

        assert eventually(lambda: courier.drops.counts() == {"reports the server refused": 1})
        assert eventually(lambda: not spooled(folder))

    def test_a_bad_token_is_said_once_and_keeps_the_reports(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier, capfd: pytest.CaptureFixture[str]
    ) -> None:
        denied = threading.Event()
        denied.set()
        server.answer = lambda request: refusal(401, "unauthorized") if denied.is_set() else None
        courier = make_courier(server.url)
        for seq in (1, 2):
            courier.post(report(seq))
        eventually(lambda: server.requests)
        eventually(lambda: len(spooled(folder)) == 2)

        denied.clear()
        courier.stop(10.0)
        make_courier(server.url, boot="b2")

        assert eventually(lambda: sorted(seqs(server)) == [1, 2])
        said = capfd.readouterr().err
        assert said.count("does not accept the token") <= 1
        assert ".;" not in said

    def test_a_run_that_cannot_be_made_is_said_and_its_reports_are_counted_and_dropped(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier, capfd: pytest.CaptureFixture[str]
    ) -> None:
        server.answer = lambda request: refusal(404, "not_found") if "no%2Fsuch" in request.path else None
        courier = make_courier(server.url)
        for seq in (1, 2):
            courier.post(Entry(NOWHERE, "b1", seq, "reports", b'{"seq":1}'))
        courier.post(report(3))

        assert eventually(lambda: sum(courier.drops.counts().values()) == 2)
        assert eventually(lambda: seqs(server) == [3] and not spooled(folder))
        assert "run no/such could not be described (404): not_found said the test." in capfd.readouterr().err

    def test_another_server_s_404_costs_no_report(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        server.answer = lambda _: Reply(404, {"detail": "no such page"})
        courier = make_courier(server.url)

        courier.post(report(1))
        eventually(lambda: sum(request.method == "PUT" for request in server.requests) >= 2)
        courier.stop(0.0)

        assert courier.drops.counts() == {}
        assert len(spooled(folder)) == 1

    def test_a_live_attempt_is_waited_for(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        live = threading.Event()
        live.set()

        def answer(request: Request) -> Reply | None:
            return refusal(409, "ATTEMPT_LIVE") if live.is_set() and request.path.endswith("/attempts") else None

        server.answer = answer
        courier = make_courier(server.url)
        for seq in (1, 2):
            courier.post(report(seq))
        eventually(lambda: sum(request.path.endswith("/attempts") for request in server.requests) >= 2)
        waiting = spooled(folder)

        live.clear()
        eventually(lambda: sorted(seqs(server)) == [1, 2])

        assert len(waiting) == 2
        assert courier.drops.counts() == {}

    def test_the_key_of_an_ended_attempt_is_given_up(self, server: RecordingServer, make_courier: MakeCourier) -> None:
        server.answer = lambda request: (
            refusal(409, "ATTEMPT_ENDED")
            if request.path.endswith("/attempts") and request.body["key"] == "old"
            else None
        )
        courier = make_courier(server.url)

        courier.post(report(1, key="old"))
        courier.post(report(2, key="old"))
        courier.post(report(3, key="new"))
        eventually(lambda: seqs(server) == [3])

        assert eventually(lambda: sum(courier.drops.counts().values()) == 2)

    def test_an_attempt_the_server_forgot_is_opened_anew(
        self, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        forgot = threading.Event()
        server.answer = lambda request: (
            refusal(404, "not_found") if forgot.is_set() and "/att_1/" in request.path else None
        )
        courier = make_courier(server.url)
        courier.post(report(1))
        eventually(lambda: seqs(server) == [1])

        forgot.set()
        server.attempts.clear()
        server.attempts["another"] = "att_1"
        courier.post(report(2))

        assert eventually(lambda: seqs(server) == [1, 2])
        assert server.attempts["k1"] == "att_2"

    def test_a_server_that_never_answers_is_given_up_in_time(
        self, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        stuck = threading.Event()
        first = [True]
        server.answer = lambda request: Reply(202, hang=stuck) if first and first.pop() else None
        courier = make_courier(server.url, timeout_s=0.3)

        courier.post(report(1))

        assert eventually(lambda: seqs(server) == [1])
        stuck.set()

    def test_the_run_is_made_by_the_node_of_rank_0(self, server: RecordingServer, make_courier: MakeCourier) -> None:
        other = make_courier(server.url, boot="b2")
        other.post(report(1, boot="b2", creates=False))
        eventually(lambda: server.requests)

        make_courier(server.url).post(report(1))
        eventually(lambda: len(server.reports()) == 2)

        assert [request.body for request in server.requests if request.method == "PUT"] == [{"name": "n"}]
        assert server.attempts == {"k1": "att_1"}

    def test_the_end_comes_after_the_reports(self, server: RecordingServer, make_courier: MakeCourier) -> None:
        gate = threading.Event()
        server.answer = lambda request: None if gate.is_set() else refusal(503, "unavailable")
        courier = make_courier(server.url)
        courier.post(Entry(report(9).target, "b1", 3, "end", b'{"reason": "FINISHED"}'))
        for seq in (1, 2, 3):
            courier.post(report(seq))
        eventually(lambda: courier.away)

        gate.set()
        eventually(server.ends)

        assert [request.path.rsplit("/", 1)[1] for request in server.accepted][-4:] == ["reports"] * 3 + ["end"]

    def test_large_reports_are_zipped_where_it_pays(self, server: RecordingServer, make_courier: MakeCourier) -> None:
        courier = make_courier(server.url)

        courier.post(report(1, size=10))
        courier.post(report(2, size=50_000))
        eventually(lambda: len(server.reports()) == 2)

        zipped = {request.body["seq"]: request.zipped for request in server.requests if "seq" in request.body}
        assert zipped == {1: False, 2: True}


class TestBounds:
    def test_a_full_spool_drops_the_oldest_and_counts_them(self, folder: Path, make_courier: MakeCourier) -> None:
        gone = RecordingServer()
        gone.stop()
        courier = make_courier(gone.url, max_bytes=20_000)

        for seq in range(1, 41):
            courier.post(report(seq, size=1_000))
        kept = eventually(lambda: [name for name in spooled(folder) if "000000000040" in name] and spooled(folder))
        dropped = eventually(lambda: courier.drops.counts().get("reports dropped from a full spool"))

        assert dropped == 40 - len(kept)
        assert sum((folder / "spool" / name).stat().st_size for name in kept) <= 20_000
        assert [int(name.split("-")[2]) for name in kept] == list(range(41 - len(kept), 41))
        assert f"{dropped} reports dropped from a full spool" in lost_sentence(courier.drops.counts())

    def test_a_disk_that_refuses_does_not_stop_delivery(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        (folder / "spool").write_text("this is no folder")
        courier = make_courier(server.url)

        courier.post(report(1))

        assert eventually(lambda: seqs(server) == [1])

    def test_a_file_that_is_no_report_is_taken_away(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        spool = Spool(str(folder / "spool"), max_bytes=10_000_000)
        spool.write(report(7, boot="dead"))
        name = spooled(folder)[0]
        (folder / "spool" / name).write_bytes(b'{"target": {"kind": "att')

        make_courier(server.url, boot="b2").post(report(1, boot="b2"))

        assert eventually(lambda: not spooled(folder))
        assert seqs(server) == [1]

    def test_what_nobody_took_for_a_week_goes_and_is_counted(self, folder: Path) -> None:
        spool = Spool(str(folder / "spool"), max_bytes=10_000_000)
        lock = spool.hold("alive")
        spool.write(report(1, boot="old"))
        spool.write(report(2, boot="new"))
        long_ago = time.time() - 2 * KEEP_S
        for path in (folder / "spool").iterdir():
            if "old" in path.name or path.suffix == ".lock":
                os.utime(path, (long_ago, long_ago))

        dropped = spool.tidy()

        assert dropped == 1
        assert [name.split("-")[1] for name in spooled(folder)] == ["new"]
        assert (folder / "spool" / "alive.lock").exists()
        spool.let_go("alive", lock)
        assert not (folder / "spool" / "alive.lock").exists()

    def test_a_backlog_of_thousands_is_taken_up_at_once(
        self, folder: Path, server: RecordingServer, make_courier: MakeCourier
    ) -> None:
        spool = Spool(str(folder / "spool"), max_bytes=100_000_000)
        for seq in range(3_000):
            spool.write(report(seq, boot="dead"))

        courier = make_courier(server.url, boot="b2")
        courier.post(report(1, boot="b2"))
        eventually(lambda: courier.waiting > 2_500)

        assert eventually(lambda: any(one["boot"] == "b2" for one in server.reports()))
        assert eventually(lambda: len(server.reports()) > 20)
