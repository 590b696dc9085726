"""What people and the clock do with incidents, and what is sent."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from django.core import mail
from django.db import connections

from apps.accounts.models import User
from apps.accounts.selectors import principal_of_user
from apps.common.errors import BadRequest, Forbidden
from apps.engine.detection import Certainty, Level
from apps.incidents import selectors
from apps.incidents.selectors import incidents_of, notices_latest, timeline_of
from apps.incidents.services import (
    incident_acknowledge,
    incident_mitigate,
    incident_resolve,
    incidents_mitigated_by,
    incidents_settle,
    note_add,
    note_edit,
    notice_target_put,
    notices,
    notices_send,
    watch_check,
)
from apps.incidents.services.moving import MoveRefused
from apps.incidents.services.notes import NoteChanged
from apps.incidents.writeup import markdown_of
from apps.journal.choices import StreamKey
from apps.journal.services import recording
from apps.remediation.services import action_request
from apps.telemetry.models import DoorBeat
from tests.telemetry.reports import Site, packed

from .conftest import over, verdict

Find = Callable[..., Any]
Later = Callable[[float], datetime]


@pytest.fixture
def incident(find: Find, now: datetime) -> Any:
    find(verdict("hang"))
    return incidents_of(now=now)[0]


class TestIncident:
    def test_belongs_to_whoever_took_it_first(self, incident: Any, now: datetime, later: Later) -> None:
        for name, moment in (("ada", later(1)), ("bob", later(2))):
            incident_acknowledge(incident_id=incident.id, by=name, source="WEB", now=moment)

        row = incidents_of(now=now)[0]

        assert (row.owner_name, row.acknowledged_at, row.state) == ("ada", later(1), "ACKNOWLEDGED")

    def test_cannot_be_taken_once_it_is_over(self, incident: Any, now: datetime) -> None:
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="fan", by="ada", source="WEB", now=now)

        with pytest.raises(MoveRefused):
            incident_acknowledge(incident_id=incident.id, by="bob", source="WEB", now=now)

    def test_stays_mitigated_when_somebody_takes_it(self, incident: Any, now: datetime, later: Later) -> None:
        incident_mitigate(incident_id=incident.id, reason="out", by="ada", source="WEB", now=later(1))

        incident_acknowledge(incident_id=incident.id, by="bob", source="WEB", now=later(2))

        row = incidents_of(now=now)[0]
        assert (row.state, row.owner_name, row.acknowledged_at) == ("MITIGATED", "bob", later(2))

    def test_that_is_over_is_no_obstacle_to_an_action_that_succeeds(
        self, incident: Any, run: Any, now: datetime
    ) -> None:
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=now)

        mitigated = incidents_mitigated_by(
            run_id=run.id, node_ids=[incident.node_id], whole_run=True, reason="restarted", by="ada", now=now
        )

        assert mitigated == []
        assert incidents_of(now=now)[0].state == "RESOLVED"

    def test_costs_nothing_more_once_nothing_of_it_is_open_whenever_it_is_dealt_with(
        self, incident: Any, find: Find, now: datetime, later: Later
    ) -> None:
        find(over(verdict("hang")), at=later(360))

        incident_mitigate(incident_id=incident.id, reason="restarted", by="ada", source="WEB", now=later(3600))

        assert incidents_of(now=later(7200))[0].gpu_hours_lost == pytest.approx(0.8)

    def test_is_mitigated_by_an_action_on_its_node(self, incident: Any, run: Any, now: datetime) -> None:
        incidents_mitigated_by(
            run_id=run.id, node_ids=[incident.node_id], whole_run=False, reason="excluded", by="ada", now=now
        )

        assert incidents_of(now=now)[0].state == "MITIGATED"

    def test_is_not_resolved_while_something_of_it_is_open(self, incident: Any, later: Later) -> None:
        assert incidents_settle(now=later(7200)) == 0

    def test_resolves_itself_half_an_hour_after_everything_closed(
        self, incident: Any, find: Find, now: datetime, later: Later
    ) -> None:
        find(over(verdict("hang")), at=later(10))

        early, late = incidents_settle(now=later(1800)), incidents_settle(now=later(1811))

        assert (early, late) == (0, 1)
        assert incidents_of(now=now)[0].state == "RESOLVED"

    def test_resolves_itself_after_fifty_steps_of_an_attempt_that_had_none_when_all_was_calm(
        self, incident: Any, attempt: Any, find: Find, now: datetime, later: Later
    ) -> None:
        find(over(verdict("hang")), at=later(10))
        site = Site(attempt.id, now)
        counts = []
        for seq, steps in enumerate((range(45), range(45, 80))):
            values = {"step_s": np.full((8, len(steps)), 1.0, np.float32)}
            ended = [later(10 + step).isoformat() for step in steps]
            site.put(steps={**packed(range(8), steps, values), "ended_at": ended}, seq=seq, at=11.0 + steps[-1])
            site.fold(after=12.0 + steps[-1])
            counts.append(incidents_settle(now=later(13 + steps[-1])))

        assert counts == [0, 1]

    @pytest.mark.parametrize(
        ("grave", "resolved"),
        [
            (verdict("numeric_fault", node="trn002", rank=5), [False, False, True]),
            (verdict("numeric_fault", node="trn002", rank=5, certainty=Certainty.SUSPECTED), [True, True, True]),
            (verdict("compute_straggler", node="trn002", rank=5, level=Level.WARNING), [True, True, True]),
        ],
    )
    def test_does_not_take_steps_for_healthy_that_are_made_while_something_grave_is_open(
        self,
        incident: Any,
        attempt: Any,
        find: Find,
        now: datetime,
        later: Later,
        grave: Any,
        resolved: list[bool],
    ) -> None:
        find(over(verdict("hang")), at=later(10))
        find(grave, at=later(11))
        site = Site(attempt.id, now)
        states = []
        for seq, steps in enumerate((range(80), range(80, 120), range(120, 150))):
            values = {"step_s": np.full((8, len(steps)), 1.0, np.float32)}
            ended = [later(10 + step).isoformat() for step in steps]
            site.put(steps={**packed(range(8), steps, values), "ended_at": ended}, seq=seq, at=11.0 + steps[-1])
            site.fold(after=12.0 + steps[-1])
            incidents_settle(now=later(13 + steps[-1]))
            states.append(next(row.state for row in incidents_of(now=now) if row.number == incident.number))
            if not seq:
                find(over(grave), at=later(14 + steps[-1]))

        assert [state == "RESOLVED" for state in states] == resolved

    def test_is_not_healthy_half_an_hour_later_while_something_grave_is_open(
        self, incident: Any, find: Find, later: Later
    ) -> None:
        find(over(verdict("hang")), at=later(10))
        find(verdict("numeric_fault", node="trn002", rank=5), at=later(11))

        assert incidents_settle(now=later(3600)) == 0

    def test_costs_every_gpu_for_the_time_of_a_hang(self, incident: Any, later: Later) -> None:
        assert incidents_of(now=later(3600))[0].gpu_hours_lost == pytest.approx(8.0)


class TestNote:
    def note(self, incident: Any, now: datetime, **more: Any) -> int:
        given: dict[str, Any] = {
            "text": "looked at it",
            "happened_at": None,
            "author_key": "user:1",
            "author_name": "ada",
        }
        return note_add(incident_id=incident.id, source="WEB", now=now, **{**given, **more})

    def test_stands_where_it_happened_and_says_when_it_was_written(
        self, incident: Any, now: datetime, later: Later
    ) -> None:
        self.note(incident, later(600), happened_at=later(-60))

        rows = timeline_of(incident, now=later(600))

        note = next(row for row in rows if row.note_id)
        assert (note.happened_at, note.recorded_at) == (later(-60), later(600))
        assert rows.index(note) < next(place for place, row in enumerate(rows) if row.kind == "finding.opened")

    def test_keeps_what_it_said_before(self, incident: Any, now: datetime, later: Later) -> None:
        from apps.incidents.selectors import note_versions

        note_id = self.note(incident, now)
        edit = {"note_id": note_id, "happened_at": None, "author_key": "user:1", "author_name": "ada", "source": "WEB"}
        note_edit(version=1, text="looked again", now=later(5), **edit)

        assert note_versions(note_id) == [(1, "looked at it", later(5))]
        with pytest.raises(NoteChanged):
            note_edit(version=1, text="from an old page", now=later(6), **edit)

    def test_is_changed_by_nobody_else(self, incident: Any, now: datetime) -> None:
        note_id = self.note(incident, now)

        with pytest.raises(Forbidden):
            note_edit(
                note_id=note_id,
                version=1,
                text="x",
                happened_at=None,
                author_key="user:2",
                author_name="bob",
                source="WEB",
                now=now,
            )

    @pytest.mark.parametrize("text", ["", "   ", "x" * 20_001])
    def test_is_refused_without_words_or_with_too_many(self, incident: Any, now: datetime, text: str) -> None:
        with pytest.raises(BadRequest):
            self.note(incident, now, text=text)

    def test_is_refused_about_what_lies_ahead(self, incident: Any, now: datetime, later: Later) -> None:
        with pytest.raises(BadRequest):
            self.note(incident, now, happened_at=later(600))


class TestNotice:
    @pytest.fixture(autouse=True)
    def on_call(self, make_user: Callable[..., Any]) -> None:
        user = make_user("OPERATOR", "on-call")
        user.email = "on-call@site.example"
        user.save()

    def sent(self, now: datetime) -> list[str]:
        notices_send(now=now)
        return [row.kind for row in reversed(notices_latest()) if row.state == "SENT"]

    def test_tells_a_confirmed_fault_once_with_link_verdict_and_price(self, incident: Any, now: datetime) -> None:
        notices_send(now=now)
        notices_send(now=now)

        assert len(mail.outbox) == 1
        assert f"/incidents/{incident.number}" in mail.outbox[0].body
        assert "hang on trn001" in mail.outbox[0].body
        assert mail.outbox[0].to == ["on-call@site.example"]

    def test_waits_for_a_suspicion_to_be_confirmed(self, find: Find, later: Later) -> None:
        suspected = verdict("hang", certainty=Certainty.SUSPECTED, level=Level.WARNING)
        find(suspected)
        before = self.sent(later(1))
        find(replace(suspected, certainty=Certainty.CONFIRMED, level=Level.CRITICAL), at=later(8))

        assert before == []
        assert self.sent(later(9)) == ["OPENED"]

    def test_tells_a_suspicion_that_lasts(self, find: Find, later: Later) -> None:
        find(verdict("hang", certainty=Certainty.SUSPECTED))
        incidents_settle(now=later(61))

        assert self.sent(later(61)) == ["OPENED"]

    def test_tells_when_it_gets_worse_and_when_it_is_over(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("compute_straggler", level=Level.WARNING))
        find(verdict("numeric_fault", rank=1), at=later(5))
        row = incidents_of(now=now)[0]
        incident_resolve(incident_id=row.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=later(9))

        assert self.sent(later(10)) == ["OPENED", "ESCALATED", "CLOSED"]

    def test_tells_once_of_what_one_look_found_at_one_place(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("no_telemetry", rank=None, level=Level.WARNING, began_at=later(-6).timestamp()), absorb=False)
        find(verdict("rank_lost", rank=None, began_at=later(-5).timestamp()))

        assert self.sent(later(10)) == ["OPENED"]
        assert "rank_lost on trn001" in mail.outbox[0].subject

    def test_tells_of_each_further_cause_once_with_its_own_words(self, find: Find, now: datetime, later: Later) -> None:
        queue = verdict("checkpoint_queue", node=None, level=Level.WARNING)
        find(verdict("gc_pause", node=None, level=Level.WARNING))
        find(queue, at=later(5))
        find(replace(queue, subject=queue.subject, score=9.0, certainty=Certainty.SUSPECTED), at=later(6))
        find(queue, at=later(7))

        assert self.sent(later(10)) == ["OPENED", "JOINED"]
        assert "also: checkpoint_queue on the run" in mail.outbox[1].subject
        assert mail.outbox[1].body.startswith("checkpoint_queue on the run")

    def test_does_not_tell_of_what_the_incident_s_own_cause_brings_about(
        self, find: Find, now: datetime, later: Later
    ) -> None:
        find(verdict("rank_lost", node="trn002", rank=5))
        find(verdict("hang", node=None), at=later(8))
        find(verdict("checkpoint_stale", node=None), at=later(90))

        assert self.sent(later(100)) == ["OPENED"]

    def test_waits_with_a_further_cause_that_is_only_suspected(self, find: Find, now: datetime, later: Later) -> None:
        find(verdict("gc_pause", node=None, level=Level.WARNING))
        find(verdict("run_slowdown", node=None, level=Level.WARNING, certainty=Certainty.SUSPECTED), at=later(5))
        before = self.sent(later(10))
        incidents_settle(now=later(70))

        assert before == ["OPENED"]
        assert self.sent(later(70)) == ["OPENED", "JOINED"]

    @pytest.mark.parametrize(("blind_s", "told"), [((16, 26), []), ((16, 31, 40), ["BLIND", "SEES"])])
    def test_tells_that_nothing_is_seen_once_and_only_if_it_lasts(
        self, now: datetime, later: Later, blind_s: tuple[float, ...], told: list[str]
    ) -> None:
        DoorBeat.objects.create(instance="test", accepting_since=now, last_beat_at=now)
        watch_check(now=later(1))
        seen = [watch_check(now=later(s)) for s in blind_s]
        DoorBeat.objects.update(last_beat_at=later(50))

        assert watch_check(now=later(51))
        assert not any(seen)
        assert self.sent(later(51)) == told

    def test_comes_again_until_a_webhook_takes_it(self, find: Find, now: datetime, later: Later) -> None:
        notice_target_put(name="pager", url="http://127.0.0.1:9/", secret="x" * 16, by="ada", source="WEB", now=now)
        find(verdict("hang"))

        notices_send(now=now)
        row = next(row for row in notices_latest() if row.channel == "WEBHOOK")
        again = notices_send(now=later(3))

        assert (row.state, row.tries) == ("PENDING", 1)
        assert again == 0
        assert next(row for row in notices_latest() if row.channel == "WEBHOOK").tries == 2

    def test_one_place_that_does_not_answer_holds_up_no_other(
        self, find: Find, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[str] = []

        def away(url: str, *_: Any, **__: Any) -> Any:
            tried.append(url)
            raise TimeoutError("no answer")

        monkeypatch.setattr(notices, "signed_post", away)
        notice_target_put(name="pager", url="http://pager.example/", secret="x" * 16, by="ada", source="WEB", now=now)
        find(verdict("hang"))
        find(verdict("compute_straggler", node="trn002"))

        notices_send(now=now)

        assert tried == ["http://pager.example/"]
        assert len(mail.outbox) == 2

    def test_is_not_counted_as_sent_when_nobody_has_an_address_any_more(self, find: Find, now: datetime) -> None:
        find(verdict("hang"))
        User.objects.update(email="")

        notices_send(now=now)

        assert (notices_latest()[0].state, mail.outbox) == ("PENDING", [])


class TestTimeline:
    def test_of_a_long_log_keeps_the_incident_s_own_rows_and_the_newest_and_says_that_it_was_cut(
        self, incident: Any, run: Any, now: datetime, later: Later, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(selectors, "MOST_ROWS", 10)
        for number in range(30):
            with recording(now=later(number + 1)) as log:
                log.add(StreamKey.run(run.id), kind="rank.log", text=f"line {number}", source="SENDER")
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=later(40))

        rows = timeline_of(incidents_of(now=now)[0], now=later(60))

        kinds = [row.kind for row in rows]
        assert "incident.opened" in kinds
        assert kinds[-1] == "incident.resolved"
        assert [row.text for row in rows if row.kind == "rank.log"] == [f"line {number}" for number in range(21, 30)]
        assert kinds.count("timeline.cut") == 1

    def test_leaves_the_run_ten_seconds_after_the_end(
        self, incident: Any, run: Any, now: datetime, later: Later
    ) -> None:
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=later(10))
        for seconds in (19, 21, 300):
            with recording(now=later(seconds)) as log:
                log.add(StreamKey.run(run.id), kind="rank.log", text=f"{seconds} s", source="SENDER")

        rows = timeline_of(incidents_of(now=now)[0], now=later(3600))

        assert [row.text for row in rows if row.kind == "rank.log"] == ["19 s"]

    def test_goes_on_with_its_own_findings_actions_and_notes_however_late(
        self, find: Find, incident: Any, run: Any, make_user: Callable[..., Any], now: datetime, later: Later
    ) -> None:
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=later(10))
        with recording(now=later(7200)) as log:
            said = {"kind": "finding.muted", "source": "WEB"}
            log.add(StreamKey.run(run.id), text="its own", payload={"finding": incident.lead_finding_id}, **said)
            log.add(StreamKey.run(run.id), text="another one's", payload={"finding": 10**6}, **said)
        action_request(
            principal=principal_of_user(make_user("OPERATOR", "ada")),
            kind="RESTART_RUN",
            reason="It stood for ten seconds",
            source="WEB",
            run_id=run.id,
            finding_id=incident.lead_finding_id,
            now=later(7300),
        )

        rows = timeline_of(incidents_of(now=now)[0], now=later(9000))

        assert [(row.kind, row.text) for row in rows if row.kind == "finding.muted"] == [("finding.muted", "its own")]
        assert rows[-1].kind == "action.refused"

    def test_looks_for_its_own_rows_for_a_week(self, incident: Any, run: Any, now: datetime, later: Later) -> None:
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=later(10))
        for days in (6, 8):
            with recording(now=later(86400 * days)) as log:
                own = {"finding": incident.lead_finding_id}
                log.add(StreamKey.run(run.id), kind="finding.muted", text=f"{days} days", source="WEB", payload=own)

        rows = timeline_of(incidents_of(now=now)[0], now=later(86400 * 9))

        assert [row.text for row in rows if row.kind == "finding.muted"] == ["6 days"]

    def test_tells_of_attempts_as_long_as_its_own_action_is_under_way(
        self, incident: Any, run: Any, now: datetime, later: Later
    ) -> None:
        incident_resolve(incident_id=incident.id, answer="CONFIRMED", words="", by="ada", source="WEB", now=later(10))
        own = {"action": 7, "finding": incident.lead_finding_id}
        for seconds, kind, payload in (
            (60, "action.requested", own),
            (70, "attempt.ended", {"attempt": 1}),
            (80, "attempt.opened", {"attempt": 2}),
            (90, "action.succeeded", own),
            (900, "attempt.ended", {"attempt": 2}),
        ):
            with recording(now=later(seconds)) as log:
                log.add(StreamKey.run(run.id), kind=kind, text=kind, source="SYSTEM", payload=payload)

        rows = timeline_of(incidents_of(now=now)[0], now=later(1000))

        kinds = [row.kind for row in rows if row.happened_at > later(10)]
        assert kinds == ["action.requested", "attempt.ended", "attempt.opened", "action.succeeded"]


@pytest.mark.django_db(transaction=True)
def test_two_senders_at_once_send_a_notice_once(find: Find, make_user: Callable[..., Any], now: datetime) -> None:
    user = make_user("OPERATOR", "on-call")
    user.email = "on-call@site.example"
    user.save()
    find(verdict("hang"))
    start = threading.Barrier(3)

    def send() -> None:
        start.wait()
        notices_send(now=now)
        connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(mail.outbox) == 1


def test_a_write_up_carries_no_markup_of_what_people_and_machines_wrote(find: Find, now: datetime) -> None:
    find(verdict("hang", verdict="<img src=x onerror=alert(1)> | [x](javascript:1)"))
    row = incidents_of(now=now)[0]

    text = markdown_of(row, [], timeline_of(row, now=now))

    assert "<img" not in text.replace("\\<img", "")
    assert "](javascript" not in text.replace("\\](javascript", "")
