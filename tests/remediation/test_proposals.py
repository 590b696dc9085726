"""From confirmed findings to proposals, and what people do with them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.common.errors import BadRequest
from apps.common.ids import id_write
from apps.diagnosis.models import Finding
from apps.fleet.selectors import node_by_code
from apps.fleet.services import nodes_ensure
from apps.remediation import selectors, services
from apps.remediation.models import Action, Order
from apps.runs.selectors import run_by_id
from apps.runs.services import StateChanged, attempt_end, run_put
from apps.telemetry.models import DoorBeat
from tests.remediation.conftest import REASON


def proposals() -> list[Any]:
    return selectors.actions_of(states=["PROPOSED"])


def mode(run: Any, mode: str, **modes: str) -> None:
    fields = {"mode": mode, "modes": modes}
    run_put(slug=run.slug, cluster_id=run.cluster_id, fields=fields, by="t", source="API", now=datetime.now(UTC))


class TestProposing:
    def test_a_confirmed_finding_on_a_running_node_proposes_exclude_and_restart(
        self, find: Callable[..., Finding], now: datetime
    ) -> None:
        finding = find()

        services.findings_consider(now=now)

        (row,) = proposals()
        assert (row.kind, row.run, row.node, row.finding_id) == ("RESTART_RUN", "dense-7b", "trn001", finding.id)
        assert row.options["exclude_nodes"] == ["trn001"]
        assert row.reason == "thermal_throttle: trn001 throttles on heat"
        assert row.requested_by == "Paceline"
        assert node_by_code("trn001").exclusion_id is None

    def test_one_version_is_considered_once_and_one_cause_proposed_once(
        self, find: Callable[..., Finding], now: datetime
    ) -> None:
        find()
        find(subject_key="GPU:trn001/0")

        considered = [services.findings_consider(now=now) for _ in range(2)]

        assert considered == [2, 0]
        assert len(proposals()) == 1

    @pytest.mark.parametrize(
        "more",
        [
            {"certainty": "SUSPECTED"},
            {"state": "CLOSED"},
            {"proposal_kind": "NONE"},
            {"muted_for_good": True},
            {"proposal_node": "nobody-knows"},
        ],
    )
    def test_nothing_less_proposes(self, find: Callable[..., Finding], now: datetime, more: dict[str, Any]) -> None:
        find(**more)

        services.findings_consider(now=now)

        assert proposals() == []

    def test_a_run_that_is_only_observed_gets_none(
        self, find: Callable[..., Finding], hooked: Any, now: datetime
    ) -> None:
        mode(hooked, "OBSERVE")
        find()

        services.findings_consider(now=now)

        assert Action.objects.count() == 0

    def test_a_run_that_nobody_set_is_only_observed_and_its_confirmed_hang_stops_nothing(
        self,
        make_run: Callable[..., Any],
        make_attempt: Callable[..., Any],
        find: Callable[..., Finding],
        now: datetime,
    ) -> None:
        run = make_run("fresh", launcher={"kind": "WEBHOOK", "url": "http://127.0.0.1:9/"})
        attempt = make_attempt(run, key="slurm:2.0.0")
        hang = {"cause": "hang", "subject": {"kind": "RUN"}, "subject_key": "RUN", "place_key": "RUN"}
        find(**hang, run_id=run.id, attempt_id=attempt.id, proposal_kind="RESTART_RUN", proposal_node="")

        considered = services.findings_consider(now=now)

        assert (run.mode, considered) == ("OBSERVE", 1)
        assert (Action.objects.count(), Order.objects.count()) == (0, 0)

    def test_the_mode_of_a_cause_counts_before_the_run_s(
        self, find: Callable[..., Finding], hooked: Any, now: datetime
    ) -> None:
        mode(hooked, "OBSERVE", hang="PROPOSE")
        find()
        find(cause="hang", subject_key="RUN", proposal_kind="RESTART_RUN", proposal_node="")

        services.findings_consider(now=now)

        assert [(row.kind, row.node) for row in proposals()] == [("RESTART_RUN", None)]

    def test_act_proposes_too_and_says_that_it_does_no_more(
        self, find: Callable[..., Finding], hooked: Any, now: datetime
    ) -> None:
        mode(hooked, "ACT")
        find()

        services.findings_consider(now=now)

        (row,) = proposals()
        assert "never acts by itself" in row.milestones[0].text
        assert run_by_id(hooked.id).open_action_id is None

    def test_a_finding_that_closes_takes_its_proposal_back(self, find: Callable[..., Finding], now: datetime) -> None:
        finding = find()
        services.findings_consider(now=now)
        Finding.objects.filter(pk=finding.pk).update(state="CLOSED", version=2)

        services.findings_consider(now=now)

        row = selectors.actions_of()[0]
        assert row.state == "EXPIRED"
        assert "the finding closed" in row.outcome

    def test_nobody_s_proposal_expires(self, find: Callable[..., Finding], now: datetime) -> None:
        find()
        services.findings_consider(now=now)
        late = now + timedelta(hours=7)

        for action_id in selectors.actions_overdue(now=late):
            services.action_expire(action_id=action_id, now=late)

        assert selectors.actions_of()[0].state == "EXPIRED"


class TestRetrying:
    """What would only try the same again is proposed as long as it may help."""

    RETRY = {"cause": "rank_lost", "subject": {"kind": "RUN"}, "subject_key": "RUN", "place_key": "RUN"}
    RETRY |= {"proposal_kind": "RESTART_RUN", "proposal_node": ""}
    LOOP = {**RETRY, "cause": "restart_loop", "proposal_kind": "NONE", "verdict": "2 attempts in a row got nowhere."}

    @pytest.fixture
    def failed(self, hooked: Any, make_attempt: Callable[..., Any], now: datetime) -> Callable[[int], int]:
        """Let so many attempts of 12 s fail without a step, 650 s apart; the last one's number."""

        def make(count: int) -> int:
            attempt_id = hooked.attempt_id
            for at in range(count):
                began = now + timedelta(seconds=650 * at)
                if at:
                    attempt_id = make_attempt(hooked, key=f"slurm:9{at}.0.0", now=began).id
                ended = began + timedelta(seconds=12)
                attempt_end(
                    attempt_id=attempt_id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=ended
                )
            return int(attempt_id)

        return make

    def test_waits_its_turn_after_a_failure_at_once(
        self, find: Callable[..., Finding], failed: Callable[[int], int], now: datetime
    ) -> None:
        find(**self.RETRY, attempt_id=failed(1))

        services.findings_consider(now=now + timedelta(seconds=20))

        (row,) = proposals()
        turn = now + timedelta(seconds=630)
        assert f"Its turn is at {turn:%H:%M:%S} UTC" in row.milestones[0].text

    def test_stops_after_two_failures_alike(
        self, find: Callable[..., Finding], failed: Callable[[int], int], now: datetime
    ) -> None:
        find(**self.RETRY, attempt_id=failed(2))

        services.findings_consider(now=now + timedelta(seconds=700))

        assert proposals() == []

    def test_is_taken_back_once_the_loop_is_known_but_not_what_leaves_a_node_out(
        self, find: Callable[..., Finding], now: datetime
    ) -> None:
        find()
        find(**self.RETRY)
        services.findings_consider(now=now)
        before = {row.node for row in proposals()}

        find(**self.LOOP)
        services.findings_consider(now=now)

        assert before == {None, "trn001"}
        assert [row.node for row in proposals()] == ["trn001"]
        (gone,) = selectors.actions_of(states=["EXPIRED"])
        assert "2 attempts in a row got nowhere." in gone.outcome

    def test_never_begins_while_the_loop_is_known_unless_somebody_set_it_quiet(
        self, find: Callable[..., Finding], now: datetime
    ) -> None:
        loop = find(**self.LOOP)
        retry = find(**self.RETRY)
        services.findings_consider(now=now)
        before = proposals()

        Finding.objects.filter(pk=loop.pk).update(muted_for_good=True)
        Finding.objects.filter(pk=retry.pk).update(version=2)
        services.findings_consider(now=now)

        assert before == []
        assert [row.kind for row in proposals()] == ["RESTART_RUN"]


class TestDeciding:
    @pytest.fixture
    def proposal(self, find: Callable[..., Finding]) -> Any:
        find()
        services.findings_consider(now=datetime.now(UTC))  # doors, which have a clock of their own, take it up
        return proposals()[0]

    def test_accepting_makes_it_the_accepter_s_action(self, proposal: Any, who: Any) -> None:
        done = services.action_accept(
            principal=who, action_id=proposal.id, source="WEB", reason=REASON, now=datetime.now(UTC)
        )

        assert (done.state, done.requested_by, done.decided_by) == ("REQUESTED", "operator", "operator")
        assert (done.reason, done.orders[0].state) == (REASON, "WAITING")
        assert done.expires_at < datetime.now(UTC) + timedelta(minutes=11)

    def test_accepting_refuses_a_moment_that_a_request_would_be_refused_for(self, proposal: Any, who: Any) -> None:
        with pytest.raises(BadRequest, match="together with waiting for a save"):
            services.action_accept(
                principal=who,
                action_id=proposal.id,
                source="WEB",
                reason=REASON,
                options={"when": "NEXT_CHECKPOINT", "from_step": 10},
                now=datetime.now(UTC),
            )

        assert proposals()[0].id == proposal.id

    @pytest.mark.parametrize("days", [-1, 400])
    def test_accepting_refuses_a_time_that_a_request_would_be_refused_for(
        self, proposal: Any, who: Any, days: int
    ) -> None:
        moment = datetime.now(UTC)
        with pytest.raises(BadRequest, match="until_at: must lie ahead"):
            services.action_accept(
                principal=who,
                action_id=proposal.id,
                source="WEB",
                reason=REASON,
                options={"until_at": moment + timedelta(days=days)},
                now=moment,
            )

        assert proposals()[0].id == proposal.id

    def test_accepting_an_exclusion_at_the_run_s_end_waits_for_that(
        self, find: Callable[..., Finding], cluster: int, who: Any, now: datetime
    ) -> None:
        nodes_ensure(cluster_id=cluster, names=["trn009"], now=now)
        find(proposal_node="trn009")  # nothing of the run is there any more: an exclusion alone
        services.findings_consider(now=datetime.now(UTC))
        (proposed,) = proposals()

        done = services.action_accept(
            principal=who,
            action_id=proposed.id,
            source="WEB",
            reason=REASON,
            options={"when": "RUN_END"},
            now=datetime.now(UTC),
        )

        assert (done.kind, done.state, done.options["when"]) == ("EXCLUDE_NODE", "REQUESTED", "RUN_END")
        assert node_by_code("trn009").exclusion_id is None

    def test_accepting_puts_out_no_node_that_the_proposal_does_not_name(self, proposal: Any, who: Any) -> None:
        with pytest.raises(BadRequest, match="does not name trn002"):
            services.action_accept(
                principal=who,
                action_id=proposal.id,
                source="API",
                reason=REASON,
                options={"exclude_nodes": ["trn001", "trn002"]},
                now=datetime.now(UTC),
            )

        assert proposals()[0].id == proposal.id

    def test_accepting_checks_everything_again(
        self, proposal: Any, who: Any, hooked: Any, ask: Callable[..., Any]
    ) -> None:
        stale = {"attempt": hooked.attempt_id, "state": "HUNG"}
        with pytest.raises(StateChanged):
            services.action_accept(
                principal=who, action_id=proposal.id, source="WEB", expected_state=stale, now=datetime.now(UTC)
            )
        ask("STOP_RUN", hooked)

        with pytest.raises(services.ActionOpen):
            services.action_accept(principal=who, action_id=proposal.id, source="WEB", now=datetime.now(UTC))

        assert proposals()[0].id == proposal.id

    @pytest.fixture
    def moved_on(self, proposal: Any, hooked: Any, make_attempt: Callable[..., Any], now: datetime) -> Any:
        """The run after a restart by hand that nobody who looks after proposals has seen yet."""
        attempt_end(attempt_id=hooked.attempt_id, reason="PLANNED", authority="ORDER", by="t", source="API", now=now)
        make_attempt(hooked, key="slurm:2.0.0", now=now + timedelta(seconds=30))
        return run_by_id(hooked.id)

    def test_what_was_proposed_for_an_attempt_never_touches_the_next_one(
        self, proposal: Any, moved_on: Any, who: Any
    ) -> None:
        seen_by_the_caller = [
            None,
            {"attempt": moved_on.attempt_id},
            {"attempt": moved_on.attempt_id, "state": "RUNNING"},
        ]

        for seen in seen_by_the_caller:
            with pytest.raises(StateChanged, match="moved on to attempt 2"):
                services.action_accept(
                    principal=who, action_id=proposal.id, source="API", expected_state=seen, now=datetime.now(UTC)
                )

        assert [row.id for row in proposals()] == [proposal.id]
        assert Order.objects.count() == 0
        assert node_by_code("trn001").exclusion_id is None
        assert run_by_id(moved_on.id).open_action_id is None

    def test_neither_by_rest_nor_by_the_button_of_its_page(
        self,
        proposal: Any,
        moved_on: Any,
        api: Callable[..., Client],
        client_as: Callable[[Any], Client],
        operator: Any,
    ) -> None:
        code, now_open = id_write("act", proposal.id), id_write("att", moved_on.attempt_id)
        words = {"reason": REASON, "expected_state": {"attempt": now_open}}

        by_rest = api("operate").post(f"/api/v1/actions/{code}/accept", words, headers={"Idempotency-Key": "accept"})
        by_page = client_as(operator).post(f"/actions/{code}/decide", {"act": "accept", "reason": REASON})

        assert (by_rest.status_code, by_page.status_code) == (409, 409)
        assert by_rest.json()["error"]["code"] == "state_changed"
        assert by_rest.json()["error"]["facts"]["attempt"] == now_open
        assert "moved on to attempt 2" in by_page.content.decode()
        assert [row.id for row in proposals()] == [proposal.id]

    @pytest.mark.parametrize("kind", ["RESTART_RUN", "EXCLUDE_NODE"])
    def test_what_was_proposed_before_paceline_was_blind_waits_until_it_has_heard_again(
        self, proposal: Any, who: Any, hooked: Any, make_attempt: Callable[..., Any], kind: str
    ) -> None:
        Action.objects.filter(pk=proposal.id).update(kind=kind)
        back_at = proposal.requested_at + timedelta(hours=2)
        door = DoorBeat.objects.create(instance="d", accepting_since=back_at, last_beat_at=back_at)
        accept = {"principal": who, "action_id": proposal.id, "source": "WEB"}

        with pytest.raises(services.NotHeardYet):
            services.action_accept(**accept, now=back_at + timedelta(seconds=1))
        # What was missed comes in: another attempt runs since.
        attempt_end(
            attempt_id=hooked.attempt_id, reason="UNKNOWN", authority="SILENCE", by="t", source="API", now=back_at
        )
        make_attempt(hooked, key="slurm:2.0.0", now=back_at + timedelta(seconds=5))
        heard_at = back_at + timedelta(minutes=1)
        DoorBeat.objects.filter(pk=door.pk).update(last_beat_at=heard_at)
        with pytest.raises(StateChanged):
            services.action_accept(**accept, now=heard_at)

        assert node_by_code("trn001").exclusion_id is None
        assert Order.objects.count() == 0

    def test_what_still_holds_when_paceline_hears_again_is_taken_up(self, proposal: Any, who: Any) -> None:
        back_at = proposal.requested_at + timedelta(hours=2)
        heard_at = back_at + timedelta(minutes=1)
        DoorBeat.objects.create(instance="d", accepting_since=back_at, last_beat_at=heard_at)

        done = services.action_accept(principal=who, action_id=proposal.id, source="WEB", now=heard_at)

        assert done.state == "REQUESTED"

    def test_what_is_proposed_after_it_is_taken_up_at_once(self, proposal: Any, who: Any) -> None:
        back_at = proposal.requested_at - timedelta(seconds=2)
        DoorBeat.objects.create(instance="d", accepting_since=back_at, last_beat_at=proposal.requested_at)

        done = services.action_accept(principal=who, action_id=proposal.id, source="WEB", now=proposal.requested_at)

        assert done.state == "REQUESTED"

    def test_one_that_expired_is_not_taken_up_before_anybody_noticed(self, proposal: Any, who: Any) -> None:
        with pytest.raises(services.ActionMoved, match="expired"):
            services.action_accept(
                principal=who, action_id=proposal.id, source="WEB", now=proposal.expires_at + timedelta(seconds=1)
            )

        assert Order.objects.count() == 0

    def test_dismissing_keeps_the_reason(self, proposal: Any, who: Any) -> None:
        done = services.action_dismiss(
            principal=who, action_id=proposal.id, reason="known, fan is on its way", now=datetime.now(UTC)
        )

        assert (done.state, done.decided_by) == ("DISMISSED", "operator")
        assert "fan is on its way" in done.outcome
        with pytest.raises(services.ActionMoved):
            services.action_accept(principal=who, action_id=proposal.id, source="WEB", now=datetime.now(UTC))
