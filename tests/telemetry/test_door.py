"""The door: what is kept, what is refused, and how it says so."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from django.db import connection

from apps.common.ids import id_write
from apps.telemetry.door import commit, pulse
from apps.telemetry.door.commit import Committer
from apps.telemetry.models import DoorBeat, FoldCall, Inbox
from tests.telemetry.callers import door_open

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def path(attempt: Any) -> str:
    return f"attempts/{id_write('att', attempt.id)}/reports"


@pytest.fixture
def token(make_token: Callable[..., str], attempt: Any) -> str:
    return make_token("report")


def report(seq: int = 1, **more: Any) -> dict[str, Any]:
    return {"sender": "trn001", "boot": "b1", "seq": seq, "sent_at": "2026-11-30T12:00:05.120Z", **more}


class TestReportDoor:
    async def test_answers_202_once_the_row_is_committed(self, path: str, token: str) -> None:
        async with door_open(token) as caller:
            answer = await caller.post(path, report(beats=[{"rank": 0, "step": 7}], steps={"steps": [7, 9]}))

        row = Inbox.objects.get()
        assert (answer.status_code, answer.json()) == (202, {"accepted": True, "ignored": []})
        assert (row.sender, row.boot, row.seq, row.newest_step) == ("trn001", "b1", 1, 9)
        assert orjson.loads(bytes(row.beats or b"")) == [{"rank": 0, "step": 7}]
        assert row.sent_at is not None
        assert row.sent_at.isoformat() == "2026-11-30T12:00:05.120000+00:00"

    @pytest.mark.parametrize("more", [{}, {"colour": "red"}])
    @pytest.mark.parametrize(
        "sent_at",
        ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "2026-11-30T12:00"],
    )
    async def test_a_time_that_nobody_could_read_back_is_not_known(
        self, path: str, token: str, sent_at: str, more: dict[str, Any]
    ) -> None:
        async with door_open(token) as caller:
            answer = await caller.post(path, report(sent_at=sent_at, **more))

        assert answer.status_code == 202
        assert Inbox.objects.get().sent_at is None

    async def test_names_what_it_ignored(self, path: str, token: str) -> None:
        async with door_open(token) as caller:
            answer = await caller.post(path, report(colour="red", future={"a": 1}, links=[]))

        assert answer.status_code == 202
        assert answer.json()["ignored"] == ["colour", "future", "links"]  # nobody reads links yet

    async def test_reads_gzip_of_several_members(self, path: str, token: str) -> None:
        whole = orjson.dumps(report())
        body = gzip.compress(whole[:20]) + gzip.compress(whole[20:])

        async with door_open(token) as caller:
            answer = await caller.post(path, body, headers={"Content-Encoding": "gzip"})

        assert answer.status_code == 202
        assert bytes(Inbox.objects.get().body) == whole

    async def test_keeps_a_report_with_bare_nan_and_infinity(self, path: str, token: str) -> None:
        body = b'{"sender":"a","boot":"b","seq":3,"steps":{"ranks":[0],"steps":[5],"metrics":{"loss":[[NaN]],"x":[[Infinity]]}}}'

        async with door_open(token) as caller:
            answer = await caller.post(path, body)

        kept = orjson.loads(bytes(Inbox.objects.get().body))
        assert answer.status_code == 202
        assert kept["steps"]["metrics"] == {"loss": [["nan"]], "x": [["inf"]]}

    async def test_knows_a_report_without_number_by_its_content(self, path: str, token: str) -> None:
        async with door_open(token) as caller:
            for body in ({"steps": {"steps": [1]}}, {"steps": {"steps": [1]}}, {"steps": {"steps": [2]}}):
                await caller.post(path, body)

        same, again, other = Inbox.objects.order_by("newest_step", "id").values_list("sender", "boot", "seq")
        assert same == again
        assert other[1] != same[1]
        assert same[0] == "test"

    async def test_keeps_exits_in_a_column_of_their_own(self, path: str, token: str) -> None:
        events = [{"kind": "log", "text": "a"}, {"kind": "exit", "rank": 3, "signal": 9}]

        async with door_open(token) as caller:
            await caller.post(path, report(events=events))

        assert orjson.loads(bytes(Inbox.objects.get().exits or b"")) == [{"kind": "exit", "rank": 3, "signal": 9}]

    async def test_asks_for_one_fold_however_many_reports_come(self, path: str, token: str, attempt: Any) -> None:
        async with door_open(token) as caller:
            await asyncio.gather(*(caller.post(path, report(seq)) for seq in range(40)))
            await until(lambda: FoldCall.objects.exists())

        assert Inbox.objects.count() == 40
        assert list(FoldCall.objects.values_list("owner_kind", "owner_id")) == [("ATTEMPT", attempt.id)]

    async def test_the_last_report_of_a_burst_gets_a_fold_too(self, path: str, token: str) -> None:
        async with door_open(token) as caller:
            await caller.post(path, report(1))
            await until(lambda: FoldCall.objects.exists())
            FoldCall.objects.all().delete()  # what a fold does when it begins
            await caller.post(path, report(2))
            await until(lambda: FoldCall.objects.exists())

        assert FoldCall.objects.count() == 1

    async def test_a_node_appears_when_it_first_reports(self, make_token: Callable[..., str], cluster: int) -> None:
        from apps.fleet.models import Node

        async with door_open(make_token("report")) as caller:
            answer = await caller.post("nodes/north:trn900/reports", report(gpus=[], colour=1))

        node = Node.objects.get(name="trn900")
        row = Inbox.objects.get()
        assert (answer.status_code, answer.json()["ignored"]) == (202, ["colour"])
        assert (row.owner_kind, row.owner_id, row.scope_kind, row.scope_id) == ("CLUSTER", cluster, "NODE", node.pk)

    async def test_passes_everything_else_on(self, token: str) -> None:
        async with door_open(token) as caller:
            answers = [
                (await caller.http.get(path)).status_code
                for path in ("/", "/api/v1/runs", "/api/v1/attempts/att_1/heatmap", "/api/v1/attempts//reports")
            ]

        assert answers == [299, 299, 299, 299]


REFUSED = [
    (b"[]", 400, "bad_request"),
    (b"not json", 400, "bad_request"),
    (b'{"sender": 5}', 400, "bad_request"),
    (b'{"sender": "a\\u0000"}', 400, "bad_request"),
    (b'{"sender": "a\\ud800", "boot": "b", "seq": 1}', 400, "bad_request"),
    (orjson.dumps({"sender": "x" * 256}), 400, "bad_request"),
    (orjson.dumps({"sender": "a", "boot": "b", "seq": -1}), 400, "bad_request"),
    (orjson.dumps({"sender": "a", "boot": "b", "seq": 2**63}), 400, "bad_request"),
    (b'{"a":' * 50_000 + b"NaN" + b"}" * 50_000, 400, "bad_request"),
]


class TestRefusals:
    @pytest.mark.parametrize(("body", "status", "code"), REFUSED)
    async def test_refuses_what_cannot_be_a_report(
        self, path: str, token: str, body: bytes, status: int, code: str
    ) -> None:
        async with door_open(token) as caller:
            answer = await caller.post(path, body)

        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert set(error) == {"code", "message", "facts", "request_id"}
        assert error["request_id"] == answer.headers["x-request-id"]
        assert not Inbox.objects.exists()

    async def test_a_gzip_bomb_is_stopped_while_it_expands(self, path: str, token: str) -> None:
        bomb = gzip.compress(b" " * (64 * 2**20))

        async with door_open(token) as caller:
            answer = await caller.post(path, bomb, headers={"Content-Encoding": "gzip"})

        assert len(bomb) < 100_000
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")

    async def test_a_body_past_the_bound_is_refused_before_it_is_read(
        self, path: str, token: str, settings: Any
    ) -> None:
        settings.PACELINE_LIMITS = {**settings.PACELINE_LIMITS, "report_bytes": 100}

        async with door_open(token) as caller:
            answer = await caller.post(path, report(events=[{"kind": "log", "text": "x" * 200}]))

        assert answer.status_code == 413

    @pytest.mark.parametrize("raw", [b"not gzip", gzip.compress(b"{}")[:-3]], ids=["not gzip", "cut"])
    async def test_a_broken_gzip_body_is_refused(self, path: str, token: str, raw: bytes) -> None:
        async with door_open(token) as caller:
            answer = await caller.post(path, raw, headers={"Content-Encoding": "gzip"})

        assert answer.status_code == 400

    @pytest.mark.parametrize(
        "headers", [{"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Encoding": "br"}]
    )
    async def test_other_types_and_encodings_are_refused(self, path: str, token: str, headers: dict[str, str]) -> None:
        async with door_open(token) as caller:
            answer = await caller.post(path, report(), headers=headers)

        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")

    async def test_needs_a_token(self, path: str) -> None:
        async with door_open() as caller:
            missing = await caller.post(path, report())
            unknown = await caller.post(path, report(), headers={"Authorization": "Bearer pace_nope"})

        assert (missing.status_code, unknown.status_code) == (401, 401)
        assert missing.headers["www-authenticate"] == "Bearer"

    async def test_needs_the_scope_report(self, path: str, make_token: Callable[..., str]) -> None:
        async with door_open(make_token("read", "operate", "admin")) as caller:
            answer = await caller.post(path, report())

        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")

    async def test_a_token_of_another_cluster_is_refused(
        self, path: str, make_token: Callable[..., str], cluster: int
    ) -> None:
        async with door_open(make_token("report", cluster_id=cluster + 1000)) as caller:
            of_attempt = await caller.post(path, report())
            of_node = await caller.post("nodes/north:trn001/reports", report())

        assert (of_attempt.status_code, of_node.status_code) == (403, 403)

    async def test_an_unknown_attempt_is_404(self, token: str) -> None:
        async with door_open(token) as caller:
            answers = [
                (await caller.post(f"attempts/{code}/reports", report())).status_code for code in ("att_zzzz", "17")
            ]

        assert answers == [404, 404]

    async def test_a_zero_byte_in_the_address_is_400(self, token: str) -> None:
        async with door_open(token) as caller:
            answer = await caller.post("nodes/trn%00001/reports", report())

        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "The address holds a zero byte.")

    async def test_a_node_name_that_several_clusters_know_is_409(
        self, make_token: Callable[..., str], attempt: Any, now: Any
    ) -> None:
        from apps.fleet.services import cluster_ensure, nodes_ensure

        nodes_ensure(cluster_id=cluster_ensure(name="south", now=now), names=["trn001"], now=now)

        async with door_open(make_token("report")) as caller:
            answer = await caller.post("nodes/trn001/reports", report())

        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "AMBIGUOUS")

    async def test_other_methods_are_405(self, path: str, token: str) -> None:
        async with door_open(token) as caller:
            answer = await caller.http.get(f"/api/v1/{path}", headers=caller.headers)

        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

    async def test_a_revoked_token_ends_within_five_seconds(
        self, path: str, token: str, now: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from apps.accounts.models import ApiToken
        from apps.telemetry.door import access

        clock = [1000.0]
        monkeypatch.setattr(access, "monotonic", lambda: clock[0])

        async with door_open(token) as caller:
            first = await caller.post(path, report(1))
            ApiToken.objects.update(revoked_at=now)
            at_once = await caller.post(path, report(2))
            clock[0] += access.TOKEN_LIFE_S
            later = await caller.post(path, report(3))

        assert (first.status_code, at_once.status_code, later.status_code) == (202, 202, 401)


@pytest.fixture
def inbox_refuses_bad() -> Iterator[None]:
    """The database itself refuses the rows of the sender `bad`."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE telemetry_inbox ADD CONSTRAINT no_bad CHECK (sender <> 'bad')")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE telemetry_inbox DROP CONSTRAINT no_bad")


class TestGroupCommit:
    async def test_one_bad_row_never_fails_its_neighbours(self, path: str, token: str, inbox_refuses_bad: None) -> None:
        async with door_open(token) as caller:
            answers = await asyncio.gather(
                *(caller.post(path, {**report(n), "sender": "bad" if n == 13 else f"s{n}"}) for n in range(30))
            )

        statuses = [answer.status_code for answer in answers]
        assert statuses == [422 if n == 13 else 202 for n in range(30)]
        assert Inbox.objects.count() == 29

    async def test_many_reports_share_a_commit(self, path: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        whole = Committer._commit

        async def counted(self: Committer, group: Any) -> Any:
            sizes.append(len(group))
            await whole(self, group)

        monkeypatch.setattr(Committer, "_commit", counted)

        async with door_open(token) as caller:
            await caller.post(path, report(0))
            await asyncio.gather(*(caller.post(path, report(n)) for n in range(1, 101)))

        assert sum(sizes) == 101
        assert len(sizes) < 30

    async def test_while_the_database_stands_still_reports_are_sent_away_before_they_pile_up(
        self, path: str, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, goes_on, whole = asyncio.Event(), asyncio.Event(), Committer._commit

        async def later(self: Committer, group: Any) -> None:
            begun.set()
            await goes_on.wait()
            await whole(self, group)

        monkeypatch.setattr(Committer, "_commit", later)
        monkeypatch.setattr(commit, "MOST_WAITING_BYTES", 100)

        async with door_open(token) as caller:
            first = asyncio.ensure_future(caller.post(path, report(1)))
            await begun.wait()
            second = await caller.post(path, report(2))
            goes_on.set()
            answers = [await first, second, await caller.post(path, report(3))]

        assert [answer.status_code for answer in answers] == [202, 503, 202]
        assert second.headers["retry-after"] == "2"

    async def test_a_door_that_closes_answers_what_it_is_writing(
        self, path: str, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, whole = asyncio.Event(), Committer._commit

        async def slow(self: Committer, group: Any) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            await whole(self, group)

        monkeypatch.setattr(Committer, "_commit", slow)

        async with door_open(token) as caller:
            asked = asyncio.ensure_future(caller.post(path, report()))
            await begun.wait()

        assert (await asyncio.wait_for(asked, 5)).status_code == 202
        assert Inbox.objects.count() == 1

    async def test_a_sender_that_hangs_up_leaves_no_trace(self, path: str, token: str) -> None:
        from apps.telemetry.door import ReportDoor
        from tests.telemetry.callers import inner

        door = ReportDoor(inner)
        messages = iter([{"type": "http.request", "body": b'{"sen', "more_body": True}, {"type": "http.disconnect"}])
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/api/v1/{path}",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        await door(scope, receive, send)
        await door.close()

        assert sent == []
        assert not Inbox.objects.exists()


class TestBackPressure:
    async def test_a_full_inbox_is_429_with_a_time_to_come_again(self, path: str, token: str, settings: Any) -> None:
        settings.PACELINE_LIMITS = {**settings.PACELINE_LIMITS, "inbox_rows": 3}

        async with door_open(token) as caller:
            answers = [await caller.post(path, report(n)) for n in range(5)]

        assert [answer.status_code for answer in answers] == [202, 202, 202, 429, 429]
        assert answers[-1].json()["error"]["code"] == "busy"
        assert int(answers[-1].headers["retry-after"]) >= 1

    async def test_the_heartbeat_tells_since_when_reports_could_come(
        self, path: str, token: str, settings: Any
    ) -> None:
        async with door_open(token) as caller:
            await caller.post(path, report())
            beat = await until(lambda: DoorBeat.objects.filter(accepting_since__isnull=False).first())
            settings.PACELINE_LIMITS = {**settings.PACELINE_LIMITS, "inbox_rows": 0}
            full = await until(lambda: DoorBeat.objects.filter(accepting_since__isnull=True, inbox_rows=1).first())
            settings.PACELINE_LIMITS = {**settings.PACELINE_LIMITS, "inbox_rows": 10}
            again = await until(lambda: DoorBeat.objects.filter(accepting_since__isnull=False).first())

        assert full.inbox_rows == 1
        assert again.accepting_since > beat.accepting_since
        assert not DoorBeat.objects.exists()  # a door that closes in good order takes its row along

    async def test_the_heartbeat_keeps_its_period_while_counting_is_slow(
        self, path: str, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow = "SELECT count(id), 0::int8, min(received_at) FROM pg_sleep(20) LEFT JOIN telemetry_inbox ON true"
        monkeypatch.setattr(pulse, "_COUNT", slow)  # longer than a door may be silent before it counts as blind

        async with door_open(token) as caller:
            await caller.post(path, report())
            beats = [await until(lambda: DoorBeat.objects.first())]
            for _ in range(3):
                last = beats[-1].last_beat_at
                beats.append(await until(lambda last=last: DoorBeat.objects.filter(last_beat_at__gt=last).first()))

        assert len({beat.last_beat_at for beat in beats}) == 4
        assert {beat.instance for beat in beats} == {beats[0].instance}


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return what `holds()` gives once it is true."""
    for _ in range(int(seconds / 0.05)):
        if found := holds():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("waited too long")
