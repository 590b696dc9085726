"""An attempt that no rank is left of is over, whether or not its script said `finish()`."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.console.selectors.frame import watch_read
from apps.remediation.models import Launch
from apps.remediation.services import attempts_left_end
from apps.runs.choices import AttemptState
from apps.runs.models import Attempt
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.telemetry.models import DoorBeat
from apps.telemetry.selectors import senders_expected
from tests.remediation.conftest import is_watched
from tests.telemetry.reports import Site

Later = Callable[[float], datetime]
RANKS = range(8)
"""Of the attempt of these tests: four on trn001, four on trn002."""
LIMIT = timedelta(seconds=15)


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    DoorBeat.objects.create(instance="d", accepting_since=now - timedelta(hours=1), last_beat_at=now)
    site = Site(attempt.id, now)
    beats = [{"rank": rank, "step": 60, "phase": "compute", "phase_age_s": 0.1} for rank in RANKS]
    for sender, first in (("trn001", 0), ("trn002", 4)):
        placement = [{"rank": rank, "node": sender, "local_rank": rank % 4} for rank in range(first, first + 4)]
        site.put(sender=sender, boot=sender, seq=1, beats=beats[first : first + 4], placement=placement)
    site.fold()
    return site


def leave(site: Site, ranks: Any, *, at: float = 1.0, seq: int = 2, **how: Any) -> None:
    """Tell the exits of some ranks by the senders of their nodes."""
    for sender, first in (("trn001", 0), ("trn002", 4)):
        here = [rank for rank in ranks if first <= rank < first + 4]
        events = [
            {
                "kind": "exit",
                "happened_at": (site.now + timedelta(seconds=at)).isoformat(),
                "rank": rank,
                "text": f"rank {rank}: ended without finish()",
                **how,
            }
            for rank in here
        ]
        if events:
            site.put(sender=sender, boot=sender, seq=seq, at=at, events=events)
    site.fold(at)


class TestAttemptsLeftEnd:
    def test_ends_as_finished_when_every_rank_ended_as_it_should(self, run: Any, site: Site, later: Later) -> None:
        leave(site, RANKS, code=0)

        early, ended = attempts_left_end(now=later(3)), attempts_left_end(now=later(8))

        row = attempt_by_id(site.attempt_id)
        assert (early, ended) == (0, 1)
        assert (row.state, row.reason, row.authority, row.ended_at) == ("ENDED", "FINISHED", "CLIENT", later(1))
        assert run_by_id(run.id).state == "FINISHED"

    def test_ends_as_crashed_when_one_failed_and_the_others_were_told_to_go(self, site: Site, later: Later) -> None:
        leave(site, [5], code=1)
        leave(site, [rank for rank in RANKS if rank != 5], at=2, seq=3, signal=15)

        attempts_left_end(now=later(9))

        assert attempt_by_id(site.attempt_id).reason == "CRASHED"

    @pytest.mark.parametrize(
        ("how", "reason"),
        [({"code": 130}, "CANCELLED"), ({"signal": 15}, "UNKNOWN"), ({"code": -9}, "CRASHED"), ({}, "UNKNOWN")],
    )
    def test_says_no_more_than_the_exits_tell(self, site: Site, later: Later, how: dict[str, int], reason: str) -> None:
        leave(site, RANKS, **how)

        attempts_left_end(now=later(9))

        assert attempt_by_id(site.attempt_id).reason == reason

    def test_takes_a_rank_that_finished_for_one_that_left(self, site: Site, later: Later) -> None:
        leave(site, [0], code=0)
        for sender, ranks in (("trn001", range(1, 4)), ("trn002", range(4, 8))):
            beats = [{"rank": rank, "step": 60, "phase": "shutdown", "phase_age_s": 0.0} for rank in ranks]
            site.put(sender=sender, boot=sender, seq=3, at=2, beats=beats)
        site.fold(2)

        attempts_left_end(now=later(9))

        assert attempt_by_id(site.attempt_id).reason == "FINISHED"

    def test_waits_for_the_last_rank(self, site: Site, later: Later) -> None:
        leave(site, range(7), code=0)

        assert attempts_left_end(now=later(60)) == 0
        assert attempt_by_id(site.attempt_id).state == AttemptState.OPEN

    def test_a_rank_that_is_heard_after_its_exit_has_come_back(self, site: Site, later: Later) -> None:
        leave(site, RANKS, code=1)
        beats = [{"rank": 5, "step": 61, "phase": "compute", "phase_age_s": 0.1}]
        site.put(sender="trn002", boot="reborn", seq=1, at=3, beats=beats)
        site.fold(3)

        assert attempts_left_end(now=later(60)) == 0

    def test_believes_exits_that_wait_to_be_folded(self, site: Site, later: Later) -> None:
        leave(site, RANKS[1:], code=0)
        exit_ = {"kind": "exit", "happened_at": later(2).isoformat(), "rank": 0, "code": 0}
        site.put(sender="trn001", boot="trn001", seq=9, at=2, events=[exit_])

        assert attempts_left_end(now=later(9)) == 1

    def test_leaves_it_to_the_launcher_that_still_sees_its_program(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = work(ask("RESTART_RUN", local_run).id, until=is_watched)
        moment = datetime.now(UTC)
        Attempt.objects.filter(pk=action.attempt_id).update(world_size=1)
        leave(Site(action.attempt_id, moment), [0], code=0)

        seen = attempts_left_end(now=moment + timedelta(seconds=60))
        Launch.objects.update(state="GONE")
        unseen = attempts_left_end(now=moment + timedelta(seconds=60))

        assert (seen, unseen) == (0, 1)


class TestWatch:
    """What the top bar of every page says."""

    def test_is_not_blind_because_a_program_ended_long_ago(self, run: Any, site: Site, later: Later) -> None:
        leave(site, RANKS, code=0)

        watch = watch_read([run_by_id(run.id)], now=later(600))

        assert (watch.words, watch.blind) == ("no senders", False)

    def test_misses_those_who_never_said_that_they_leave(self, run: Any, site: Site, later: Later) -> None:
        leave(site, range(4), code=0)

        watch = watch_read([run_by_id(run.id)], now=later(600))

        assert watch.blind
        assert "any of 1 sender since" in watch.title


class TestSendersExpected:
    def test_expects_no_word_of_a_node_whose_ranks_have_left(self, site: Site, later: Later) -> None:
        leave(site, range(4), code=0)

        names = [row.sender for row in senders_expected(attempt_by_id(site.attempt_id), within=LIMIT, now=later(60))]

        assert names == ["trn002"]

    def test_expects_nobody_when_all_have_left(self, site: Site, later: Later) -> None:
        leave(site, RANKS, code=0)

        assert senders_expected(attempt_by_id(site.attempt_id), within=LIMIT, now=later(60)) == []
