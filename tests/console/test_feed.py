"""The live feed over a real socket: what a gap held comes once, none twice, and strangers hear nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import Client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from apps.journal.choices import StreamKey
from apps.journal.services import recording

WAIT_S = 20.0


class Listener:
    """A socket of a signed-in reader; `rows` gathers log rows by stream until there are as many as asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def next(self, kind: str) -> dict[str, Any]:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            message = json.loads(self.socket.recv(timeout=WAIT_S))
            if message["type"] == kind:
                return message
        raise AssertionError(f"heard no {kind} within {WAIT_S:g} s")

    def rows(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            found += [row["seq"] for row in self.next("rows")["rows"]]
        return found


@pytest.fixture
def listen(site: Any, make_user: Callable[..., Any]) -> Callable[..., Any]:
    """Open a feed as a viewer: `with listen("/ws/feed?stream=run:x@0") as heard`."""
    client = Client()
    client.force_login(make_user("VIEWER"), backend="django.contrib.auth.backends.ModelBackend")
    cookie = f"sessionid={client.cookies['sessionid'].value}"

    @contextmanager
    def opened(path: str, *, signed_in: bool = True, origin: str | None = None) -> Iterator[Listener]:
        headers = {"Cookie": cookie} if signed_in else {}
        with connect(
            site.url.replace("http", "ws") + path, additional_headers=headers, origin=origin or site.url
        ) as socket:
            yield Listener(socket)

    return opened


@pytest.fixture
def say(run: Any, now: Any) -> Callable[[int], None]:
    """Write rows into the run's log, one transaction each."""

    def write(count: int) -> None:
        for number in range(count):
            with recording(now=now) as log:
                log.add(StreamKey.run(run.id), kind="note.added", text=f"row {number}", source="WEB")

    return write


class TestStreams:
    def test_rows_after_the_cursor_come_at_once_and_new_ones_as_they_are_written(self, listen, run, say) -> None:
        say(3)

        with listen(f"/ws/feed?stream=run:{run.slug}@1") as heard:
            before = heard.rows(3)
            say(2)
            after = heard.rows(2)

        assert before == [2, 3, 4]
        assert after == [5, 6]

    def test_a_reconnect_brings_what_the_gap_held_once(self, listen, run, say) -> None:
        with listen(f"/ws/feed?stream=run:{run.slug}@0") as heard:
            seen = heard.rows(1)
        say(5)

        with listen(f"/ws/feed?stream=run:{run.slug}@{seen[-1]}") as heard:
            gap = heard.rows(5)
            say(1)
            later = heard.rows(1)

        assert seen + gap + later == [1, 2, 3, 4, 5, 6, 7]

    def test_a_long_gap_comes_in_parts_and_in_order(self, listen, run, now) -> None:
        with recording(now=now) as log:
            for number in range(450):
                log.add(StreamKey.run(run.id), kind="rank.log", text=f"line {number}", source="SENDER")

        with listen(f"/ws/feed?stream=run:{run.slug}@0") as heard:
            rows = heard.rows(451)

        assert rows == list(range(1, 452))

    def test_a_page_can_follow_a_run_and_a_node(self, listen, run, attempt, now) -> None:
        from apps.fleet.selectors import node_by_code
        from apps.fleet.services import node_event

        node = node_by_code("north:trn001")
        with recording(now=now) as log:
            node_event(log, node_id=node.id, kind="node.gauge", text="hot", source="SENDER")

        with listen(f"/ws/feed?stream=run:{run.slug}@0&stream=node:north:trn001@0") as heard:
            streams = {heard.next("rows")["stream"] for _ in range(2)}

        assert streams == {f"run:{run.slug}", "node:north:trn001"}

    def test_a_changed_series_is_told_by_version_and_never_with_cells(self, listen, run) -> None:
        from apps.common.live import poke, stream_group

        with listen(f"/ws/feed?stream=run:{run.slug}@0") as heard:
            heard.rows(1)
            poke(stream_group("RUN", run.id), {"what": "series", "attempt": 7, "version": 12})
            message = heard.next("series")

        assert set(message) == {"at", "type", "attempt", "version"}
        assert message["version"] == 12

    def test_a_tick_tells_the_servers_clock(self, listen, run) -> None:
        with listen(f"/ws/feed?stream=run:{run.slug}@0") as heard:
            assert heard.next("tick")["at"].endswith("Z")


class TestFleet:
    def test_a_changed_run_is_named(self, listen, run) -> None:
        from apps.runs.services import status_update

        with listen("/ws/fleet") as heard:
            heard.next("tick")
            status_update(run_id=run.id, step=5)
            message = heard.next("fleet")

        assert (message["what"], message["id"]) == ("run", run.id)


class TestPresence:
    def test_readers_of_an_incident_hear_of_each_other(self, listen, run) -> None:
        path = f"/ws/feed?stream=run:{run.slug}@0&page=incident:1"
        with listen(path) as one, listen(path) as other:
            other.rows(1)
            one.socket.send(json.dumps({"type": "presence", "doing": "inserting at 02:05"}))

            assert other.next("presence")["doing"] == "inserting at 02:05"


class TestDoor:
    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("/ws/feed?stream=run:nothing@0", 4404),
            ("/ws/feed?stream=run:dense-7b", 4404),
            ("/ws/feed?stream=x:y@0", 4404),
            ("/ws/feed?stream=run:a%00b@0", 4404),
        ],
    )
    def test_a_stream_that_is_none_is_closed_with_a_reason(self, listen, run, path: str, code: int) -> None:
        with listen(path) as heard:
            assert heard.next("error")["message"]
            with pytest.raises(ConnectionClosed):
                heard.socket.recv(timeout=WAIT_S)

        assert heard.socket.close_code == code

    def test_a_stranger_is_sent_away(self, listen, run) -> None:
        with listen("/ws/fleet", signed_in=False) as heard, pytest.raises(ConnectionClosed):
            heard.socket.recv(timeout=WAIT_S)

        assert heard.socket.close_code == 4401

    def test_another_sites_page_cannot_listen(self, listen, run) -> None:
        from websockets.exceptions import InvalidStatus

        with pytest.raises(InvalidStatus), listen("/ws/fleet", origin="https://elsewhere.example"):
            pass

    def test_an_address_that_is_none_is_refused_and_fails_nothing(self, listen, run) -> None:
        from websockets.exceptions import InvalidStatus

        with pytest.raises(InvalidStatus) as refused, listen("/ws/nothing"):
            pass

        assert refused.value.response.status_code == 403
