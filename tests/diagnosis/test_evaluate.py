"""From reports to findings: what settles is looked at once, what beats and exits say is looked at by the clock."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from django.db import connection

from apps.common.errors import BadRequest
from apps.diagnosis import tasks
from apps.diagnosis.models import DetectorState
from apps.diagnosis.selectors import detectors_of, findings_of
from apps.diagnosis.services import (
    attempt_catch_up,
    attempts_due,
    attempts_settle,
    clocks_evaluate,
    finding_mute,
    findings,
    windows_due,
    windows_evaluate,
)
from apps.engine.detection import State, Window
from apps.engine.detectors import registry
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.runs.models import Placement
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.runs.services import attempt_end, attempt_open
from apps.telemetry.models import DoorBeat
from tests.locks import blocks_somebody
from tests.telemetry.reports import Site, packed

pytestmark = pytest.mark.django_db

SLOW = 5
"""The rank that is slow, on trn002."""


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    since = now - timedelta(hours=1)
    DoorBeat.objects.create(instance="test", accepting_since=since, last_beat_at=now)
    return Site(attempt.id, now)


def steps_put(site: Site, first: int, last: int, *, slow: float = 1.0, seq: int = 1, at: float = 0.0) -> None:
    """Report steps first..last-1 of all 8 ranks; rank 5 computes `slow` times as long."""
    rng = np.random.default_rng(first)
    compute = rng.normal(3.0, 0.02, (8, last - first)).astype(np.float32)
    compute[SLOW] *= slow
    step = np.broadcast_to(compute.max(axis=0) + 0.5, compute.shape).astype(np.float32)
    values = {"step_s": step, "compute_s": compute, "communication_s": step - compute}
    beats = [{"rank": rank, "step": last, "phase": "compute", "phase_age_s": 0.2} for rank in range(8)]
    site.put(seq=seq, at=at, steps=packed(range(8), range(first, last), values), beats=beats)
    site.fold(after=at)


class TestWindowsEvaluate:
    def test_names_the_slow_rank_and_its_node(self, run: Any, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60, slow=1.3)

        windows_evaluate(attempt_id=site.attempt_id, now=now)

        found = findings_of(run_id=run.id)
        assert [(row.cause, row.subject["rank"], row.subject["node"]) for row in found] == [
            ("compute_straggler", SLOW, "trn002")
        ]
        assert (found[0].proposal_kind, found[0].proposal_node, found[0].state) == ("EXCLUDE_NODE", "trn002", "OPEN")

    def test_finds_nothing_in_a_steady_run_and_says_so(self, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60)

        windows_evaluate(attempt_id=site.attempt_id, now=now)

        said = {row.cause: row.answer for row in detectors_of(site.attempt_id)}
        assert findings_of(attempt_id=site.attempt_id) == []
        assert said["compute_straggler"] == "HEALTHY"

    def test_looks_at_each_column_once(self, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60, slow=1.3)

        looked = [windows_evaluate(attempt_id=site.attempt_id, now=now).columns for _ in range(3)]

        assert looked == [60, 0, 0]
        assert len(findings_of(attempt_id=site.attempt_id)) == 1

    def test_comes_to_the_same_verdict_in_one_go_and_bit_by_bit(
        self, run: Any, site: Site, make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        for first in range(0, 60, 10):
            steps_put(site, first, first + 10, slow=1.3, seq=first + 1)
            windows_evaluate(attempt_id=site.attempt_id, now=now)
        bit_by_bit = findings_of(attempt_id=site.attempt_id)
        other = make_attempt(run, key="k2", force=True)
        whole = Site(other.id, now)
        for first in range(0, 60, 10):
            steps_put(whole, first, first + 10, slow=1.3, seq=first + 1)
        windows_evaluate(attempt_id=other.id, now=now)
        in_one_go = findings_of(attempt_id=other.id)

        told = [
            [(row.cause, row.subject, row.since_step, row.certainty, row.score) for row in rows]
            for rows in (bit_by_bit, in_one_go)
        ]
        assert told[0] == told[1]

    def test_closes_what_has_recovered_and_tells_the_run(self, run: Any, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60, slow=1.3)
        windows_evaluate(attempt_id=site.attempt_id, now=now)
        slow = run_by_id(run.id).state
        steps_put(site, 60, 160, seq=2)
        windows_evaluate(attempt_id=site.attempt_id, now=now)

        assert slow == "SLOW"
        assert run_by_id(run.id).state == "RUNNING"
        assert [(row.state, row.close_reason) for row in findings_of(run_id=run.id)] == [("CLOSED", "RECOVERED")]

    def test_the_step_after_an_evaluation_is_no_evidence_though_its_column_settles_later(
        self, site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown: list[tuple[int, bool]] = []
        whole = registry()["compute_straggler"]

        def watched(window: Window, state: State) -> Any:
            shown.extend(zip(window.columns.steps.tolist(), window.columns.skip.tolist(), strict=True))
            return whole.evaluate(window, state)

        detectors = {**registry(), "compute_straggler": replace(whole, evaluate=watched)}
        monkeypatch.setattr("apps.diagnosis.services.evaluate.registry", lambda: detectors)
        steps_put(site, 0, 30)
        windows_evaluate(attempt_id=site.attempt_id, now=now)
        # As the client sends it: a late value of the step before, when the evaluation has ended.
        site.put(seq=2, steps=packed(range(8), [29], {"evaluation_s": np.full((8, 1), 40, np.float32)}))
        steps_put(site, 30, 40, seq=3)

        windows_evaluate(attempt_id=site.attempt_id, now=now)

        assert [step for step, _ in shown] == list(range(40))
        assert [step for step, skipped in shown if skipped] == [0, 1, 2, 30]

    def test_learns_the_run_s_own_best_pace(self, run: Any, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60)

        windows_evaluate(attempt_id=site.attempt_id, now=now)

        assert run_by_id(run.id).own_best_step_s == pytest.approx(3.53, abs=0.03)

    @pytest.mark.parametrize("kind", [ValueError, AttributeError, AssertionError])
    def test_an_error_inside_a_detector_is_said_and_harms_no_other(
        self, site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
    ) -> None:
        def broken(*_: Any) -> Any:
            raise kind("broken on purpose")

        detectors = dict(registry())
        detectors["numeric_fault"] = replace(detectors["numeric_fault"], evaluate=broken)
        monkeypatch.setattr("apps.diagnosis.services.evaluate.registry", lambda: detectors)
        steps_put(site, 0, 60, slow=1.3)

        windows_evaluate(attempt_id=site.attempt_id, now=now)

        said = {row.cause: row for row in detectors_of(site.attempt_id)}
        assert said["numeric_fault"].answer == "UNDECIDED"
        assert "our side" in said["numeric_fault"].sentence
        assert said["compute_straggler"].answer == "VERDICT"

    def test_a_detector_whose_memory_cannot_be_read_begins_anew(self, site: Site, now: datetime) -> None:
        DetectorState.objects.create(
            attempt_id=site.attempt_id, cause="compute_straggler", memory={"rubbish": 1}, evaluated_at=now
        )
        steps_put(site, 0, 60, slow=1.3)

        windows_evaluate(attempt_id=site.attempt_id, now=now)

        assert [row.cause for row in findings_of(attempt_id=site.attempt_id)] == ["compute_straggler"]


class TestCatchingUp:
    @pytest.fixture(autouse=True)
    def small_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("apps.diagnosis.services.evaluate.COLUMNS_AT_ONCE", 25)

    def test_an_attempt_that_is_over_is_due_until_all_of_it_was_seen(
        self, site: Site, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 60)
        attempt_end(
            attempt_id=site.attempt_id, reason="FINISHED", authority="CLIENT", by="", source="API", now=later(1)
        )

        looked = [
            (windows_evaluate(attempt_id=site.attempt_id, now=later(3600)), windows_due(now=later(3600)))
            for _ in range(4)
        ]

        assert [(done.columns, done.more) for done, _ in looked] == [(25, True), (25, True), (10, False), (0, False)]
        assert [due for _, due in looked] == [[site.attempt_id], [site.attempt_id], [], []]

    def test_a_task_ends_with_its_turn_and_the_sweep_goes_on(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks, "LOOK_S", 0.0)
        steps_put(site, 0, 60)
        seen = []

        for look in (
            lambda: tasks.windows_evaluate(attempt_id=site.attempt_id),
            tasks.windows_sweep,
            tasks.windows_sweep,
        ):
            look()
            seen.append(DetectorState.objects.get(attempt_id=site.attempt_id, cause="numeric_fault").watermark)

        assert seen == [24, 49, 59]


class TestSweeps:
    @pytest.mark.parametrize("sweep", [tasks.windows_sweep, tasks.clocks_sweep])
    def test_an_attempt_that_cannot_be_looked_at_blinds_no_other(
        self, site: Site, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime, sweep: Any
    ) -> None:
        other = Site(make_attempt(make_run("other"), key="k9").id, now)
        for one in (site, other):
            steps_put(one, 0, 20)
        Placement.objects.filter(pk=site.attempt_id).update(nodes=b"cut")

        with pytest.raises(ExceptionGroup) as failed:
            sweep()

        assert failed.group_contains(ValueError, match="buffer size")
        assert DetectorState.objects.filter(attempt_id=other.attempt_id, answer__in=["HEALTHY", "UNDECIDED"]).exists()


class TestClocksEvaluate:
    def exit_put(self, site: Site, *, at: float) -> None:
        site.put(
            seq=9,
            at=at,
            events=[
                {"kind": "exit", "happened_at": (site.now + timedelta(seconds=at)).isoformat(), "rank": 5, "code": 1}
            ],
        )

    def test_tells_a_crash_before_its_report_is_folded(
        self, run: Any, site: Site, now: datetime, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 20)
        self.exit_put(site, at=2)

        clocks_evaluate(attempt_id=site.attempt_id, now=later(3))

        found = findings_of(run_id=run.id)
        assert [(row.cause, row.certainty, row.subject["node"]) for row in found] == [
            ("rank_lost", "CONFIRMED", "trn002")
        ]

    def test_tells_a_crash_however_many_lines_of_logs_were_told_before(
        self, run: Any, site: Site, later: Callable[[float], datetime], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("apps.telemetry.selectors.facts.MOST_FACTS", 5)
        site.put(seq=1, events=[{"kind": "log", "text": f"line {n}"} for n in range(10)])
        site.fold()
        steps_put(site, 0, 20, seq=2)
        self.exit_put(site, at=2)
        site.fold(2)

        clocks_evaluate(attempt_id=site.attempt_id, now=later(3))

        assert [row.cause for row in findings_of(run_id=run.id)] == ["rank_lost"]

    def test_tells_a_crash_of_an_attempt_that_just_ended(
        self, run: Any, site: Site, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 20)
        self.exit_put(site, at=2)
        attempt_end(
            attempt_id=site.attempt_id, reason="CRASHED", authority="WRAPPER", by="", source="LAUNCHER", now=later(3)
        )

        due = attempts_due(now=later(4))
        clocks_evaluate(attempt_id=site.attempt_id, now=later(4))

        assert due == [site.attempt_id]
        assert [row.cause for row in findings_of(run_id=run.id)] == ["rank_lost"]

    def test_does_not_miss_the_voice_of_an_attempt_that_is_over(
        self, run: Any, site: Site, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 20)
        attempt_end(
            attempt_id=site.attempt_id, reason="FINISHED", authority="CLIENT", by="", source="API", now=later(1)
        )

        clocks_evaluate(attempt_id=site.attempt_id, now=later(50))

        assert findings_of(run_id=run.id) == []

    def test_calls_a_run_silent_when_nobody_is_heard_any_more(
        self, run: Any, site: Site, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 20)
        DoorBeat.objects.update(last_beat_at=later(59))

        clocks_evaluate(attempt_id=site.attempt_id, now=later(60))

        assert run_by_id(run.id).state == "SILENT"

    def test_calls_nobody_silent_while_the_door_itself_is_dead(
        self, run: Any, site: Site, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 20)
        DoorBeat.objects.update(last_beat_at=later(1))

        clocks_evaluate(attempt_id=site.attempt_id, now=later(60))

        assert findings_of(run_id=run.id) == []

    def test_counts_no_silence_from_a_time_in_which_the_door_was_shut(
        self, run: Any, site: Site, later: Callable[[float], datetime]
    ) -> None:
        steps_put(site, 0, 20)
        DoorBeat.objects.update(accepting_since=later(55), last_beat_at=later(60))

        clocks_evaluate(attempt_id=site.attempt_id, now=later(60))

        assert findings_of(run_id=run.id) == []


class TestAttemptEndCheck:
    def ended(self, site: Site, *exits: tuple[int, int, float], at: float, authority: str = "CLIENT") -> str:
        """Reports exits (rank, code, seconds), ends the attempt FINISHED at 10 s, looks at `at`: how it ended then."""
        when = lambda s: site.now + timedelta(seconds=s)  # noqa: E731
        steps_put(site, 0, 20)
        for number, (rank, code, s) in enumerate(exits):
            event = {"kind": "exit", "happened_at": when(s).isoformat(), "rank": rank, "code": code}
            site.put(seq=9 + number, at=s, events=[event])
        end = {"reason": "FINISHED", "authority": authority, "by": "", "source": "API"}
        attempt_end(attempt_id=site.attempt_id, now=when(10), **end)
        clocks_evaluate(attempt_id=site.attempt_id, now=when(at))
        attempts_settle(now=when(at))
        return attempt_by_id(site.attempt_id).reason

    @pytest.mark.parametrize("failed_at", [8, 12])
    def test_an_attempt_that_one_rank_calls_finished_crashed_if_another_failed(
        self, run: Any, site: Site, failed_at: float
    ) -> None:
        reason = self.ended(site, (0, 0, 9), (3, 1, failed_at), at=13)

        assert reason == "CRASHED"
        assert run_by_id(run.id).state == "STOPPED"
        assert [(row.cause, row.subject["rank"], row.state) for row in findings_of(run_id=run.id)] == [
            ("rank_lost", 3, "OPEN")
        ]
        texts = [row.text for row in events_latest(StreamKey.run(run.id), limit=9)]
        assert any("rank 3 exited with code 1" in text for text in texts)

    @pytest.mark.parametrize("exits", [[(0, 0, 9), (3, 0, 9)], [(0, 0, 9), (3, -15, 11)], [(3, 1, -120)]])
    def test_it_finished_if_the_others_ended_well_were_told_to_stop_or_had_gone_long_before(
        self, site: Site, exits: list[tuple[int, int, float]]
    ) -> None:
        assert self.ended(site, *exits, at=13) == "FINISHED"

    def test_it_finished_if_a_rank_hung_in_leaving_and_was_killed_an_hour_later(self, site: Site) -> None:
        assert self.ended(site, (0, 0, 9), (3, -9, 3610), at=3613) == "FINISHED"

    def test_a_failure_at_the_end_that_is_told_an_hour_later_counts(self, site: Site) -> None:
        when = (site.now + timedelta(seconds=11)).isoformat()
        assert self.ended(site, (0, 0, 9), at=13) == "FINISHED"
        site.put(seq=90, at=3610, events=[{"kind": "exit", "happened_at": when, "rank": 3, "code": 1}])
        site.fold(3611)

        attempt_catch_up(attempt_id=site.attempt_id, now=site.now + timedelta(seconds=3613))

        assert attempt_by_id(site.attempt_id).reason == "CRASHED"

    def test_whoever_saw_the_whole_program_end_well_is_believed(self, site: Site) -> None:
        assert self.ended(site, (3, 1, 9), at=13, authority="WRAPPER") == "FINISHED"


class TestAttemptsSettle:
    def crashed(self, run: Any, site: Site, later: Callable[[float], datetime]) -> None:
        steps_put(site, 0, 20)
        TestClocksEvaluate().exit_put(site, at=2)
        clocks_evaluate(attempt_id=site.attempt_id, now=later(3))
        attempt_end(
            attempt_id=site.attempt_id, reason="CRASHED", authority="WRAPPER", by="", source="LAUNCHER", now=later(4)
        )

    def test_keeps_open_what_stopped_a_run(self, run: Any, site: Site, later: Callable[[float], datetime]) -> None:
        self.crashed(run, site, later)

        attempts_settle(now=later(600))

        assert [row.state for row in findings_of(run_id=run.id)] == ["OPEN"]

    def test_closes_it_once_the_run_moves_on(self, run: Any, site: Site, later: Callable[[float], datetime]) -> None:
        self.crashed(run, site, later)
        attempt_open(run_id=run.id, key="k2", world_size=4, by="", source="API", now=later(30))

        attempts_settle(now=later(31))

        assert [(row.state, row.close_reason) for row in findings_of(run_id=run.id)] == [("CLOSED", "ATTEMPT_ENDED")]


class TestFindingMute:
    def test_keeps_it_open_and_writes_down_who_and_why(self, run: Any, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60, slow=1.3)
        windows_evaluate(attempt_id=site.attempt_id, now=now)
        row = findings_of(run_id=run.id)[0]

        finding_mute(finding_id=row.id, reason="known, new cooling", until_at=None, by="ada", source="WEB", now=now)

        muted = findings_of(run_id=run.id)[0]
        assert (muted.state, muted.muted(now), muted.muted_by_name) == ("OPEN", True, "ada")
        assert "known, new cooling" in events_latest(StreamKey.run(run.id), limit=1)[0].text

    def test_needs_a_reason_and_a_moment_that_lies_ahead(self, run: Any, site: Site, now: datetime) -> None:
        steps_put(site, 0, 60, slow=1.3)
        windows_evaluate(attempt_id=site.attempt_id, now=now)
        row = findings_of(run_id=run.id)[0]

        with pytest.raises(BadRequest):
            finding_mute(finding_id=row.id, reason=" ", until_at=None, by="ada", source="WEB", now=now)
        with pytest.raises(BadRequest):
            finding_mute(finding_id=row.id, reason="later", until_at=now, by="ada", source="WEB", now=now)


@pytest.mark.django_db(transaction=True)
class TestTwoAtOnce:
    def test_a_mute_that_comes_while_a_detector_changes_the_finding_is_kept_and_so_is_the_change(
        self, run: Any, site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps_put(site, 0, 14, slow=1.3)
        windows_evaluate(attempt_id=site.attempt_id, now=now)
        before = findings_of(run_id=run.id)[0]
        steps_put(site, 14, 60, slow=1.3, seq=2)
        whole = findings._fields

        def mute() -> None:
            finding_mute(finding_id=before.id, reason="known", until_at=None, by="ada", source="WEB", now=now)
            connection.close()

        muting = Thread(target=mute)

        def fields_while_somebody_mutes(*args: Any, **more: Any) -> Any:
            muting.start()
            until = monotonic() + 10
            while muting.is_alive() and not blocks_somebody() and monotonic() < until:
                sleep(0.01)
            return whole(*args, **more)

        monkeypatch.setattr(findings, "_fields", fields_while_somebody_mutes)

        windows_evaluate(attempt_id=site.attempt_id, now=now)
        muting.join(10)

        after = findings_of(run_id=run.id)[0]
        assert (before.certainty, after.certainty) == ("SUSPECTED", "CONFIRMED")
        assert (after.muted_for_good, after.muted_by_name) == (True, "ada")
        assert after.version == before.version + 2
