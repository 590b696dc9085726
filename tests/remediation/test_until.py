"""A time until which a node is out ends the exclusion or asks, as was chosen; what holds the node is waited for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.common.errors import BadRequest, Conflict
from apps.fleet.selectors import exclusions_of, node_by_id
from apps.fleet.services import exclusion_open, nodes_ensure
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation import tasks
from apps.remediation.models import ActionNode, CheckSetting
from apps.remediation.services import NotOurs, action_advance, exclusion_keep
from apps.runs.services import attempt_end

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(cluster: int, now: datetime) -> int:
    return nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def put_out(node: int, ask: Callable[..., Any]) -> Callable[..., None]:
    """Exclude the node for an hour that is over already: the wish of an hour and a half ago."""

    def make(**options: Any) -> None:
        began = datetime.now(UTC) - timedelta(minutes=90)
        until = (began + timedelta(hours=1)).isoformat()
        row = ask("EXCLUDE_NODE", node=node, now=began, options={"until_at": until, **options})
        assert row.state == "SUCCEEDED"

    return make


class TestUntil:
    def test_takes_the_node_back_and_says_why(self, node: int, put_out: Callable[..., None]) -> None:
        put_out()

        tasks.ledger_sweep()

        line = exclusions_of(node_id=node)[0]
        assert node_by_id(node).exclusion_id is None
        assert line.ended_by_name == "Paceline"
        assert line.ended_reason.startswith("It was to be out until ")
        assert "Throttles on heat" in line.ended_reason

    def test_asks_where_that_was_chosen_and_only_once(self, node: int, put_out: Callable[..., None]) -> None:
        put_out(at_until="ASK")

        for _ in range(2):
            tasks.ledger_sweep()

        line = exclusions_of(node_id=node)[0]
        assert line.ended_at is None
        assert [note.kind for note in line.notes] == ["ASKED"]
        assert line.asked_at is not None

    def test_before_its_time_nothing_happens(self, node: int, ask: Callable[..., Any]) -> None:
        ask("EXCLUDE_NODE", node=node, options={"until_at": soon().isoformat()})

        tasks.ledger_sweep()

        assert node_by_id(node).exclusion_id is not None

    def test_waits_for_an_action_that_holds_the_node(self, node: int, put_out: Callable[..., None]) -> None:
        put_out()
        ActionNode.objects.update(holds=True)
        from apps.remediation.models import Action

        Action.objects.update(state="RUNNING", ended_at=None)

        tasks.ledger_sweep()
        assert node_by_id(node).exclusion_id is not None
        Action.objects.update(state="SUCCEEDED")
        ActionNode.objects.update(holds=False)
        tasks.ledger_sweep()

        assert node_by_id(node).exclusion_id is None

    def test_asks_people_where_a_check_is_missing(
        self, node: int, cluster: int, put_out: Callable[..., None], now: datetime
    ) -> None:
        put_out()
        CheckSetting.objects.create(
            cluster_id=cluster, kind="COMMAND", command=["/bin/true"], timeout_s=60, valid_s=3600, required=True,
            updated_by="boss", updated_at=now,
        )  # fmt: skip

        for _ in range(2):
            tasks.ledger_sweep()

        (note,) = exclusions_of(node_id=node)[0].notes
        assert note.kind == "ASKED"
        assert "passed check" in note.text

    def test_a_restart_that_excludes_keeps_its_time_too(self, run: Any, attempt: Any, ask: Callable[..., Any]) -> None:
        from apps.remediation.models import Action

        until = soon()
        ask("EXCLUDE_NODE", run, node=attempt_node(run), options={"until_at": until.isoformat(), "when": "RUN_END"})

        assert Action.objects.get().options["until_at"] == until.isoformat()

    def test_asks_about_a_node_whose_time_was_over_before_it_could_be_put_out(
        self, run: Any, attempt: Any, ask: Callable[..., Any]
    ) -> None:
        began, node = datetime.now(UTC) - timedelta(minutes=90), attempt_node(run)
        options = {"until_at": (began + timedelta(hours=1)).isoformat(), "when": "RUN_END"}
        action = ask("EXCLUDE_NODE", run, node=node, now=began, options=options)
        ended = datetime.now(UTC)
        attempt_end(attempt_id=attempt.id, reason="FINISHED", authority="SCHEDULER", by="test", source="API", now=ended)

        action_advance(action_id=action.id, now=ended)
        for _ in range(2):
            tasks.ledger_sweep()

        (line,) = exclusions_of(node_id=node)
        assert (line.ended_at, line.at_until) == (None, "ASK")
        assert [note.kind for note in line.notes] == ["ASKED"]
        said = [row.text for row in events_latest(StreamKey.node(node), limit=9) if row.kind == "node.excluded"]
        assert "it was to be out until " in said[0]
        assert "which is over" in said[0]

    @pytest.mark.parametrize("until", ["yesterday", "2026-11-30T12:00:00", "2020-01-01T00:00:00+00:00"])
    def test_refuses_a_time_that_is_none(self, node: int, ask: Callable[..., Any], until: str) -> None:
        with pytest.raises(BadRequest, match="until_at"):
            ask("EXCLUDE_NODE", node=node, options={"until_at": until})


def attempt_node(run: Any) -> int:
    from apps.fleet.selectors import node_by_code

    return node_by_code("trn001", cluster_id=run.cluster_id).id


class TestKeptLonger:
    def test_the_first_reason_stays_and_the_new_time_counts(
        self, node: int, who: Any, put_out: Callable[..., None]
    ) -> None:
        put_out()
        exclusion_keep(
            principal=who, node_id=node, until_at=soon(), reason="the spare part is late", source="WEB",
            now=datetime.now(UTC),
        )  # fmt: skip

        tasks.ledger_sweep()

        line = exclusions_of(node_id=node)[0]
        assert line.ended_at is None
        assert line.reason.startswith("Throttles on heat")

    def test_without_an_end_it_is_never_due(self, node: int, who: Any, put_out: Callable[..., None]) -> None:
        put_out()
        exclusion_keep(
            principal=who, node_id=node, until_at=None, reason="goes back to the vendor", source="WEB",
            now=datetime.now(UTC),
        )  # fmt: skip

        tasks.ledger_sweep()

        assert exclusions_of(node_id=node)[0].ended_at is None

    def test_what_had_no_end_is_taken_back_when_its_new_time_comes(
        self, node: int, who: Any, ask: Callable[..., Any]
    ) -> None:
        began = datetime.now(UTC) - timedelta(minutes=90)
        ask("EXCLUDE_NODE", node=node, now=began)
        exclusion_keep(
            principal=who, node_id=node, until_at=began + timedelta(hours=1), reason="the spare part comes then",
            source="WEB", now=began,
        )  # fmt: skip

        tasks.ledger_sweep()

        assert node_by_id(node).exclusion_id is None

    def test_is_for_what_is_out_and_ours(self, node: int, who: Any) -> None:
        given: dict[str, Any] = {"principal": who, "node_id": node, "until_at": soon(), "source": "WEB"}
        now = datetime.now(UTC)
        with pytest.raises(Conflict):
            exclusion_keep(reason="the spare part is late", now=now, **given)
        exclusion_open(node_id=node, reason="DIMM", by_name="root", origin="OBSERVED", source="SYSTEM", now=now)
        with pytest.raises(NotOurs):
            exclusion_keep(reason="the spare part is late", now=now, **given)
        with pytest.raises(BadRequest):
            exclusion_keep(reason="late", now=now, **given)

    def test_by_rest(self, node: int, put_out: Callable[..., None], api: Callable[..., Client]) -> None:
        put_out()
        until = soon().replace(microsecond=0).isoformat().replace("+00:00", "Z")

        answer = api("read", "operate").post(
            "/api/v1/nodes/trn001/keep",
            {"reason": "the spare part is late", "until_at": until},
            headers={"Idempotency-Key": "k"},
        )

        assert answer.status_code == 200
        assert answer.json()["until_at"][:16] == until[:16]
        assert answer.json()["notes"][0]["kind"] == "KEPT"
