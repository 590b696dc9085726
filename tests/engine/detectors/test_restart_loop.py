"""Restarting in vain: what two failures alike say, whose fault it is, and when it is over."""

from dataclasses import replace
from typing import Any

import pytest

from apps.engine.detection import Answer, CloseReason, Healthy, Launched, Phase, ProposalKind, Undecided, Verdict
from apps.engine.detectors.restart_loop import DETECTOR
from tests.engine.detectors.kit import NOW, clock_window


def tried(number: int, **more: Any) -> Launched:
    """An attempt of 12 s without a step, 650 s after the one before."""
    at = NOW + 650.0 * number
    return replace(
        Launched(number, at, ended_at=at + 12, outcome="CRASHED", nodes=("phoenix-11", f"o{number}")), **more
    )


def look(*chain: Launched, limits: dict[str, float] | None = None) -> Answer:
    window = clock_window(NOW + 9000, step=[-1] * 8, phase=[Phase.STARTUP] * 8, chain=chain, limits=limits or {})
    _, (answer,) = DETECTOR.evaluate(window, DETECTOR.state_fresh())
    return answer


class TestLoop:
    def test_of_one_node_is_known_after_the_second_attempt(self) -> None:
        one, two = look(tried(1)), look(tried(1), tried(2))

        assert isinstance(one, Healthy)
        assert isinstance(two, Verdict)
        assert two.subject.key == "NODE:phoenix-11"
        assert (two.proposal.kind, two.proposal.node) == (ProposalKind.EXCLUDE_NODE, "phoenix-11")
        assert two.verdict == "2 attempts in a row got nowhere, all of them with phoenix-11."
        assert "within 12 s each" in two.why

    def test_names_nobody_where_all_nodes_were_the_same(self) -> None:
        same = [tried(n, nodes=("phoenix-11", "o1")) for n in (1, 2)]

        said = look(*same)

        assert isinstance(said, Verdict)
        assert said.subject.key == "RUN"
        assert said.proposal.kind is ProposalKind.NONE
        assert "singles out no node" in said.why

    def test_past_the_limit_is_one_whatever_they_died_of(self) -> None:
        chain = [tried(n, outcome=end) for n, end in enumerate(["CRASHED", "HUNG", "CRASHED"], 1)]

        assert isinstance(look(*chain[:2]), Healthy)
        assert isinstance(look(*chain), Verdict)
        assert isinstance(look(*chain, limits={"restart_limit": 5}), Healthy)

    def test_ten_generations_in_twenty_minutes_are_counted_by_their_ends(self) -> None:
        chain = [tried(n, started_at=NOW + 120.0 * n, ended_at=NOW + 120.0 * n + 100) for n in range(1, 11)]

        said = look(*chain)

        assert isinstance(said, Verdict)
        assert said.score == 10
        assert {one.name: one.value for one in said.evidence}["from start to start, median"] == 120

    def test_stays_while_the_next_attempt_starts_and_is_over_once_it_gains_steps(self) -> None:
        third = Launched(3, NOW + 2000, nodes=("o3", "o4"))

        assert isinstance(look(tried(1), tried(2), third), Verdict)
        assert isinstance(look(tried(1), tried(2), replace(third, first_step=0, last_step=5)), Verdict)
        assert isinstance(look(tried(1), tried(2), replace(third, first_step=0, last_step=20)), Healthy)

    @pytest.mark.parametrize("end", ["PLANNED", "CANCELLED", "PREEMPTED", "TIME_LIMIT", "SUPERSEDED"])
    def test_is_not_made_of_ends_that_somebody_wanted(self, end: str) -> None:
        assert isinstance(look(tried(1, outcome=end), tried(2, outcome=end)), Healthy)

    def test_a_run_that_gets_on_between_its_failures_is_none(self) -> None:
        chain = [tried(n, first_step=100 * n, last_step=100 * n + 99) for n in range(1, 8)]

        assert isinstance(look(*chain), Healthy)


class TestStoppedByOneNode:
    """The nodes are the same in all attempts, and what stopped each of them is known."""

    def same(self, number: int, **more: Any) -> Launched:
        return tried(number, nodes=("n1", "n2"), blamed="n2", **more)

    def test_is_about_that_node_and_does_not_call_it_proven(self) -> None:
        said = look(self.same(1), self.same(2), self.same(3))

        assert isinstance(said, Verdict)
        assert said.subject.key == "NODE:n2"
        assert said.proposal.kind is ProposalKind.NONE
        assert said.verdict == "3 attempts in a row got nowhere; each time n2 was first to fail."

    @pytest.mark.parametrize("third", ["n1", ""])
    def test_is_the_runs_where_another_one_stopped_one_of_them_or_nobody_knows(self, third: str) -> None:
        said = look(self.same(1), self.same(2), replace(self.same(3), blamed=third))

        assert isinstance(said, Verdict)
        assert said.subject.key == "RUN"

    def test_waits_a_moment_until_it_can_be_known_who_stopped_the_newest(self) -> None:
        second = replace(self.same(2), blamed="")
        at = float(second.ended_at or 0)
        chain = (self.same(1), second)

        def at_look(now: float) -> Answer:
            window = clock_window(now, step=[-1] * 8, phase=[Phase.STARTUP] * 8, chain=chain)
            return DETECTOR.evaluate(window, DETECTOR.state_fresh())[1][-1]

        early, late = at_look(at + 4), at_look(at + 11)

        assert isinstance(early, Healthy)
        assert isinstance(late, Verdict)

    def test_takes_the_place_of_what_was_said_of_the_run_before(self) -> None:
        pair = [replace(self.same(n), blamed="") for n in (1, 2)]
        then, now = (
            clock_window(NOW + 9000, step=[-1] * 8, phase=[Phase.STARTUP] * 8, chain=tuple(chain))
            for chain in (pair, [self.same(1), self.same(2)])
        )
        state, (of_run,) = DETECTOR.evaluate(then, DETECTOR.state_fresh())

        _, (closed, of_node) = DETECTOR.evaluate(now, state)

        assert isinstance(of_run, Verdict)
        assert isinstance(closed, Verdict)
        assert isinstance(of_node, Verdict)
        assert (closed.subject.key, closed.closed) == (of_run.subject.key, CloseReason.MERGED)
        assert (of_node.subject.key, of_node.closed) == ("NODE:n2", None)


class TestWhatCannotStart:
    def test_is_told_after_one_attempt_and_never_blames_a_node(self) -> None:
        said = look(tried(1, message="PermissionError: [Errno 13] Permission denied: '/data'"))

        assert isinstance(said, Verdict)
        assert said.subject.key == "RUN"
        assert said.proposal.kind is ProposalKind.NONE
        assert said.verdict.startswith("It cannot start: several ranks said “PermissionError")

    def test_stays_the_run_s_when_it_was_tried_again(self) -> None:
        said = look(tried(1, message="ImportError: x"), tried(2, message="ImportError: x"))

        assert isinstance(said, Verdict)
        assert said.subject.key == "RUN"


def test_nothing_is_said_of_a_run_that_never_began() -> None:
    assert isinstance(look(), Undecided)
