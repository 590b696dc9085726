"""One incident per origin: what belongs together joins, what comes again is new and linked."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from django.db import connections, transaction

from apps.accounts.models import User
from apps.diagnosis.models import Finding
from apps.diagnosis.services import attempts_settle
from apps.engine.detection import Certainty, Level, Subject, SubjectKind
from apps.fleet.models import NodeStatus
from apps.fleet.selectors import nodes_of
from apps.fleet.services import exclusion_end, exclusion_open
from apps.incidents.models import Incident
from apps.incidents.selectors import incidents_of, notices_latest, timeline_of
from apps.incidents.services import (
    counts_mend,
    findings_absorb,
    incident_acknowledge,
    incident_mitigate,
    incident_resolve,
    incidents_mitigated_by,
    incidents_settle,
)
from apps.runs.models import RunStatus
from apps.runs.selectors import run_by_id

from .conftest import over, verdict

Find = Callable[..., Any]
Later = Callable[[float], datetime]


def titles(now: datetime) -> list[tuple[str, int]]:
    return [(row.title, row.count) for row in reversed(incidents_of(now=now))]


class TestFindingsAbsorb:
    def test_opens_one_incident_for_two_causes_at_one_node(self, find: Find, now: datetime) -> None:
        find(verdict("compute_straggler", rank=3, level=Level.WARNING))
        find(verdict("numeric_fault", rank=1))

        assert titles(now) == [("numeric_fault on trn001", 2)]

    def test_opens_one_each_for_two_nodes(self, find: Find, now: datetime) -> None:
        find(verdict("compute_straggler", node="trn001", rank=1))
        find(verdict("compute_straggler", node="trn002", rank=5))

        assert len(titles(now)) == 2

    def test_opens_nothing_for_what_is_only_information(self, find: Find, now: datetime) -> None:
        find(verdict("checkpoint_stale", level=Level.INFO))

        assert titles(now) == []

    def test_attaches_what_a_lost_rank_brings_about(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("rank_lost", node="trn002", rank=5))
        find(verdict("hang", node=None), at=later(8))
        find(verdict("checkpoint_stale", node=None), at=later(90))
        find(verdict("no_telemetry", node="trn001", rank=None), at=later(95))

        assert titles(now) == [("rank_lost on trn002", 4)]

    def test_moves_an_incident_of_the_run_to_the_node_that_explains_it(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("hang", node=None))
        find(verdict("rank_lost", node="trn002", rank=5), at=later(2))

        rows = incidents_of(now=now)

        assert [(row.title, row.place_key, row.node) for row in rows] == [
            ("rank_lost on trn002", "NODE:trn002", "trn002")
        ]

    def test_does_not_blame_a_rank_that_gives_up_minutes_after_the_hang_began(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("hang", node=None))
        find(verdict("rank_lost", node="trn002", rank=5), at=later(480))

        assert [(row.title, row.place_key) for row in incidents_of(now=now)] == [("hang on the run", "RUN")]

    def test_a_node_that_is_lost_while_the_run_hangs_takes_nobody_s_place(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("hang", rank=2))
        find(verdict("rank_lost", node="trn002", rank=None), at=later(40))

        (row,) = incidents_of(now=now)

        assert (row.title, row.place_key, row.count) == ("hang on trn001", "NODE:trn001", 2)

    def test_a_lost_node_is_no_consequence_of_another_node_s_nan(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("numeric_fault", node="trn003", rank=5))
        find(verdict("rank_lost", node="trn001", rank=None), at=later(5))

        assert titles(now) == [("numeric_fault on trn003", 1), ("rank_lost on trn001", 1)]

    def test_what_comes_after_the_run_went_on_is_no_consequence_either(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("hang", node="trn002", rank=5))
        find(verdict("rank_lost", node="trn001", rank=1, since_step=140), at=later(60))

        assert titles(now) == [("hang on trn002", 1), ("rank_lost on trn001", 1)]

    def test_everybody_s_nan_belongs_to_the_rank_that_was_first(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("numeric_fault", node="trn003", rank=5))
        find(verdict("numeric_fault", node=None, since_step=112), at=later(5))

        assert titles(now) == [("numeric_fault on trn003", 2)]

    @pytest.mark.parametrize("origin", ["hang", "numeric_fault", "rank_lost"])
    @pytest.mark.parametrize("after_s", [5, 3600])
    def test_an_ageing_checkpoint_belongs_to_what_keeps_the_run_from_saving_however_long_that_lasts(
        self, find: Find, now: datetime, later: Later, origin: str, after_s: float
    ) -> None:
        find(verdict("gc_pause", node=None, level=Level.WARNING, since_step=40))
        find(verdict(origin, node="trn003", rank=5))
        find(verdict("checkpoint_stale", node=None, since_step=60), at=later(after_s))

        assert titles(now) == [("gc_pause on the run", 1), (f"{origin} on trn003", 2)]

    def test_a_hang_belongs_to_the_node_that_was_lost_and_not_to_what_else_the_run_as_a_whole_has(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("gc_pause", node=None, level=Level.WARNING, since_step=40))
        find(verdict("rank_lost", node="trn003", rank=None), at=later(120))
        find(verdict("hang", node=None), at=later(125))

        assert titles(now) == [("gc_pause on the run", 1), ("rank_lost on trn003", 2)]

    def test_an_ageing_checkpoint_after_an_origin_is_over_is_told_by_itself(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("numeric_fault", node="trn003", rank=5))
        find(over(verdict("numeric_fault", node="trn003", rank=5)), at=later(30))
        find(verdict("checkpoint_stale", node=None, since_step=60), at=later(90))

        assert len(titles(now)) == 2

    def test_does_not_take_a_slow_node_for_a_consequence(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("rank_lost", node="trn002", rank=5))
        find(verdict("compute_straggler", node="trn001"), at=later(5))

        assert len(titles(now)) == 2

    def test_gives_what_comes_again_a_new_incident_with_a_link_to_the_old(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("hang"))
        find(over(verdict("hang")), at=later(10))
        first = incidents_of(now=now)[0]
        incident_resolve(incident_id=first.id, answer="CONFIRMED", words="", by="ada", source="API", now=later(20))
        find(verdict("hang"), at=later(60))

        rows = incidents_of(now=now)

        assert [(row.number, row.previous_number, row.state) for row in rows] == [
            (2, 1, "OPEN"),
            (1, None, "RESOLVED"),
        ]

    def test_a_new_attempt_that_fails_at_a_place_that_was_dealt_with_has_an_incident_of_its_own(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        find(verdict("hang"))
        old = incidents_of(now=now)[0]
        find(over(verdict("hang")), at=later(5))
        incident_mitigate(incident_id=old.id, reason="restarted", by="ada", source="WEB", now=later(6))
        again = make_attempt(run, key="k2", force=True)

        find(verdict("rank_lost"), at=later(30), attempt_id=again.id)

        rows = incidents_of(now=now)
        assert [(row.state, row.cause, row.previous_number) for row in rows] == [
            ("OPEN", "rank_lost", None),
            ("RESOLVED", "hang", None),
        ]

    @pytest.mark.parametrize("named", [(True, True), (False, True), (True, False), (False, False)])
    @pytest.mark.parametrize("loop_named", [True, False])
    def test_a_run_that_is_restarted_in_vain_has_one_incident(
        self,
        run: Any,
        attempt: Any,
        find: Find,
        make_attempt: Callable[..., Any],
        now: datetime,
        later: Later,
        named: tuple[bool, bool],
        loop_named: bool,
    ) -> None:
        among = Subject(SubjectKind.RUN, nodes=("trn001", "trn002"))
        sure, unsure = verdict("rank_lost"), replace(verdict("rank_lost", node=None), subject=among)
        loop = verdict(
            "restart_loop", node="trn001" if loop_named else None, rank=None, since_step=None, began_at=now.timestamp()
        )
        find(sure if named[0] else unsure, at=later(5))
        attempts_settle(now=later(9))
        second = self.restarted(run, make_attempt, later(10), "k2")

        find(sure if named[1] else unsure, at=later(30), attempt_id=second.id)
        find(loop, at=later(32), attempt_id=second.id)
        third = self.restarted(run, make_attempt, later(40), "k3")
        find(replace(loop, verdict="restarted in vain"), at=later(42), attempt_id=third.id)
        find(sure, at=later(60), attempt_id=third.id)

        assert [(row.number, row.state, row.count) for row in incidents_of(now=now)] == [(1, "OPEN", 5)]

    def test_a_stop_after_progress_is_a_new_one(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        find(verdict("rank_lost"))
        second = self.restarted(run, make_attempt, later(10), "k2")

        find(verdict("rank_lost", since_step=110), at=later(600), attempt_id=second.id)

        assert [(row.number, row.state) for row in incidents_of(now=now)] == [(2, "OPEN"), (1, "RESOLVED")]

    def test_another_node_that_fails_in_the_next_attempt_has_an_incident_of_its_own(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        find(verdict("rank_lost"))
        second = self.restarted(run, make_attempt, later(10), "k2")

        find(verdict("rank_lost", node="trn002"), at=later(30), attempt_id=second.id)

        assert [row.number for row in incidents_of(now=now)] == [2, 1]

    @pytest.mark.parametrize(
        ("was", "comes"),
        [
            (verdict("compute_straggler"), verdict("compute_straggler", since_step=160)),
            (verdict("numeric_fault"), verdict("numeric_fault", since_step=101)),
            (verdict("numeric_fault", node=None), verdict("numeric_fault", since_step=101)),
        ],
    )
    def test_what_a_restart_took_along_opens_the_incident_again(
        self,
        run: Any,
        find: Find,
        make_attempt: Callable[..., Any],
        make_user: Any,
        later: Later,
        was: Any,
        comes: Any,
    ) -> None:
        make_user("OPERATOR", "on-call")
        User.objects.update(email="on-call@site.example")
        find(was)
        second = self.restarted(run, make_attempt, later(60), "k2")
        at_rest = incidents_of(now=later(70))

        find(comes, at=later(90), attempt_id=second.id)
        incidents_settle(now=later(100))
        rows = incidents_of(now=later(3600))

        assert [row.state for row in at_rest] == ["MITIGATED"]
        assert [(row.number, row.state, row.attempt_id, row.mitigated_at) for row in rows] == [
            (1, "OPEN", second.id, None)
        ]
        told = [(row.incident_number, row.kind) for row in reversed(notices_latest())]
        assert told == [(1, "OPENED"), (1, "AGAIN")]
        said = [row.text for row in timeline_of(rows[0], now=later(3600)) if row.kind == "incident.reopened"]
        assert said == [f"INC-1 came back in attempt 2: {comes.verdict}"]

    def test_what_comes_back_goes_on_costing(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], later: Later
    ) -> None:
        find(verdict("numeric_fault"))
        second = self.restarted(run, make_attempt, later(60), "k2")

        find(verdict("numeric_fault", since_step=101), at=later(90), attempt_id=second.id)

        assert incidents_of(now=later(3600))[0].gpu_hours_lost == pytest.approx(8.0)

    def test_what_it_cost_is_reckoned_with_the_ranks_that_it_struck(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], later: Later
    ) -> None:
        find(verdict("rank_lost"))

        make_attempt(run, key="k2", world_size=4, now=later(70))

        assert run_by_id(run.id).world_size == 4
        assert incidents_of(now=later(3600))[0].gpu_hours_lost == pytest.approx(8.0)

    def test_people_wait_for_what_came_back_to_be_sure_too(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], make_user: Any, later: Later
    ) -> None:
        make_user("OPERATOR", "on-call")
        User.objects.update(email="on-call@site.example")
        slow = verdict("compute_straggler")
        unsure = replace(slow, certainty=Certainty.SUSPECTED, level=Level.WARNING)
        find(slow)
        second = self.restarted(run, make_attempt, later(60), "k2")

        find(unsure, at=later(90), attempt_id=second.id)
        before = [row.kind for row in reversed(notices_latest())]
        find(slow, at=later(95), attempt_id=second.id)
        incidents_settle(now=later(100))

        assert before == ["OPENED"]
        assert [row.kind for row in reversed(notices_latest())] == ["OPENED", "AGAIN"]

    def test_what_is_back_before_the_restart_counts_as_done_is_not_mitigated_by_it(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], later: Later
    ) -> None:
        find(verdict("numeric_fault"))
        find(verdict("hang", node="trn002", rank=5))
        second = make_attempt(run, key="k2", force=True, now=later(60))
        attempts_settle(now=later(60))
        find(verdict("numeric_fault", since_step=101), at=later(61), attempt_id=second.id)

        incidents_mitigated_by(run_id=run.id, node_ids=[], whole_run=True, reason="restarted", by="ada", now=later(62))

        assert [(row.number, row.state) for row in incidents_of(now=later(63))] == [(2, "MITIGATED"), (1, "OPEN")]

    def test_a_node_that_was_put_out_in_between_was_dealt_with(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], later: Later
    ) -> None:
        find(verdict("compute_straggler"))
        node_id = next(row.id for row in nodes_of() if row.name == "trn001")
        exclusion_open(node_id=node_id, reason="slow", by_name="ada", origin="OURS", source="WEB", now=later(30))
        self.restarted(run, make_attempt, later(60), "k2")
        exclusion_end(node_id=node_id, reason="repaired", by_name="ada", source="WEB", now=later(70))
        third = make_attempt(run, key="k3", force=True, now=later(80))

        find(verdict("compute_straggler"), at=later(90), attempt_id=third.id)

        assert [(row.number, row.state) for row in incidents_of(now=later(99))] == [(2, "OPEN"), (1, "RESOLVED")]

    def test_a_nan_that_spreads_again_after_a_restart_stays_one_incident(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        find(verdict("numeric_fault"))
        second = self.restarted(run, make_attempt, later(1800), "k2")

        find(verdict("numeric_fault", since_step=101), at=later(1830), attempt_id=second.id)
        find(verdict("numeric_fault", node="trn002", rank=5, since_step=102), at=later(1835), attempt_id=second.id)

        assert [(row.number, row.state, row.count) for row in incidents_of(now=now)] == [(1, "OPEN", 3)]

    def test_what_comes_back_at_a_place_that_has_another_incident_leaves_that_one_alone(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        find(verdict("numeric_fault", node=None))
        find(verdict("compute_straggler"))
        second = self.restarted(run, make_attempt, later(60), "k2")

        find(verdict("numeric_fault", since_step=101), at=later(90), attempt_id=second.id)

        assert [(row.number, row.state) for row in incidents_of(now=now)] == [(2, "MITIGATED"), (1, "OPEN")]

    def restarted(self, run: Any, make_attempt: Callable[..., Any], at: datetime, key: str) -> Any:
        """Start the next attempt as an action does: the last one's findings close, its incidents are mitigated."""
        row = make_attempt(run, key=key, force=True, now=at)
        attempts_settle(now=at)
        findings_absorb(now=at)
        incidents_mitigated_by(run_id=run.id, node_ids=[], whole_run=True, reason="restarted", by="ada", now=at)
        return row

    def test_what_comes_back_in_the_same_attempt_opens_the_incident_again(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("hang"))
        row = incidents_of(now=now)[0]
        incident_mitigate(incident_id=row.id, reason="looked at", by="ada", source="WEB", now=later(6))

        find(verdict("numeric_fault", rank=1), at=later(30))

        assert [(row.state, row.count) for row in incidents_of(now=now)] == [("OPEN", 2)]

    def test_writes_how_many_are_open_into_the_run_and_its_nodes(
        self, run: Any, find: Find, django_capture_on_commit_callbacks: Any
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            find(verdict("hang", node="trn001"))
            find(verdict("compute_straggler", node="trn002"))

        assert run_by_id(run.id).open_incidents == 2
        assert [node.open_incidents for node in nodes_of()] == [1, 1]

    def test_one_that_cannot_be_absorbed_holds_up_none_of_the_others(self, find: Find, now: datetime) -> None:
        bad = find(verdict("hang", node="trn001"), absorb=False)
        find(verdict("compute_straggler", node="trn002"), absorb=False)
        Finding.objects.filter(pk=bad.pk).update(
            cause="x" * 48, level="FATAL"
        )  # a level that nothing can be compared with

        with pytest.raises(ExceptionGroup, match="could not be absorbed"):
            findings_absorb(now=now)

        assert titles(now) == [("compute_straggler on trn002", 1)]
        assert Finding.objects.get(pk=bad.pk).incident_id is None

    def test_tells_and_prices_the_end_of_an_incident_that_a_new_fault_follows(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], make_user: Any, now: datetime, later: Later
    ) -> None:
        make_user("OPERATOR", "on-call")
        User.objects.update(email="on-call@site.example")
        find(verdict("hang"))
        old = incidents_of(now=now)[0]
        find(over(verdict("hang")), at=later(5))
        incident_mitigate(incident_id=old.id, reason="restarted", by="ada", source="WEB", now=later(6))
        again = make_attempt(run, key="k2", force=True)

        find(verdict("rank_lost"), at=later(30), attempt_id=again.id)

        told = [(row.incident_number, row.kind) for row in reversed(notices_latest())]
        assert told == [(1, "OPENED"), (1, "CLOSED"), (2, "OPENED")]
        assert Incident.objects.get(pk=old.id).gpu_hours_lost == pytest.approx(5 * 8 / 3600)

    def test_of_a_loop_the_newest_attempt_gives_the_title(
        self, run: Any, find: Find, make_attempt: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        began = now.timestamp()
        find(verdict("restart_loop", node=None, verdict="2 attempts in a row got nowhere.", began_at=began))
        second = make_attempt(run, key="slurm:2.0.0", now=later(60))

        said = verdict("restart_loop", node=None, verdict="3 attempts in a row got nowhere.", began_at=began)
        find(said, at=later(61), attempt_id=second.id)

        assert titles(now) == [("3 attempts in a row got nowhere.", 2)]

    def test_says_what_its_lead_finding_says_now(self, find: Find, now: datetime, later: Later) -> None:
        said = verdict("restart_loop", node=None, verdict="2 attempts in a row got nowhere.")
        find(said)
        find(replace(said, verdict="3 attempts in a row got nowhere."), at=later(30))

        incidents_settle(now=later(40))

        assert incidents_of(now=now)[0].title == "3 attempts in a row got nowhere."

    def test_absorbs_a_version_once(self, find: Find, now: datetime) -> None:
        find(verdict("hang"))

        assert findings_absorb(now=now) == 0

    def test_raises_its_level_with_the_finding(self, find: Find, now: datetime, later: Later) -> None:
        suspected = verdict("hang", level=Level.WARNING, certainty=Certainty.SUSPECTED)
        find(suspected)
        before = incidents_of(now=now)[0]
        find(replace(suspected, level=Level.CRITICAL, certainty=Certainty.CONFIRMED), at=later(4))
        after = incidents_of(now=now)[0]

        assert (before.level, before.certainty) == ("WARNING", "SUSPECTED")
        assert (after.level, after.certainty, after.number) == ("CRITICAL", "CONFIRMED", before.number)


@pytest.mark.django_db(transaction=True)
def test_two_absorbers_at_once_open_one_incident(find: Find, now: datetime) -> None:
    find(verdict("hang", rank=1), absorb=False)
    find(verdict("numeric_fault", rank=2), absorb=False)
    start = threading.Barrier(3)

    def absorb() -> None:
        start.wait()
        findings_absorb(now=now)
        connections.close_all()

    threads = [threading.Thread(target=absorb) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    findings_absorb(now=now)

    assert [row.count for row in incidents_of(now=now)] == [2]


@pytest.mark.django_db(transaction=True)
def test_whoever_works_on_an_incident_holds_up_neither_its_run_nor_its_node(
    run: Any, find: Find, now: datetime
) -> None:
    find(verdict("hang"))
    incident = incidents_of(now=now)[0]
    locked: list[tuple[int, int]] = []

    def lock() -> None:
        with transaction.atomic():
            runs = RunStatus.objects.select_for_update(skip_locked=True).filter(pk=run.id)
            nodes = NodeStatus.objects.select_for_update(skip_locked=True).filter(pk=incident.node_id)
            locked.append((len(runs), len(nodes)))
        connections.close_all()

    with transaction.atomic():
        incident_acknowledge(incident_id=incident.id, by="ada", source="WEB", now=now)
        incident_mitigate(incident_id=incident.id, reason="out", by="ada", source="WEB", now=now)
        other = threading.Thread(target=lock)
        other.start()
        other.join()

    assert locked == [(1, 1)]


def test_a_count_that_was_lost_is_mended_by_the_clock(
    run: Any, find: Find, now: datetime, django_capture_on_commit_callbacks: Any
) -> None:
    find(verdict("hang"))
    NodeStatus.objects.filter(node__name="trn002").update(open_incidents=3)

    first, second = counts_mend(), counts_mend()

    assert (first, second) == (3, 0)
    assert run_by_id(run.id).open_incidents == 1
    assert [node.open_incidents for node in nodes_of()] == [1, 0]


def test_what_is_absorbed_is_considered_right_after_the_commit_and_once(
    find: Find, now: datetime, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    find(verdict("hang"), absorb=False)
    find(verdict("compute_straggler", node="trn002", rank=5), absorb=False)
    monkeypatch.setattr("apps.common.tasks.queue_now", lambda name, **_ids: asked.append(name))

    with django_capture_on_commit_callbacks(execute=True):
        findings_absorb(now=now)

    assert asked.count("remediation.policies_consider") == 1
