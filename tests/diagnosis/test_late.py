"""What is told hours later fills the record: it opens nothing, proposes nothing, and nothing of it is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.diagnosis import tasks
from apps.diagnosis.models import Finding
from apps.diagnosis.selectors import FindingRow, findings_of
from apps.diagnosis.services import attempts_unseen, clocks_evaluate, finding_mute
from apps.diagnosis.services.windows import scene_read
from apps.incidents.models import Incident, Notice
from apps.incidents.services import findings_absorb, incident_resolve, notices_send
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation.models import Action
from apps.remediation.services import findings_consider
from apps.runs.models import Attempt, Run
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.runs.services import attempt_end
from apps.telemetry.models import DoorBeat
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db

HOURS = 3 * 3600.0


@pytest.fixture
def site(attempt: Any, run: Any, now: datetime) -> Site:
    """An attempt of a run whose mode lets Paceline propose, long under way."""
    since = now - timedelta(days=1)
    DoorBeat.objects.create(instance="test", accepting_since=since, last_beat_at=now)
    Run.objects.filter(pk=run.id).update(mode="PROPOSE")
    Attempt.objects.filter(pk=attempt.id).update(started_at=since)
    return Site(attempt.id, now)


def beats_put(site: Site, *, at: float = 0.0, seq: int = 1) -> None:
    """All ranks are heard, from both nodes."""
    for node, ranks in (("trn001", range(4)), ("trn002", range(4, 8))):
        beats = [{"rank": rank, "step": 50, "phase": "compute", "phase_age_s": 0.1} for rank in ranks]
        site.put(sender=node, boot="live", seq=seq, at=at, beats=beats)


def exit_put(site: Site, rank: int, *, ago: float, at: float = 0.0, code: int = 1, seq: int = 1) -> None:
    """A spool delivers `at` what its process told `ago` seconds before: a rank's exit."""
    happened = (site.now + timedelta(seconds=at - ago)).isoformat()
    site.put(
        sender="trn002" if rank > 3 else "trn001",
        boot=f"spool{rank}",
        seq=seq,
        at=at,
        sent=at - ago + 1,
        events=[{"kind": "exit", "rank": rank, "code": code, "happened_at": happened}],
    )


def look(site: Site, after: float = 0.0) -> list[FindingRow]:
    """Look at the attempt by the clock, let both pipelines read what was found, and return it."""
    moment = site.now + timedelta(seconds=after)
    clocks_evaluate(attempt_id=site.attempt_id, now=moment)
    findings_absorb(now=moment)
    findings_consider(now=moment)
    return findings_of(attempt_id=site.attempt_id, cause="rank_lost")


class TestAnExitFromASpool:
    def test_is_a_finding_closed_from_birth_that_opens_and_proposes_nothing(self, site: Site) -> None:
        beats_put(site)
        exit_put(site, 5, ago=HOURS)
        site.fold()

        (row,) = look(site)
        notices_send(now=site.now + timedelta(minutes=2))

        assert (row.state, row.close_reason, row.subject["rank"]) == ("CLOSED", "LATE", 5)
        assert row.proposal_kind == "NONE"
        assert row.next == "Nothing to do now: it was seen late and is kept for the record."
        assert row.began_at == site.now - timedelta(seconds=HOURS)
        assert not Incident.objects.exists()
        assert not Notice.objects.exists()
        assert not Action.objects.exists()

    def test_stands_in_the_timeline_once_when_it_happened(self, site: Site, run: Any) -> None:
        beats_put(site)
        exit_put(site, 5, ago=HOURS)
        site.fold()

        look(site)
        look(site, 2)

        told = events_latest(StreamKey.run(run.id), limit=50, kinds=("finding.opened", "rank.exit"))
        assert [row.kind for row in told] == ["finding.opened", "rank.exit"]
        assert told[0].text.startswith("Seen late: rank_lost")
        assert told[1].happened_at == site.now - timedelta(seconds=HOURS)

    def test_opens_nothing_while_it_waits_for_the_fold(self, site: Site) -> None:
        beats_put(site)
        site.fold()
        exit_put(site, 5, ago=HOURS)

        assert look(site) == []

    def test_joins_no_incident_and_changes_none(self, site: Site) -> None:
        beats_put(site)
        exit_put(site, 5, ago=2.0)
        site.fold()
        look(site)
        before = Incident.objects.get()
        exit_put(site, 4, ago=HOURS, at=5)
        site.fold(5)

        rows = look(site, 5)

        after = Incident.objects.get()
        assert [(row.subject["rank"], row.close_reason, row.incident_id) for row in rows] == [
            (4, "LATE", None),
            (5, "", before.pk),
        ]
        assert (after.count, after.title, after.version) == (before.count, before.title, before.version)

    def test_of_a_node_whose_clock_is_known_to_be_wrong_is_of_now(self, site: Site) -> None:
        from apps.fleet.models import NodeStatus

        NodeStatus.objects.update(clock_skew_s=-HOURS)
        places = [{"rank": rank, "node": "trn002", "local_rank": rank - 4} for rank in range(4, 8)]
        site.put(sender="trn002", boot="spool5", seq=0, at=0, sent=-HOURS, placement=places)
        exit_put(site, 5, ago=HOURS)
        site.fold()

        (row,) = look(site)

        assert row.state == "OPEN"


class TestAnExitOfNow:
    def test_opens_an_incident_and_is_proposed(self, site: Site) -> None:
        beats_put(site)
        exit_put(site, 5, ago=2.0)
        site.fold()

        (row,) = look(site)

        assert row.state == "OPEN"
        assert Incident.objects.count() == 1
        assert Action.objects.get().state == "PROPOSED"

    def test_that_is_folded_after_the_end_is_no_exit_of_the_past(self, site: Site) -> None:
        beats_put(site)
        site.fold()
        end(site, at=1)
        exit_put(site, 5, ago=2.0, at=2)
        site.fold(3)

        (row,) = look(site, 3)

        assert row.state == "OPEN"


def end(site: Site, *, at: float) -> None:
    """The scheduler says that the attempt crashed."""
    moment = site.now + timedelta(seconds=at)
    attempt_end(
        attempt_id=site.attempt_id, reason="CRASHED", authority="SCHEDULER", by="slurm", source="API", now=moment
    )


class TestTheSweepAlone:
    @pytest.fixture
    def sweep(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[FindingRow]]:
        """Do what beat does each two seconds, at a moment; return what is known then."""

        def run(after: float) -> list[FindingRow]:
            monkeypatch.setattr(tasks, "now", lambda: site.now + timedelta(seconds=after))
            tasks.windows_sweep()
            tasks.clocks_sweep()
            return findings_of(attempt_id=site.attempt_id, cause="rank_lost")

        return run

    @pytest.mark.parametrize(("ago", "state"), [(290.0, "OPEN"), (HOURS, "CLOSED")])
    def test_finds_what_comes_long_after_the_end(self, site: Site, sweep: Any, ago: float, state: str) -> None:
        beats_put(site, at=-ago)
        site.fold()
        end(site, at=-ago + 5)
        before = sweep(-100.0)
        sweep(-50.0)
        exit_put(site, 5, ago=ago)
        site.fold()

        rows = sweep(2.0)

        assert before == []
        assert [row.state for row in rows] == [state]
        assert attempts_unseen(now=site.now + timedelta(seconds=2)) == []

    def test_makes_up_for_the_last_look_of_an_attempt_that_ended_while_nobody_looked(
        self, site: Site, sweep: Any
    ) -> None:
        beats_put(site, at=-300)
        exit_put(site, 5, ago=2.0, at=-299)
        site.fold()
        end(site, at=-298)
        due = attempts_unseen(now=site.now)

        rows = sweep(0.0)

        assert due == [site.attempt_id]
        assert [row.state for row in rows] == ["OPEN"]
        assert attempts_unseen(now=site.now) == []


class TestDismissed:
    def test_what_people_dismissed_is_no_recurrence(self, site: Site, make_attempt: Any, run: Any) -> None:
        beats_put(site)
        exit_put(site, 5, ago=2.0)
        site.fold()
        (row,) = look(site)
        later = make_attempt(run, key="slurm:2.0.0", now=site.now + timedelta(minutes=1))
        before = scene_read(run_by_id(run.id), attempt_by_id(later.id), now=site.now)
        finding_mute(finding_id=row.id, reason="a test of ours", until_at=None, by="op", source="WEB", now=site.now)

        scene = scene_read(run_by_id(run.id), attempt_by_id(later.id), now=site.now)
        own = scene_read(run_by_id(run.id), attempt_by_id(site.attempt_id), now=site.now)

        assert [fault.rank for fault in before.past] == [5]
        assert (scene.past, [fault.rank for fault in own.dismissed]) == ((), [5])

    def test_nor_is_what_was_a_false_alarm(self, site: Site, make_attempt: Any, run: Any) -> None:
        beats_put(site)
        exit_put(site, 5, ago=2.0)
        site.fold()
        look(site)
        number = Incident.objects.get().pk
        later = make_attempt(run, key="slurm:2.0.0", now=site.now + timedelta(minutes=1))
        incident_resolve(
            incident_id=number,
            answer="WRONG",
            words="our own test",
            by="op",
            source="WEB",
            now=site.now,
            false_alarm=True,
        )

        scene = scene_read(run_by_id(run.id), attempt_by_id(later.id), now=site.now)
        findings_absorb(now=site.now)
        findings_consider(now=site.now)

        assert scene.past == ()
        assert Incident.objects.get().state == "FALSE_ALARM"
        assert Action.objects.get().state == "EXPIRED"

    def test_what_is_only_snoozed_still_is_one(self, site: Site, make_attempt: Any, run: Any) -> None:
        beats_put(site)
        exit_put(site, 5, ago=2.0)
        site.fold()
        (row,) = look(site)
        later = make_attempt(run, key="slurm:2.0.0", now=site.now + timedelta(minutes=1))
        until = site.now + timedelta(hours=1)
        finding_mute(finding_id=row.id, reason="at lunch", until_at=until, by="op", source="WEB", now=site.now)

        scene = scene_read(run_by_id(run.id), attempt_by_id(later.id), now=site.now)

        assert [fault.rank for fault in scene.past] == [5]
        assert Finding.objects.get(pk=row.id).state == "OPEN"
