"""Nodes that others leave out between two attempts enter the ledger as observed, over as they begin, once per attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.common.access import SYSTEM
from apps.fleet.models import Exclusion, Node
from apps.fleet.selectors import node_by_code
from apps.fleet.services import exclusion_end, exclusion_open, node_status_update, nodes_ensure
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation import tasks
from apps.remediation.services import SchedulerFields, scheduler_set
from apps.runs.services import RankPlace, attempt_end, attempt_open, placement_merge, run_put

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(cluster: int, run: Any, now: datetime) -> Callable[..., Any]:
    """Let an attempt begin with one rank on each of some nodes, the one before having failed: `attempt("a", "b")`."""
    begun: list[int] = []

    def begin(*names: str, told: int | None = None, key: str = "torchrun:{}", by: str = "ben", **more: Any) -> Any:
        at = now + timedelta(minutes=len(begun))
        if begun:
            attempt_end(attempt_id=begun[-1], reason="CRASHED", authority="CLIENT", by="", source="API", now=at)
        row, _ = attempt_open(
            run_id=run.id,
            key=key.format(len(begun)),
            world_size=len(names),
            by=by,
            source="API",
            now=at,
            **more,
        )
        begun.append(row.id)
        ids = nodes_ensure(cluster_id=cluster, names=names, now=at)
        places = [RankPlace(rank=rank, node_id=ids[name], local_rank=0) for rank, name in enumerate(names)]
        placement_merge(attempt_id=row.id, places=places[:told])
        return row

    return begin


def swept() -> list[tuple[str, str, str, str, str]]:
    """What the ledger says after two looks of the clock, the oldest line first."""
    tasks.ledger_sweep()
    tasks.ledger_sweep()
    rows = Exclusion.objects.select_related("node").order_by("pk")
    assert all(row.ended_at == row.began_at for row in rows if row.origin == "OBSERVED")
    return [(row.node.name, row.origin, row.by_name, row.reason, row.ended_reason) for row in rows]


def launcher_set(run: Any, nodes: Sequence[str], now: datetime, by: str = "mia") -> None:
    launcher = {"kind": "LOCAL", "command": ["/bin/true"], "nodes": list(nodes)}
    fields = {"launcher": launcher}
    run_put(slug=run.slug, cluster_id=run.cluster_id, fields=fields, by=by, source="WEB", now=now)


class TestBetweenTwoAttempts:
    def test_a_node_that_is_missing_is_entered_once_with_the_attempt_that_left_it_out(
        self, attempt: Callable[..., Any]
    ) -> None:
        attempt("trn001", "trn002", "trn003")
        attempt("trn001", "trn003")

        assert swept() == [
            (
                "trn002",
                "OBSERVED",
                "ben",
                "attempt 1 had it, attempt 2 is whole without it",
                "counts for attempt 2 of dense-7b alone",
            )
        ]

    def test_its_log_says_so_and_it_stays_in_service(self, attempt: Callable[..., Any]) -> None:
        attempt("trn001", "trn002")
        attempt("trn001")
        node = node_by_code("trn002")

        swept()

        (event,) = [row for row in events_latest(StreamKey.node(node.id), limit=5) if row.kind == "node.left_out"]
        assert event.text.startswith("trn002 is kept out of attempt 2 of dense-7b by ben: attempt 1 had it")
        assert node_by_code("trn002").state == node.state

    def test_nothing_is_said_before_all_ranks_have_their_place(
        self, attempt: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        attempt("trn001", "trn002", "trn003")
        row = attempt("trn001", "trn002", told=1)
        early = swept()
        node = nodes_ensure(cluster_id=cluster, names=["trn002"], now=now)["trn002"]

        placement_merge(attempt_id=row.id, places=[RankPlace(rank=1, node_id=node, local_rank=0)])

        assert early == []
        assert [line[0] for line in swept()] == ["trn003"]

    def test_one_that_ended_before_all_had_a_place_is_taken_with_the_one_before_it(
        self, attempt: Callable[..., Any]
    ) -> None:
        attempt("trn001", "trn002", "trn003")
        attempt("trn005", "trn001", told=1)
        attempt("trn001", "trn002")

        words = "one of the attempts 1 to 2 had it, attempt 3 is whole without it"
        assert [(line[0], line[3]) for line in swept()] == [("trn003", words), ("trn005", words)]

    @pytest.mark.parametrize(
        ("before", "after"),
        [("out", "nothing"), ("out", "back"), ("down", "nothing")],
    )
    def test_what_is_out_or_down_anyway_is_not_left_out_by_others(
        self, attempt: Callable[..., Any], now: datetime, before: str, after: str
    ) -> None:
        attempt("trn001", "trn002")
        node = Node.objects.get(name="trn002").pk

        WAYS[before](node, now)
        attempt("trn001")
        WAYS[after](node, now + timedelta(minutes=2))

        assert [line for line in swept() if line[1] == "OBSERVED"] == []

    @pytest.mark.parametrize("way", ["a scheduler is set", "it is a job"])
    def test_a_scheduler_gives_out_other_nodes_without_anybody_s_decision(
        self, attempt: Callable[..., Any], cluster: int, now: datetime, way: str
    ) -> None:
        fields = {"a scheduler is set": SchedulerFields()}.get(way)
        scheduler_set(principal=SYSTEM, cluster_id=cluster, fields=fields, source="API", now=now)
        key = {"it is a job": "slurm:{}.0"}.get(way, "torchrun:{}")

        attempt("trn001", "trn002", key=key)
        attempt("trn001", key=key)

        assert swept() == []

    @pytest.mark.parametrize(("more", "entered"), [(64, 64), (65, 0)])
    def test_more_than_64_at_once_are_no_word_about_nodes(
        self, attempt: Callable[..., Any], more: int, entered: int
    ) -> None:
        attempt("trn001", *(f"trn{number}" for number in range(100, 100 + more)))
        attempt("trn001")

        assert len(swept()) == entered

    def test_a_spare_that_the_launcher_s_list_gives_back_was_left_out_by_nobody(
        self, attempt: Callable[..., Any], run: Any, now: datetime
    ) -> None:
        launcher_set(run, ["trn001", "trn002", "trn003"], now)
        attempt("trn001", "trn003", order_id=1)
        attempt("trn001", "trn002", order_id=2)
        given_back = swept()
        attempt("trn001", "trn003", order_id=3)

        assert given_back == []
        assert [(line[0], line[2]) for line in swept()] == [("trn002", "its launcher or its program")]

    def test_what_is_imported_from_the_past_is_not_compared(
        self, attempt: Callable[..., Any], run: Any, cluster: int, now: datetime
    ) -> None:
        attempt("trn001", "trn002")
        row = attempt("trn001", told=0)
        node = nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]

        placement_merge(attempt_id=row.id, places=[RankPlace(rank=0, node_id=node)], past=True)

        assert swept() == []


class TestTakenOutOfTheList:
    def test_says_who_did_it_and_the_next_attempt_says_it_no_second_time(
        self, attempt: Callable[..., Any], run: Any, now: datetime
    ) -> None:
        launcher_set(run, ["trn001", "trn002", "nobody-knows-it"], now)
        attempt("trn001", "trn002")
        launcher_set(run, ["TRN001", "trn004"], now, by="mia")
        attempt("trn001")

        assert swept() == [
            ("trn002", "OBSERVED", "mia", "taken out of the run's launcher.nodes", "counts for run dense-7b alone")
        ]

    def test_a_first_list_takes_out_what_the_run_had_and_it_does_not_name(
        self, attempt: Callable[..., Any], run: Any, now: datetime
    ) -> None:
        attempt("trn001", "trn002")
        launcher_set(run, ["trn001"], now)

        assert [line[0] for line in swept()] == ["trn002"]

    @pytest.mark.parametrize("nodes", [[], ["trn002", "trn001"], ["trn001", "trn002", "trn003"]])
    def test_a_list_that_is_taken_away_turned_or_grows_takes_nothing_out(
        self, attempt: Callable[..., Any], run: Any, now: datetime, nodes: list[str]
    ) -> None:
        launcher_set(run, ["trn001", "trn002"], now)
        attempt("trn001", "trn002")

        launcher_set(run, nodes, now)

        assert swept() == []

    def test_what_is_out_anyway_is_not_entered_again(
        self, attempt: Callable[..., Any], run: Any, now: datetime
    ) -> None:
        launcher_set(run, ["trn001", "trn002"], now)
        attempt("trn001", "trn002")
        _exclude(Node.objects.get(name="trn002").pk, now)

        launcher_set(run, ["trn001"], now)

        assert [line[1] for line in swept()] == ["OURS"]


def _exclude(node: int, now: datetime) -> None:
    exclusion_open(node_id=node, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=now)


def _readmit(node: int, now: datetime) -> None:
    exclusion_end(node_id=node, reason="DIMM changed", by_name="bob", source="WEB", now=now)


WAYS: dict[str, Callable[[int, datetime], None]] = {
    "out": _exclude,
    "back": _readmit,
    "down": lambda node, _: node_status_update(node_id=node, state="DOWN"),
    "nothing": lambda *_: None,
}
