"""The practice run as an installation has it: made once, told about faults by page, REST and command."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.common.errors import Unprocessable
from apps.fleet.selectors import nodes_of
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.rehearsal import services
from apps.rehearsal.selectors import practice_folder, practice_read
from apps.rehearsal.trainer.faults import Place, Placement, placement_write, start_ticks
from apps.runs.selectors import RunRow
from apps.runs.services import run_put, status_update


@pytest.fixture
def practice(db: None, settings: Any, tmp_path: Path, now: datetime) -> Iterator[RunRow]:
    settings.DATA_DIR = tmp_path
    return services.practice_ensure(now=now, nodes=2, ranks=4)


@pytest.fixture
def practising(practice: RunRow) -> Placement:
    """The practice run while it runs, four ranks on two nodes: this very process stands for it."""
    nodes = practice.launcher["nodes"]
    ranks = tuple(Place(rank, nodes[rank // 2], rank % 2, pid=os.getpid()) for rank in range(4))
    placement = Placement("order:1", os.getpid(), 40, ranks, start_ticks=start_ticks(os.getpid()))
    placement_write(practice_folder(practice), placement)
    return placement


class TestPracticeEnsure:
    def test_makes_a_run_with_a_launch_recipe_like_any_users(self, practice: RunRow, tmp_path: Path) -> None:
        launcher = practice.launcher

        assert practice.practice
        assert launcher["kind"] == "LOCAL"
        assert launcher["command"][1:3] == ["-m", "apps.rehearsal.trainer"]
        assert launcher["nodes"] == ["practice-01", "practice-02"]
        assert launcher["directory"] == str(tmp_path / "practice")
        assert [node.name for node in nodes_of(cluster_id=practice.cluster_id)] == launcher["nodes"]

    def test_one_that_has_made_all_its_steps_gets_as_many_again(self, practice: RunRow, now: datetime) -> None:
        status_update(run_id=practice.id, step=services.STEPS)

        again = services.practice_ensure(now=now, nodes=2, ranks=4)
        status_update(run_id=practice.id, step=None)
        begun = services.practice_ensure(now=now, nodes=2, ranks=4)

        assert again.steps_planned == begun.steps_planned == 2 * services.STEPS
        assert f"--steps {2 * services.STEPS} " in " ".join(begun.launcher["command"])

    def test_shows_faults_within_seconds(self, practice: RunRow) -> None:
        assert practice.limits["hang_floor_s"] == 4
        assert practice.launcher["environment"]["PACELINE_INTERVAL_S"] == "1"

    def test_a_second_time_changes_nothing_that_people_set(self, practice: RunRow, now: datetime) -> None:
        set_by_people = {"limits": {"hang_floor_s": 9}, "mode": "OBSERVE"}
        run_put(slug="practice", cluster_id=practice.cluster_id, fields=set_by_people, by="x", source="WEB", now=now)

        again = services.practice_ensure(now=now, nodes=2, ranks=4)

        assert again.id == practice.id
        assert (again.limits, again.mode) == ({"hang_floor_s": 9}, "OBSERVE")

    def test_half_of_its_nodes_may_be_out_unless_somebody_set_its_guards(self, practice: RunRow, now: datetime) -> None:
        from apps.remediation.models import Guard
        from apps.remediation.selectors.guards import guard_settings

        delivered = guard_settings(practice.cluster_id)
        Guard.objects.update(share_of_run=0.25, updated_by="admin")
        services.practice_ensure(now=now, nodes=2, ranks=4)

        assert (delivered.share_of_run, delivered.exclusions_per_window) == (0.5, 6)
        assert guard_settings(practice.cluster_id).share_of_run == 0.25

    def test_is_sized_to_the_machine(self) -> None:
        assert services.practice_size(1) == (4, 2)
        assert services.practice_size(2) == services.practice_size(64) == (4, 4)

    @pytest.mark.parametrize(("nodes", "ranks"), [(3, 4), (33, 33), (1, 17), (4, 2)])
    def test_refuses_ranks_that_do_not_spread(self, practice: RunRow, now: datetime, nodes: int, ranks: int) -> None:
        with pytest.raises(Unprocessable, match="spread evenly"):
            services.practice_ensure(now=now, nodes=nodes, ranks=ranks)


def fault_set(now: datetime, kind: str, **target: Any) -> Any:
    given = {"rank": None, "node": None, "value": None, **target}
    return services.fault_set(kind=kind, **given, by="olga", source="WEB", now=now)


class TestFaultSet:
    def test_writes_the_file_and_the_log(self, practising: Placement, practice: RunRow, now: datetime) -> None:
        row = fault_set(now, "slow_rank", rank=3, value=2)

        assert [(fault.id, fault.rank, fault.node, fault.value) for fault in practice_read().faults] == [
            (row.id, 3, "practice-02", 2.0)
        ]
        event = events_latest(StreamKey.run(practice.id), limit=1)[0]
        assert (event.kind, event.actor_name) == ("practice.fault", "olga")
        assert event.text == (
            "Practice fault: A rank is slow in compute (rank 3 on practice-02, 2 times its usual compute time)"
        )

    def test_the_same_kind_in_the_same_place_is_replaced(self, practising: Placement, now: datetime) -> None:
        for rank, value in ((3, 2), (1, 2), (3, 4)):
            fault_set(now, "slow_rank", rank=rank, value=value)

        assert [(fault.rank, fault.value) for fault in practice_read().faults] == [(1, 2.0), (3, 4.0)]

    def test_what_happened_once_is_gone_with_its_attempt(
        self, practising: Placement, practice: RunRow, now: datetime
    ) -> None:
        fault_set(now, "hang", rank=0)
        fault_set(now, "slow_rank", rank=0)

        placement_write(practice_folder(practice), replace(practising, attempt="order:2"))

        assert [fault.kind for fault in practice_read().faults] == ["slow_rank"]

    def test_counts_no_fault_of_an_attempt_that_is_over(
        self, practising: Placement, practice: RunRow, now: datetime
    ) -> None:
        for rank in (0, 1):
            fault_set(now, "hang", rank=rank)
        fault_set(now, "slow_rank", rank=0)
        placement_write(practice_folder(practice), replace(practising, attempt="order:2"))

        assert services.faults_clear(fault_id=None, by="olga", source="WEB", now=now) == 1
        assert practice_read().faults == ()

    def test_clears_one_or_all(self, practising: Placement, practice: RunRow, now: datetime) -> None:
        first = fault_set(now, "slow_rank", rank=0)
        fault_set(now, "nan", rank=1)
        fault_set(now, "gc_pauses")

        def clear(fault_id: str | None) -> int:
            return services.faults_clear(fault_id=fault_id, by="olga", source="WEB", now=now)

        assert clear(first.id) == 1
        assert [fault.kind for fault in practice_read().faults] == ["nan", "gc_pauses"]
        assert clear(None) == 2
        assert clear(None) == 0
        kinds = [event.kind for event in events_latest(StreamKey.run(practice.id), limit=2)]
        assert kinds == ["practice.cleared", "practice.cleared"]

    def test_a_process_that_has_only_the_number_of_one_that_is_gone_does_not_count(
        self, practising: Placement, practice: RunRow
    ) -> None:
        placement_write(practice_folder(practice), replace(practising, start_ticks=practising.start_ticks - 1))

        assert not practice_read().running

    def test_needs_a_run_that_runs(self, practice: RunRow, now: datetime) -> None:
        with pytest.raises(services.NotPractising, match="not running"):
            fault_set(now, "gc_pauses")


class TestREST:
    URL = "/api/v1/practice/faults"

    def test_sets_reads_and_clears(self, practising: Placement, api: Callable[..., Any]) -> None:
        caller = api("read", "operate")

        made = caller.post(self.URL, {"kind": "lose_node", "node": "practice-02", "colour": "red"})
        read = caller.get(self.URL).json()
        cleared = caller.delete(f"{self.URL}?id={made.json()['id']}")

        assert made.status_code == 201
        assert made.json()["ignored"] == ["colour"]
        assert (read["running"], read["ranks"], read["nodes"]) == (True, 4, ["practice-01", "practice-02"])
        assert [(fault["kind"], fault["node"]) for fault in read["faults"]] == [("lose_node", "practice-02")]
        assert "slow_rank" in [kind["kind"] for kind in read["kinds"]]
        assert cleared.json() == {"cleared": 1}

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({}, 400, "bad_request"),
            ({"kind": "hang", "rank": "x"}, 400, "bad_request"),
            ({"kind": "earthquake"}, 422, "fault_impossible"),
            ({"kind": "hang", "rank": 99}, 422, "fault_impossible"),
            ({"kind": "hang"}, 422, "fault_impossible"),
        ],
    )
    def test_says_what_is_wrong(
        self, practising: Placement, api: Callable[..., Any], body: dict[str, Any], status: int, code: str
    ) -> None:
        answer = api("operate").post(self.URL, body)

        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)

    def test_is_409_while_nothing_runs_and_404_without_a_practice_run(
        self, db: None, api: Callable[..., Any], request: pytest.FixtureRequest
    ) -> None:
        body = {"kind": "hang", "rank": 0}

        assert api("operate").post(self.URL, body).status_code == 404
        request.getfixturevalue("practice")
        assert api("operate").post(self.URL, body).status_code == 409

    def test_needs_the_scope_and_the_cluster(
        self, practising: Placement, practice: RunRow, cluster: int, api: Callable[..., Any]
    ) -> None:
        body = {"kind": "hang", "rank": 0}

        assert api("read").post(self.URL, body).status_code == 403
        assert api("report").get(self.URL).status_code == 403
        assert api("operate", cluster_id=cluster).post(self.URL, body).status_code == 404
        assert api("operate", cluster_id=practice.cluster_id).post(self.URL, body).status_code == 201


class TestPage:
    def test_shows_what_runs_and_takes_a_fault(self, practising: Placement, operator: Any, client_as: Any) -> None:
        browser = client_as(operator)

        before = browser.get("/practice").content.decode()
        sent = browser.post("/practice/faults", {"kind": "slow_rank", "target": "rank:2", "value": "1.7"})
        after = browser.get("/practice?part=state").content.decode()

        assert "4 ranks on 2 nodes" in before
        assert "No fault is set" in before
        assert (sent.status_code, sent.headers["Location"]) == (302, "/practice")
        assert "1.7 times its usual compute time" in after
        assert "rank 2" in after

    def test_htmx_gets_the_changed_part(self, practising: Placement, operator: Any, client_as: Any) -> None:
        browser = client_as(operator)
        fault = {"kind": "lose_node", "target": "node:practice-01", "value": ""}

        shown = browser.post("/practice/faults", fault, headers={"HX-Request": "true"}).content.decode()
        fault_id = practice_read().faults[0].id
        cleared = browser.post("/practice/faults", {"clear": fault_id}, headers={"HX-Request": "true"}).content.decode()

        assert "A node is lost" in shown
        assert "No fault is set" in cleared
        assert "<html" not in shown

    def test_a_panel_drawn_for_another_state_is_told_to_draw_itself_anew(
        self, practising: Placement, operator: Any, client_as: Any
    ) -> None:
        browser = client_as(operator)

        stale = browser.get("/practice?part=state&running=no")
        fresh = browser.get("/practice?part=state&running=yes")

        assert stale.headers["HX-Trigger"] == "practice-switched"
        assert "HX-Trigger" not in fresh.headers
        assert "Make it fail" in browser.get("/practice?part=panel").content.decode()

    def test_what_cannot_be_set_is_said(self, practising: Placement, operator: Any, client_as: Any) -> None:
        browser = client_as(operator)

        missing = browser.post("/practice/faults", {"kind": "hang", "target": ""})
        no_number = browser.post("/practice/faults", {"kind": "hang", "target": "rank:0", "value": "much"})

        assert (missing.status_code, no_number.status_code) == (422, 400)
        assert "Hang needs a rank" in missing.content.decode()
        assert practice_read().faults == ()

    def test_a_viewer_sees_and_cannot_act(self, practising: Placement, viewer: Any, client_as: Any) -> None:
        browser = client_as(viewer)

        assert "Make it fail" not in browser.get("/practice").content.decode()
        assert browser.post("/practice/faults", {"clear": ""}).status_code == 403
        assert browser.post("/practice/switch", {"act": "stop"}).status_code == 403

    def test_without_a_practice_run_it_offers_one(self, db: None, operator: Any, client_as: Any) -> None:
        page = client_as(operator).get("/practice").content.decode()

        assert "Not started yet" in page
        assert "Start practice run" in page


class TestCommand:
    def run(self, *arguments: str) -> str:
        said = StringIO()
        call_command("practice", *arguments, stdout=said)
        return said.getvalue()

    def test_sets_shows_and_takes_away(self, practising: Placement) -> None:
        made = self.run("--fault", "slow_rank", "--rank", "3", "--value", "2")

        status = self.run("--status")
        cleared = self.run("--clear")

        assert made.split()[1:] == [
            "slow_rank",
            "rank",
            "3",
            "on",
            "practice-02",
            "2",
            "times",
            "its",
            "usual",
            "compute",
            "time",
        ]
        assert "4 ranks on practice-01, practice-02" in status
        assert made.strip() in status
        assert cleared == "1 taken away\n"

    def test_says_what_is_wrong(self, practice: RunRow) -> None:
        with pytest.raises(CommandError, match="not running"):
            self.run("--fault", "hang", "--rank", "0")

        assert self.run("--status") == "does not run\n"
