"""Which names mean one machine: what is certain is merged, what may mean several is for people to place."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import pytest
from django.db import connections, transaction

from apps.common.errors import Conflict, NotFound
from apps.fleet.models import NodeStatus
from apps.fleet.selectors import Ambiguous, doubts_of, node_by_code, node_by_id, nodes_of
from apps.fleet.services import alias_add, alias_remove, exclusion_open, node_apart, nodes_ensure
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from tests.locks import blocks_somebody

SITE = "example.edu.cn"


@pytest.fixture
def hear(cluster: int, now: datetime):  # type: ignore[no-untyped-def]
    """Hear of names, one after the other; gives their nodes."""

    def heard(*names: str) -> list[int]:
        return [nodes_ensure(cluster_id=cluster, names=[name], now=now)[name] for name in names]

    return heard


class TestRuleOfNames:
    @pytest.mark.parametrize(
        "names",
        [
            ("node838", f"node838.{SITE}", "NODE838"),
            (f"node838.{SITE}", "node838", f"Node838.{SITE.upper()}"),
            ("NODE838", "node838", f"node838.{SITE}"),
            (f"node838.{SITE}", "node838.example", "node838"),
        ],
    )
    def test_one_machine_under_all_its_spellings_is_one_node(self, hear, names: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
        assert len(set(hear(*names))) == 1
        assert node_by_id(hear(names[0])[0]).name == names[0]

    def test_says_in_the_log_what_it_took_for_what(self, hear) -> None:  # type: ignore[no-untyped-def]
        (node, _) = hear("node838", "NODE838")

        assert [row.text for row in events_latest(StreamKey.node(node), limit=5)] == [
            "NODE838 is taken for another name of node838"
        ]

    def test_two_domains_are_two_machines(self, hear) -> None:  # type: ignore[no-untyped-def]
        assert len(set(hear("gpu1.north.example", "gpu1.south.example"))) == 2

    def test_a_short_name_of_two_machines_is_never_merged(self, hear) -> None:  # type: ignore[no-untyped-def]
        north, south, short = hear("gpu1.north.example", "gpu1.south.example", "gpu1")

        assert len({north, south, short}) == 3
        assert node_by_id(short).aliases == ()

    def test_a_short_name_and_both_machines_heard_at_once_are_three(self, cluster: int, now: datetime) -> None:
        found = nodes_ensure(cluster_id=cluster, names=["gpu1", "gpu1.north.example", "gpu1.south.example"], now=now)

        assert len(set(found.values())) == 3

    def test_many_new_names_at_once_are_told_apart_and_merged(self, cluster: int, now: datetime) -> None:
        names = [name for i in range(50) for name in (f"n{i:03d}", f"n{i:03d}.site", f"N{i:03d}")]

        found = nodes_ensure(cluster_id=cluster, names=names, now=now)

        assert len(set(found.values())) == 50
        assert found["n007"] == found["n007.site"] == found["N007"]
        assert sorted(row.slot for row in nodes_of()) == list(range(50))

    def test_a_second_domain_is_not_taken_for_the_first(self, hear) -> None:  # type: ignore[no-untyped-def]
        short, north, south = hear("gpu1", "gpu1.north.example", "gpu1.south.example")

        assert short == north
        assert south != short

    @pytest.mark.parametrize("names", [("10.0.0.7", "10.1.0.7"), ("node.1", "node.2"), ("node.1", "node")])
    def test_numbers_are_no_domains(self, hear, names: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
        assert len(set(hear(*names))) == 2

    def test_an_exporters_own_name_is_nobody_elses(self, hear) -> None:  # type: ignore[no-untyped-def]
        assert len(set(hear("node838", "nvidia-dcgm-exporter-cwbcm"))) == 2

    def test_is_found_under_another_spelling_that_was_never_heard(self, hear) -> None:  # type: ignore[no-untyped-def]
        (node,) = hear("node838")

        assert node_by_code(f"NODE838.{SITE}").id == node
        assert node_by_code(f"north:node838.{SITE}").id == node

    def test_a_short_name_of_several_asks_which(self, hear) -> None:  # type: ignore[no-untyped-def]
        hear("gpu1.north.example", "gpu1.south.example")

        with pytest.raises(Ambiguous) as refused:
            node_by_code("gpu1")

        assert refused.value.facts["nodes"] == ["north:gpu1.north.example", "north:gpu1.south.example"]
        with pytest.raises(NotFound):
            node_by_code("gpu1.west.example")


class TestPlacedByPeople:
    def test_an_alias_takes_in_what_had_come_to_be_under_that_name(self, hear, cluster: int, now: datetime) -> None:  # type: ignore[no-untyped-def]
        node, pod = hear("node838", "nvidia-dcgm-exporter-cwbcm")

        alias_add(node_id=node, name="nvidia-dcgm-exporter-cwbcm", by="mia", source="WEB", now=now)

        assert hear("nvidia-dcgm-exporter-cwbcm") == [node]
        assert node_by_code("nvidia-dcgm-exporter-cwbcm").id == node
        assert [row.name for row in nodes_of(cluster_id=cluster)] == ["node838"]
        assert node_by_id(pod).merged_into == node
        assert events_latest(StreamKey.node(node), limit=1)[0].actor_name == "mia"

    def test_a_repeat_changes_nothing(self, hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
        (node,) = hear("node838")
        for _ in range(2):
            alias_add(node_id=node, name="exporter-7", by="mia", source="WEB", now=now)

        assert node_by_id(node).aliases == ("exporter-7",)
        assert len(events_latest(StreamKey.node(node), limit=9)) == 1

    def test_a_name_of_another_node_is_not_taken_away_from_it(self, hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
        one, other = hear("node838", "node839")
        alias_add(node_id=one, name="exporter-7", by="mia", source="WEB", now=now)

        with pytest.raises(Conflict, match="node838"):
            alias_add(node_id=other, name="exporter-7", by="mia", source="WEB", now=now)

    def test_what_a_run_is_on_is_not_renamed_under_it(self, hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
        node, pod = hear("node838", "pod-7")
        NodeStatus.objects.filter(pk=pod).update(open_runs=[1])

        with pytest.raises(Conflict, match="when the attempt is over"):
            alias_add(node_id=node, name="pod-7", by="mia", source="WEB", now=now)

        assert node_by_id(pod).merged_into is None

    def test_what_we_put_out_is_not_lost_in_another_name(self, hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
        node, pod = hear("node838", "pod-7")
        exclusion_open(node_id=pod, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=now)

        with pytest.raises(Conflict, match="take it back first"):
            alias_add(node_id=node, name="pod-7", by="mia", source="WEB", now=now)

    def test_taking_a_name_away_gives_the_machine_back_and_keeps_it_apart(self, hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
        node, same = hear("node838", f"node838.{SITE}")
        assert node == same

        alias_remove(node_id=node, name=f"node838.{SITE}", by="mia", source="WEB", now=now)

        (other,) = hear(f"node838.{SITE}")
        assert other != node
        assert hear("node838") == [node]
        assert hear(f"NODE838.{SITE}") == [other]

    def test_what_was_taken_in_comes_back_with_its_own_record(self, hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
        node, pod = hear("node838", "pod-7")
        alias_add(node_id=node, name="pod-7", by="mia", source="WEB", now=now)
        alias_remove(node_id=node, name="pod-7", by="mia", source="WEB", now=now)

        assert hear("pod-7") == [pod]
        with pytest.raises(NotFound):
            alias_remove(node_id=node, name="pod-7", by="mia", source="WEB", now=now)


class TestNamesInDoubt:
    def test_lists_a_short_name_of_several_with_whom_it_may_mean(self, hear, cluster: int) -> None:  # type: ignore[no-untyped-def]
        hear("gpu1.north.example", "gpu1.south.example", "gpu1", "gpu2")

        found = {row.node: row.candidates for row in doubts_of(cluster)}

        assert found["gpu1"] == ("gpu1.north.example", "gpu1.south.example")
        assert "gpu2" not in found

    def test_lists_what_the_scheduler_does_not_know_where_one_tells_its_nodes(self, hear, cluster: int) -> None:  # type: ignore[no-untyped-def]
        node, pod = hear("node838", "pod-7")
        assert doubts_of(cluster) == []
        NodeStatus.objects.filter(pk=node).update(scheduler_state="IDLE")

        assert [(row.node, row.why) for row in doubts_of(cluster)] == [
            ("pod-7", "the scheduler does not know this name")
        ]
        assert doubts_of(cluster)[0].node_id == pod

    def test_asks_no_more_about_a_machine_of_its_own(self, hear, cluster: int, now: datetime) -> None:  # type: ignore[no-untyped-def]
        node, pod = hear("node838", "login-1")
        NodeStatus.objects.filter(pk=node).update(scheduler_state="IDLE")

        node_apart(node_id=pod, by="mia", source="WEB", now=now)

        assert doubts_of(cluster) == []


@pytest.mark.django_db(transaction=True)
def test_a_name_is_not_taken_in_while_somebody_puts_it_out(hear, now: datetime) -> None:  # type: ignore[no-untyped-def]
    node, pod = hear("node838", "pod-7")
    refused: list[str] = []

    def take_in() -> None:
        try:
            alias_add(node_id=node, name="pod-7", by="mia", source="WEB", now=now)
        except Conflict as error:
            refused.append(error.message)
        finally:
            connections.close_all()

    thread = threading.Thread(target=take_in)
    with transaction.atomic():
        exclusion_open(node_id=pod, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=now)
        thread.start()
        deadline = time.monotonic() + 20
        while thread.is_alive() and not blocks_somebody() and time.monotonic() < deadline:
            thread.join(0.02)
    thread.join()

    assert [text.split(";")[0] for text in refused] == ["pod-7 is out of service"]
    assert node_by_id(pod).merged_into is None
