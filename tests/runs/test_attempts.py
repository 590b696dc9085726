"""Attempts: one open at a time, keys that make repeats harmless, ends by authority."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from apps.common.errors import BadRequest
from apps.fleet.selectors import nodes_of
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.runs.selectors import attempt_by_id, attempts_of, chains_of, run_by_id
from apps.runs.services import (
    AttemptEnded,
    AttemptLive,
    WorldSizeDiffers,
    attempt_end,
    attempt_open,
    status_update,
)

Open = Callable[..., tuple[Any, bool]]


@pytest.fixture
def open_attempt(run: Any, now: datetime) -> Open:
    def make(key: str, **more: Any) -> tuple[Any, bool]:
        given = {"world_size": 8, "by": "test", "source": "API", "now": now, **more}
        return attempt_open(run_id=run.id, key=key, **given)

    return make


class TestAttemptOpen:
    def test_gives_the_same_attempt_for_the_same_key(self, open_attempt: Open) -> None:
        first, is_new = open_attempt("slurm:7.0.0")
        again, is_new_again = open_attempt("slurm:7.0.0")

        assert (is_new, is_new_again) == (True, False)
        assert first.id == again.id

    @pytest.mark.parametrize("longer", ["slurm:7.1.batch", "slurm:7.1.0", "slurm:7.1/ab", "slurm:7.1.batch/ab"])
    def test_a_start_of_a_job_is_the_same_whether_its_step_or_its_scheduler_is_heard_first(
        self, open_attempt: Open, longer: str
    ) -> None:
        job, _ = open_attempt("slurm:7.1", external_id="slurm:7")
        step, is_new = open_attempt(longer, external_id="slurm:7")
        again, is_new_again = open_attempt("slurm:7.1", external_id="slurm:7")

        assert (is_new, is_new_again) == (False, False)
        assert job.id == step.id == again.id
        assert again.key == longer

    @pytest.mark.parametrize("other", ["slurm:7.10", "slurm:7.2", "slurm:71.1", "slurm:7.2.batch"])
    def test_another_start_of_a_job_is_another_attempt(self, open_attempt: Open, other: str) -> None:
        job, _ = open_attempt("slurm:7.1", external_id="slurm:7")
        later, is_new = open_attempt(other, external_id="slurm:7")

        assert is_new
        assert later.id != job.id

    def test_keeps_the_first_step_resumed_from_that_is_told(self, open_attempt: Open) -> None:
        open_attempt("k1")
        open_attempt("k1", resumed_from_step=200)
        row, _ = open_attempt("k1", resumed_from_step=300)

        assert row.resumed_from_step == 200

    def test_refuses_another_world_size_under_the_same_key(self, open_attempt: Open) -> None:
        open_attempt("k1")

        with pytest.raises(WorldSizeDiffers):
            open_attempt("k1", world_size=16)

    def test_refuses_the_key_of_an_attempt_that_is_over(self, open_attempt: Open, now: datetime) -> None:
        row, _ = open_attempt("k1")
        attempt_end(attempt_id=row.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=now)

        with pytest.raises(AttemptEnded):
            open_attempt("k1")

    @pytest.mark.parametrize("key", ["", "none", "x" * 201])
    def test_refuses_a_key_that_names_nothing(self, open_attempt: Open, key: str) -> None:
        with pytest.raises(BadRequest):
            open_attempt(key)

    def test_refuses_another_start_while_the_open_one_still_reports(
        self, run: Any, open_attempt: Open, later: Callable[[float], datetime]
    ) -> None:
        open_attempt("slurm:7.0.0")
        status_update(run_id=run.id, last_report_at=later(100))

        with pytest.raises(AttemptLive) as refused:
            open_attempt("slurm:8.0.0", now=later(110))

        assert refused.value.facts["retry_after_s"] == 6

    def test_takes_another_start_once_the_open_one_is_silent_and_ends_that_one_as_superseded(
        self, run: Any, open_attempt: Open, later: Callable[[float], datetime]
    ) -> None:
        old, _ = open_attempt("slurm:7.0.0")
        status_update(run_id=run.id, last_report_at=later(0))

        new, is_new = open_attempt("slurm:8.0.0", now=later(16))

        assert is_new
        assert new.number == 2
        assert attempt_by_id(old.id).reason == "SUPERSEDED"

    @pytest.mark.parametrize(
        "more", [{"external_id": "job-7"}, {"order_id": 5}, {"force": True}], ids=["same job", "our order", "force"]
    )
    def test_takes_another_start_of_the_same_job_at_once(
        self, run: Any, open_attempt: Open, later: Callable[[float], datetime], more: dict[str, Any]
    ) -> None:
        open_attempt("a", external_id="job-7")
        status_update(run_id=run.id, last_report_at=later(1))

        _, is_new = open_attempt("b", now=later(2), **more)

        assert is_new

    def test_lets_the_program_adopt_the_attempt_that_its_order_opened(self, run: Any, open_attempt: Open) -> None:
        ordered, _ = open_attempt("order:ord_5", order_id=5)

        adopted, is_new = open_attempt("order:ord_5/f00d")

        assert not is_new
        assert (adopted.id, adopted.key) == (ordered.id, "order:ord_5/f00d")
        assert len(attempts_of(run.id)) == 1

    def test_counts_a_worker_restart_inside_the_same_job_as_a_new_attempt(
        self, run: Any, open_attempt: Open, later: Callable[[float], datetime]
    ) -> None:
        open_attempt("torchrun:9/aa")
        status_update(run_id=run.id, last_report_at=later(1))

        row, is_new = open_attempt("torchrun:9/bb", now=later(2))

        assert is_new
        assert row.number == 2


class TestAttemptEnd:
    def test_lets_a_higher_authority_correct_the_reason_and_says_so(
        self, run: Any, open_attempt: Open, now: datetime
    ) -> None:
        row, _ = open_attempt("k1")
        end = {"attempt_id": row.id, "by": "", "source": "API", "now": now}
        attempt_end(reason="CRASHED", authority="CLIENT", **end)

        changed = attempt_end(reason="TIME_LIMIT", authority="SCHEDULER", **end)

        assert changed
        assert attempt_by_id(row.id).reason == "TIME_LIMIT"
        assert "told as crashed at first" in events_latest(StreamKey.run(run.id), limit=1)[0].text

    def test_lets_no_lower_authority_change_it(self, open_attempt: Open, now: datetime) -> None:
        row, _ = open_attempt("k1")
        end = {"attempt_id": row.id, "by": "", "source": "API", "now": now}
        attempt_end(reason="HUNG", authority="ORDER", **end)

        assert not attempt_end(reason="CRASHED", authority="WRAPPER", **end)
        assert attempt_by_id(row.id).reason == "HUNG"

    def test_keeps_the_highest_authority_that_said_the_same(self, open_attempt: Open, now: datetime) -> None:
        row, _ = open_attempt("k1")
        end = {"attempt_id": row.id, "by": "", "source": "API", "now": now}
        for authority in ("CLIENT", "SCHEDULER"):
            attempt_end(reason="CRASHED", authority=authority, **end)

        changed = attempt_end(reason="FINISHED", authority="WRAPPER", **end)

        assert not changed
        assert (attempt_by_id(row.id).reason, attempt_by_id(row.id).authority) == ("CRASHED", "SCHEDULER")

    def test_takes_the_run_off_its_nodes(self, attempt: Any, now: datetime) -> None:
        held = [node.open_runs for node in nodes_of()]

        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=now)

        assert held == [(attempt.run_id,), (attempt.run_id,)]
        assert [node.open_runs for node in nodes_of()] == [(), ()]


class TestRunState:
    def states(self, run: Any, **fields: Any) -> str:
        status_update(run_id=run.id, **fields)
        return run_by_id(run.id).state

    def test_follows_the_order_in_which_states_hold(
        self, run: Any, make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        seen = [run_by_id(run.id).state]
        attempt = make_attempt(run)
        seen.append(run_by_id(run.id).state)
        seen.append(self.states(run, step=5))
        seen.append(self.states(run, slow=True))
        seen.append(self.states(run, hang="SUSPECTED"))
        seen.append(self.states(run, silent=True))
        seen.append(self.states(run, open_action_kind="RESTART_RUN"))
        seen.append(self.states(run, gave_up=True))
        status_update(run_id=run.id, gave_up=False, open_action_kind="")
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=now)
        seen.append(run_by_id(run.id).state)
        attempt_end(attempt_id=attempt.id, reason="FINISHED", authority="ORDER", by="", source="API", now=now)
        seen.append(run_by_id(run.id).state)

        assert seen == [
            "QUEUED",
            "STARTING",
            "RUNNING",
            "SLOW",
            "HUNG",
            "SILENT",
            "RESTARTING",
            "GAVE_UP",
            "STOPPED",
            "FINISHED",
        ]


def test_a_chain_goes_on_until_an_attempt_finishes(run: Any, open_attempt: Open, now: datetime) -> None:
    reasons = ["CRASHED", "HUNG", "FINISHED", "CRASHED"]
    rows = []
    for number, reason in enumerate(reasons):
        row, _ = open_attempt(f"k{number}")
        attempt_end(attempt_id=row.id, reason=reason, authority="CLIENT", by="", source="API", now=now)
        rows.append(row.id)

    chains = chains_of({run.id})

    assert [chains[row] for row in rows] == [(rows[0], 1, 3), (rows[0], 2, 3), (rows[0], 3, 3), (rows[3], 1, 1)]
