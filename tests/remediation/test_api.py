"""The REST doors of actions: who passes, once per key, dry runs, waiting, and one shape of error."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.test import Client

from apps.common.ids import id_read, id_write
from apps.fleet.selectors import node_by_code
from apps.fleet.services import cluster_ensure
from apps.incidents.services import findings_absorb
from apps.remediation import services
from apps.remediation.models import Action
from apps.runs.selectors import run_by_id
from apps.runs.services import CheckpointFact, checkpoint_note
from tests.remediation.conftest import REASON

READER, ACTING = ("read",), ("read", "operate")
WEBHOOK = {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/orders"}


@pytest.fixture
def hooked(make_run: Callable[..., Any], make_attempt: Callable[..., Any]) -> Any:
    run = make_run("dense-7b", launcher=WEBHOOK)
    make_attempt(run)
    return run_by_id(run.id)


def restart(caller: Client, key: str = "k1", query: str = "", **more: Any) -> Any:
    body = {"kind": "RESTART_RUN", "run": "dense-7b", "reason": REASON, **more}
    return caller.post(f"/api/v1/actions{query}", body, headers={"Idempotency-Key": key})


class TestWho:
    @pytest.mark.parametrize("scopes", [("read",), ("report",), ("read", "report"), ("admin",)])
    def test_no_other_scope_acts(self, hooked: Any, api: Callable[..., Client], scopes: tuple[str, ...]) -> None:
        answer = restart(api(*scopes))

        assert answer.status_code == 403
        assert Action.objects.count() == 0

    def test_a_viewer_s_session_does_not_act_and_an_operator_s_does(
        self, hooked: Any, client_as: Callable[..., Client], viewer: Any, operator: Any
    ) -> None:
        words = {"kind": "STOP_RUN", "run": "dense-7b", "reason": REASON}
        keys = {"Idempotency-Key": "k"}

        refused = client_as(viewer).post("/api/v1/actions", words, "application/json", headers=keys)
        taken = client_as(operator).post("/api/v1/actions", words, "application/json", headers=keys)

        assert (refused.status_code, taken.status_code) == (403, 201)
        assert taken.json()["requested_by"] == "operator"

    @pytest.mark.parametrize("door", ["accept", "dismiss", "cancel", "settle"])
    def test_deciding_needs_the_same_scope(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any], door: str
    ) -> None:
        code = id_write("act", ask("RESTART_RUN", hooked).id)

        answer = api("read", "report").post(f"/api/v1/actions/{code}/{door}", {"reason": REASON})

        assert answer.status_code == 403

    def test_a_token_of_another_cluster_neither_acts_nor_sees(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any], now: datetime
    ) -> None:
        other = api("read", "operate", cluster_id=cluster_ensure(name="south", now=now))
        code = id_write("act", ask("RESTART_RUN", hooked).id)

        assert restart(other).status_code == 403
        assert other.get(f"/api/v1/actions/{code}").status_code == 404
        assert other.get("/api/v1/actions").json()["results"] == []
        assert other.get("/api/v1/runs/dense-7b/restart-preview").status_code == 403


class TestAsk:
    def test_an_action_has_the_contract_s_fields(self, hooked: Any, api: Callable[..., Client]) -> None:
        answer = restart(api("operate"), options={"exclude_nodes": ["trn002"], "colour": 1}, weather="fine")

        body = answer.json()
        assert answer.status_code == 201
        assert {
            "id",
            "kind",
            "state",
            "run",
            "node",
            "requested_by",
            "requested_at",
            "orders",
            "price",
        } <= set(body)
        assert (body["kind"], body["state"], body["run"], body["nodes"]) == (
            "RESTART_RUN",
            "REQUESTED",
            "dense-7b",
            ["trn002"],
        )
        assert set(body["price"]) == {"steps", "gpu_hours", "downtime_s", "payback_s"}
        assert set(body["orders"][0]) >= {"launcher", "state", "receipt", "error"}
        assert body["ignored"] == ["weather"]

    def test_the_same_key_gives_the_same_action_and_another_body_is_422(
        self, hooked: Any, api: Callable[..., Client]
    ) -> None:
        caller = api("operate")
        first = restart(caller)

        again = restart(caller)
        other = restart(caller, reason="another reason for this")

        assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
        assert again.json() == first.json()
        assert Action.objects.count() == 1

    def test_without_a_key_nothing_is_done(self, hooked: Any, api: Callable[..., Client]) -> None:
        body = {"kind": "RESTART_RUN", "run": "dense-7b", "reason": REASON}

        answer = api("operate").post("/api/v1/actions", body)

        assert answer.status_code == 400
        assert "Idempotency-Key" in answer.json()["error"]["message"]
        assert Action.objects.count() == 0

    def test_an_overlap_is_409_with_the_other_s_id(self, hooked: Any, api: Callable[..., Client]) -> None:
        caller = api("operate")
        first = restart(caller).json()["id"]

        answer = restart(caller, key="k2")

        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "action_open")
        assert error["facts"]["action"] == first

    def test_a_run_that_moved_on_is_409_state_changed(self, hooked: Any, api: Callable[..., Client]) -> None:
        answer = restart(api("operate"), expected_state={"attempt": id_write("att", 999), "state": "RUNNING"})

        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "state_changed")

    def test_another_checkpoint_than_the_one_seen_is_409_unless_it_was_chosen(
        self, hooked: Any, api: Callable[..., Client]
    ) -> None:
        caller, seen = api("operate"), {"from_step": 7_777}

        refused = restart(caller, key="k1", expected_state=seen)
        chosen = restart(caller, key="k2", expected_state=seen, options={"from_step": 0})

        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "checkpoint_moved")
        assert chosen.status_code == 201

    def test_who_saw_that_nothing_could_be_gone_on_from_is_told_of_the_save_that_can(
        self, hooked: Any, api: Callable[..., Client], now: datetime
    ) -> None:
        fact = CheckpointFact(step=90, state="SAVED", happened_at=now)
        checkpoint_note(attempt_id=hooked.attempt_id, fact=fact, source="SENDER", actor_name="", now=now)

        answer = restart(api("operate"), expected_state={"from_step": None})

        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "checkpoint_moved")
        assert (error["facts"]["from_step"], error["facts"]["newer"]) == (90, True)

    @pytest.mark.parametrize(
        ("more", "status"),
        [
            ({"reason": "short"}, 400),
            ({"kind": "FLY"}, 400),
            ({"run": "nowhere"}, 404),
            ({"node": "nowhere"}, 404),
            ({"expected_state": {"attempt": "x"}}, 404),
            ({"options": {"when": "SOON"}}, 400),
            ({"options": {"exclude_nodes": ["nowhere"]}}, 404),
            ({"options": []}, 400),
            ({"expires_at": "yesterday"}, 400),
            ({"expires_at": "2020-01-01T00:00:00Z"}, 400),
        ],
    )
    def test_bad_requests_are_never_5xx(
        self, hooked: Any, api: Callable[..., Client], more: dict[str, Any], status: int
    ) -> None:
        answer = restart(api("operate"), **more)

        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"code", "message", "facts", "request_id"}

    def test_a_guard_is_422_with_its_figures(self, hooked: Any, api: Callable[..., Client]) -> None:
        answer = restart(api("operate"), options={"exclude_nodes": ["trn001", "trn002"]})

        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (422, "guard_closed")
        assert error["facts"] == {"guard": "share_of_run", "after": 2, "limit": 1}


class TestDryRun:
    def test_it_answers_everything_and_keeps_nothing(self, hooked: Any, api: Callable[..., Client]) -> None:
        answer = restart(api("operate"), query="?dry_run=1", options={"exclude_nodes": ["trn002"]})

        body = answer.json()
        assert answer.status_code == 200
        assert body["dry_run"] is True
        assert body["state"] == "REQUESTED"
        assert body["preview"]["blast"]["out_after"] == 1
        assert Action.objects.count() == 0
        assert run_by_id(hooked.id).open_action_id is None

    def test_excluding_is_tried_and_taken_back(self, hooked: Any, api: Callable[..., Client]) -> None:
        body = {"kind": "EXCLUDE_NODE", "node": "trn001", "reason": REASON}

        answer = api("operate").post("/api/v1/actions?dry_run=1", body)

        assert answer.json()["state"] == "SUCCEEDED"
        assert node_by_code("trn001").exclusion_id is None

    def test_it_fails_as_the_real_one_would(self, hooked: Any, api: Callable[..., Client]) -> None:
        caller = api("operate")
        restart(caller)

        assert restart(caller, query="?dry_run=1").status_code == 409

    def test_cancelling_can_be_tried_too(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any]
    ) -> None:
        code = id_write("act", ask("RESTART_RUN", hooked).id)

        answer = api("operate").post(f"/api/v1/actions/{code}/cancel?dry_run=1")

        assert (answer.json()["state"], answer.json()["dry_run"]) == ("CANCELLED", True)
        assert Action.objects.get().state == "REQUESTED"


class TestLook:
    def test_listings_filter_and_page_newest_first(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any]
    ) -> None:
        node_id = node_by_code("trn001").id
        ask("EXCLUDE_NODE", node=node_id)
        ask("READMIT_NODE", node=node_id)
        ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn001"]})
        caller = api("read")

        page = caller.get("/api/v1/actions?limit=2").json()
        rest = caller.get(f"/api/v1/actions?limit=2&cursor={page['next']}").json()
        of_node = caller.get("/api/v1/actions?node=trn001").json()["results"]
        of_run = caller.get("/api/v1/actions?run=dense-7b&state=REQUESTED").json()["results"]

        assert [row["kind"] for row in page["results"]] == ["RESTART_RUN", "READMIT_NODE"]
        assert [row["kind"] for row in rest["results"]] == ["EXCLUDE_NODE"]
        assert rest["next"] is None
        assert len(of_node) == 3
        assert [row["kind"] for row in of_run] == ["RESTART_RUN"]
        assert caller.get("/api/v1/actions?state=DREAMING").status_code == 400

    def test_waiting_ends_at_the_latest_when_told(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any]
    ) -> None:
        code = id_write("act", ask("RESTART_RUN", hooked).id)
        began = time.monotonic()

        answer = api("read").get(f"/api/v1/actions/{code}?wait=1")

        assert answer.json()["state"] == "REQUESTED"
        assert time.monotonic() - began >= 1

    @pytest.mark.django_db(transaction=True)
    def test_waiting_ends_when_the_action_is_over(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any], who: Any
    ) -> None:
        action_id = ask("RESTART_RUN", hooked).id
        caller = api("read")

        def cancel() -> None:
            from django.db import connection

            services.action_cancel(principal=who, action_id=action_id, reason="", now=datetime.now().astimezone())
            connection.close()

        timer = threading.Timer(0.3, cancel)
        timer.start()
        answer = caller.get(f"/api/v1/actions/{id_write('act', action_id)}?wait=20")
        timer.join()

        assert answer.json()["state"] == "CANCELLED"

    def test_an_unknown_action_is_404(self, db: None, api: Callable[..., Client]) -> None:
        caller = api("read")

        assert caller.get("/api/v1/actions/act_zzz").status_code == 404
        assert caller.get("/api/v1/actions/nonsense").status_code == 404

    def test_the_preview_shows_prices_guards_and_for_operators_the_commands(
        self, hooked: Any, api: Callable[..., Client]
    ) -> None:
        path = "/api/v1/runs/dense-7b/restart-preview?exclude_nodes=trn002"

        seen = api("read").get(path).json()
        acting = api("read", "operate").get(path).json()

        assert [price["when"] for price in seen["prices"]] == ["NOW", "CHECKPOINT_FIRST", "NEXT_CHECKPOINT"]
        assert {guard["name"] for guard in seen["guards"]} == {
            "one_open_action",
            "exclusions_per_window",
            "share_of_run",
        }
        assert (seen["can"], seen["commands"]) == (True, None)
        assert seen["expected_state"]["attempt"] == id_write("att", hooked.attempt_id)
        assert any("requeuehold" in line for line in acting["commands"])

    def test_commands_that_somebody_copied_or_ran_are_shown_to_those_who_may_act(
        self,
        hooked: Any,
        api: Callable[..., Client],
        ask: Callable[..., Any],
        find: Callable[..., Any],
        who: Any,
        now: datetime,
    ) -> None:
        secret = "env train --key hush"
        find()
        findings_absorb(now=now)
        copied = {"kind": "STOP_RUN", "commands": secret, "run_id": hooked.id, "source": "WEB"}
        services.command_copied(principal=who, **copied, now=now)
        done = ask("RECORD_DONE", hooked, options={"done": "STOP_RUN", "command": secret})
        (incident,) = api("read").get("/api/v1/incidents").json()["results"]
        paths = [
            "actions",
            f"actions/{id_write('act', done.id)}",
            "events?stream=run:dense-7b",
            "runs/dense-7b/events",
            f"incidents/{incident['id']}/timeline",
            f"incidents/{incident['id']}/export?format=json",
        ]

        seen = [[secret in api(*scopes).get(f"/api/v1/{path}").text for path in paths] for scopes in (READER, ACTING)]

        assert seen == [[False] * len(paths), [True] * len(paths)]


class TestDecide:
    def test_cancel_twice_is_one_cancel(self, hooked: Any, api: Callable[..., Client], ask: Any) -> None:
        caller = api("operate")
        path = f"/api/v1/actions/{id_write('act', ask('RESTART_RUN', hooked).id)}/cancel"

        answers = [caller.post(path, {}, headers={"Idempotency-Key": key}) for key in ("a", "b", "a")]

        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert {answer.json()["state"] for answer in answers} == {"CANCELLED"}

    def test_what_is_no_proposal_cannot_be_accepted(
        self, hooked: Any, api: Callable[..., Client], ask: Callable[..., Any]
    ) -> None:
        path = f"/api/v1/actions/{id_write('act', ask('RESTART_RUN', hooked).id)}"
        caller = api("operate")

        for door in ("accept", "dismiss", "settle"):
            words = {"reason": REASON, "outcome": "SUCCEEDED"}
            answer = caller.post(f"{path}/{door}", words, headers={"Idempotency-Key": door})
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "action_state")

    def test_ids_lead_back_to_their_rows(self, hooked: Any, api: Callable[..., Client]) -> None:
        body = restart(api("operate")).json()

        assert Action.objects.get(pk=id_read("act", body["id"])).run_id == hooked.id
