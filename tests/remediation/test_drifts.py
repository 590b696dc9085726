"""Where ledger and scheduler disagree: listed with what can be decided, decided with one click, never mended by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.common.errors import BadRequest, Forbidden, NotFound
from apps.engine.readers.slurm import SlurmNode
from apps.fleet.selectors import exclusions_of, node_by_id
from apps.fleet.services import exclusion_open, nodes_ensure
from apps.journal.models import Event
from apps.remediation.models import CheckSetting, Drift, NodeDrain, Order, SchedulerSetting
from apps.remediation.selectors import restart_preview
from apps.remediation.selectors.jobs import drifts_open
from apps.remediation.services import DriftMoved, GuardClosed, drift_decide, nodes_seen
from apps.remediation.services.node_orders import drain_mark

pytestmark = pytest.mark.django_db

THEIRS = "HW team: DIMM replacement, do not touch"
DRAIN = frozenset({"DRAIN"})


@pytest.fixture
def site(cluster: int, now: datetime) -> Any:
    """A cluster whose scheduler Paceline tells, read by hand: `site.sees(trn001=("IDLE", "reason"))`."""
    SchedulerSetting.objects.create(cluster_id=cluster, updated_by="boss", updated_at=now, next_read_at=now)
    return Site(cluster)


class Site:
    def __init__(self, cluster: int) -> None:
        self.cluster = cluster
        self.moment = datetime.now(UTC)

    def sees(self, **states: Any) -> None:
        self.moment += timedelta(seconds=5)
        nodes = [
            SlurmNode(name, base, DRAIN if reason else frozenset(), reason, "root" if reason else "")
            for name, (base, reason) in states.items()
        ]
        nodes_seen(cluster_id=self.cluster, nodes=nodes, at=self.moment, now=self.moment)

    def out(self, name: str, *, drained: bool = False, reason: str = "ECC errors") -> Any:
        """Put a node out in our ledger, as if its drain had (or had not) been ordered."""
        node = nodes_ensure(cluster_id=self.cluster, names=[name], now=self.moment)[name]
        line = exclusion_open(node_id=node, reason=reason, by_name="mia", origin="OURS", source="WEB", now=self.moment)
        if drained:
            NodeDrain.objects.create(exclusion_id=line, node_id=node, mark="m", drained_at=self.moment)
        return node

    def mark(self, node: int) -> str:
        from apps.fleet.models import Exclusion

        return drain_mark(Exclusion.objects.get(node_id=node, ended_at=None))

    @property
    def drift(self) -> Any:
        (row,) = drifts_open(cluster_id=self.cluster)
        return row


@pytest.fixture
def decide(who: Any) -> Callable[..., Any]:
    def make(drift: Any, decision: str, **more: Any) -> Any:
        given = {"principal": who, "reason": "", "source": "WEB", "now": datetime.now(UTC), **more}
        return drift_decide(drift_id=drift.id, decision=decision, **given)

    return make


class TestListed:
    def test_in_service_although_excluded(self, site: Any) -> None:
        site.out("trn001")
        site.sees(trn001=("IDLE", ""))

        assert site.drift.kind == "IN_SERVICE"

    def test_resumed_by_somebody_after_we_drained_it(self, site: Any) -> None:
        site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))

        assert site.drift.kind == "RESUMED"

    def test_drained_by_someone_else(self, site: Any) -> None:
        site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", THEIRS))

        assert (site.drift.kind, site.drift.reason, site.drift.by_name) == ("OTHERS", THEIRS, "root")

    def test_a_drain_made_with_the_copied_command_is_no_difference(self, site: Any) -> None:
        site.out("trn001")
        site.sees(trn001=("IDLE", "paceline ECC errors"))

        assert drifts_open(cluster_id=site.cluster) == []

    def test_without_a_scheduler_that_we_tell_only_what_was_out_there_and_came_back(
        self, cluster: int, now: datetime
    ) -> None:
        site = Site(cluster)
        site.out("trn001")
        site.out("trn002")
        site.sees(trn001=("IDLE", ""), trn002=("IDLE", THEIRS))
        assert drifts_open(cluster_id=cluster) == []
        for _ in range(2):
            site.sees(trn001=("IDLE", ""), trn002=("IDLE", ""))

        assert [(row.node, row.kind) for row in drifts_open(cluster_id=cluster)] == [("trn002", "IN_SERVICE")]

    def test_by_rest_with_what_can_be_decided(self, site: Any, api: Callable[..., Client]) -> None:
        site.out("trn001")
        site.sees(trn001=("IDLE", ""))

        (row,) = api("read").get("/api/v1/clusters/north/drift").json()["results"]

        assert row["id"].startswith("drf_")
        assert row["decisions"] == ["END", "DRAIN", "KEEP"]


class TestBulkResume:
    """Case 16: somebody resumes all nodes in one command, the broken ones too."""

    def test_warns_in_one_line_and_a_restart_leaves_them_out(
        self, site: Any, make_run: Callable[..., Any], now: datetime
    ) -> None:
        names = ["trn005", "trn017", "trn018", "trn050"]
        for name in names:
            site.out(name, drained=True, reason="PSU" if name == "trn050" else "XID 79")
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        site.sees(**{f"trn{i:03d}": ("IDLE", "") for i in range(1, 64)})

        (warned,) = Event.objects.filter(kind="nodes.drift")
        assert warned.payload["text"] == (
            "4 nodes in service although excluded: trn050 (PSU), trn[005,017-018] (XID 79)"
        )
        assert len(exclusions_of(cluster_id=site.cluster, open_only=True)) == 4
        assert restart_preview(run.id, now=now).exclude_names == tuple(names)

    def test_what_others_kept_out_for_several_reasons_is_asked_about(
        self, site: Any, decide: Callable[..., Any]
    ) -> None:
        site.sees(trn005=("IDLE", "XID 79"), trn017=("IDLE", "XID 79"), trn050=("IDLE", "PSU"), trn051=("IDLE", ""))
        site.sees(**dict.fromkeys(("trn005", "trn017", "trn050", "trn051"), ("IDLE", "")))

        rows = drifts_open(cluster_id=site.cluster)
        assert [(row.node, row.kind, row.reason) for row in rows] == [
            ("trn005", "RELEASED", "XID 79"),
            ("trn017", "RELEASED", "XID 79"),
            ("trn050", "RELEASED", "PSU"),
        ]
        decide(rows[2], "EXCLUDE")
        line = exclusions_of(node_id=rows[2].node_id)[0]
        assert (line.origin, line.reason) == ("OURS", "PSU (put out by root, came back unanswered)")

    def test_what_others_kept_out_for_one_reason_and_end_is_theirs_to_end(self, site: Any) -> None:
        site.sees(**dict.fromkeys(("a", "b", "c", "d"), ("IDLE", "maintenance")))
        site.sees(**dict.fromkeys(("a", "b", "c", "d"), ("IDLE", "")))

        assert drifts_open(cluster_id=site.cluster) == []


class TestDecided:
    def test_ending_our_exclusion(self, site: Any, decide: Callable[..., Any]) -> None:
        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))

        action = decide(site.drift, "END")

        line = exclusions_of(node_id=node)[0]
        assert (action.kind, action.requested_by) == ("READMIT_NODE", "operator")
        assert line.ended_reason == "We drained it, the scheduler says in service: end our exclusion"
        assert drifts_open(cluster_id=site.cluster) == []

    def test_draining_again_keeps_the_line_and_its_first_reason(self, site: Any, decide: Callable[..., Any]) -> None:
        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))

        action = decide(site.drift, "DRAIN")

        assert (action.kind, action.state) == ("EXCLUDE_NODE", "RUNNING")
        assert Order.objects.get(action_id=action.id).kind == "DRAIN"
        assert [(row.reason, row.ended_at) for row in exclusions_of(node_id=node)] == [("ECC errors", None)]

    def test_a_node_that_is_down_is_not_in_service_whatever_keeps_it_away(self, site: Any) -> None:
        site.out("trn001", drained=True)

        site.sees(trn001=("DOWN", ""))

        assert drifts_open(cluster_id=site.cluster) == []

    def test_taking_over_as_observed_keeps_their_reason_and_orders_nothing(
        self, site: Any, decide: Callable[..., Any]
    ) -> None:
        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", THEIRS))

        action = decide(site.drift, "TAKE")
        site.sees(trn001=("IDLE", THEIRS))

        rows = exclusions_of(node_id=node)
        assert action.state == "SUCCEEDED"
        assert not Order.objects.exists()
        assert [(row.origin, row.reason, row.by_name, row.ended_at is None) for row in rows] == [
            ("OBSERVED", THEIRS, "root", True),
            ("OURS", "ECC errors", "mia", False),
        ]
        assert drifts_open(cluster_id=site.cluster) == []
        assert node_by_id(node).repaired_at is None

    def test_taking_over_asks_for_no_check_since_the_node_stays_out(
        self, site: Any, decide: Callable[..., Any], ask: Callable[..., Any], now: datetime
    ) -> None:
        CheckSetting.objects.create(
            cluster_id=site.cluster, kind="COMMAND", command=["/bin/true"], timeout_s=60, valid_s=3600, required=True,
            updated_by="boss", updated_at=now,
        )  # fmt: skip
        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", THEIRS))

        with pytest.raises(GuardClosed, match="passed check"):
            ask("READMIT_NODE", node=node)
        action = decide(site.drift, "TAKE")

        assert action.state == "SUCCEEDED"
        assert [(row.origin, row.ended_at) for row in exclusions_of(node_id=node, open_only=True)] == [
            ("OBSERVED", None)
        ]

    def test_bringing_back_what_we_left_drained(self, site: Any, decide: Callable[..., Any]) -> None:
        from apps.fleet.services import exclusion_end

        node = site.out("trn001", drained=True)
        mark = site.mark(node)
        exclusion_end(node_id=node, reason="repaired", by_name="bob", source="WEB", now=site.moment)
        site.sees(trn001=("IDLE", f"{mark} mia: ECC errors"))
        assert site.drift.kind == "LEFT"

        action = decide(site.drift, "LIFT")

        order = Order.objects.get(action_id=action.id)
        assert (order.kind, action.state) == ("RESUME", "RUNNING")

    def test_keeping_as_is_until_then_asks_again_afterwards(self, site: Any, decide: Callable[..., Any]) -> None:
        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", THEIRS))
        until = datetime.now(UTC) + timedelta(hours=2)

        action = decide(site.drift, "KEEP", until_at=until)
        site.sees(trn001=("IDLE", THEIRS))

        assert (action.kind, action.state) == ("RECORD_DONE", "SUCCEEDED")
        assert site.drift.kept_by_name == "operator"
        assert site.drift.is_kept(until - timedelta(seconds=1))
        assert not site.drift.is_kept(until)
        assert exclusions_of(node_id=node)[0].ended_at is None

    def test_of_two_who_decide_the_second_is_told(self, site: Any, decide: Callable[..., Any]) -> None:
        site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))
        seen = site.drift
        decide(seen, "END")

        with pytest.raises(NotFound, match="any more"):
            decide(seen, "END")

    def test_what_changed_while_it_was_looked_at_is_not_decided(
        self, site: Any, decide: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from apps.remediation.services import drifts

        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))
        seen = site.drift
        Drift.objects.filter(pk=seen.id).update(ended_at=site.moment)
        monkeypatch.setattr(drifts, "drift_by_id", lambda _: seen)

        with pytest.raises(DriftMoved):
            decide(seen, "END")

        assert exclusions_of(node_id=node)[0].ended_at is None

    @pytest.mark.parametrize(("reason", "decision"), [("", "TAKE"), (THEIRS, "DRAIN"), (THEIRS, "END"), ("", "LIFT")])
    def test_nobody_elses_reason_is_overwritten_and_nothing_unfit_is_decided(
        self, site: Any, decide: Callable[..., Any], reason: str, decision: str
    ) -> None:
        site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", reason))

        with pytest.raises(BadRequest):
            decide(site.drift, decision)

    def test_takes_the_right_to_act(self, site: Any, viewer: Any, decide: Callable[..., Any]) -> None:
        from apps.accounts.selectors import principal_of_user

        site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))

        with pytest.raises(Forbidden):
            decide(site.drift, "END", principal=principal_of_user(viewer))

    def test_by_rest_once_per_key(self, site: Any, api: Callable[..., Client]) -> None:
        site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))
        client = api("read", "operate")
        drift = client.get("/api/v1/clusters/north/drift").json()["results"][0]["id"]
        path, headers = f"/api/v1/clusters/north/drift/{drift}/decide", {"Idempotency-Key": "one"}

        first = client.post(path, {"decision": "END"}, headers=headers)
        again = client.post(path, {"decision": "END"}, headers=headers)

        assert first.status_code == 201
        assert first.json()["id"] == again.json()["id"]
        assert client.post(path, {"decision": "END"}, headers={"Idempotency-Key": "two"}).status_code == 404

    def test_by_rest_a_dry_run_keeps_nothing(self, site: Any, api: Callable[..., Client]) -> None:
        node = site.out("trn001", drained=True)
        site.sees(trn001=("IDLE", ""))
        client = api("read", "operate")
        drift = client.get("/api/v1/clusters/north/drift").json()["results"][0]["id"]

        answer = client.post(f"/api/v1/clusters/north/drift/{drift}/decide?dry_run=1", {"decision": "END"})

        assert answer.status_code == 200
        assert node_by_id(node).exclusion_id is not None
