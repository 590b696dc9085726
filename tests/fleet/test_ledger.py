"""The ledger: append-only in the database itself, every stay with its number, listed and exported however long it is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.common.errors import Conflict
from apps.fleet.models import Exclusion
from apps.fleet.selectors import LedgerFilter, exclusions_due, exclusions_of, ledger_count, ledger_rows, node_by_id
from apps.fleet.services import exclusion_end, exclusion_noted, exclusion_open, ledger_note, nodes_ensure


@pytest.fixture
def node(cluster: int, now: datetime) -> int:
    return nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]


def put_out(node: int, now: datetime, reason: str = "ECC errors", **more: Any) -> int:
    given = {"by_name": "mia", "origin": "OURS", "source": "WEB", **more}
    return exclusion_open(node_id=node, reason=reason, now=now, **given)


def take_back(node: int, now: datetime, reason: str = "DIMM changed") -> None:
    exclusion_end(node_id=node, reason=reason, by_name="bob", source="WEB", now=now)


class TestAppendOnly:
    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE fleet_exclusion SET reason = 'another'",
            "UPDATE fleet_exclusion SET by_name = 'eve'",
            "UPDATE fleet_exclusion SET until_at = now()",
            "UPDATE fleet_exclusion SET began_at = now(), ended_at = now()",
            "UPDATE fleet_exclusion SET ended_reason = 'x'",
            "DELETE FROM fleet_exclusion",
            "UPDATE fleet_ledgernote SET text = 'x'",
            "DELETE FROM fleet_ledgernote",
        ],
    )
    def test_the_database_refuses_to_edit_or_delete(self, node: int, now: datetime, change: str) -> None:
        put_out(node, now)
        ledger_note(node_id=node, kind="KEPT", text="spare part late", by_name="mia", source="WEB", now=now)

        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(change)

        assert exclusions_of(node_id=node)[0].reason == "ECC errors"

    def test_a_line_ends_once_and_stays_ended(self, node: int, now: datetime) -> None:
        put_out(node, now)
        take_back(node, now + timedelta(hours=1))

        for change in ("ended_at = now()", "ended_at = NULL", "ended_by_name = 'eve'", "ended_reason = 'x'"):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"UPDATE fleet_exclusion SET {change}")

        row = exclusions_of(node_id=node)[0]
        assert (row.ended_by_name, row.ended_reason) == ("bob", "DIMM changed")

    def test_a_node_with_a_line_is_not_deleted(self, node: int, now: datetime) -> None:
        from apps.fleet.models import Cluster

        put_out(node, now)

        with pytest.raises(Exception, match="protected"):
            Cluster.objects.all().delete()

    def test_a_purge_that_says_so_may(self, node: int, now: datetime) -> None:
        put_out(node, now)

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL paceline.purge = 'on'")
            cursor.execute("DELETE FROM fleet_exclusion")

        assert not Exclusion.objects.exists()


class TestOccurrences:
    def test_the_second_stay_is_number_two_and_names_the_first(self, node: int, now: datetime) -> None:
        first = put_out(node, now, "Xid 48")
        take_back(node, now + timedelta(minutes=30))
        second = put_out(node, now + timedelta(hours=1), "Xid 48 again")

        rows = ledger_rows(LedgerFilter(node_id=node))

        assert [(row.id, row.occurrence, row.previous_id) for row in rows] == [(second, 2, first), (first, 1, None)]

    def test_being_kept_out_of_one_job_is_no_stay(self, node: int, now: datetime) -> None:
        exclusion_noted(node_id=node, reason="ExcNodeList", by_name="the site", scope="job 7", source="SYSTEM", now=now)
        put_out(node, now)

        assert [row.occurrence for row in ledger_rows(LedgerFilter(node_id=node))] == [1, 0]

    def test_taking_back_what_we_put_out_is_the_recorded_repair(self, node: int, now: datetime) -> None:
        put_out(node, now)
        take_back(node, now + timedelta(hours=1))

        assert node_by_id(node).repaired_at == now + timedelta(hours=1)

    def test_what_others_end_is_no_repair_that_we_know_of(self, node: int, now: datetime) -> None:
        put_out(node, now, origin="OBSERVED", by_name="root")
        take_back(node, now + timedelta(hours=1))

        assert node_by_id(node).repaired_at is None


class TestLaterLines:
    def test_keeping_longer_stands_under_the_first_reason(self, node: int, now: datetime) -> None:
        put_out(node, now, until_at=now + timedelta(hours=8))
        later = now + timedelta(days=2)
        ledger_note(node_id=node, kind="KEPT", text="part late", by_name="bob", source="WEB", now=now, until_at=later)

        (row,) = exclusions_of(node_id=node)

        assert (row.reason, row.until_at, row.out_until_at) == ("ECC errors", now + timedelta(hours=8), later)
        assert [(note.by_name, note.text) for note in row.notes] == [("bob", "part late")]

    def test_is_due_once_its_last_time_has_come(self, node: int, now: datetime) -> None:
        put_out(node, now, until_at=now + timedelta(hours=8))
        longer = now + timedelta(days=2)
        ledger_note(node_id=node, kind="KEPT", text="part late", by_name="bob", source="WEB", now=now, until_at=longer)

        assert exclusions_due(now=now + timedelta(hours=9)) == []
        assert [row.node for row in exclusions_due(now=longer)] == ["trn001"]

    @pytest.mark.parametrize("first_h", [None, 48])
    def test_is_due_at_the_time_that_was_said_last_however_it_began(
        self, node: int, now: datetime, first_h: int | None
    ) -> None:
        put_out(node, now, until_at=now + timedelta(hours=first_h) if first_h else None)
        sooner = now + timedelta(hours=2)
        ledger_note(
            node_id=node, kind="KEPT", text="part is due", by_name="bob", source="WEB", now=now, until_at=sooner
        )

        assert exclusions_due(now=now + timedelta(hours=1)) == []
        assert [row.out_until_at for row in exclusions_due(now=sooner)] == [sooner]

    def test_is_asked_about_again_when_it_was_kept_longer_after_that(self, node: int, now: datetime) -> None:
        put_out(node, now, until_at=now + timedelta(hours=1), at_until="ASK")
        asked, longer = now + timedelta(hours=1), now + timedelta(hours=3)
        ledger_note(node_id=node, kind="ASKED", text="", by_name="Paceline", source="SYSTEM", now=asked)
        ledger_note(node_id=node, kind="KEPT", text="late", by_name="bob", source="WEB", now=asked, until_at=longer)

        assert exclusions_due(now=now + timedelta(hours=2)) == []
        assert [row.node for row in exclusions_due(now=longer)] == ["trn001"]

    def test_one_line_is_looked_up_without_reading_the_others(self, cluster: int, now: datetime) -> None:
        nodes = nodes_ensure(cluster_id=cluster, names=["n1", "n2", "n3"], now=now)
        first, second, _ = (put_out(node, now, until_at=now + timedelta(hours=1)) for node in nodes.values())
        due_at = now + timedelta(hours=2)

        with CaptureQueriesContext(connection) as queries:
            found = exclusions_due(now=due_at, exclusion_id=second)

        assert [row.id for row in found] == [second]
        assert f'"fleet_exclusion"."id" = {second}' in queries[0]["sql"]
        assert exclusions_due(now=now, exclusion_id=first) == []

    def test_asks_once(self, node: int, now: datetime) -> None:
        put_out(node, now, until_at=now, at_until="ASK")
        ledger_note(node_id=node, kind="ASKED", text="", by_name="Paceline", source="SYSTEM", now=now)

        assert exclusions_due(now=now + timedelta(hours=1)) == []

    def test_cannot_keep_out_longer_what_is_in_service(self, node: int, now: datetime) -> None:
        with pytest.raises(Conflict, match="in service"):
            ledger_note(node_id=node, kind="KEPT", text="x", by_name="mia", source="WEB", now=now)

    def test_what_others_put_out_is_never_due(self, node: int, now: datetime) -> None:
        put_out(node, now, until_at=now, origin="OBSERVED")

        assert exclusions_due(now=now + timedelta(days=1)) == []


@pytest.fixture
def long_ledger(cluster: int, now: datetime) -> int:
    """10,000 lines over 200 nodes, all but 20 ended."""
    ids = nodes_ensure(cluster_id=cluster, names=[f"n{i:03d}" for i in range(200)], now=now)
    numbers = list(ids.values())
    lines = [
        Exclusion(
            node_id=numbers[i % 200],
            origin="OBSERVED" if i % 3 == 0 else "OURS",
            reason=f"=cmd|{i}" if i == 9_999 else f"reason {i}",
            by_name="mia",
            began_at=now + timedelta(minutes=i),
            ended_at=None if i >= 9_980 else now + timedelta(minutes=i + 50),
        )
        for i in range(10_000)
    ]
    Exclusion.objects.bulk_create(lines, batch_size=2000)
    return cluster


class TestListing:
    def test_pages_through_all_lines_without_a_gap_or_a_repeat(
        self, long_ledger: int, api: Callable[..., Client], now: datetime
    ) -> None:
        client, cursor, found = api("read"), "", []
        for _ in range(30):
            answer = client.get(f"/api/v1/clusters/north/exclusions?limit=1000&cursor={cursor}").json()
            found += [row["id"] for row in answer["results"]]
            cursor = answer["next"]
            if not cursor:
                break

        assert len(found) == len(set(found)) == 10_000

    def test_narrows_by_state_origin_node_words_and_time(
        self, long_ledger: int, api: Callable[..., Client], now: datetime
    ) -> None:
        get = api("read").get
        where = "/api/v1/clusters/north/exclusions"

        assert len(get(f"{where}?state=OPEN").json()["results"]) == 20
        assert {row["origin"] for row in get(f"{where}?origin=OBSERVED").json()["results"]} == {"OBSERVED"}
        assert {row["node"] for row in get(f"{where}?node=N007").json()["results"]} == {"n007"}
        assert [row["reason"] for row in get(f"{where}?q=reason+1234").json()["results"]] == ["reason 1234"]
        since = (now + timedelta(minutes=9_990)).isoformat().replace("+00:00", "Z")
        assert len(get(f"{where}?since={since}").json()["results"]) == 10
        for never in ("yesterday", "0001-01-01T00:00:00%2B23:59", "9999-12-31T23:59:59-23:59"):
            assert get(f"{where}?since={never}").status_code == 400
            assert get(f"{where}/export?before={never}").status_code == 400

    def test_a_page_of_a_long_ledger_takes_few_queries(
        self, long_ledger: int, django_assert_max_num_queries: Any
    ) -> None:
        with django_assert_max_num_queries(3):
            rows = ledger_rows(LedgerFilter(cluster_id=long_ledger), limit=100)

        assert rows[0].occurrence == 50
        assert ledger_count(LedgerFilter(cluster_id=long_ledger)) == 10_000

    def test_a_token_of_another_cluster_reads_none_of_it(
        self, long_ledger: int, api: Callable[..., Client], now: datetime
    ) -> None:
        from apps.fleet.services import cluster_ensure

        south = cluster_ensure(name="south", now=now)

        assert api("read", cluster_id=south).get("/api/v1/clusters/north/exclusions").status_code == 403
        assert api("read", cluster_id=south).get("/api/v1/clusters/north/exclusions/export").status_code == 403


def body(answer: Any) -> str:
    return b"".join(answer).decode()


class TestExport:
    def test_csv_has_every_line_and_no_formula(self, long_ledger: int, api: Callable[..., Client]) -> None:
        answer = api("read").get("/api/v1/clusters/north/exclusions/export?format=csv")

        rows = list(csv.DictReader(io.StringIO(body(answer))))
        assert answer["Content-Disposition"] == 'attachment; filename="exclusions.csv"'
        assert len(rows) == 10_000
        assert rows[0]["reason"] == "'=cmd|9999"

    def test_json_has_what_the_listing_has(self, long_ledger: int, api: Callable[..., Client]) -> None:
        client = api("read")
        answer = client.get("/api/v1/clusters/north/exclusions/export?format=json&state=OPEN")

        listed = client.get("/api/v1/clusters/north/exclusions?state=OPEN").json()["results"]
        assert json.loads(body(answer)) == listed

    def test_of_nothing_is_an_empty_list(self, cluster: int, api: Callable[..., Client]) -> None:
        answer = api("read").get("/api/v1/clusters/north/exclusions/export?format=json")

        assert json.loads(body(answer)) == []

    def test_is_read_while_it_is_sent(self, long_ledger: int) -> None:
        from apps.fleet.export import ledger_csv

        parts = ledger_csv(LedgerFilter(cluster_id=long_ledger))

        next(parts)
        assert next(parts).count("\r\n") == 1000

    def test_counts_the_stays_of_each_node_once_and_as_the_listing_does(
        self, long_ledger: int, django_assert_max_num_queries: Any
    ) -> None:
        from apps.fleet.export import ledger_csv

        wanted = LedgerFilter(cluster_id=long_ledger)
        listed = ledger_rows(wanted, limit=10_000)

        # Of each page its lines and what was said under them; once the stays; and that there is no eleventh page.
        with django_assert_max_num_queries(10 * 2 + 1 + 2):
            text = "".join(ledger_csv(wanted))

        rows = list(csv.DictReader(io.StringIO(text)))
        assert [int(row["occurrence"]) for row in rows] == [row.occurrence for row in listed]
        assert {row["occurrence"] for row in rows[:200]} == {"50"}


class TestNamesByREST:
    def test_places_a_name_and_takes_it_away_again(
        self, node: int, cluster: int, api: Callable[..., Client], now: datetime
    ) -> None:
        nodes_ensure(cluster_id=cluster, names=["pod-7"], now=now)
        client = api("read", "operate")

        placed = client.post("/api/v1/nodes/trn001/aliases", {"name": "pod-7", "colour": "red"})
        gone = client.delete("/api/v1/nodes/trn001/aliases/pod-7")

        assert (placed.status_code, gone.status_code) == (200, 200)
        assert [row["name"] for row in placed.json()["aliases"]] == ["pod-7"]
        assert placed.json()["ignored"] == ["colour"]
        assert gone.json()["aliases"] == []
        assert client.delete("/api/v1/nodes/trn001/aliases/pod-7").status_code == 404

    def test_lists_what_is_in_doubt_until_it_is_called_apart(
        self, cluster: int, api: Callable[..., Client], now: datetime
    ) -> None:
        for name in ("gpu1.north", "gpu1.south", "gpu1"):
            nodes_ensure(cluster_id=cluster, names=[name], now=now)
        client = api("read", "operate")

        before = [row["node"] for row in client.get("/api/v1/clusters/north/names").json()["results"]]
        assert client.post("/api/v1/nodes/gpu1/apart").status_code == 200

        after = [row["node"] for row in client.get("/api/v1/clusters/north/names").json()["results"]]
        assert "gpu1" in before
        assert "gpu1" not in after

    def test_reading_alone_places_nothing(self, node: int, api: Callable[..., Client]) -> None:
        assert api("read").post("/api/v1/nodes/trn001/aliases", {"name": "pod-7"}).status_code == 403
