"""Sentences of pages are so: what lacks evidence, what is blind, what was sent, who needs somebody."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client

from apps.diagnosis.services.findings import verdict_take
from apps.engine.detection import Certainty, Subject, SubjectKind
from apps.journal.services import recording
from tests.incidents.conftest import verdict
from tests.telemetry.reports import Site, packed


@pytest.fixture
def page(client_as: Any, viewer: Any) -> Client:
    return client_as(viewer)


@pytest.fixture
def reports(attempt: Any, now: datetime) -> Any:
    """Let all ranks report some metrics over thirty steps, folded."""

    def send(*names: str) -> None:
        site = Site(attempt.id, now)
        values = {name: np.full((8, 30), 1.0, np.float32) for name in names}
        ended = [(now + timedelta(seconds=step)).isoformat() for step in range(30)]
        site.put(steps={**packed(range(8), range(30), values), "ended_at": ended}, at=31.0)
        site.fold(after=32.0)

    return send


def undecided(attempt: Any, now: datetime, *causes: str) -> None:
    """Let detectors say that they lack evidence."""
    from apps.diagnosis.models import DetectorState

    for cause in causes:
        DetectorState.objects.create(
            attempt_id=attempt.id, cause=cause, answer="UNDECIDED", sentence=f"{cause} lacks steps.", evaluated_at=now
        )


class TestSuspects:
    def test_checks_that_lack_evidence_are_counted(self, page: Client, attempt: Any, now: datetime) -> None:
        undecided(attempt, now, "hang", "rank_lost", "numeric_fault", "no_telemetry")

        shown = page.get("/runs/dense-7b").text

        assert "4 checks still lack evidence." in shown
        assert "0 open, 4 undecided" in shown
        assert "1 more check lacks evidence." in shown
        assert "every check has its evidence" not in shown

    def test_without_such_checks_all_have_their_evidence(self, page: Client, attempt: Any) -> None:
        assert "every check has its evidence" in page.get("/runs/dense-7b").text

    def test_what_stopped_the_run_leads_and_not_what_slowed_it_down_before(
        self, page: Client, attempt: Any, now: datetime
    ) -> None:
        for cause, node in (("compute_straggler", "trn001"), ("rank_lost", "trn000")):
            said = verdict(cause, node=node)
            with recording(now=now) as log:
                verdict_take(said, run_id=attempt.run_id, attempt_id=attempt.id, late=False, log=log, now=now)

        shown = page.get("/runs/dense-7b").text

        assert shown.index("rank_lost on trn000") < shown.index("compute_straggler on trn001")
        assert shown.index("Also seen") < shown.index("compute_straggler on trn001")


class TestPace:
    @pytest.mark.parametrize(("step_s", "word"), [(1.1, "On pace"), (1.6, "Running")])
    def test_a_run_that_is_far_from_its_own_best_is_not_called_on_pace(
        self, page: Client, attempt: Any, reports: Any, now: datetime, step_s: float, word: str
    ) -> None:
        from apps.runs.models import RunStatus

        reports("step_s")
        RunStatus.objects.update(step_s=step_s, own_best_step_s=1.0, last_report_at=now)

        assert f'<span class="st ok">{word}' in page.get("/runs/dense-7b").text

    @pytest.mark.parametrize("fault_at", [None, 12])
    def test_a_loss_beside_values_that_are_not_finite_says_of_whom_it_is(
        self, page: Client, attempt: Any, reports: Any, fault_at: int | None
    ) -> None:
        from apps.runs.models import RunStatus

        reports("step_s", "loss")
        RunStatus.objects.update(suspect_from_step=fault_at)

        assert ("where it is finite" in page.get("/runs/dense-7b").text) == (fault_at is not None)

    def test_tokens_that_the_ranks_tell_are_a_chart_of_their_sum_a_second(
        self, page: Client, attempt: Any, reports: Any
    ) -> None:
        reports("step_s", "tokens")

        assert "Tokens a second" in page.get("/runs/dense-7b").text
        lines = page.get("/runs/dense-7b/charts/tokens").json()["data"]
        assert {y for line in lines for y in line["y"] if y is not None} == {8.0}  # eight ranks, one each, in 1 s


class TestHung:
    """A run that stands shows nobody as under way, and whose stack is not like the others' first."""

    @pytest.fixture
    def shown(self, page: Client, run: Any, attempt: Any, find: Any, now: datetime) -> str:
        from apps.runs.services import status_update

        site = Site(attempt.id, now)
        site.put(beats=[{"rank": r, "step": 7, "phase": "communication", "phase_age_s": 9.0} for r in range(8)], at=0.0)
        frames = {rank: "_hang" if rank == 5 else "_wait" for rank in range(8)}
        text = 'in communication for 9 s, last step 7\nthread MainThread\n  File "/a/ring.py", line 4, in {}\n    x()\n'
        site.put(
            events=[
                {"kind": "stack", "rank": rank, "happened_at": now.isoformat(), "text": text.format(name)}
                for rank, name in frames.items()
            ],
            seq=2,
            at=0.0,
        )
        site.fold(after=0.5)
        find(
            cause="hang",
            subject=Subject(SubjectKind.RANK, rank=5, node="trn002"),
            victims=(0, 1, 2, 3, 4, 6, 7),
            certainty=Certainty.CONFIRMED,
            cells=(),
        )
        status_update(run_id=run.id, hang="CONFIRMED")
        return page.get("/runs/dense-7b").text

    def test_nobody_is_under_way(self, shown: str, run: Any, now: datetime) -> None:
        from apps.console.selectors.ranks import ranks_now_page
        from apps.runs.selectors import run_by_id

        ranks = ranks_now_page(run_by_id(run.id), now=now + timedelta(seconds=1))

        assert "8 under way" not in shown
        assert ranks.counts == (("stands", "crit", 1), ("wait", "warn", 7))
        assert (ranks.rows[0].ranks, ranks.rows[0].node) == ("5", "trn002")

    def test_stacks_are_grouped_and_the_odd_one_comes_first(self, shown: str) -> None:
        assert "8 Python stacks" in shown
        assert "in 2 groups, the fewest first" in shown
        odd, many = shown.index("1 rank: 5,"), shown.index("7 ranks: 0–4, 6–7,")
        assert odd < many
        assert shown.index("stands elsewhere</span> 1 rank: 5,") < many


class TestBlind:
    def test_a_door_that_does_not_answer_is_not_said_to_answer(self, page: Client, attempt: Any, now: datetime) -> None:
        from apps.incidents.models import Watch

        Watch.objects.update_or_create(pk=1, defaults={"blind_since_at": now, "checked_at": now})

        for shown in (page.get("/runs").text, page.get("/watch", headers={"HX-Request": "true"}).text):
            assert "Paceline sees nothing" in shown
            assert "has not answered since 2026-11-30 12:00:00 UTC" in shown
            assert "Ingest and database answer" not in shown

    def test_silence_of_all_senders_is_told_with_what_still_answers(self, page: Client, reports: Any) -> None:
        reports("step_s")

        shown = page.get("/watch", headers={"HX-Request": "true"}).text

        assert 'hx-swap-oob="innerHTML"' in shown
        assert "No report from any of 1 sender since 2026-11-30 12:00:31 UTC. Ingest and database answer." in shown


class TestRuns:
    def test_a_run_whose_ranks_send_no_step_time_is_listed_like_others(
        self, page: Client, run: Any, attempt: Any, reports: Any
    ) -> None:
        from apps.runs.services import status_update

        reports("compute_s")
        status_update(run_id=run.id, own_best_step_s=1.0)

        answer = page.get("/runs")

        assert answer.status_code == 200
        assert 'href="/runs/dense-7b"' in answer.text

    def test_a_run_that_was_given_up_needs_somebody(self, page: Client, run: Any, attempt: Any, now: datetime) -> None:
        from apps.runs.services import attempt_end, status_update

        attempt_end(attempt_id=attempt.id, reason="CANCELLED", authority="ORDER", by="x", source="API", now=now)
        status_update(run_id=run.id, gave_up=True)

        shown = page.get("/runs").text

        assert "Gave up" in shown
        assert "1 nobody has taken yet" in shown

    def test_many_ended_runs_cost_no_more_than_one(
        self, page: Client, make_run: Any, make_attempt: Any, now: datetime, django_assert_max_num_queries: Any
    ) -> None:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        from apps.runs.services import attempt_end

        def end(slug: str) -> None:
            row = make_attempt(make_run(slug), key=f"slurm:{slug}.0")
            attempt_end(attempt_id=row.id, reason="FINISHED", authority="CLIENT", by="x", source="API", now=now)

        end("first")
        page.get("/runs?show=ended")
        with CaptureQueriesContext(connection) as of_one:
            page.get("/runs?show=ended")
        for number in range(8):
            end(f"more-{number}")

        with django_assert_max_num_queries(len(of_one)):
            page.get("/runs?show=ended")


class TestRanks:
    def test_gpus_of_a_node_that_sends_gauges_are_in_the_table(
        self, page: Client, attempt: Any, reports: Any, monkeypatch: Any, now: datetime
    ) -> None:
        from apps.fleet.models import NodeStatus

        reports("step_s", "compute_s")
        NodeStatus.objects.filter(node__name="trn001").update(telemetry_state="FRESH")
        gauges(attempt, now)
        monkeypatch.setattr("apps.console.views.run.now", lambda: now + timedelta(seconds=60))

        shown = page.get("/runs/dense-7b/parts/ranks").text

        assert "61–88\u00a0°C, 1,455\u00a0MHz" in shown
        assert "not sent" in shown  # the other node sends none


def gauges(attempt: Any, now: datetime) -> None:
    """The sender of trn001 reports its two GPUs."""
    import orjson

    from apps.fleet.selectors import node_by_code
    from apps.telemetry.models import Inbox
    from apps.telemetry.services.fold import cluster_fold
    from apps.telemetry.services.heads import head_read

    node = node_by_code("north:trn001")
    gpus = [
        {"gpu": f"GPU-{slot}", "index": slot, "temperature_c": heat, "sm_clock_mhz": clock}
        for slot, (heat, clock) in enumerate(((60.6, 1980.0), (87.7, 1455.0)))
    ]
    body = orjson.dumps({"sender": "trn001-node", "boot": "b", "seq": 1, "sent_at": now.isoformat(), "gpus": gpus})
    head = head_read(body, scope_kind="NODE", default_sender="trn001")
    Inbox.objects.create(
        owner_kind="CLUSTER", owner_id=node.cluster_id, scope_kind="NODE", scope_id=node.id, received_at=now,
        sender=head.sender, boot=head.boot, seq=head.seq, sent_at=head.sent_at, newest_step=head.newest_step,
        beats=head.beats, exits=head.exits, body=head.body,
    )  # fmt: skip
    cluster_fold(cluster_id=node.cluster_id, now=now)
