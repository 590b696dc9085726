"""Nodes appear when they are first heard; the ledger only grows."""

import threading
from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import connections

from apps.common.errors import Conflict, NotFound, Unprocessable
from apps.common.ids import id_write
from apps.fleet.models import NodeAlias
from apps.fleet.selectors import (
    Ambiguous,
    cluster_by_name,
    exclusions_by_node,
    exclusions_of,
    node_by_code,
    node_by_id,
    nodes_of,
)
from apps.fleet.services import (
    GpuSeen,
    cluster_ensure,
    exclusion_end,
    exclusion_open,
    gpus_ensure,
    nodes_ensure,
)
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest


@pytest.fixture
def node(cluster: int, now: datetime) -> int:
    return nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]


class TestNodesEnsure:
    def test_finds_a_node_again_by_its_name_and_by_an_alias(self, cluster: int, node: int, now: datetime) -> None:
        NodeAlias.objects.create(cluster_id=cluster, node_id=node, name="trn001.example", source="exporter")

        found = nodes_ensure(cluster_id=cluster, names=["trn001", "trn001.example"], now=now)

        assert set(found.values()) == {node}

    def test_gives_every_node_a_slot_of_its_own(self, cluster: int, node: int, now: datetime) -> None:
        nodes_ensure(cluster_id=cluster, names=["b", "c"], now=now)

        assert sorted(row.slot for row in nodes_of()) == [0, 1, 2]

    @pytest.mark.parametrize(
        "name",
        ["", " ", "..", "x" * 256, "a:b", "n/1", "a b", "a,b", "a\nb", "a\x1bb", "a\u202eb", "a?b", "a#b", "a%2fb"],
    )
    def test_refuses_what_cannot_be_a_name(self, cluster: int, now: datetime, name: str) -> None:
        with pytest.raises(Unprocessable):
            nodes_ensure(cluster_id=cluster, names=[name], now=now)
        with pytest.raises(Unprocessable):
            cluster_ensure(name=name, now=now)

    @pytest.mark.parametrize("name", ["trn001", "gpu-7.site.example", "knoten_ä", "a+b", "n(1)", "x" * 63])
    def test_takes_what_sites_call_their_machines(self, cluster: int, now: datetime, name: str) -> None:
        assert nodes_ensure(cluster_id=cluster, names=[name], now=now)[name]
        assert cluster_ensure(name=name, now=now)


class TestNodeByCode:
    def test_asks_for_the_cluster_where_several_know_the_name(self, node: int, now: datetime) -> None:
        south = cluster_ensure(name="south", now=now)
        nodes_ensure(cluster_id=south, names=["trn001"], now=now)

        with pytest.raises(Ambiguous) as refused:
            node_by_code("trn001")

        assert refused.value.facts["nodes"] == ["north:trn001", "south:trn001"]
        assert node_by_code("north:trn001").id == node

    def test_takes_a_name_for_a_name_though_it_looks_like_an_id(self, cluster: int, node: int, now: datetime) -> None:
        other = nodes_ensure(cluster_id=cluster, names=["trn002"], now=now)["trn002"]
        looks = id_write("node", other)
        named = nodes_ensure(cluster_id=cluster, names=[looks, "node_gpu_17"], now=now)

        assert node_by_code(looks).id == named[looks]
        assert node_by_code("node_gpu_17").id == named["node_gpu_17"]
        assert node_by_code(id_write("node", node)).name == "trn001"

    def test_knows_no_node_that_nobody_heard_of(self, node: int) -> None:
        with pytest.raises(NotFound):
            node_by_code("trn999")


class TestClusterByName:
    def test_takes_a_name_for_a_name_though_it_looks_like_an_id(self, cluster: int, now: datetime) -> None:
        named = cluster_ensure(name="cluster_upper", now=now)
        also = cluster_ensure(name=id_write("cluster", cluster), now=now)

        assert cluster_by_name("cluster_upper").id == named
        assert cluster_by_name(id_write("cluster", cluster)).id == also
        assert cluster_by_name(id_write("cluster", named)).id == named

    def test_knows_no_cluster_that_nobody_named(self, cluster: int) -> None:
        with pytest.raises(NotFound):
            cluster_by_name("cluster_nowhere")


class TestGpus:
    def test_are_known_by_their_key_and_not_by_their_index(self, node: int, now: datetime) -> None:
        first = gpus_ensure(node_id=node, seen=[GpuSeen("GPU-a", index=0), GpuSeen("GPU-b", index=1)], now=now)
        swapped = gpus_ensure(node_id=node, seen=[GpuSeen("GPU-a", index=1), GpuSeen("GPU-b", index=0)], now=now)

        assert first == swapped
        assert [(gpu.key, gpu.index) for gpu in node_by_id(node).gpus] == [("GPU-b", 0), ("GPU-a", 1)]


class TestLedger:
    def exclude(self, node: int, reason: str, now: datetime) -> int:
        return exclusion_open(node_id=node, reason=reason, by_name="ada", origin="OURS", source="API", now=now)

    def test_keeps_the_first_reason(self, node: int, now: datetime) -> None:
        self.exclude(node, "fell off the bus", now)

        with pytest.raises(Conflict):
            self.exclude(node, "another reason", now)

        assert [row.reason for row in exclusions_of(node_id=node)] == ["fell off the bus"]

    def test_says_who_ended_it_and_why_and_keeps_the_history(
        self, node: int, now: datetime, later: Callable[[float], datetime]
    ) -> None:
        self.exclude(node, "hot", now)
        exclusion_end(node_id=node, reason="fan changed", by_name="bob", source="API", now=later(60))
        self.exclude(node, "hot again", later(120))

        rows = exclusions_of(node_id=node)

        assert [(row.reason, row.ended_by_name, row.ended_reason) for row in rows] == [
            ("hot again", "", ""),
            ("hot", "bob", "fan changed"),
        ]
        assert exclusions_by_node(node_ids=[node], since=now) == {node: 2}

    def test_shows_the_open_line_first_however_old_it_is(
        self, cluster: int, node: int, now: datetime, later: Callable[[float], datetime]
    ) -> None:
        other = nodes_ensure(cluster_id=cluster, names=["trn002"], now=now)["trn002"]
        self.exclude(node, "long out", now)
        for seconds in (10, 20, 30):
            self.exclude(other, f"hot {seconds}", later(seconds))
            exclusion_end(node_id=other, reason="cool", by_name="bob", source="API", now=later(seconds + 5))

        rows = exclusions_of(cluster_id=cluster, limit=2)

        assert [row.reason for row in rows] == ["long out", "hot 30"]

    def test_is_read_in_pages(self, node: int, api, now: datetime, later: Callable[[float], datetime]) -> None:  # type: ignore[no-untyped-def]
        for seconds in (10, 20, 30):
            self.exclude(node, f"hot {seconds}", later(seconds))
            exclusion_end(node_id=node, reason="cool", by_name="bob", source="API", now=later(seconds + 5))
        path = "/api/v1/nodes/trn001/exclusions?limit=2"

        page = api("read").get(path).json()
        rest = api("read").get(f"{path}&cursor={page['next']}").json()

        assert [row["reason"] for row in page["results"] + rest["results"]] == ["hot 30", "hot 20", "hot 10"]
        assert rest["next"] is None

    def test_ends_nothing_twice(self, node: int, now: datetime) -> None:
        self.exclude(node, "hot", now)

        ends = [exclusion_end(node_id=node, reason="r", by_name="b", source="API", now=now) for _ in range(2)]

        assert ends[0] is not None
        assert ends[1] is None

    def test_tells_the_runs_that_hold_the_node(self, attempt, now: datetime) -> None:  # type: ignore[no-untyped-def]
        held = node_by_code("trn002")

        self.exclude(held.id, "hot", now)

        texts = [
            events_latest(stream, limit=1)[0].text
            for stream in (StreamKey.node(held.id), StreamKey.run(attempt.run_id))
        ]
        assert texts == ["trn002 excluded: hot"] * 2


@pytest.mark.django_db(transaction=True)
def test_two_first_hearings_of_one_node_make_one_node(now: datetime) -> None:
    cluster = cluster_ensure(name="north", now=now)
    start = threading.Barrier(4)
    found: list[dict[str, int]] = []

    def hear() -> None:
        start.wait()
        found.append(nodes_ensure(cluster_id=cluster, names=["a", "b", "c"], now=now))
        connections.close_all()

    threads = [threading.Thread(target=hear) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(one == found[0] for one in found)
    assert len(nodes_of()) == 3
