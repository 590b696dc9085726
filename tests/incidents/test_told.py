"""What people are told of an incident, from its first notice to its last."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from django.core import mail

from apps.diagnosis.selectors import findings_of
from apps.diagnosis.services import attempts_settle
from apps.engine.detection import Certainty, CloseReason, Level
from apps.incidents.selectors import incidents_of
from apps.incidents.services import findings_absorb, incident_resolve, incidents_settle, notices_send
from apps.runs.models import RunStatus
from apps.runs.services import attempt_end

from .conftest import over, verdict

Find = Callable[..., Any]
Later = Callable[[float], datetime]


@pytest.fixture(autouse=True)
def on_call(make_user: Callable[..., Any]) -> None:
    user = make_user("OPERATOR", "on-call")
    user.email = "on-call@site.example"
    user.save()


class TestIncident:
    def test_keeps_its_name_and_its_price_when_what_it_was_found_for_fades_and_ends(
        self, find: Find, run: Any, now: datetime, later: Later
    ) -> None:
        RunStatus.objects.filter(run_id=run.id).update(step_s=1.0)
        pauses = verdict("gc_pause", node=None, level=Level.WARNING, cost_s=0.5)
        find(pauses)
        incidents_settle(now=later(360))
        find(replace(pauses, cost_s=0.01), at=later(362))
        find(replace(over(pauses), verdict="Garbage collection no longer holds it up."), at=later(370))
        incidents_settle(now=later(370 + 1800))
        notices_send(now=later(370 + 1801))

        (row,) = incidents_of(now=later(3600))
        (found,) = findings_of(incident_id=row.id)
        subject, body = str(mail.outbox[-1].subject), str(mail.outbox[-1].body)

        assert (row.state, row.title) == ("RESOLVED", "gc_pause on the run")
        assert row.gpu_hours_lost == pytest.approx(0.4)
        assert (found.verdict, found.why.split(". ")[0]) == (row.title, "Garbage collection no longer holds it up")
        assert subject.endswith("closed: gc_pause on the run")
        assert "It had begun as: gc_pause on the run" in body
        assert "Lost: 0.40 GPU-hours" in body
        assert "no longer" not in subject + body

    def test_keeps_its_name_when_another_finding_says_it_better(self, find: Find, now: datetime, later: Later) -> None:
        silent = verdict("no_telemetry", rank=None)
        find(silent)
        find(replace(silent, closed=CloseReason.MERGED, verdict="More is silent now."), at=later(5))

        assert incidents_of(now=later(6))[0].title == "no_telemetry on trn001"

    @pytest.mark.parametrize(
        ("cause", "node", "before"),
        [
            ("hang", "trn001", 1),
            ("hang", None, 1),  # which node holds the run up is not known this time
            ("hang", "trn002", None),
            ("numeric_fault", "trn001", None),
        ],
    )
    def test_is_one_more_of_its_kind_only_where_cause_and_place_may_be_the_same(
        self, find: Find, now: datetime, later: Later, cause: str, node: str | None, before: int | None
    ) -> None:
        find(verdict("hang"))
        find(over(verdict("hang")), at=later(5))
        incident_resolve(
            incident_id=incidents_of(now=now)[0].id, answer="", words="", by="ada", source="WEB", now=later(6)
        )
        find(verdict(cause, node=node, since_step=400), at=later(300))

        newest = incidents_of(now=later(300))[0]

        assert (newest.number, newest.cause, newest.previous_number) == (2, cause, before)


class TestNotice:
    @pytest.mark.parametrize("ends", ["by itself", "by hand"])
    def test_of_a_suspicion_that_went_before_anybody_was_told_there_is_none(
        self, find: Find, now: datetime, later: Later, ends: str
    ) -> None:
        suspected = verdict("gc_pause", node=None, level=Level.WARNING, certainty=Certainty.SUSPECTED)
        find(suspected)
        find(over(suspected), at=later(31))
        incidents_settle(now=later(61))
        row = incidents_of(now=later(61))[0]
        if ends == "by hand":
            incident_resolve(incident_id=row.id, answer="", words="", by="ada", source="WEB", now=later(90))
        incidents_settle(now=later(31 + 1800))
        notices_send(now=later(31 + 1801))

        assert [one.state for one in incidents_of(now=later(1900))] == ["RESOLVED"]
        assert mail.outbox == []

    def test_tells_a_suspicion_whose_attempt_ended_without_its_going(
        self, find: Find, attempt: Any, now: datetime, later: Later
    ) -> None:
        find(verdict("hang", certainty=Certainty.SUSPECTED))
        attempt_end(
            attempt_id=attempt.id, reason="CRASHED", authority="WRAPPER", by="", source="LAUNCHER", now=later(20)
        )
        attempts_settle(now=later(21))
        findings_absorb(now=later(22))
        incidents_settle(now=later(61))
        notices_send(now=later(62))

        assert [one.subject for one in mail.outbox] == ["[Paceline] INC-1 opened: hang on trn001"]

    @pytest.mark.parametrize(
        ("level", "told"),
        [(Level.WARNING, []), (Level.CRITICAL, ["[Paceline] INC-1 escalated: rank_lost on trn001"])],
    )
    def test_a_more_exact_word_for_what_was_told_of_a_node_is_told_only_as_it_gets_worse(
        self, find: Find, now: datetime, later: Later, level: Level, told: list[str]
    ) -> None:
        find(verdict("no_telemetry", rank=None, level=Level.WARNING))
        lost = verdict("rank_lost", rank=None, level=level)
        find(replace(lost, certainty=Certainty.SUSPECTED, level=Level.WARNING), at=later(2))
        find(lost, at=later(4), absorb=False)
        incidents_settle(now=later(4))  # the clock may look at it before it is absorbed
        findings_absorb(now=later(5))
        find(verdict("compute_straggler", level=Level.WARNING), at=later(6))
        notices_send(now=later(7))

        assert [str(one.subject) for one in mail.outbox] == [
            "[Paceline] INC-1 opened: no_telemetry on trn001",
            *told,
            "[Paceline] INC-1 also: compute_straggler on trn001",
        ]
