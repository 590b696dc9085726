"""Asking for actions: who may, what must hold, what stands in the way, and how actions end without having begun."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.common.access import Principal
from apps.common.errors import BadRequest, Forbidden
from apps.fleet.selectors import exclusions_of, node_by_code, node_by_id
from apps.fleet.services import cluster_ensure, exclusion_open, nodes_ensure
from apps.incidents.models import Incident
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.journal.services import Log
from apps.remediation import selectors, services
from apps.remediation.choices import OPEN, TRANSITIONS, ActionState
from apps.remediation.models import Action, ActionNode
from apps.remediation.services.moving import action_move
from apps.runs.selectors import run_by_id
from apps.runs.services import StateChanged, attempt_end, run_put, status_update
from tests.remediation.conftest import REASON

WEBHOOK = {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/orders"}


@pytest.fixture
def hooked(make_run: Callable[..., Any], make_attempt: Callable[..., Any]) -> Any:
    """A run with a webhook as its launcher and an open attempt on trn001 and trn002."""
    run = make_run("dense-7b", launcher=WEBHOOK)
    make_attempt(run)
    return run_by_id(run.id)


def node(name: str) -> int:
    return node_by_code(name).id


class TestAsking:
    @pytest.mark.parametrize("scopes", [{"read"}, {"report"}, {"read", "report"}, {"admin"}])
    def test_only_who_may_operate_acts(self, hooked: Any, ask: Callable[..., Any], scopes: set[str]) -> None:
        caller = Principal(kind="TOKEN", id=1, name="t", scopes=frozenset(scopes))

        with pytest.raises(Forbidden):
            ask("STOP_RUN", hooked, principal=caller)

        assert Action.objects.count() == 0

    def test_a_token_of_another_cluster_acts_nowhere_else(self, hooked: Any, ask: Callable[..., Any]) -> None:
        caller = Principal("TOKEN", 1, "t", frozenset({"operate"}), cluster_id=hooked.cluster_id + 1)

        with pytest.raises(Forbidden):
            ask("STOP_RUN", hooked, principal=caller)

    @pytest.mark.parametrize("reason", ["", "too short", "   a    b   ", "short    \n   "])
    def test_a_reason_has_ten_characters(self, hooked: Any, ask: Callable[..., Any], reason: str) -> None:
        with pytest.raises(BadRequest, match="reason"):
            ask("STOP_RUN", hooked, reason=reason)

    @pytest.mark.parametrize(
        ("kind", "more"),
        [
            ("RESTART_RUN", {}),
            ("EXCLUDE_NODE", {}),
            ("FLY", {"run": True}),
            ("STOP_RUN", {"run": True, "options": {"when": "SOON"}}),
            ("RESTART_RUN", {"run": True, "options": {"from_step": -1}}),
            ("RESTART_RUN", {"run": True, "options": {"from_step": "x"}}),
            ("RESTART_RUN", {"run": True, "options": {"exclude_nodes": "trn001"}}),
            ("STOP_RUN", {"run": True, "options": {"exclude_nodes": ["trn001"]}}),
            ("RESTART_RUN", {"run": True, "options": {"when": "NEXT_CHECKPOINT", "from_step": 3}}),
        ],
    )
    def test_what_makes_no_sense_is_said(
        self, hooked: Any, ask: Callable[..., Any], kind: str, more: dict[str, Any]
    ) -> None:
        with pytest.raises(BadRequest):
            ask(kind, hooked if more.pop("run", False) else None, **more)

    def test_the_state_seen_must_still_be_so(self, hooked: Any, ask: Callable[..., Any]) -> None:
        status_update(run_id=hooked.id, step=12, hang="CONFIRMED")

        with pytest.raises(StateChanged) as state:
            ask("STOP_RUN", hooked, expected_state={"attempt": hooked.attempt_id, "state": "RUNNING"})
        with pytest.raises(StateChanged):
            ask("STOP_RUN", hooked, expected_state={"attempt": hooked.attempt_id + 1})
        done = ask("STOP_RUN", hooked, expected_state={"attempt": hooked.attempt_id, "state": "HUNG"})

        assert state.value.facts["state"] == "HUNG"
        assert (done.state, done.expected_state, done.ends_as) == ("REQUESTED", "HUNG", "HUNG")

    def test_a_run_without_a_launcher_is_refused_with_a_command_to_copy(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], ask: Callable[..., Any], now: datetime
    ) -> None:
        run = make_run()
        make_attempt(run, key="slurm:4211.0.0")

        done = ask("RESTART_RUN", run_by_id(run.id), options={"exclude_nodes": ["trn002"]})
        preview = selectors.restart_preview(run.id, exclude_nodes=["trn002"], now=now)

        assert done.state == "REFUSED"
        assert "No launcher is set" in done.outcome
        assert preview.commands == (
            "scontrol update NodeName=trn002 State=DRAIN Reason=paceline",
            "scontrol requeuehold 4211",
            "scontrol update JobId=4211 ExcNodeList=trn002",
            "scontrol release 4211",
            "scontrol update JobId=4211 StartTime=now+2",
        )

    @pytest.mark.parametrize("kind", ["CHECKPOINT_NOW", "CHECK_NODE"])
    def test_what_no_launcher_can_do_is_refused_in_one_clear_sentence(
        self, hooked: Any, ask: Callable[..., Any], kind: str
    ) -> None:
        done = ask(kind, hooked, node=node("trn001"))

        assert done.state == "REFUSED"
        assert done.outcome.endswith(("instead.", "record it."))

    def test_a_local_launcher_never_stops_what_it_did_not_start(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        run = make_run(launcher={"kind": "LOCAL", "command": ["train"]})
        make_attempt(run)

        done = ask("RESTART_RUN", run_by_id(run.id))

        assert done.state == "REFUSED"
        assert "was not started by Paceline" in done.outcome

    def test_what_somebody_writes_stays_one_argument(self, hooked: Any, boss: Any, now: datetime) -> None:
        fields = services.SchedulerFields(conf="/etc/slurm/slurm.conf")
        services.scheduler_set(principal=boss, cluster_id=hooked.cluster_id, fields=fields, source="API", now=now)
        nasty = "<img src=x onerror=alert(1)>; rm -rf ~ | 'tee' $(id)"

        preview = selectors.action_preview(
            kind="EXCLUDE_NODE", run=None, node=node_by_code("trn001"), reason=nasty, now=now
        )

        import shlex

        assert shlex.split(preview.commands[0]) == [
            "scontrol",
            "update",
            "NodeName=trn001",
            "State=DRAIN",
            "Reason=paceline <img src=x onerror=alert(1)>; rm -rf ~ / 'tee' $(id)",
        ]


class TestOneOpenAction:
    @pytest.mark.parametrize("second", ["RESTART_RUN", "STOP_RUN"])
    def test_an_open_action_holds_its_run(self, hooked: Any, ask: Callable[..., Any], second: str) -> None:
        status_update(run_id=hooked.id, step=40)
        first = ask("RESTART_RUN", hooked)

        with pytest.raises(services.ActionOpen) as error:
            ask(second, hooked)

        assert error.value.facts["action"].startswith("act_")
        assert run_by_id(hooked.id).open_action_id == first.id
        assert run_by_id(hooked.id).state == "RESTARTING"

    def test_and_every_node_it_names(self, hooked: Any, ask: Callable[..., Any]) -> None:
        ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn002"]})

        with pytest.raises(services.ActionOpen):
            ask("EXCLUDE_NODE", node=node("trn002"))
        free = ask("EXCLUDE_NODE", node=node("trn001"))

        assert free.state == "SUCCEEDED"

    def test_it_lets_go_when_it_is_over(self, hooked: Any, ask: Callable[..., Any], who: Any) -> None:
        first = ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn002"]})
        services.action_cancel(principal=who, action_id=first.id, reason="", now=datetime.now(UTC))

        second = ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn002"]})

        assert second.state == "REQUESTED"
        assert ActionNode.objects.filter(holds=True).count() == 1

    def test_the_database_itself_refuses_a_second_one(self, hooked: Any, ask: Callable[..., Any]) -> None:
        first = Action.objects.get(pk=ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn002"]}).id)
        first.pk = None

        with pytest.raises(IntegrityError), transaction.atomic():
            first.save(force_insert=True)
        first.run_id, first.node_id = None, node("trn002")
        first.save(force_insert=True)
        with pytest.raises(IntegrityError), transaction.atomic():
            ActionNode.objects.create(action=first, node_id=node("trn002"), holds=True)

    def test_the_held_nodes_follow_the_state_in_every_transition(
        self, hooked: Any, ask: Callable[..., Any], now: datetime
    ) -> None:
        action = Action.objects.get(pk=ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn002"]}).id)

        for before, after in product(ActionState, ActionState):
            Action.objects.filter(pk=action.pk).update(state=before)
            action.refresh_from_db()
            allowed = after in TRANSITIONS[before]
            try:
                action_move(Log(now=now), action, after, text="moves", now=now)
            except services.ActionMoved:
                assert not allowed
                continue
            assert allowed
            assert ActionNode.objects.get(action=action).holds == (after in OPEN)


class TestLedger:
    def test_excluding_a_node_says_when_it_counts(self, hooked: Any, ask: Callable[..., Any]) -> None:
        done = ask("EXCLUDE_NODE", node=node("trn001"))

        line = exclusions_of(node_id=node("trn001"))[0]
        assert done.state == "SUCCEEDED"
        assert done.outcome == ("trn001 is out of service; what runs there goes on, it counts from the next start.")
        assert (line.reason, line.by_name, line.action_id, line.origin) == (REASON, "operator", done.id, "OURS")
        assert node_by_id(node("trn001")).state == "EXCLUDED"

    def test_a_node_that_is_out_keeps_its_first_reason(self, hooked: Any, ask: Callable[..., Any]) -> None:
        ask("EXCLUDE_NODE", node=node("trn001"))

        with pytest.raises(services.NodeStateDiffers, match=REASON):
            ask("EXCLUDE_NODE", node=node("trn001"), reason="another reason altogether")

    def test_readmitting_ends_the_line_and_keeps_it(self, hooked: Any, ask: Callable[..., Any]) -> None:
        ask("EXCLUDE_NODE", node=node("trn001"))

        done = ask("READMIT_NODE", node=node("trn001"), reason="fan replaced, burnt in for an hour")

        lines = exclusions_of(node_id=node("trn001"))
        assert done.state == "SUCCEEDED"
        assert [(line.reason, line.ended_reason) for line in lines] == [(REASON, "fan replaced, burnt in for an hour")]
        with pytest.raises(services.NodeStateDiffers):
            ask("READMIT_NODE", node=node("trn001"))

    def test_what_others_put_out_is_never_lifted(self, hooked: Any, ask: Callable[..., Any], now: datetime) -> None:
        exclusion_open(
            node_id=node("trn001"),
            reason="HW team: DIMM replacement, do not touch",
            by_name="root",
            origin="OBSERVED",
            source="SYSTEM",
            now=now,
        )

        with pytest.raises(services.NotOurs, match="DIMM"):
            ask("READMIT_NODE", node=node("trn001"))

    def test_an_exclusion_at_the_run_s_end_waits_and_a_cancelled_one_never_happens(
        self, hooked: Any, ask: Callable[..., Any], who: Any, now: datetime
    ) -> None:
        action = ask("EXCLUDE_NODE", hooked, node=node("trn001"), options={"when": "RUN_END"})
        services.action_advance(action_id=action.id, now=datetime.now(UTC))
        waiting = selectors.action_by_id(action.id).state
        services.action_cancel(principal=who, action_id=action.id, reason="the fault cleared", now=datetime.now(UTC))
        attempt_end(attempt_id=hooked.attempt_id, reason="FINISHED", authority="CLIENT", by="t", source="API", now=now)

        for _ in range(2):
            services.action_advance(action_id=action.id, now=datetime.now(UTC))

        kinds = [event.kind for event in events_latest(StreamKey.run(hooked.id), limit=50, kinds=["action.", "node."])]
        assert waiting == "REQUESTED"
        assert selectors.action_by_id(action.id).state == "CANCELLED"
        assert node_by_id(node("trn001")).exclusion_id is None
        assert kinds == ["action.cancelled", "action.requested"]

    def test_an_exclusion_at_the_run_s_end_happens_then(
        self, hooked: Any, ask: Callable[..., Any], now: datetime
    ) -> None:
        action = ask("EXCLUDE_NODE", hooked, node=node("trn001"), options={"when": "RUN_END"})
        attempt_end(attempt_id=hooked.attempt_id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=now)

        services.action_advance(action_id=action.id, now=datetime.now(UTC))

        assert selectors.action_by_id(action.id).state == "SUCCEEDED"
        assert node_by_id(node("trn001")).exclusion_id is not None

    def test_an_exclusion_at_the_run_s_end_happens_though_the_next_attempt_has_begun(
        self, hooked: Any, ask: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        action = ask("EXCLUDE_NODE", hooked, node=node("trn001"), options={"when": "RUN_END"})
        attempt_end(attempt_id=hooked.attempt_id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=now)
        make_attempt(hooked, key="slurm:1.1.0", now=now)

        services.action_advance(action_id=action.id, now=datetime.now(UTC))

        assert selectors.action_by_id(action.id).state == "SUCCEEDED"
        assert node_by_id(node("trn001")).exclusion_id is not None

    def test_what_was_done_by_hand_is_recorded_and_the_ledger_follows(
        self, hooked: Any, ask: Callable[..., Any], who: Any, now: datetime
    ) -> None:
        command = "scontrol update NodeName=trn001 State=DRAIN"
        services.command_copied(
            principal=who, kind="EXCLUDE_NODE", commands=command, node_id=node("trn001"), source="WEB", now=now
        )

        done = ask("RECORD_DONE", node=node("trn001"), options={"done": "EXCLUDE_NODE", "command": command})

        events = events_latest(StreamKey.node(node("trn001")), limit=10)
        assert done.state == "SUCCEEDED"
        assert node_by_id(node("trn001")).exclusion_id is not None
        assert {"command.copied", "action.succeeded", "node.excluded"} <= {event.kind for event in events}
        assert next(event for event in events if event.kind == "action.succeeded").payload["command"] == command

    def test_a_token_of_another_cluster_notes_and_configures_nothing_here(
        self, hooked: Any, boss: Any, cluster: int, now: datetime
    ) -> None:
        stranger = replace(boss, cluster_id=cluster_ensure(name="south", now=now))
        limits = {"window_s": 3600, "exclusions_per_window": 2, "share_of_run": 0.5}

        with pytest.raises(Forbidden):
            services.command_copied(
                principal=stranger, kind="EXCLUDE_NODE", commands="x", node_id=node("trn001"), source="API", now=now
            )
        with pytest.raises(Forbidden):
            services.guard_set(principal=stranger, cluster_id=cluster, source="API", now=now, **limits)


class TestByHand:
    def test_what_is_recorded_counts_as_what_paceline_puts_out(
        self, cluster: int, ask: Callable[..., Any], now: datetime
    ) -> None:
        nodes = list(nodes_ensure(cluster_id=cluster, names=[f"n{place}" for place in range(7)], now=now).values())
        for node_id in nodes[:6]:
            ask("RECORD_DONE", node=node_id, options={"done": "EXCLUDE_NODE"})

        with pytest.raises(services.GuardClosed) as error:
            ask("RECORD_DONE", node=nodes[6], options={"done": "EXCLUDE_NODE"})

        assert error.value.facts["guard"] == "exclusions_per_window"

    def test_what_is_so_already_is_recorded_all_the_same(
        self, cluster: int, ask: Callable[..., Any], now: datetime
    ) -> None:
        nodes = list(nodes_ensure(cluster_id=cluster, names=[f"n{place}" for place in range(6)], now=now).values())
        for node_id in nodes:
            ask("RECORD_DONE", node=node_id, options={"done": "EXCLUDE_NODE"})

        states = [
            ask("RECORD_DONE", node=nodes[0], options={"done": done}).state
            for done in ("EXCLUDE_NODE", "READMIT_NODE", "READMIT_NODE")
        ]

        assert states == ["SUCCEEDED"] * 3
        assert len(exclusions_of(node_id=nodes[0])) == 1

    def test_nobody_lifts_by_hand_in_our_ledger_what_the_site_put_out(
        self, cluster: int, ask: Callable[..., Any], now: datetime
    ) -> None:
        (node_id,) = nodes_ensure(cluster_id=cluster, names=["n0"], now=now).values()
        exclusion_open(node_id=node_id, reason="fans", by_name="root", origin="OBSERVED", source="SYSTEM", now=now)

        with pytest.raises(services.NotOurs):
            ask("RECORD_DONE", node=node_id, options={"done": "READMIT_NODE"})

    def test_a_node_that_an_action_holds_is_not_recorded_meanwhile(self, hooked: Any, ask: Callable[..., Any]) -> None:
        ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn001"]})

        with pytest.raises(services.ActionOpen):
            ask("RECORD_DONE", node=node("trn001"), options={"done": "EXCLUDE_NODE"})


class TestGuards:
    def test_the_number_of_exclusions_in_a_window_is_limited(
        self, cluster: int, ask: Callable[..., Any], boss: Any, now: datetime
    ) -> None:
        nodes = nodes_ensure(cluster_id=cluster, names=["a", "b", "c"], now=now)
        services.guard_set(
            principal=boss,
            cluster_id=cluster,
            window_s=3600,
            exclusions_per_window=2,
            share_of_run=0.5,
            source="API",
            now=now,
        )
        ask("EXCLUDE_NODE", node=nodes["a"])
        ask("EXCLUDE_NODE", node=nodes["b"])
        ask("READMIT_NODE", node=nodes["a"])

        with pytest.raises(services.GuardClosed) as error:
            ask("EXCLUDE_NODE", node=nodes["c"])

        assert error.value.facts == {"guard": "exclusions_per_window", "after": 3, "limit": 2}
        assert ask("EXCLUDE_NODE", node=nodes["c"], now=datetime.now(UTC) + timedelta(hours=2)).state == "SUCCEEDED"

    def test_the_share_of_a_run_s_nodes_is_limited_and_one_is_always_allowed(
        self, make_run: Callable[..., Any], ask: Callable[..., Any], now: datetime
    ) -> None:
        names = [f"trn{number:03d}" for number in range(1, 64)]
        run = make_run(launcher={**WEBHOOK, "nodes": names})
        nodes_ensure(cluster_id=run.cluster_id, names=names, now=now)

        with pytest.raises(services.GuardClosed) as seven:
            ask("RESTART_RUN", run, options={"exclude_nodes": names[:7]})
        six = ask("RESTART_RUN", run, options={"exclude_nodes": names[:6]})

        assert seven.value.facts == {"guard": "exclusions_per_window", "after": 7, "limit": 6}
        assert six.state == "REQUESTED"

    def test_a_small_run_may_lose_one_node_and_not_two(self, hooked: Any, ask: Callable[..., Any]) -> None:
        ask("EXCLUDE_NODE", hooked, node=node("trn001"))

        with pytest.raises(services.GuardClosed) as error:
            ask("EXCLUDE_NODE", hooked, node=node("trn002"))

        assert error.value.facts == {"guard": "share_of_run", "after": 2, "limit": 1}

    def test_a_guard_that_closed_in_between_stops_the_order(
        self, hooked: Any, ask: Callable[..., Any], boss: Any, now: datetime
    ) -> None:
        action = ask("RESTART_RUN", hooked, options={"exclude_nodes": ["trn002"]})
        services.guard_set(
            principal=boss,
            cluster_id=hooked.cluster_id,
            window_s=3600,
            exclusions_per_window=0,
            share_of_run=0.5,
            source="API",
            now=now,
        )

        claimed = services.order_claim(order_id=action.orders[0].id, now=datetime.now(UTC))

        row = selectors.action_by_id(action.id)
        assert claimed is None
        assert row.state == "REFUSED"
        assert "0 exclusions allowed" in row.outcome
        assert node_by_code("trn002").exclusion_id is None

    def test_a_large_run_s_name_must_be_typed(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        run = make_run("dense-70b", launcher=WEBHOOK)
        make_attempt(run, world_size=512, per_node=8)
        large = run_by_id(run.id)

        for typed in ("", "dense-70", "Dense-70b"):
            with pytest.raises(services.ConfirmationNeeded):
                ask("STOP_RUN", large, options={"confirm": typed})

        assert ask("STOP_RUN", large, options={"confirm": "dense-70b"}).state == "REQUESTED"

    def test_only_an_admin_sets_guards(self, cluster: int, who: Any, now: datetime) -> None:
        with pytest.raises(Forbidden):
            services.guard_set(
                principal=who,
                cluster_id=cluster,
                window_s=3600,
                exclusions_per_window=2,
                share_of_run=0.5,
                source="API",
                now=now,
            )


class TestExpiry:
    def test_what_has_not_begun_in_ten_minutes_is_off(self, hooked: Any, ask: Callable[..., Any]) -> None:
        asked_at = datetime.now(UTC)
        action = ask("RESTART_RUN", hooked, now=asked_at)

        early = selectors.actions_overdue(now=asked_at + timedelta(minutes=9))
        late = services.order_claim(order_id=action.orders[0].id, now=asked_at + timedelta(minutes=11))

        row = selectors.action_by_id(action.id)
        assert early == []
        assert late is None
        assert (row.state, row.orders[0].state) == ("EXPIRED", "CANCELLED")

    def test_the_clock_ends_it_too(self, hooked: Any, ask: Callable[..., Any]) -> None:
        asked_at = datetime.now(UTC)
        action = ask("RESTART_RUN", hooked, expires_at=asked_at + timedelta(seconds=30), now=asked_at)
        late = asked_at + timedelta(seconds=31)

        for overdue in selectors.actions_overdue(now=late):
            services.action_expire(action_id=overdue, now=late)

        assert selectors.action_by_id(action.id).state == "EXPIRED"
        assert run_by_id(hooked.id).open_action_id is None

    def test_an_expiry_lies_ahead(self, hooked: Any, ask: Callable[..., Any]) -> None:
        with pytest.raises(BadRequest, match="expires_at"):
            ask("STOP_RUN", hooked, expires_at=datetime.now(UTC) - timedelta(seconds=1))


class TestPrice:
    def test_what_is_not_measured_is_not_priced(self, hooked: Any, now: datetime) -> None:
        price = selectors.restart_preview(hooked.id, now=now).price

        assert price is not None
        assert (price.steps, price.gpu_hours, price.downtime_s, price.payback_s) == (None, None, None, None)

    def test_a_restart_is_priced_by_steps_downtime_and_what_slowness_costs(
        self, hooked: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime], ask: Callable[..., Any]
    ) -> None:
        from apps.runs.services import CheckpointFact, attempt_progress, checkpoint_note

        first = hooked.attempt_id
        attempt_end(attempt_id=first, reason="CRASHED", authority="CLIENT", by="t", source="API", now=later(100))
        second = make_attempt(hooked, key="slurm:2.0.0", now=later(110))
        attempt_progress(attempt_id=second.id, first_step=101, last_step=120, now=later(460))
        for step in (100, 150):
            fact = CheckpointFact(step=step, state="SAVED", happened_at=later(step), duration_s=8.0, blocking_s=2.0)
            checkpoint_note(attempt_id=second.id, fact=fact, source="SENDER", actor_name="", now=later(step))
        status_update(
            run_id=hooked.id,
            step=170,
            first_step=101,
            step_s=4.0,
            own_best_step_s=3.0,
            last_report_at=later(900),
            slow=True,
        )

        preview = selectors.restart_preview(hooked.id, now=later(900))
        now_price, _, at_save = preview.prices

        # 20 steps of 4 s and 360 s of downtime on 8 GPUs; a quarter of 8 GPUs is lost each hour.
        assert (now_price.from_step, now_price.steps, now_price.downtime_s) == (150, 20, 360.0)
        assert now_price.gpu_hours == pytest.approx((20 * 4 + 360) * 8 / 3600)
        assert preview.loss_per_hour == pytest.approx(2.0)
        assert now_price.payback_s == pytest.approx((20 * 4 + 360) / (4 - 3) * 4)
        # The save of step 200 takes 30 steps, and 2 more while it is written: those are done again.
        assert (at_save.from_step, at_save.stop_step, at_save.steps) == (200, 202, 2)
        assert at_save.wait_s == pytest.approx(32 * 4.0)
        assert at_save.gpu_hours == pytest.approx((2 * 4 + 2 + 32 * 4 * 0.25 + 360) * 8 / 3600)
        assert ask("RESTART_RUN", run_by_id(hooked.id)).price["steps"] == 20

    def test_a_healthy_run_has_nothing_to_be_paid_back_however_its_steps_vary(
        self, hooked: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime]
    ) -> None:
        self.started(hooked, make_attempt, later)
        status_update(run_id=hooked.id, step=170, first_step=101, step_s=4.0, own_best_step_s=3.0)

        preview = selectors.restart_preview(hooked.id, now=later(900))

        assert preview.loss_per_hour is None
        assert preview.price is not None
        assert (preview.price.downtime_s, preview.price.payback_s) == (360.0, None)

    def started(self, run: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime]) -> Any:
        """A second attempt whose first step came 360 s after the first one's end."""
        from apps.runs.services import attempt_progress

        attempt_end(
            attempt_id=run.attempt_id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=later(100)
        )
        second = make_attempt(run, key="slurm:2.0.0", now=later(110))
        attempt_progress(attempt_id=second.id, first_step=101, last_step=120, now=later(460))
        return second

    def test_a_run_that_stands_loses_all_its_gpu_hours_and_awaits_no_save(
        self, hooked: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime]
    ) -> None:
        self.started(hooked, make_attempt, later)
        status_update(run_id=hooked.id, step=170, first_step=170, step_s=4.0, own_best_step_s=3.9, hang="CONFIRMED")

        preview = selectors.restart_preview(hooked.id, from_step=160, now=later(900))

        assert preview.loss_per_hour == 8.0
        assert [price.moment for price in preview.prices] == ["NOW"]
        assert preview.prices[0].payback_s == pytest.approx(10 * 4 + 360)

    def test_a_first_restart_is_estimated_from_other_runs_here_else_from_its_own_start_and_says_so(
        self,
        hooked: Any,
        make_run: Callable[..., Any],
        make_attempt: Callable[..., Any],
        later: Callable[[float], datetime],
    ) -> None:
        from apps.runs.services import attempt_progress

        attempt_progress(attempt_id=hooked.attempt_id, first_step=1, last_step=20, now=later(25))
        alone = selectors.restart_preview(hooked.id, now=later(900)).price
        other = make_run("other", launcher=run_by_id(hooked.id).launcher)
        first = make_attempt(other, key="slurm:7.0.0")
        attempt_end(attempt_id=first.id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=later(100))
        again = make_attempt(other, key="slurm:8.0.0", now=later(110))
        attempt_progress(attempt_id=again.id, first_step=1, last_step=2, now=later(190))

        beside = selectors.restart_preview(hooked.id, now=later(900)).price

        assert alone is not None
        assert (alone.downtime_s, alone.downtime_n, alone.downtime_from) == (25.0, 1, "START")
        assert beside is not None
        assert (beside.downtime_s, beside.downtime_n, beside.downtime_from) == (90.0, 1, "CLUSTER")

    def test_a_run_that_never_saved_does_again_what_it_did_and_no_more(
        self, hooked: Any, later: Callable[[float], datetime]
    ) -> None:
        status_update(run_id=hooked.id, step=5100, first_step=5001, step_s=4.0, last_report_at=later(400))

        price = selectors.restart_preview(hooked.id, now=later(400)).price

        assert price is not None
        assert (price.from_step, price.steps) == (None, run_by_id(hooked.id).at_risk_steps) == (None, 100)

    def test_where_the_program_has_to_choose_a_save_the_steps_are_not_made_up(
        self, hooked: Any, later: Callable[[float], datetime]
    ) -> None:
        from apps.runs.services import CheckpointFact, checkpoint_note, checkpoint_trust_set

        fact = CheckpointFact(step=100, state="SAVED", happened_at=later(100))
        checkpoint_note(attempt_id=hooked.attempt_id, fact=fact, source="SENDER", actor_name="", now=later(100))
        checkpoint_trust_set(run_id=hooked.id, after_step=50, attempt_id=hooked.attempt_id)
        status_update(run_id=hooked.id, step=170, first_step=1, step_s=4.0, last_report_at=later(400))

        price = selectors.restart_preview(hooked.id, now=later(400)).price

        assert price is not None
        assert (price.from_step, price.steps, price.gpu_hours) == (None, None, None)

    def test_where_no_checkpoint_can_be_trusted_a_person_chooses_one_as_suspect_or_the_beginning(
        self, hooked: Any, later: Callable[[float], datetime], ask: Callable[..., Any]
    ) -> None:
        from apps.remediation.services.wishes import CheckpointChoice
        from apps.runs.services import CheckpointFact, checkpoint_note, checkpoint_trust_set

        for step in (100, 120):
            fact = CheckpointFact(step=step, state="SAVED", happened_at=later(step))
            checkpoint_note(attempt_id=hooked.attempt_id, fact=fact, source="SENDER", actor_name="", now=later(step))
        checkpoint_trust_set(run_id=hooked.id, after_step=50, attempt_id=hooked.attempt_id)
        status_update(run_id=hooked.id, step=170, first_step=1, step_s=4.0, last_report_at=later(400))

        with pytest.raises(
            CheckpointChoice, match=r"No checkpoint of dense-7b can be trusted.*120, 100.*or 0 for"
        ) as no:
            ask("RESTART_RUN", hooked)
        suspect = selectors.restart_preview(hooked.id, from_step=120, now=later(400))
        anew = selectors.restart_preview(hooked.id, from_step=0, now=later(400))

        assert (no.value.http_status, no.value.facts["suspect"]) == (422, [120, 100])
        assert suspect.price is not None
        assert anew.price is not None
        assert (suspect.choose, suspect.price.steps) == ("", 50)
        assert (anew.choose, anew.price.steps) == ("", 170)
        assert ask("RESTART_RUN", hooked, options={"from_step": 120}).price["steps"] == 50

    def test_no_save_is_awaited_while_every_save_is_suspect(
        self, hooked: Any, now: datetime, ask: Callable[..., Any]
    ) -> None:
        from apps.remediation.services.wishes import NoSaveToCome

        status_update(run_id=hooked.id, step=170, step_s=4.0, suspect_from_step=150)

        with pytest.raises(NoSaveToCome, match="since step 150 is suspect"):
            ask("RESTART_RUN", run_by_id(hooked.id), options={"when": "CHECKPOINT_FIRST"})

        assert [price.moment for price in selectors.restart_preview(hooked.id, now=now).prices] == ["NOW"]

    def test_a_step_of_which_no_save_is_known_is_said_and_its_run_s_name_typed(
        self, hooked: Any, now: datetime, ask: Callable[..., Any]
    ) -> None:
        from apps.remediation.services.wishes import ConfirmationNeeded

        preview = selectors.restart_preview(hooked.id, from_step=7, now=now)

        assert (preview.can, preview.confirm) == (True, hooked.slug)
        assert "no save of step 7 was ever reported" in preview.unsure
        assert any(preview.unsure in row.small for row in preview.happens)
        with pytest.raises(ConfirmationNeeded, match="No save of step 7"):
            ask("RESTART_RUN", hooked, options={"from_step": 7})
        assert selectors.restart_preview(hooked.id, from_step=0, now=now).confirm is None
        assert ask("RESTART_RUN", hooked, options={"from_step": 7, "confirm": hooked.slug}).state == "REQUESTED"

    def test_nodes_named_often_are_looked_up_once_and_too_many_not_at_all(
        self, hooked: Any, now: datetime, django_assert_max_num_queries: Any
    ) -> None:
        with django_assert_max_num_queries(60):
            preview = selectors.restart_preview(hooked.id, exclude_nodes=["trn002"] * 1000, now=now)

        assert [row.name for row in preview.exclude] == ["trn002"]
        with pytest.raises(BadRequest, match="at most 64"):
            selectors.restart_preview(hooked.id, exclude_nodes=[f"n{n}" for n in range(65)], now=now)

    def test_a_checkpoint_that_cannot_be_used_cannot_be_chosen(
        self, hooked: Any, now: datetime, ask: Callable[..., Any]
    ) -> None:
        from apps.runs.services import CheckpointFact, checkpoint_note

        for state, step in (("SAVED", 10), ("FAILED", 20)):
            fact = CheckpointFact(step=step, state=state, happened_at=now)
            checkpoint_note(attempt_id=hooked.attempt_id, fact=fact, source="SENDER", actor_name="", now=now)

        with pytest.raises(BadRequest, match="cannot be used: failed"):
            ask("RESTART_RUN", hooked, options={"from_step": 20})

        assert selectors.restart_preview(hooked.id, now=now).from_step == 10


class TestMitigation:
    def test_an_exclusion_that_succeeds_mitigates_the_node_s_incident(
        self, hooked: Any, ask: Callable[..., Any], now: datetime
    ) -> None:
        incident = Incident.objects.create(
            number=1,
            state="OPEN",
            run_id=hooked.id,
            node_id=node("trn001"),
            cluster_id=hooked.cluster_id,
            place_key="NODE:trn001",
            began_at=now,
            found_at=now,
            first_seen_at=now,
            last_seen_at=now,
        )

        ask("EXCLUDE_NODE", hooked, node=node("trn001"))

        incident.refresh_from_db()
        assert incident.state == "MITIGATED"


def test_a_launcher_that_is_taken_away_meanwhile_gives_no_order(hooked: Any, ask: Callable[..., Any]) -> None:
    action = ask("RESTART_RUN", hooked)
    run_put(
        slug=hooked.slug,
        cluster_id=hooked.cluster_id,
        fields={"launcher": {}},
        by="t",
        source="API",
        now=datetime.now(UTC),
    )

    assert services.order_claim(order_id=action.orders[0].id, now=datetime.now(UTC)) is None
    assert selectors.action_by_id(action.id).state == "REFUSED"
