"""`POST check` says whether a report would be taken, by the way of a real one, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.test import Client

from apps.fleet.models import Cluster, Node
from apps.fleet.services import cluster_ensure
from apps.journal.models import Event
from apps.runs.models import Attempt, Run
from apps.telemetry.models import Inbox, Series
from tests.telemetry.reports import packed

pytestmark = pytest.mark.django_db


@pytest.fixture
def ask(make_token: Callable[..., str]) -> Callable[..., Any]:
    """Post to the door with a report token (of a cluster, if one is given)."""

    def post(cluster_id: int | None = None, **body: Any) -> Any:
        secret = make_token("report", cluster_id=cluster_id, name=f"token-{cluster_id}")
        return Client().post(
            "/api/v1/check", body, content_type="application/json", headers={"Authorization": f"Bearer {secret}"}
        )

    return post


def report(**parts: Any) -> dict[str, Any]:
    steps = packed([0], [0, 1], {"step_s": np.ones((1, 2), np.float32)})
    placement = [{"rank": 0, "node": "vm", "local_rank": 0}]
    return {"sender": "vm", "boot": "b", "seq": 1, "steps": steps, "placement": placement, **parts}


def everything() -> dict[str, int]:
    kinds: tuple[Any, ...] = (Run, Attempt, Cluster, Node, Inbox, Series)
    counts = {kind.__name__: kind.objects.count() for kind in kinds}
    return counts | {"Event": Event.objects.exclude(stream_kind="SYSTEM").count()}  # tokens are told there


class TestCheck:
    def test_a_report_of_ranks_goes_the_whole_way_and_leaves_nothing(self, ask: Callable[..., Any]) -> None:
        before = everything()

        answer = ask(run="my-run", report=report())

        assert answer.status_code == 200, answer.json()
        assert answer.json() == {"cluster": "main", "refused": [], "kept": False, "ignored": []}
        assert everything() == before

    def test_says_which_values_could_not_be_used(self, ask: Callable[..., Any]) -> None:
        answer = ask(run="my-run", report=report(beats=[{"rank": 7, "step": 1, "phase": "compute"}]))

        assert [row["reason"] for row in answer.json()["refused"]] == ["RANK_OUTSIDE"]

    def test_a_run_that_is_under_way_goes_on(self, ask: Callable[..., Any], attempt: Any) -> None:
        before = everything()

        answer = ask(run="dense-7b", report=report())

        assert (answer.status_code, answer.json()["cluster"]) == (200, "north")
        assert Attempt.objects.get(pk=attempt.id).state == "OPEN"
        assert everything() == before

    def test_a_node_s_report_leaves_no_node(self, ask: Callable[..., Any]) -> None:
        before = everything()

        answer = ask(node="vm", report={"sender": "vm", "boot": "b", "seq": 1, "host": {}, "colour": "red"})

        assert (answer.status_code, answer.json()["ignored"]) == (200, ["colour"])
        assert everything() == before

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"run": "Not A Name", "report": {}}, 400),
            ({"run": "my-run"}, 400),
            ({"report": {}}, 400),
            ({"run": "my-run", "node": "vm", "report": {}}, 400),
            ({"run": "my-run", "cluster": "elsewhere", "report": {}}, 403),
            ({"node": "elsewhere:vm", "report": {}}, 403),
        ],
    )
    def test_refuses_what_a_real_report_would_be_refused_for(
        self, ask: Callable[..., Any], cluster: int, body: dict[str, Any], status: int
    ) -> None:
        before = everything()

        answer = ask(cluster, **body)

        assert answer.status_code == status
        assert everything() == before


class TestOneClusterForBoth:
    @pytest.mark.parametrize(
        ("known", "expected"),
        [((), "main"), (("practice",), "main"), (("alpha", "practice"), "alpha"), (("alpha", "beta"), "main")],
    )
    def test_a_run_and_a_machine_that_name_no_cluster_come_to_the_same(
        self, ask: Callable[..., Any], now: Any, known: tuple[str, ...], expected: str
    ) -> None:
        for name in known:
            cluster_ensure(name=name, now=now)

        of_run = ask(run="my-run", report=report()).json()["cluster"]
        of_node = ask(node="vm", report={"sender": "vm", "boot": "b", "seq": 1, "host": {}}).json()["cluster"]

        assert (of_run, of_node) == (expected, expected)
