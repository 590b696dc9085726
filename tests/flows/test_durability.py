"""What was answered 2xx is there exactly once, whatever dies meanwhile.

Real processes over a PostgreSQL and a Valkey of this test's own (fsync on), killed the hard way in the middle of work.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event
from typing import Any

import httpx
import psycopg
import pytest
from websockets.exceptions import WebSocketException

from tests.flows.sockets import TRY_LATER, WAIT_S, Caller, rows_until_closed
from tests.flows.standing import LONG_S, Standing

pytestmark = pytest.mark.slow

SENDERS, RANKS_EACH = 4, 2
LEAST_REPORTS, MOST_REPORTS = 60, 1_000
"""How many reports each sender sends at least, and at most: it goes on until everything that shall die has died."""

NOTE_EVERY = 10
PAUSE_S = 0.02


@dataclass
class Sender:
    """A node that reports as the client does: one number after the other, each again until it is accepted."""

    standing: Standing
    attempt: str
    place: int
    over: Event
    boot: str = field(default_factory=lambda: uuid.uuid4().hex)
    accepted: int = 0
    statuses: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"trn{self.place + 1:03d}"

    @property
    def ranks(self) -> list[int]:
        return list(range(self.place * RANKS_EACH, (self.place + 1) * RANKS_EACH))

    def body(self, seq: int) -> dict[str, Any]:
        moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        notes = [{"kind": "note", "happened_at": moment, "text": note(self.name, seq)}] if seq % NOTE_EVERY == 0 else []
        return {
            "sender": self.name,
            "boot": self.boot,
            "seq": seq,
            "sent_at": moment,
            "placement": [{"rank": rank, "node": self.name, "local_rank": rank % RANKS_EACH} for rank in self.ranks],
            "steps": {
                "ranks": self.ranks,
                "steps": [seq],
                "metrics": {"tokens": [[value(rank, seq)] for rank in self.ranks]},
            },
            "events": notes,
        }

    def run(self) -> None:
        """Report until everything is over; each tenth report is sent twice, as when an answer was lost."""
        while self.accepted < MOST_REPORTS and not (self.over.is_set() and self.accepted >= LEAST_REPORTS):
            body = self.body(self.accepted)
            for _ in range(2 if self.accepted % 10 == 5 else 1):
                self.deliver(body)
            self.accepted += 1
            self.over.wait(PAUSE_S)

    def deliver(self, body: dict[str, Any]) -> None:
        def is_accepted() -> bool:
            status, _ = self.standing.ask("POST", f"attempts/{self.attempt}/reports", body)
            self.statuses.add(status)
            return status == 202

        self.standing.site.wait(is_accepted, f"report {body['seq']} of {self.name} to be accepted", LONG_S)


def value(rank: int, step: int) -> float:
    """Return what a rank reports of a step: no two alike, and kept exactly."""
    return 10_000.0 * (rank + 1) + step


def note(sender: str, seq: int) -> str:
    return f"{sender} says {seq}."


@pytest.fixture
def attempt(standing: Standing) -> str:
    """An open attempt on all senders' ranks."""
    assert standing.ask("PUT", "runs/durable", {"cluster": "north"})[0] == 201
    opened = {"key": "slurm:1.0.0", "world_size": SENDERS * RANKS_EACH}
    status, answer = standing.ask("POST", "runs/durable/attempts", opened)
    assert status == 201
    return str(answer["id"])


@contextmanager
def stream(standing: Standing, attempt: str) -> Iterator[list[Sender]]:
    """Let all senders report while the block runs, and until each has sent its least."""
    over = Event()
    senders = [Sender(standing, attempt, place, over) for place in range(SENDERS)]
    with ThreadPoolExecutor(max_workers=SENDERS) as pool:
        try:
            going: list[Future[None]] = [pool.submit(sender.run) for sender in senders]
            yield senders
        finally:
            over.set()
        for one in going:
            one.result(timeout=LONG_S * 2)


def more_accepted(standing: Standing, senders: list[Sender], count: int = 20) -> None:
    """Wait until `count` reports more than now are accepted."""
    want = sum(sender.accepted for sender in senders) + count
    standing.site.wait(lambda: sum(s.accepted for s in senders) >= want, "more reports to be accepted", LONG_S)


def answers(senders: list[Sender]) -> set[int]:
    """Return with which statuses reports were answered so far."""
    return {status for sender in senders for status in tuple(sender.statuses)}


def kill_the_fold_midway(standing: Standing) -> None:
    """Kill the fold's worker while it stands in its transaction, all its writes but the last done."""
    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        "AND query LIKE '%telemetry_series%'"
    )
    with psycopg.connect(standing.servers.servers.database_url) as holder:
        holder.execute("SELECT id FROM telemetry_series FOR UPDATE")
        standing.site.wait(lambda: standing.sql(waits), "the fold to stand in its transaction", LONG_S)
        standing.site.kill("worker-fold")


def fold_worker_killed(standing: Standing, senders: list[Sender]) -> None:
    standing.site.wait(lambda: standing.sql("SELECT 1 FROM telemetry_series WHERE last_step > 5"), "folds", LONG_S)
    kill_the_fold_midway(standing)
    more_accepted(standing, senders)
    standing.site.worker("fold")


def broker_lost_for_a_while(standing: Standing, senders: list[Sender]) -> None:
    standing.broker_lost()
    more_accepted(standing, senders)
    standing.servers.start("valkey")
    more_accepted(standing, senders)


def database_killed(standing: Standing, senders: list[Sender]) -> None:
    standing.servers.kill("postgres")
    standing.site.wait(lambda: answers(senders) != {202}, "a report to be put off", LONG_S)
    standing.servers.start("postgres")
    more_accepted(standing, senders)


def web_killed(standing: Standing, senders: list[Sender]) -> None:
    standing.site.kill("web")
    standing.site.start()
    more_accepted(standing, senders)


def test_every_accepted_report_is_there_once_whatever_dies(standing: Standing, attempt: str) -> None:
    with stream(standing, attempt) as senders:
        fold_worker_killed(standing, senders)
        broker_lost_for_a_while(standing, senders)
        undisturbed = answers(senders)
        database_killed(standing, senders)
        put_off = answers(senders)
        web_killed(standing, senders)
    standing.site.wait(lambda: not standing.sql("SELECT 1 FROM telemetry_inbox LIMIT 1"), "the inbox to empty", LONG_S)

    assert (undisturbed, put_off) == ({202}, {202, 503})
    folded = standing.sql("SELECT sender, boot, seqs::text, reports, rewritten FROM telemetry_folded ORDER BY sender")
    assert folded == [(s.name, s.boot, f"{{[0,{s.accepted})}}", s.accepted, 0) for s in senders]
    assert standing.sql("SELECT filled, rewritten FROM telemetry_series") == [
        (sum(sender.accepted for sender in senders) * RANKS_EACH, 0)
    ]
    assert values_read(standing, attempt, senders) == values_sent(senders)
    assert notes_read(standing) == notes_sent(senders)
    assert standing.read(f"attempts/{attempt}/refusals")["results"] == []


def values_sent(senders: list[Sender]) -> dict[tuple[int, int], float]:
    return {(r, step): value(r, step) for s in senders for r in s.ranks for step in range(s.accepted)}


def values_read(standing: Standing, attempt: str, senders: list[Sender]) -> dict[tuple[int, int], float]:
    """Return every value that REST gives, by rank and step."""
    last = max(sender.accepted for sender in senders)
    answer = standing.read(f"attempts/{attempt}/heatmap?metric=tokens&from=0&to={last}&rows=64&columns={last}")
    assert answer["steps_per_column"] == 1
    rows = [row["ranks"][0] for row in answer["rows"]]
    return {
        (rank, step): cell
        for rank, cells in zip(rows, answer["cells"], strict=True)
        for step, cell in zip(answer["steps"], cells, strict=True)
        if cell is not None
    }


def notes_sent(senders: list[Sender]) -> list[str]:
    return sorted(note(s.name, seq) for s in senders for seq in range(0, s.accepted, NOTE_EVERY))


def notes_read(standing: Standing) -> list[str]:
    """Return what was noted in the run's log, in the order of the alphabet; no number of the log is missing."""
    rows = standing.events("durable")
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    return sorted(row["text"] for row in rows if row["kind"] == "rank.note")


def session_of_first_operator(standing: Standing) -> str:
    link = standing.site.manage("first_operator")
    with httpx.Client(follow_redirects=True) as browser:
        browser.get(link)
        token = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        browser.post(link, data=token, headers={"Referer": link})
        return str(browser.cookies["sessionid"])


@pytest.mark.usefixtures("attempt")
def test_a_live_connection_is_given_back_with_the_database_and_comes_again(standing: Standing) -> None:
    caller = Caller(standing.site.url, session_of_first_operator(standing))

    def first_message() -> Any:
        with suppress(WebSocketException, OSError), caller.connect(path, origin=caller.url) as socket:
            return json.loads(socket.recv(timeout=WAIT_S))

    path = "/ws/feed?stream=run:durable@1"
    with caller.connect(path, origin=caller.url) as socket:
        assert json.loads(socket.recv(timeout=WAIT_S))["type"] == "rows"
        standing.servers.kill("postgres")
        ended = rows_until_closed(socket)
    standing.servers.start("postgres")

    assert ended == (0, TRY_LATER)
    again = standing.site.wait(first_message, "the feed to come again", LONG_S)
    assert [row["kind"] for row in again["rows"]] == ["attempt.opened"]
