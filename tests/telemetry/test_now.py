"""What is known now: beats, senders, facts, the door; folded or not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.telemetry.models import DoorBeat, Fact
from apps.telemetry.selectors import door_state, facts_of, metrics_of, nonfinite_of, ranks_now, senders_of, stacks_of
from apps.telemetry.services.facts import facts_told_close
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    return Site(attempt.id, now)


def beat(rank: int, step: int, phase: str = "compute", age: float = 0.5) -> dict[str, Any]:
    return {"rank": rank, "step": step, "phase": phase, "phase_age_s": age}


class TestRanksNow:
    def test_knows_beats_before_they_are_folded(self, site: Site, now: datetime) -> None:
        site.put(beats=[beat(0, 7, "communication"), beat(3, 8)])

        found = ranks_now(site.attempt_id, now)

        assert (found.ranks.tolist(), found.step.tolist()) == ([0, 3], [7, 8])
        assert found.phase == ["communication", "compute"]
        assert found.heard_at.tolist() == [now.timestamp()] * 2

    def test_knows_no_rank_that_the_attempt_has_not_before_the_fold_either(self, site: Site, now: datetime) -> None:
        site.put(beats=[beat(0, 7), beat(9, 7)], events=[{"kind": "exit", "rank": 9, "code": 1}])

        found = ranks_now(site.attempt_id, now)

        assert (found.ranks.tolist(), list(found.exited)) == ([0], [])

    def test_says_the_same_after_the_fold(self, site: Site, now: datetime) -> None:
        site.put(beats=[beat(0, 7, "communication"), beat(3, 8, age=2)])
        before = ranks_now(site.attempt_id, now)
        site.fold()

        after = ranks_now(site.attempt_id, now)

        assert (after.ranks.tolist(), after.step.tolist()) == (before.ranks.tolist(), before.step.tolist())
        assert (after.phase, after.phase_age_s.tolist()) == (before.phase, before.phase_age_s.tolist())

    def test_the_newest_beat_of_a_rank_counts_and_others_stay(self, site: Site, later: Any) -> None:
        site.put(seq=1, beats=[beat(0, 7), beat(1, 7)])
        site.fold()
        site.put(seq=2, at=5, beats=[beat(1, 9)])
        site.fold(5)

        found = ranks_now(site.attempt_id, later(5))

        assert (found.ranks.tolist(), found.step.tolist()) == ([0, 1], [7, 9])

    def test_a_late_report_says_nothing_about_now(self, site: Site, later: Any) -> None:
        site.put(seq=5, beats=[beat(0, 50)])
        site.fold()
        site.put(seq=4, at=9, beats=[beat(0, 40)])

        waiting = ranks_now(site.attempt_id, later(9))
        site.fold(9)
        folded = ranks_now(site.attempt_id, later(9))

        assert (waiting.step.tolist(), folded.step.tolist()) == ([50], [50])

    def test_a_spooled_report_of_an_earlier_sender_says_nothing_about_now(self, site: Site, later: Any) -> None:
        site.put(boot="first", seq=1, beats=[beat(0, 7)])
        site.fold()
        site.put(boot="second", seq=1, at=5, beats=[beat(0, 50)])
        site.fold(5)
        site.put(boot="first", seq=2, at=9, sent=1, beats=[beat(0, 8)])

        waiting = ranks_now(site.attempt_id, later(9))
        site.fold(9)
        folded = ranks_now(site.attempt_id, later(9))

        assert (waiting.step.tolist(), folded.step.tolist()) == ([50], [50])

    def test_a_sender_speaks_of_now_though_its_predecessor_was_heard_after_it(self, site: Site, later: Any) -> None:
        site.put(boot="second", seq=1, at=10, beats=[beat(0, 50)])
        site.fold(10)
        site.put(boot="first", seq=1, at=11, sent=2, beats=[beat(0, 7)])  # from the spool, where nobody had heard it
        site.fold(11)
        site.put(boot="second", seq=2, at=15, beats=[beat(0, 60)], drops={"full spool": 1})

        waiting = ranks_now(site.attempt_id, later(15))
        site.fold(15)
        folded = ranks_now(site.attempt_id, later(15))

        assert (waiting.step.tolist(), folded.step.tolist()) == ([60], [60])
        assert senders_of(site.attempt_id)[0].drops == {"full spool": 1}

    def test_a_beat_of_a_rank_that_cannot_be_is_refused(self, site: Site, now: datetime) -> None:
        site.put(beats=[beat(0, 1), beat(99, 1), {"rank": -3, "step": 1}, {"step": 4}])

        site.fold()

        assert ranks_now(site.attempt_id, now).ranks.tolist() == [0]

    def test_an_exit_is_known_before_it_is_folded(self, site: Site, now: datetime) -> None:
        site.put(events=[{"kind": "exit", "rank": 2, "signal": 9}])

        waiting = ranks_now(site.attempt_id, now).exited
        site.fold()
        folded = ranks_now(site.attempt_id, now).exited

        assert {rank: fact.signal for rank, fact in waiting.items()} == {2: 9}
        assert {rank: fact.signal for rank, fact in folded.items()} == {2: 9}


class TestSenders:
    def test_shows_who_reports_from_where_and_what_was_lost(self, site: Site, later: Any, now: datetime) -> None:
        site.put(seq=1, sent=-30, drops={"full spool": 2}, beats=[])
        site.put(seq=4, at=2, sent=-28.5, drops={"full spool": 3}, beats=[])
        site.put(sender="elsewhere", seq=1, at=1, beats=[])

        site.fold(3)

        first, second = senders_of(site.attempt_id)
        assert (first.sender, first.node_id) == ("elsewhere", None)
        assert (second.sender, second.reports, second.missing, second.drops) == ("trn001", 2, 2, {"full spool": 3})
        assert second.node_id is not None
        assert second.skew_s == pytest.approx(-30.0)
        assert second.last_received_at == later(2)

    def test_a_report_that_waits_counts_as_heard(self, site: Site, later: Any) -> None:
        site.put(seq=1, beats=[])
        site.fold()
        site.put(seq=2, at=30, beats=[])
        site.put(sender="new", at=31, beats=[])

        new, known = senders_of(site.attempt_id)

        assert (known.last_received_at, new.last_received_at, new.reports) == (later(30), later(31), 0)


class TestFacts:
    def test_an_event_is_a_fact_and_a_row_of_the_log(self, site: Site, run: Any, now: datetime) -> None:
        at = (now - timedelta(seconds=3)).isoformat()
        site.put(events=[{"kind": "log", "rank": 3, "happened_at": at, "text": "loss is odd"}])

        site.fold()

        fact = facts_of(site.attempt_id)[0]
        event = events_latest(StreamKey.run(run.id), limit=1)[0]
        assert (fact.kind, fact.rank, fact.text, fact.sender, fact.current) == ("log", 3, "loss is odd", "trn001", True)
        assert (event.kind, event.text) == ("rank.log", "Rank 3: loss is odd")
        assert event.happened_at == now - timedelta(seconds=3)

    def test_equal_texts_are_one_row_and_then_one_with_the_count(self, site: Site, run: Any, later: Any) -> None:
        for seq in range(1, 4):
            site.put(seq=seq, events=[{"kind": "log", "rank": rank, "text": "NCCL WARN"} for rank in range(8)])
            site.fold()
        facts_told_close(now=later(30))
        within = [event.text for event in events_latest(StreamKey.run(run.id), limit=9, kinds=("rank.log",))]

        facts_told_close(now=later(61))
        facts_told_close(now=later(62))

        texts = [event.text for event in events_latest(StreamKey.run(run.id), limit=9, kinds=("rank.log",))]
        assert within == ["Rank 0: NCCL WARN"]
        assert texts == ["Rank 0: NCCL WARN (again 23 times)", "Rank 0: NCCL WARN"]
        assert Fact.objects.get().count == 24

    def test_a_text_that_comes_after_its_window_is_told_again(self, site: Site) -> None:
        site.put(seq=1, events=[{"kind": "log", "text": "a"}])
        site.fold()
        site.put(seq=2, at=90, events=[{"kind": "log", "text": "a"}])

        site.fold(90)

        assert Fact.objects.count() == 2

    def test_a_crash_of_many_ranks_is_a_fact_each_and_few_rows(self, site: Site, run: Any) -> None:
        site.put(events=[{"kind": "exit", "rank": rank, "code": -9} for rank in range(8)])
        site.put(seq=2, sender="trn002", events=[{"kind": "exit", "rank": rank, "code": 1} for rank in range(8)])

        site.fold()

        texts = [event.text for event in events_latest(StreamKey.run(run.id), limit=50, kinds=("rank.exit",))]
        assert Fact.objects.filter(kind="EXIT").count() == 16
        assert texts[0] == "8 more ranks exited"
        assert texts[-1] == "Rank 0 was ended by SIGKILL"
        assert len(texts) == 9

    @pytest.mark.parametrize(
        ("happened", "sent", "received", "current"),
        [(-5, 0, 1, True), (-700, 0, 1, False), (-5, 0, 700, False), (3595, 3600, 1, True)],
    )
    def test_a_fact_is_current_by_its_senders_own_clock(
        self, site: Site, later: Any, happened: float, sent: float, received: float, current: bool
    ) -> None:
        site.put(seq=0, sender="trn001", beats=[])
        site.put(
            at=received, sent=sent, events=[{"kind": "log", "text": "x", "happened_at": later(happened).isoformat()}]
        )

        site.fold(max(received, sent) + 1)

        assert facts_of(site.attempt_id)[0].current is current

    def test_a_flood_of_different_texts_is_bounded_and_counted(self, site: Site) -> None:
        from apps.telemetry.models import Refusal
        from apps.telemetry.services.facts import MOST_NEW

        site.put(events=[{"kind": "log", "text": f"line {n}"} for n in range(MOST_NEW + 50)])

        site.fold()

        assert Fact.objects.count() == MOST_NEW
        assert Refusal.objects.get().count == 50

    def test_the_newest_stack_of_a_rank_is_kept_whole(self, site: Site, now: datetime) -> None:
        long = "File x\n" * 2000
        site.put(seq=1, events=[{"kind": "stack", "rank": 1, "text": "old", "happened_at": now.isoformat()}])
        site.put(
            seq=2,
            events=[
                {"kind": "stack", "rank": 1, "text": long, "happened_at": (now + timedelta(seconds=9)).isoformat()}
            ],
        )

        site.fold()

        assert [(row.rank, row.text) for row in stacks_of(site.attempt_id)] == [(1, long)]

    def test_an_unknown_kind_and_a_zero_byte_cost_nothing_else(self, site: Site) -> None:
        site.put(
            events=[
                {"kind": "poem", "text": "x"},
                {"kind": "log", "text": "a\x00b"},
                {"kind": "note", "text": "ok", "code": 2**40},
            ]
        )

        site.fold()

        assert [(fact.kind, fact.text, fact.code) for fact in facts_of(site.attempt_id)] == [
            ("log", "a\ufffdb", None),
            ("note", "ok", None),
        ]


class TestPlaces:
    def test_reports_say_where_ranks_sit(self, make_run: Callable[..., Any], now: datetime) -> None:
        from apps.fleet.selectors import nodes_by_id
        from apps.runs.selectors import placement_of
        from apps.runs.services import attempt_open

        run = make_run("placed")
        row, _ = attempt_open(run_id=run.id, key="slurm:7.0.0", world_size=2, by="t", source="API", now=now)
        site = Site(row.id, now)
        site.put(
            sender="new-7",
            placement=[
                {"rank": 0, "node": "new-7", "local_rank": 0, "gpu": "GPU-1", "coords": {"pp": 1}},
                {"rank": 1, "node": "bad:name"},
                {"rank": 5, "node": "new-7"},
            ],
        )

        site.fold()

        placement = placement_of(row.id)
        assert placement is not None
        assert (placement.stages.tolist(), placement.gpus) == ([1, -1], {"0": "GPU-1"})
        assert [node.name for node in nodes_by_id(placement.node_ids).values()] == ["new-7"]
        assert senders_of(row.id)[0].node_id == placement.node_ids[0]

    def test_reports_tell_the_run_about_its_checkpoints(self, site: Site, run: Any, now: datetime) -> None:
        from apps.runs.selectors import checkpoint_newest_trusted

        site.put(
            checkpoints=[
                {"step": 100, "state": "STARTED", "kind": "save", "happened_at": now.isoformat()},
                {
                    "step": 100,
                    "state": "SAVED",
                    "kind": "save",
                    "duration_s": 30,
                    "queue_s": 4,
                    "happened_at": now.isoformat(),
                },
                {"step": 101, "state": "SOMETHING"},
            ]
        )

        site.fold()

        newest = checkpoint_newest_trusted(run.id)
        assert newest is not None
        assert (newest.step, newest.trust, newest.duration_s) == (100, "COMPLETE", 30)


class TestDoorState:
    def test_clocks_count_from_when_the_first_living_door_could_accept(
        self, db: None, now: datetime, later: Any
    ) -> None:
        for name, since, last in (("a", -100, 0), ("b", -50, 0), ("dead", -500, -60)):
            DoorBeat.objects.create(instance=name, accepting_since=later(since), last_beat_at=later(last), inbox_rows=3)

        assert door_state(now).accepting_since == later(-100)
        assert door_state(now).inbox_rows == 3

    def test_no_clock_runs_while_nobody_accepts(self, db: None, now: datetime, later: Any) -> None:
        DoorBeat.objects.create(instance="full", accepting_since=None, last_beat_at=later(-1))
        DoorBeat.objects.create(instance="dead", accepting_since=later(-500), last_beat_at=later(-60))

        assert door_state(now).accepting_since == now

    def test_a_door_that_never_was_says_so(self, db: None, now: datetime) -> None:
        assert (door_state(now).last_beat_at, door_state(now).accepting_since) == (None, now)


def test_metrics_are_listed_as_first_heard(site: Site) -> None:
    site.put(steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]], "loss": [["nan"]]}})
    site.fold()

    assert metrics_of(site.attempt_id) == ["step_s", "loss"]
    assert [(row.metric, row.which) for row in nonfinite_of(site.attempt_id, after_step=None, limit=9)] == [
        ("loss", "NAN")
    ]
