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
from apps.engine.detection import Certainty, Level
from apps.fleet.models import NodeStatus
from apps.fleet.selectors import nodes_of
from apps.incidents.models import Incident
from apps.incidents.selectors import incidents_of, notices_latest
from apps.incidents.services import (
    counts_mend,
    findings_absorb,
    incident_acknowledge,
    incident_mitigate,
    incident_resolve,
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
            ("OPEN", "rank_lost", 1),
            ("RESOLVED", "hang", None),
        ]

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
