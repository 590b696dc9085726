"""Gauges of nodes: read, reduced into columns of 15 s, and whether each node is heard."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import orjson
import pytest

from apps.fleet.selectors import node_by_id
from apps.fleet.services import nodes_ensure
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.telemetry.models import DoorBeat, Inbox, Refusal
from apps.telemetry.selectors import node_gauges
from apps.telemetry.services.fold import Folded, cluster_fold
from apps.telemetry.services.heads import head_read
from apps.telemetry.services.silence import gaps_refresh, nodes_silence

pytestmark = pytest.mark.django_db


class NodeSite:
    """One node's reports."""

    def __init__(self, cluster: int, name: str, now: datetime) -> None:
        self.cluster, self.name, self.now = cluster, name, now
        self.node_id = nodes_ensure(cluster_id=cluster, names=[name], now=now)[name]

    def put(self, *, seq: int = 1, boot: str = "b1", at: float = 0.0, sent: float | None = None, **parts: Any) -> None:
        moment = self.now + timedelta(seconds=at if sent is None else sent)
        body = orjson.dumps({"sender": self.name, "boot": boot, "seq": seq, "sent_at": moment.isoformat(), **parts})
        head = head_read(body, scope_kind="NODE", default_sender=self.name)
        Inbox.objects.create(
            owner_kind="CLUSTER",
            owner_id=self.cluster,
            scope_kind="NODE",
            scope_id=self.node_id,
            sender=head.sender,
            boot=head.boot,
            seq=head.seq,
            sent_at=head.sent_at,
            received_at=self.now + timedelta(seconds=at),
            body=head.body,
        )

    def fold(self, after: float = 0.0) -> Folded:
        return cluster_fold(cluster_id=self.cluster, now=self.now + timedelta(seconds=after))

    def values(self, metric: str, *, until: float = 0.0) -> np.ndarray:
        """Values [row, column] from `now` to `until` seconds after it."""
        found = node_gauges(self.node_id, metrics=[metric], since=self.now, until=self.now + timedelta(seconds=until))
        return found[metric][1]


@pytest.fixture
def node(cluster: int, now: datetime) -> NodeSite:
    return NodeSite(cluster, "trn001", now)


def gpu(index: int, **gauges: Any) -> dict[str, Any]:
    return {"gpu": f"GPU-{index}", "index": index, "pci": f"00000000:{index + 1:02X}:00.0", "model": "H100", **gauges}


class TestGauges:
    def test_gauges_stand_by_gpu_and_time(self, node: NodeSite) -> None:
        node.put(seq=1, gpus=[gpu(0, temperature_c=61), gpu(1, temperature_c=62.5)], host={"load1": 3.5})
        node.put(seq=2, at=15, gpus=[gpu(0, temperature_c=71)])

        node.fold(15)

        np.testing.assert_array_equal(node.values("temperature_c", until=15), [[61, 71], [62.5, np.nan]])
        np.testing.assert_array_equal(node.values("load1", until=15), [[3.5, np.nan]])
        assert [(g.key, g.index, g.model) for g in node_by_id(node.node_id).gpus] == [
            ("GPU-0", 0, "H100"),
            ("GPU-1", 1, "H100"),
        ]

    @pytest.mark.parametrize(
        ("metric", "first", "second", "expected"),
        [
            ("temperature_c", 80, 60, 80),  # the largest
            ("clock_reasons", 4, 8, 12),  # any bit
            ("utilization", 0.2, 0.6, 0.4),  # the mean
            ("power_w", 300, 200, 200),  # the last
        ],
    )
    def test_readings_of_one_column_meet_by_the_metrics_reducer(
        self, node: NodeSite, metric: str, first: float, second: float, expected: float
    ) -> None:
        node.put(seq=1, at=1, gpus=[gpu(0, **{metric: first})])
        node.put(seq=2, at=6, gpus=[gpu(0, **{metric: second})])
        node.fold(6)
        node.put(seq=2, at=6, gpus=[gpu(0, **{metric: 10 * second})])

        node.fold(7)

        assert node.values(metric)[0, 0] == pytest.approx(expected)

    def test_a_clock_that_is_off_is_taken_out(self, node: NodeSite) -> None:
        for n in range(3):
            node.put(seq=n, at=15 * n, sent=15 * n - 3600, host={"load1": n})

        node.fold(30)

        np.testing.assert_array_equal(node.values("load1", until=30), [[0, 1, 2]])
        assert node_by_id(node.node_id).clock_skew_s == pytest.approx(-3600)

    def test_samples_fill_the_past(self, node: NodeSite) -> None:
        samples = [
            {"at": (node.now + timedelta(seconds=15 * n)).isoformat(), "gpus": [gpu(0, power_w=100 + n)]}
            for n in range(4)
        ]
        node.put(at=60, samples=samples)

        node.fold(60)

        np.testing.assert_array_equal(node.values("power_w", until=45), [[100, 101, 102, 103]])

    def test_blanks_are_no_reading_and_impossible_values_are_counted(self, node: NodeSite) -> None:
        node.put(
            gpus=[
                gpu(0, temperature_c=9223372036854775794, power_w="[N/A]", utilization="Not Active", sm_clock_mhz=1980),
                gpu(1, temperature_c=-80, power_w=25000, sm_clock_mhz="fast"),
            ]
        )

        node.fold()

        np.testing.assert_array_equal(node.values("sm_clock_mhz"), [[1980], [np.nan]])
        assert np.isnan(node.values("temperature_c")).all()
        assert dict(Refusal.objects.values_list("reason", "count")) == {"IMPOSSIBLE": 3, "NOT_A_NUMBER": 1}

    def test_a_gpu_without_identity_is_refused_alone(self, node: NodeSite) -> None:
        node.put(
            gpus=[
                {"index": 0, "power_w": 1},
                {"pci": "a1:00.0", "power_w": 2},
                {"pci": "0008:01:00.0", "power_w": 3},
                7,
            ]
        )

        node.fold()

        np.testing.assert_array_equal(node.values("power_w"), [[3]])
        assert dict(Refusal.objects.values_list("reason", "count")) == {"DEVICE": 2, "UNREADABLE": 1}

    def test_a_node_with_absurdly_many_gpus_keeps_64(self, node: NodeSite) -> None:
        node.put(gpus=[gpu(n, power_w=n) for n in range(80)])

        node.fold()

        assert node.values("power_w").shape == (64, 1)
        assert Refusal.objects.get().count == 16

    def test_a_node_has_64_gpus_over_all_of_its_reports(self, node: NodeSite) -> None:
        for seq in range(3):
            node.put(seq=seq, gpus=[{"gpu": f"GPU-{seq}-{n}", "power_w": n} for n in range(40)])

        node.fold()

        assert node.values("power_w").shape == (64, 1)
        assert (Refusal.objects.get().reason, Refusal.objects.get().count) == ("DEVICES_MANY", 56)

    def test_times_that_cannot_be_are_refused(self, node: NodeSite) -> None:
        old = (node.now - timedelta(days=30)).isoformat()
        ahead = (node.now + timedelta(days=1)).isoformat()
        node.put(
            samples=[{"at": old, "gpus": [gpu(0, power_w=1)]}, {"at": ahead, "gpus": [gpu(0, power_w=2)]}],
            gpus=[gpu(0, power_w=3)],
        )

        node.fold()

        assert node.values("power_w").tolist() == [[3]]
        assert dict(Refusal.objects.values_list("reason", "count")) == {"TOO_OLD": 1, "TIME": 1}

    def test_two_nodes_share_a_series_and_not_their_rows(self, node: NodeSite, cluster: int, now: datetime) -> None:
        other = NodeSite(cluster, "trn002", now)
        node.put(gpus=[gpu(0, power_w=1)], host={"load1": 1})
        other.put(gpus=[{**gpu(0, power_w=2), "gpu": "GPU-other"}], host={"load1": 2})

        node.fold()

        assert (node.values("power_w").tolist(), other.values("power_w").tolist()) == ([[1]], [[2]])
        assert (node.values("load1").tolist(), other.values("load1").tolist()) == ([[1]], [[2]])

    @pytest.mark.parametrize(
        "body",
        [
            {"gpus": 5},
            {"gpus": {"a": 1}},
            {"host": [1]},
            {"samples": "x"},
            {"samples": [{"at": 7, "host": {"load1": 1}}]},
        ],
    )
    def test_a_part_of_another_form_is_refused_alone(self, node: NodeSite, body: dict[str, Any]) -> None:
        node.put(seq=1, **body)
        node.put(seq=2, at=1, gpus=[gpu(0, power_w=5)])

        node.fold(1)

        assert node.values("power_w").tolist() == [[5]]
        assert Refusal.objects.get().reason in ("UNREADABLE", "TIME")


class TestHearing:
    def test_a_node_that_reports_is_fresh(self, node: NodeSite, now: datetime) -> None:
        node.put(host={"load1": 1})

        node.fold()

        row = node_by_id(node.node_id)
        assert (row.telemetry_state, row.telemetry_last_at, row.clock_skew_s) == ("FRESH", now, 0.0)

    def test_a_node_that_stops_is_silent_and_then_fresh_again(self, node: NodeSite, later: Any) -> None:
        DoorBeat.objects.create(instance="d", accepting_since=later(-500), last_beat_at=later(60))
        node.put(host={"load1": 1})
        node.fold()

        assert nodes_silence(now=later(44)) == 0
        assert nodes_silence(now=later(60)) == 1
        silent = node_by_id(node.node_id)
        node.put(seq=2, at=61, host={"load1": 1})
        node.fold(61)

        assert (silent.telemetry_state, silent.telemetry_gaps_24h) == ("SILENT", 1)
        assert node_by_id(node.node_id).telemetry_state == "FRESH"
        assert [event.kind for event in events_latest(StreamKey.node(node.node_id), limit=5)] == ["node.silent"]

    def test_a_report_that_waits_to_be_folded_is_no_silence(self, node: NodeSite, later: Any) -> None:
        DoorBeat.objects.create(instance="d", accepting_since=later(-500), last_beat_at=later(100))
        node.put(host={"load1": 1})
        node.fold()
        node.put(seq=2, at=50, host={"load1": 1})

        assert nodes_silence(now=later(60)) == 0
        assert nodes_silence(now=later(100)) == 1

    def test_silence_while_the_door_was_blind_is_not_the_nodes(self, node: NodeSite, later: Any) -> None:
        node.put(host={"load1": 1})
        node.fold()
        DoorBeat.objects.create(instance="d", accepting_since=later(80), last_beat_at=later(100))

        assert nodes_silence(now=later(100)) == 0

    def test_silences_are_forgotten_after_a_day(self, node: NodeSite, later: Any) -> None:
        DoorBeat.objects.create(instance="d", accepting_since=later(-500), last_beat_at=later(60))
        node.put(host={"load1": 1})
        node.fold()
        nodes_silence(now=later(60))

        gaps_refresh(now=later(3600))
        within = node_by_id(node.node_id).telemetry_gaps_24h
        gaps_refresh(now=later(90_000))

        assert (within, node_by_id(node.node_id).telemetry_gaps_24h) == (1, 0)

    def test_another_boot_id_is_a_reboot(self, node: NodeSite) -> None:
        node.put(seq=1, host={"boot_id": "one", "load1": 1})
        node.fold()
        node.put(seq=1, boot="b2", at=60, host={"boot_id": "one", "load1": 1})
        node.fold(60)
        node.put(seq=1, boot="b3", at=120, host={"boot_id": "two", "load1": 1})

        node.fold(120)

        assert [event.kind for event in events_latest(StreamKey.node(node.node_id), limit=5)] == ["node.rebooted"]

    def test_a_nodes_events_stand_in_its_own_log(self, node: NodeSite) -> None:
        node.put(events=[{"kind": "xid", "code": 79, "text": "GPU has fallen off the bus"}])

        node.fold()

        event = events_latest(StreamKey.node(node.node_id), limit=1)[0]
        assert (event.kind, event.text) == ("node.xid", "XID 79: GPU has fallen off the bus")
