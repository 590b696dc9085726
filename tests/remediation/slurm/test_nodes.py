"""Excluding and readmitting where a scheduler is set: our mark, others' words kept, only what is ours lifted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.fleet.selectors import exclusions_of, node_by_id
from apps.fleet.services import exclusion_end
from apps.remediation.selectors.jobs import drifts_open
from tests.slurm import Slurm, wait_for

pytestmark = pytest.mark.django_db

THEIRS = "HW team: DIMM replacement, do not touch"


def drained(slurm: Slurm, name: str, reason: str = THEIRS) -> None:
    """Let somebody else drain a node."""
    slurm.scontrol("update", f"nodename={name}", "state=drain", f"reason={reason}")


class TestDrain:
    def test_drains_with_our_mark_and_reads_back(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node2")

        row = work(ask("EXCLUDE_NODE", node=node, reason='ECC page retirement | "row 7"\nState=IDLE').id)

        seen = set_slurm.node("node2")
        assert row.state == "SUCCEEDED"
        assert "read back" in row.outcome
        assert seen.is_out
        assert seen.reason.startswith("paceline:exc_")
        assert 'operator: ECC page retirement / "row 7" State=IDLE' in seen.reason

    def test_leaves_the_reason_of_somebody_else(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node2")
        drained(set_slurm, "node2")

        row = work(ask("EXCLUDE_NODE", node=node).id)

        assert row.state == "SUCCEEDED"
        assert set_slurm.node("node2").reason == THEIRS
        assert "already by root" in row.outcome
        assert THEIRS in row.outcome
        assert exclusions_of(node_id=node)[0].origin == "OURS"

    def test_what_we_want_out_too_stays_out_when_the_site_gives_it_back(
        self,
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        read: Callable[..., Any],
    ) -> None:
        (node,) = nodes("node2")
        drained(set_slurm, "node2")
        read()

        row = work(ask("EXCLUDE_NODE", node=node, reason="ECC errors on GPU 2 since noon").id)
        read()
        between = set_slurm.node("node2")
        set_slurm.scontrol("update", "nodename=node2", "state=resume")
        read()

        assert row.state == "SUCCEEDED"
        assert "already by root" in row.outcome
        assert between.reason == THEIRS
        ours, theirs = exclusions_of(node_id=node)
        assert (ours.origin, ours.reason, ours.ended_at) == ("OURS", "ECC errors on GPU 2 since noon", None)
        assert (theirs.origin, theirs.reason, theirs.by_name) == ("OBSERVED", THEIRS, "root")
        assert "we keep it out too" in theirs.ended_reason
        assert [drift.kind for drift in drifts_open(node_id=node)] == ["IN_SERVICE"]

    def test_what_slurm_cannot_do_is_said_and_the_ledger_stands(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        (node,) = nodes("elsewhere")

        row = work(ask("EXCLUDE_NODE", node=node).id)

        assert row.state == "FAILED"
        assert "does not know elsewhere" in row.outcome
        assert exclusions_of(node_id=node, open_only=True)

    def test_a_cluster_that_is_set_not_to_drain_is_left_alone(
        self,
        set_slurm: Slurm,
        settle_slurm: Callable[..., None],
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
    ) -> None:
        settle_slurm(set_slurm, drains=False)
        (node,) = nodes("node2")

        row = work(ask("EXCLUDE_NODE", node=node).id)

        assert row.state == "SUCCEEDED"
        assert row.orders == ()
        assert not set_slurm.node("node2").is_out


class TestResume:
    def test_lifts_a_drain_of_ours(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node2")
        work(ask("EXCLUDE_NODE", node=node).id)

        row = work(ask("READMIT_NODE", node=node).id)

        assert row.state == "SUCCEEDED"
        assert not set_slurm.node("node2").is_out
        wait_for(lambda: set_slurm.node("node2").is_usable, "the node to answer its controller again")

    def test_a_drain_that_could_not_be_lifted_then_is_still_ours(
        self,
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        read: Callable[..., Any],
    ) -> None:
        (node,) = nodes("node2")
        work(ask("EXCLUDE_NODE", node=node).id)
        first = set_slurm.node("node2").reason
        # Taken back in the ledger while Slurm could not be told.
        exclusion_end(node_id=node, reason="repaired", by_name="mia", source="WEB", now=datetime.now(UTC))

        work(ask("EXCLUDE_NODE", node=node, reason="hot again since noon").id)
        second = set_slurm.node("node2").reason
        read()
        between = drifts_open(node_id=node)
        row = work(ask("READMIT_NODE", node=node).id)

        assert first != second
        assert "hot again since noon" in second
        assert between == []
        assert row.state == "SUCCEEDED"
        assert not set_slurm.node("node2").is_out

    def test_does_not_lift_what_has_become_somebody_elses(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node2")
        work(ask("EXCLUDE_NODE", node=node).id)
        drained(set_slurm, "node2")

        row = work(ask("READMIT_NODE", node=node).id)

        assert set_slurm.node("node2").reason == THEIRS
        assert set_slurm.node("node2").is_out
        assert "not ours to lift" in row.outcome

    def test_a_mark_of_another_installation_is_not_ours(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node2")
        work(ask("EXCLUDE_NODE", node=node).id)
        code, _, _ = set_slurm.node("node2").reason.partition(".")
        drained(set_slurm, "node2", f"{code}.00000000 mia: ECC")

        work(ask("READMIT_NODE", node=node).id)

        assert set_slurm.node("node2").is_out


class TestObserved:
    def test_a_drain_with_a_mark_that_is_not_of_ours_enters_the_ledger_as_theirs(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], read: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node2")
        drained(set_slurm, "node2", "paceline:exc_2.deadbeef mia: another installation")

        read()

        (line,) = exclusions_of(node_id=node)
        assert (line.origin, line.by_name) == ("OBSERVED", "root")

    def test_a_drain_by_somebody_else_enters_the_ledger_and_leaves_it_with_them(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], read: Callable[..., Any]
    ) -> None:
        (node,) = nodes("node3")
        drained(set_slurm, "node3")

        read()
        line = exclusions_of(node_id=node)[0]
        during = node_by_id(node)
        set_slurm.scontrol("update", "nodename=node3", "state=resume")
        wait_for(lambda: set_slurm.node("node3").is_usable, "the node to answer its controller again")
        read()

        assert (line.origin, line.by_name, line.reason) == ("OBSERVED", "root", THEIRS)
        assert (during.state, during.scheduler_state) == ("EXCLUDED", "IDLE+DRAIN")
        assert exclusions_of(node_id=node)[0].ended_at is not None
        assert node_by_id(node).state == "IN_SERVICE"

    def test_a_node_that_drains_while_work_runs_on_it_is_draining(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], read: Callable[..., Any]
    ) -> None:
        from tests.remediation.slurm.test_submit import running

        (node,) = nodes("node1")
        running(set_slurm, set_slurm.submit("sleep 600", "--nodelist=node1"))
        drained(set_slurm, "node1")

        read()

        assert node_by_id(node).state == "DRAINING"

    def test_what_the_site_put_out_is_never_lifted_by_us(
        self, set_slurm: Slurm, nodes: Callable[..., list[int]], read: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        from apps.remediation.services import NotOurs

        (node,) = nodes("node3")
        drained(set_slurm, "node3")
        read()

        with pytest.raises(NotOurs):
            ask("READMIT_NODE", node=node)

        assert set_slurm.node("node3").reason == THEIRS


class TestDrift:
    def test_a_bulk_resume_by_others_is_listed_and_not_mended(
        self,
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        read: Callable[..., Any],
    ) -> None:
        (node,) = nodes("node2")
        work(ask("EXCLUDE_NODE", node=node).id)
        read()
        before = drifts_open()
        set_slurm.scontrol("update", "nodename=node[1-4]", "state=undrain")

        read()
        read()

        assert before == []
        assert [(row.node, row.kind) for row in drifts_open()] == [("node2", "RESUMED")]
        assert not set_slurm.node("node2").is_out
        assert exclusions_of(node_id=node)[0].ended_at is None

    def test_a_drain_of_others_over_ours_is_listed_until_it_ends(
        self,
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        read: Callable[..., Any],
    ) -> None:
        (node,) = nodes("node2")
        work(ask("EXCLUDE_NODE", node=node).id)
        drained(set_slurm, "node2")

        read()
        listed = [(row.kind, row.reason, row.by_name) for row in drifts_open(node_id=node)]
        work(ask("READMIT_NODE", node=node).id)
        set_slurm.scontrol("update", "nodename=node2", "state=resume")
        read()

        assert listed == [("OTHERS", THEIRS, "root")]
        assert drifts_open() == []
