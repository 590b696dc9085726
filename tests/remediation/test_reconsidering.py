"""The same finding, another answer: what is considered again, and what people have decided for good."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.diagnosis.models import Finding
from apps.diagnosis.services import finding_mute
from apps.fleet.selectors import node_by_code
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation import services
from apps.remediation.models import Action
from apps.runs.models import Run
from apps.runs.selectors import run_by_id
from apps.runs.services import attempt_end, run_put
from tests.remediation.test_proposals import proposals

SWEEP = timedelta(seconds=5)
LATER = timedelta(minutes=2)
WHY = "the fan is on its way"


def sweep(at: datetime) -> list[Any]:
    """Do what the clock does every five seconds; gives the proposals that wait then."""
    services.findings_consider(now=at)
    services.findings_reconsider(now=at)
    return proposals()


@pytest.fixture
def set_mode(hooked: Any) -> Callable[..., None]:
    def put(at: datetime, mode: str, **modes: str) -> None:
        fields = {"mode": mode, "modes": modes}
        run_put(slug=hooked.slug, cluster_id=hooked.cluster_id, fields=fields, by="t", source="API", now=at)

    return put


@pytest.fixture
def stopped(hooked: Any, now: datetime) -> Any:
    """The run after its attempt crashed."""
    attempt_end(attempt_id=hooked.attempt_id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=now)
    return run_by_id(hooked.id)


class TestLookingAgain:
    @pytest.mark.parametrize("modes", [{}, {"thermal_throttle": "PROPOSE"}])
    def test_a_run_that_is_set_to_propose_gets_its_proposal_with_the_next_sweep(
        self,
        find: Callable[..., Finding],
        set_mode: Callable[..., None],
        now: datetime,
        modes: dict[str, str],
    ) -> None:
        set_mode(now, "OBSERVE")
        find()
        before = [sweep(now + n * SWEEP) for n in range(30)]

        set_mode(now + LATER + timedelta(seconds=29), "OBSERVE" if modes else "PROPOSE", **modes)
        after = sweep(now + LATER + timedelta(seconds=30))

        assert before == [[]] * 30
        assert [row.node for row in after] == ["trn001"]

    def test_a_snooze_that_ends_brings_it_back(self, find: Callable[..., Finding], now: datetime) -> None:
        finding = find()
        until = now + timedelta(seconds=17)
        first = sweep(now)
        finding_mute(finding_id=finding.pk, reason=WHY, until_at=until, by="t", source="API", now=now)

        quiet = [sweep(now + n * SWEEP) for n in range(1, 4)]
        after = sweep(now + 4 * SWEEP)

        assert len(first) == 1
        assert quiet == [[], [], []]
        assert [row.finding_id for row in after] == [finding.pk]
        assert after[0].id != first[0].id

    def test_one_that_expired_comes_anew_while_the_fault_is_there(
        self,
        find: Callable[..., Finding],
        now: datetime,
    ) -> None:
        find()
        (first,) = sweep(now)
        late = first.expires_at

        sweep(late - SWEEP)
        services.action_expire(action_id=first.id, now=late)
        (again,) = sweep(late)

        assert (again.kind, again.node) == (first.kind, first.node)
        assert again.id != first.id
        assert again.expires_at == late + timedelta(hours=6)

    def test_what_is_dismissed_is_not_proposed_again_however_the_finding_changes(
        self,
        find: Callable[..., Finding],
        now: datetime,
        who: Any,
    ) -> None:
        finding = find()
        find(subject_key="GPU:trn001/0")
        (first,) = sweep(now)
        services.action_dismiss(principal=who, action_id=first.id, reason=WHY, now=now + SWEEP)

        Finding.objects.filter(pk=finding.pk).update(level="WARNING", version=2)
        after = [sweep(now + n * LATER) for n in (1, 2)]

        assert after == [[], []]

    def test_a_dismissal_says_nothing_of_what_is_found_later_nor_of_another_step(
        self,
        find: Callable[..., Finding],
        stopped: Any,
        now: datetime,
        who: Any,
    ) -> None:
        finding = find()
        (first,) = sweep(now)
        services.action_dismiss(principal=who, action_id=first.id, reason=WHY, now=now + SWEEP)
        Finding.objects.filter(pk=finding.pk).update(state="CLOSED", version=2)

        find(found_at=now + 2 * SWEEP)
        (again,) = sweep(now + 3 * SWEEP)
        Action.objects.filter(pk=first.id).update(kind="RESTART_RUN", ended_at=now + 4 * SWEEP)

        assert (first.kind, again.kind) == ("EXCLUDE_NODE", "EXCLUDE_NODE")
        assert sweep(now + LATER) == [again]

    def test_beside_a_restart_nothing_is_proposed_until_it_is_over(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        ask: Callable[..., Any],
        now: datetime,
        who: Any,
    ) -> None:
        restart = ask("RESTART_RUN", hooked, now=now)
        find()

        beside = sweep(now)
        services.action_cancel(principal=who, action_id=restart.id, reason=WHY, now=now + SWEEP)
        after = sweep(now + SWEEP)

        assert beside == []
        assert [row.node for row in after] == ["trn001"]

    def test_what_was_taken_up_is_not_proposed_beside_itself(
        self,
        find: Callable[..., Finding],
        now: datetime,
        who: Any,
    ) -> None:
        finding = find()
        (first,) = sweep(now)
        later = {"when": "RUN_END"}
        services.action_accept(principal=who, action_id=first.id, source="WEB", options=later, now=now + SWEEP)

        Finding.objects.filter(pk=finding.pk).update(level="WARNING", version=2)

        assert [sweep(now + n * LATER) for n in (1, 2)] == [[], []]

    def test_a_node_that_people_put_back_is_not_proposed_again(
        self,
        find: Callable[..., Finding],
        stopped: Any,
        ask: Callable[..., Any],
        now: datetime,
    ) -> None:
        find()
        (first,) = sweep(now)
        node = node_by_code("trn001").id
        ask("EXCLUDE_NODE", node=node, now=now + SWEEP)
        Action.objects.filter(pk=first.id).update(state="EXPIRED", ended_at=now + SWEEP)
        out = sweep(now + 2 * SWEEP)
        ask("READMIT_NODE", node=node, now=now + 3 * SWEEP)

        assert first.kind == "EXCLUDE_NODE"
        assert (out, sweep(now + 4 * SWEEP), sweep(now + LATER)) == ([], [], [])

    def test_one_of_many_that_is_left_alone_is_proposed_and_why_it_was_not_is_said_once(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        make_run: Callable[..., Any],
        make_attempt: Callable[..., Any],
        now: datetime,
    ) -> None:
        many = make_run("wide")
        make_attempt(many, key="slurm:7.0.0", world_size=12)
        rows = [
            find(subject_key=f"NODE:trn00{n}", subject={"kind": "NODE", "node": f"trn00{n}"}, proposal_node=f"trn00{n}")
            for n in (1, 2, 3)
        ]
        together = [sweep(now + n * LATER) for n in range(4)]

        Finding.objects.filter(pk__in=[row.pk for row in rows[1:]]).update(state="CLOSED", version=2)
        after = sweep(now + 4 * LATER)

        assert together == [[]] * 4
        assert [row.node for row in after] == ["trn001"]
        assert len(events_latest(StreamKey.run(hooked.id), limit=9, kinds=["proposal.withheld"])) == 1


class TestCost:
    def test_what_waits_is_settled_or_observed_is_not_looked_at(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
    ) -> None:
        find()
        find(cause="hang", proposal_kind="NONE")
        find(cause="numeric_fault", state="CLOSED")
        find(cause="gpu_fault", muted_for_good=True)
        find(cause="rank_lost", certainty="SUSPECTED")
        services.findings_consider(now=now)
        Run.objects.filter(pk=hooked.id).update(updated_at=now - LATER)

        looks = [services.findings_reconsider(now=now + at) for at in (SWEEP, LATER, 2 * LATER)]

        assert looks == [0, 0, 0]

    def test_what_had_no_answer_is_looked_at_once_a_minute(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
    ) -> None:
        find(proposal_node="nobody-knows")
        services.findings_consider(now=now)
        Run.objects.filter(pk=hooked.id).update(updated_at=now - LATER)

        looks = [services.findings_reconsider(now=now + n * SWEEP) for n in range(1, 25)]

        assert [n for n, looked in enumerate(looks, 1) if looked] == [12, 24]

    def test_of_two_who_look_at_the_same_one_goes_on(
        self,
        find: Callable[..., Finding],
        now: datetime,
    ) -> None:
        from apps.diagnosis.services import finding_considered

        finding = find()
        seen = {"finding_id": finding.pk, "version": 1, "looked_at": None}

        assert [finding_considered(**seen, now=now), finding_considered(**seen, now=now)] == [True, False]

    def test_the_clock_does_both(
        self,
        find: Callable[..., Finding],
        set_mode: Callable[..., None],
    ) -> None:
        from apps.common.clock import now as clock
        from apps.remediation.tasks import policies_sweep

        set_mode(clock(), "OBSERVE")
        find()
        policies_sweep()
        set_mode(clock(), "PROPOSE")
        policies_sweep()

        assert len(proposals()) == 1
