"""Checkpoints: complete only when the whole is saved, trusted only as long as nothing speaks against it."""

from collections.abc import Callable
from datetime import datetime
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
from django.db import connection, transaction

from apps.common.ids import id_write
from apps.runs.selectors import checkpoint_newest_trusted, checkpoints_of, run_by_id
from apps.runs.services import CheckpointFact, attempt_end, checkpoint_note, checkpoint_trust_set, status_update
from tests.locks import blocks_somebody

Note = Callable[..., bool]


@pytest.fixture
def note(attempt: Any, now: datetime) -> Note:
    def make(step: int, state: str, *, attempt_id: int | None = None, **more: Any) -> bool:
        fact = CheckpointFact(step=step, state=state, **{"happened_at": now, **more})
        return checkpoint_note(attempt_id=attempt_id or attempt.id, fact=fact, source="SENDER", actor_name="", now=now)

    return make


def trusts(run_id: int) -> dict[int, str]:
    return {row.step: row.trust for row in checkpoints_of(run_id=run_id)}


class TestCheckpointNote:
    def test_makes_a_save_complete_only_when_the_whole_is_saved(self, run: Any, note: Note) -> None:
        note(100, "STARTED")
        note(100, "WRITTEN", rank=0)
        note(100, "WRITTEN", rank=1)
        before = trusts(run.id)
        note(100, "SAVED")

        assert before == {100: "PENDING"}
        assert trusts(run.id) == {100: "COMPLETE"}

    def test_counts_the_slowest_shard(self, run: Any, note: Note) -> None:
        note(100, "WRITTEN", rank=0, duration_s=3.0, queue_s=1.0)
        note(100, "WRITTEN", rank=5, duration_s=38.0, queue_s=34.0)
        note(100, "WRITTEN", rank=2, duration_s=4.0, queue_s=2.0)

        row = checkpoints_of(run_id=run.id)[0]

        assert (row.duration_s, row.queue_s, row.shards_written) == (38.0, 34.0, 3)

    def test_keeps_what_the_fastest_shard_took_and_the_whole_is_no_shard(self, run: Any, note: Note) -> None:
        note(100, "WRITTEN", rank=0, duration_s=38.0)
        note(100, "WRITTEN", rank=5, duration_s=3.0)
        note(100, "SAVED", duration_s=1.0)

        row = checkpoints_of(run_id=run.id)[0]

        assert (row.fastest_s, row.duration_s) == (3.0, 38.0)

    @pytest.mark.parametrize("order", [["SAVED", "FAILED"], ["FAILED", "SAVED"]])
    def test_lets_a_failure_of_any_rank_beat_the_save(self, run: Any, note: Note, order: list[str]) -> None:
        for state in order:
            note(100, state)

        assert trusts(run.id) == {100: "FAILED"}

    def test_takes_a_deleted_save_out_of_the_default(
        self, run: Any, note: Note, later: Callable[[float], datetime]
    ) -> None:
        note(100, "SAVED")
        note(200, "SAVED", happened_at=later(60))
        note(200, "DELETED", happened_at=later(90))

        newest = checkpoint_newest_trusted(run.id)

        assert newest is not None
        assert newest.step == 100

    def test_does_not_offer_what_was_saved_after_a_numeric_finding(self, run: Any, note: Note, attempt: Any) -> None:
        note(100, "SAVED")
        note(200, "SAVED")
        checkpoint_trust_set(run_id=run.id, after_step=150, attempt_id=attempt.id)
        status_update(run_id=run.id, suspect_from_step=150)
        note(300, "SAVED")

        assert trusts(run.id) == {100: "COMPLETE", 200: "SUSPECT", 300: "SUSPECT"}
        assert run_by_id(run.id).checkpoint_step == 100

    def test_a_restore_verifies_the_save_and_overrides_what_the_key_claimed(
        self, run: Any, note: Note, attempt: Any, make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        note(100, "SAVED")
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=now)
        second = make_attempt(run, key="k2", resumed_from_step=120)

        note(100, "RESTORED", attempt_id=second.id)

        assert trusts(run.id)[100] == "VERIFIED"
        assert run_by_id(run.id).resumed_from_step == 100

    def test_prefers_the_save_made_last_over_the_higher_step_of_an_abandoned_tail(
        self, run: Any, note: Note, attempt: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime]
    ) -> None:
        note(100, "SAVED")
        note(200, "SAVED", happened_at=later(10))
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=later(20))
        second = make_attempt(run, key="k2", resumed_from_step=100)
        note(150, "SAVED", attempt_id=second.id, happened_at=later(90))

        newest = checkpoint_newest_trusted(run.id)

        assert newest is not None
        assert newest.step == 150

    def test_a_late_word_that_an_earlier_attempt_deleted_a_step_leaves_alone_what_was_saved_there_anew(
        self, run: Any, note: Note, attempt: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime]
    ) -> None:
        note(100, "SAVED")
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=later(20))
        second = make_attempt(run, key="k2", resumed_from_step=50)
        note(100, "SAVED", attempt_id=second.id, happened_at=later(90))

        note(100, "DELETED")

        newest = checkpoint_newest_trusted(run.id)
        assert newest is not None
        assert (newest.step, newest.attempt_id) == (100, second.id)

    def test_asks_no_clock_which_of_two_attempts_saved_last(
        self, run: Any, note: Note, attempt: Any, make_attempt: Callable[..., Any], later: Callable[[float], datetime]
    ) -> None:
        note(100, "SAVED", happened_at=later(3600))  # a machine whose clock is an hour ahead
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="", source="API", now=later(20))
        second = make_attempt(run, key="k2", resumed_from_step=100)
        note(150, "SAVED", attempt_id=second.id, happened_at=later(90))

        newest = checkpoint_newest_trusted(run.id)

        assert newest is not None
        assert newest.step == run_by_id(run.id).checkpoint_step == 150


def test_a_listing_of_saves_is_read_in_pages(note: Note, attempt: Any, api: Callable[..., Any]) -> None:
    for step in (100, 200, 300):
        note(step, "SAVED")
    path = f"/api/v1/attempts/{id_write('att', attempt.id)}/checkpoints?limit=2"

    page = api("read").get(path).json()
    rest = api("read").get(f"{path}&cursor={page['next']}").json()

    assert [row["step"] for row in page["results"]] == [300, 200]
    assert ([row["step"] for row in rest["results"]], rest["next"]) == ([100], None)


@pytest.mark.django_db(transaction=True)
class TestTwoAtOnce:
    def test_a_save_that_is_told_while_doubt_is_cast_is_suspect(self, run: Any, note: Note, attempt: Any) -> None:
        def doubt() -> None:
            checkpoint_trust_set(run_id=run.id, after_step=150, attempt_id=attempt.id)
            connection.close()

        doubting = Thread(target=doubt)
        with transaction.atomic():
            note(200, "SAVED")
            doubting.start()
            until = monotonic() + 10
            while doubting.is_alive() and not blocks_somebody() and monotonic() < until:
                sleep(0.01)
        doubting.join(10)

        assert trusts(run.id) == {200: "SUSPECT"}
        assert checkpoint_newest_trusted(run.id) is None
