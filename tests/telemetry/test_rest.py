"""REST: what ranks do now, what was refused, gauges of a node, reports where no lean door stands in front."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
import pytest

from apps.common import clock
from apps.common.ids import id_write
from apps.telemetry.models import Inbox
from apps.telemetry.services.fold import cluster_fold
from tests.telemetry.reports import Site
from tests.telemetry.test_nodes import NodeSite

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    return Site(attempt.id, now)


@pytest.fixture
def code(attempt: Any) -> str:
    return id_write("att", attempt.id)


class TestRanks:
    def test_shows_every_rank_with_its_place_and_its_newest_beat(
        self, site: Site, code: str, api: Callable[..., Any]
    ) -> None:
        site.now = clock.now()
        site.put(at=-2, beats=[{"rank": 1, "step": 7, "phase": "communication", "phase_age_s": 3.0}])
        site.put(seq=2, events=[{"kind": "exit", "rank": 2, "signal": 9}])

        answer = api("read").get(f"/api/v1/attempts/{code}/ranks").json()

        ranks = answer["results"]
        assert answer["next"] is None
        assert [row["rank"] for row in ranks] == list(range(8))
        assert [row["node"] for row in ranks] == ["trn001"] * 4 + ["trn002"] * 4
        assert (ranks[1]["step"], ranks[1]["phase"], ranks[1]["local_rank"]) == (7, "communication", 1)
        assert 5.0 <= ranks[1]["phase_age_s"] < 60
        assert (ranks[0]["step"], ranks[0]["phase"], ranks[0]["beat_at"], ranks[0]["exit"]) == (None, None, None, None)
        assert ranks[2]["exit"]["signal"] == 9

    def test_pages_by_rank(self, code: str, api: Callable[..., Any]) -> None:
        reader = api("read")

        first = reader.get(f"/api/v1/attempts/{code}/ranks?limit=5").json()
        second = reader.get(f"/api/v1/attempts/{code}/ranks?limit=5&cursor={first['next']}").json()

        assert [row["rank"] for row in first["results"] + second["results"]] == list(range(8))
        assert second["next"] is None


class TestRefusals:
    def test_lists_what_was_not_taken_by_sender_and_reason(
        self, site: Site, code: str, api: Callable[..., Any]
    ) -> None:
        site.put(seq=1, steps={"ranks": [9, 0], "steps": [1], "metrics": {"step_s": [[1], [-5]]}})
        site.put(sender="trn002", seq=1, beats=[{"rank": "x"}])
        site.fold()
        reader = api("read")

        first = reader.get(f"/api/v1/attempts/{code}/refusals?limit=2").json()
        second = reader.get(f"/api/v1/attempts/{code}/refusals?limit=2&cursor={first['next']}").json()

        rows = first["results"] + second["results"]
        assert [(row["sender"], row["reason"], row["count"]) for row in rows] == [
            ("trn001", "IMPOSSIBLE", 1),
            ("trn001", "RANK_OUTSIDE", 1),
            ("trn002", "UNREADABLE", 1),
        ]
        assert rows[1]["sample"] == "rank 9 of 8"
        assert rows[1]["message"] == "The attempt has no such rank."

    @pytest.mark.parametrize("cursor", ["bm90", "NQ", "WzEsMl0"])
    def test_a_cursor_that_is_none_of_ours_is_400(self, code: str, api: Callable[..., Any], cursor: str) -> None:
        answer = api("read").get(f"/api/v1/attempts/{code}/refusals?cursor={cursor}")

        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


class TestScopes:
    @pytest.mark.parametrize("door", ["attempts/{}/ranks", "attempts/{}/refusals"])
    def test_reading_needs_the_scope_and_the_cluster(
        self, code: str, api: Callable[..., Any], cluster: int, door: str
    ) -> None:
        path = f"/api/v1/{door.format(code)}"

        assert api("report").get(path).status_code == 403
        assert api("read", cluster_id=cluster + 1).get(path).status_code == 403
        assert api("read", cluster_id=cluster).get(path).status_code == 200


class TestNodeSeries:
    def test_gauges_by_time_with_what_they_are(self, cluster: int, now: datetime, api: Callable[..., Any]) -> None:
        node = NodeSite(cluster, "trn001", now)
        node.put(gpus=[{"gpu": "GPU-1", "index": 0, "power_w": 300}], host={"load1": 2})
        cluster_fold(cluster_id=cluster, now=now)
        reader = api("read")
        path = "/api/v1/nodes/north:trn001/series?since=2026-11-30T11:59:45Z&until=2026-11-30T12:00:10Z"

        answer = reader.get(path)
        again = reader.get(path, headers={"If-None-Match": answer["ETag"]})

        found = answer.json()
        assert {row["name"]: (row["of"], row["unit"], row["values"]) for row in found["metrics"]} == {
            "power_w": ("GPU", "W", [[None, 300.0]]),
            "load1": ("NODE", "", [[None, 2.0]]),
        }
        assert [row["gpu"] for row in found["gpus"]] == ["GPU-1"]
        assert found["times"][1] == now.timestamp()
        assert again.status_code == 304

    @pytest.mark.parametrize(
        "query",
        [
            "since=yesterday",
            "since=2026-11-30T12:00:00",
            "since=2026-01-01T00:00:00Z",
            "until=0001-01-01T00:00:00Z",
            "until=9999-12-31T23:59:59Z",
        ],
    )
    def test_times_that_cannot_be_read_are_400(
        self, cluster: int, now: datetime, api: Callable[..., Any], query: str
    ) -> None:
        NodeSite(cluster, "trn001", now)

        assert api("read").get(f"/api/v1/nodes/trn001/series?{query}").status_code == 400


class TestReportsThroughDjango:
    def test_a_report_is_kept_as_the_lean_door_keeps_it(self, code: str, api: Callable[..., Any]) -> None:
        body = orjson.dumps({"sender": "a", "boot": "b", "seq": 5, "beats": [{"rank": 1}], "colour": 1})

        answer = api("report").post(
            f"/api/v1/attempts/{code}/reports", gzip.compress(body), headers={"Content-Encoding": "gzip"}
        )

        row = Inbox.objects.get()
        assert (answer.status_code, answer.json()) == (202, {"accepted": True, "ignored": ["colour"]})
        assert (row.sender, row.seq, bytes(row.body)) == ("a", 5, body)

    def test_a_body_past_the_bound_is_refused(self, code: str, api: Callable[..., Any], settings: Any) -> None:
        settings.PACELINE_LIMITS = {**settings.PACELINE_LIMITS, "report_bytes": 100}
        long = orjson.dumps({"sender": "a", "boot": "b", "seq": 1, "events": [{"kind": "log", "text": "x" * 200}]})

        answers = [
            api("report").post(f"/api/v1/attempts/{code}/reports", body, headers=headers)
            for body, headers in ((long, {}), (gzip.compress(long), {"Content-Encoding": "gzip"}))
        ]

        assert [answer.status_code for answer in answers] == [413, 413]
        assert not Inbox.objects.exists()

    def test_a_node_report_makes_its_node(self, cluster: int, api: Callable[..., Any]) -> None:
        answer = api("report").post("/api/v1/nodes/north:new-1/reports", {"gpus": []})

        assert answer.status_code == 202
        assert Inbox.objects.get().owner_kind == "CLUSTER"

    @pytest.mark.parametrize(("scope", "body", "status"), [("read", b"{}", 403), ("report", b"[]", 400)])
    def test_refuses_as_the_lean_door_does(
        self, code: str, api: Callable[..., Any], scope: str, body: bytes, status: int
    ) -> None:
        assert api(scope).post(f"/api/v1/attempts/{code}/reports", body).status_code == status
