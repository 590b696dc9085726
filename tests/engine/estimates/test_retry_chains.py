"""Chains of attempts: counted from starts and ends, with the intervals that few chains deserve."""

from dataclasses import replace

import pytest

from apps.engine.detection import Launched
from apps.engine.errors import ArgumentInvalid
from apps.engine.estimates.retry_chains import (
    Next,
    chains_cut,
    clopper_pearson,
    fruitless,
    links_of,
    nodes_in_common,
    retry_decision,
    success_of,
    suspect_node,
)


def failed(number: int, *, at: float, lasted: float = 12.0, **more: object) -> Launched:
    """An attempt that began at `at` and crashed without a step, unless said otherwise."""
    return replace(Launched(number, at, ended_at=at + lasted, outcome="CRASHED"), **more)  # type: ignore[arg-type]


class TestSuccess:
    def test_is_told_with_the_published_interval(self) -> None:
        low, high = clopper_pearson(4, 12)

        assert (round(low, 3), round(high, 3)) == (0.099, 0.651)

    def test_twelve_chains_of_seventy_three_attempts_are_a_third_and_each_attempt_a_twentieth(self) -> None:
        sizes, number, tries = [6] * 11 + [7], 0, []
        for place, size in enumerate(sizes):
            for at in range(size):
                number += 1
                end = "FINISHED" if at == size - 1 and place < 4 else "CRASHED"
                tries.append(failed(number, at=660.0 * number, outcome=end))
        # Chains that gave up are other runs': each is cut by itself.
        chains = [tries[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(12)]

        got = success_of(chains)

        assert len(tries) == 73
        assert (got.count, got.of, round(got.share or 0, 3)) == (4, 12, 0.333)
        assert round(4 / len(tries), 3) == 0.055

    @pytest.mark.parametrize(
        ("count", "of", "ends"), [(0, 3, (0.0, 0.7076)), (3, 3, (0.2924, 1.0)), (1, 1, (0.025, 1.0))]
    )
    def test_has_its_bounds_at_the_ends_too(self, count: int, of: int, ends: tuple[float, float]) -> None:
        assert clopper_pearson(count, of) == pytest.approx(ends, abs=1e-4)

    def test_of_thousands_is_still_exact_enough(self) -> None:
        low, high = clopper_pearson(2500, 5000)

        assert (low, high) == pytest.approx((0.48603, 0.51397), abs=1e-4)

    def test_of_nothing_is_not_told_and_more_than_all_is_refused(self) -> None:
        assert success_of([]).share is None
        assert success_of([[failed(1, at=0)]]).of == 0
        with pytest.raises(ArgumentInvalid):
            clopper_pearson(4, 3)


class TestChain:
    def test_is_cut_where_an_attempt_finished(self) -> None:
        tries = [failed(1, at=0), failed(2, at=660, outcome="FINISHED"), failed(3, at=9000)]

        assert [[one.number for one in chain] for chain in chains_cut(tries)] == [[1, 2], [3]]

    def test_tells_interval_downtime_and_what_was_gained(self) -> None:
        first = failed(1, at=0, lasted=1000, first_step=0, last_step=99, first_step_at=60.0)
        second = failed(2, at=1660, lasted=900, first_step=80, last_step=149, first_step_at=1760.0)

        one, two = links_of([first, second])

        assert (one.interval_s, one.downtime_s, one.lasted_s, one.gained_steps) == (None, None, 1000, 100)
        assert (two.interval_s, two.downtime_s, two.gained_steps) == (1660, 760, 50)

    def test_names_the_node_in_all_failed_attempts_only_while_the_others_change(self) -> None:
        loop = [failed(n, at=650.0 * n, nodes=("phoenix-11", f"a{n}", f"b{n}")) for n in range(1, 6)]
        same = [failed(n, at=650.0 * n, nodes=("phoenix-11", "a", "b")) for n in (1, 2)]

        assert suspect_node(loop) == "phoenix-11"
        assert suspect_node(same) is None
        assert nodes_in_common(same) == ("a", "b", "phoenix-11")
        assert suspect_node([*loop, failed(6, at=4000.0)]) is None


class TestRetry:
    LIMITS = {"quick_s": 900.0, "most": 3, "backoff_s": 630.0}

    def test_stops_after_two_identical_quick_failures(self) -> None:
        chain = [failed(1, at=0), failed(2, at=650)]

        got = retry_decision(chain, now=5000.0, **self.LIMITS)

        assert (got.next, got.not_before) == (Next.ASK, None)
        assert "attempts 1 and 2 failed alike" in got.why

    def test_waits_its_turn_after_one_quick_failure_then_goes_on(self) -> None:
        early = retry_decision([failed(1, at=0)], now=100.0, **self.LIMITS)
        later = retry_decision([failed(1, at=0)], now=631.0, **self.LIMITS)

        assert (early.next, early.not_before) == (Next.WAIT, 630.0)
        assert later.next == Next.RETRY

    def test_never_what_cannot_start(self) -> None:
        got = retry_decision([failed(1, at=0, message="PermissionError: '/a'")], now=9e9, **self.LIMITS)

        assert got.next == Next.ASK
        assert "PermissionError" in got.why

    def test_stops_at_the_limit_whatever_each_died_of(self) -> None:
        ends = ["CRASHED", "HUNG", "NODE_FAILURE"]
        chain = [failed(n, at=650.0 * n, outcome=end) for n, end in enumerate(ends, 1)]

        assert retry_decision(chain[:2], now=9e9, **self.LIMITS).next == Next.RETRY
        assert retry_decision(chain, now=9e9, **self.LIMITS).next == Next.ASK

    def test_goes_on_at_once_after_a_failure_that_came_after_progress(self) -> None:
        chain = [failed(n, at=3000.0 * n, lasted=800, first_step=100 * n, last_step=100 * n + 99) for n in range(1, 9)]

        assert fruitless(chain, quick_s=900) == []
        assert retry_decision(chain, now=24_801.0, **self.LIMITS).next == Next.RETRY

    def test_two_quick_failures_say_nothing_of_an_attempt_that_made_its_way_since(self) -> None:
        alike = [failed(1, at=0), failed(2, at=650)]
        starts = Launched(3, 1300.0)
        runs = replace(starts, first_step=0, last_step=500)

        assert retry_decision([*alike, starts], now=5000.0, **self.LIMITS).next == Next.ASK
        assert retry_decision([*alike, runs], now=5000.0, **self.LIMITS).next == Next.RETRY

    def test_counts_steps_that_were_made_before_as_no_progress(self) -> None:
        first = failed(1, at=0, lasted=80_000, first_step=0, last_step=500)
        again = [failed(n, at=90_000.0 * n, lasted=300, first_step=480, last_step=500) for n in (2, 3)]

        assert [one.number for one in fruitless([first, *again], quick_s=900)] == [2, 3]

    def test_an_end_somebody_wanted_is_no_failure(self) -> None:
        chain = [
            failed(1, at=0, outcome="PLANNED"),
            failed(2, at=50, outcome="CANCELLED"),
            failed(3, at=99, outcome="PREEMPTED"),
        ]

        assert fruitless(chain, quick_s=900) == []
