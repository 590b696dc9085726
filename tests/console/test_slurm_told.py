"""What pages say of a cluster's Slurm: that it has too few nodes for a start, and that it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from apps.common.ids import id_write
from apps.engine.readers.slurm import SlurmNode
from apps.fleet.models import Node
from apps.remediation.models import Action, ActionNode, SchedulerSetting
from apps.remediation.services import nodes_seen
from apps.remediation.services.scheduling import scheduler_answered, scheduler_silent
from apps.runs.services import attempt_open
from tests.console.test_confirm_pages import hidden

pytestmark = pytest.mark.django_db

ADDRESS = "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=n1"
SHORT = "he job asks for 2 nodes and Slurm has 1 for it without n1: it would wait in the queue until one comes back."


@pytest.fixture
def full(make_run: Callable[..., Any], cluster: int) -> Callable[..., Any]:
    """Make a run that goes on as job 7 on both nodes of its cluster: `full(nodes=2)`."""

    def make(*, nodes: int, base: str = "ALLOCATED") -> Any:
        call_command("scheduler_set", "north")
        moment = datetime.now(UTC)
        run = make_run("dense-7b", launcher={"kind": "SLURM", "command": [f"--nodes={nodes}", "srun", "python"]})
        attempt_open(
            run_id=run.id, key="slurm:7.0", external_id="slurm:7", world_size=2, by="t", source="API", now=moment
        )
        nodes_seen(cluster_id=cluster, nodes=[SlurmNode("n1", base), SlurmNode("n2", base)], at=moment, now=moment)
        return run

    return make


class TestTooFewNodes:
    def test_are_said_on_the_confirm_page_and_the_name_is_asked_for_because_of_it(
        self, full: Any, client_as: Any, operator: Any
    ) -> None:
        full(nodes=2)

        page = client_as(operator).get(ADDRESS).text

        assert f'<span class="st warn">Too few nodes</span><span>T{SHORT}</span>' in page
        assert f"Asked because t{SHORT}" in page
        assert 'data-name="dense-7b"' in page

    def test_without_the_name_nothing_is_done_and_with_it_it_is(self, full: Any, client_as: Any, operator: Any) -> None:
        full(nodes=2)
        client = client_as(operator)
        page = client.get(ADDRESS).text
        form = {name: hidden(page, name) for name in ("kind", "node", "key", "expected_attempt", "expected_state")}
        form |= {"when": "NOW", "reason": "throttles on heat since noon"}

        without = client.post(ADDRESS, form)
        key = hidden(without.text, "key")
        typed = client.post(ADDRESS, form | {"key": key, "confirm": "dense-7b"})

        assert without.status_code == 422
        assert "type dense-7b in options.confirm" in without.text
        assert typed.status_code == 302
        assert Action.objects.get().state == "REQUESTED"

    def test_enough_are_a_line_of_what_happens(self, full: Any, client_as: Any, operator: Any) -> None:
        full(nodes=1)

        page = client_as(operator).get(ADDRESS).text

        assert "Slurm has 1 node for it without those that are out; it asks for 1" in page
        assert "Too few nodes" not in page
        assert 'data-name=""' in page

    def test_a_proposal_says_why_it_asks_for_the_name(self, full: Any, client_as: Any, operator: Any) -> None:
        run, moment = full(nodes=2), datetime.now(UTC)
        action = Action.objects.create(
            kind="RESTART_RUN",
            state="PROPOSED",
            run_id=run.id,
            reason="throttles on heat since noon",
            requested_at=moment,
            expires_at=moment + timedelta(hours=1),
        )
        ActionNode.objects.create(action=action, node=Node.objects.get(name="n1"))

        page = client_as(operator).get(f"/actions/{id_write('act', action.pk)}").text

        assert f"Asked because t{SHORT}" in page


class TestSilence:
    PAGES = ("/runs/dense-7b", "/runs/dense-7b/parts/head", "/nodes?cluster=north", "/nodes?cluster=north&part=1")

    def told(self, client: Any) -> list[bool]:
        return ["Slurm does not answer" in client.get(page).text for page in self.PAGES]

    def fails(self, cluster: int, *, read_s: float | None) -> datetime:
        """Let a read fail, so long after the last good one."""
        moment = datetime.now(UTC)
        read_at = None if read_s is None else moment - timedelta(seconds=read_s)
        SchedulerSetting.objects.filter(pk=cluster).update(read_at=read_at)
        error = "Slurm's controller does not answer: connect <failure>"
        scheduler_silent(cluster_id=cluster, error=error, now=moment)
        return moment - timedelta(seconds=read_s or 0)

    def test_is_said_on_the_run_s_page_and_on_the_nodes_page_with_since_when_and_why(
        self, full: Any, cluster: int, client_as: Any, viewer: Any
    ) -> None:
        full(nodes=2)
        client = client_as(viewer)

        since = self.fails(cluster, read_s=3600)

        assert self.told(client) == [True] * 4
        for page in map(client.get, self.PAGES):
            assert f"{since:%H:%M} UTC</time>: connect &lt;failure&gt;. What is shown" in page.text

    def test_of_one_that_never_answered_says_so(self, full: Any, cluster: int, client_as: Any, viewer: Any) -> None:
        full(nodes=2)
        self.fails(cluster, read_s=None)

        assert "and never has: connect &lt;failure&gt;." in client_as(viewer).get("/nodes?cluster=north").text

    def test_is_not_said_of_one_read_that_failed_nor_once_it_answers(
        self, full: Any, cluster: int, client_as: Any, viewer: Any
    ) -> None:
        full(nodes=2)
        client = client_as(viewer)
        never_failed = self.told(client)

        self.fails(cluster, read_s=5)
        one_failed = self.told(client)
        self.fails(cluster, read_s=3600)
        scheduler_answered(cluster_id=cluster, soon=False, now=datetime.now(UTC))

        assert never_failed == one_failed == self.told(client) == [False] * 4


class TestSpares:
    def test_are_not_named_once_the_scheduler_is_silent_for_long(
        self, full: Any, cluster: int, client_as: Any, viewer: Any
    ) -> None:
        from apps.fleet.models import NodeStatus

        full(nodes=1, base="IDLE")
        client = client_as(viewer)
        before = client.get("/runs/dense-7b").text

        NodeStatus.objects.update(scheduler_read_at=datetime.now(UTC) - timedelta(hours=2))

        assert "<dt>Spares</dt><dd>n1, n2</dd>" in before
        assert "<dt>Spares</dt>" not in client.get("/runs/dense-7b").text
