"""One incident per origin: what belongs together joins, what comes again is new and linked."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from django.db import connections

from apps.engine.detection import Certainty, Level
from apps.incidents.selectors import incidents_of
from apps.incidents.services import findings_absorb, incident_mitigate, incident_resolve
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

    def test_writes_how_many_are_open_into_the_run(self, run: Any, find: Find) -> None:
        find(verdict("hang", node="trn001"))
        find(verdict("compute_straggler", node="trn002"))

        assert run_by_id(run.id).open_incidents == 2

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
