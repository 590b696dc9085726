"""One rank's NaN is kept apart from everybody's; only a node that shows it again is proposed."""

from typing import Any

import numpy as np

from apps.engine.detection import (
    Certainty,
    CloseReason,
    Healthy,
    Level,
    Nonfinite,
    NonfiniteKind,
    PastFault,
    ProposalKind,
    SubjectKind,
    Undecided,
    Window,
    verdicts_in,
)
from apps.engine.detectors.numeric_fault import DETECTOR
from tests.engine.detectors.kit import columns_window, run, still_open

RANKS = 16


def window(
    bad: list[tuple[str, int, int]],
    *,
    first: int = 100,
    steps: int = 20,
    reporters: list[int] | None = None,
    **more: Any,
) -> Window:
    """Steps from `first` on in which (metric, step, rank) were not finite; `reporters` send metrics, default all."""
    everyone = list(range(RANKS)) if reporters is None else reporters
    values = {name: np.full((RANKS, steps), np.nan) for name in ("loss", "grad_norm")}
    for name in values:
        values[name][everyone] = 1.5
    for metric, step, rank in bad:
        values[metric][rank, step - first] = np.nan
    facts = Nonfinite(
        tuple(metric for metric, _, _ in bad),
        np.array([step for _, step, _ in bad], np.int64),
        np.array([rank for _, _, rank in bad], np.int32),
        np.full(len(bad), NonfiniteKind.PLUS_INF, np.int8),
    )
    return columns_window(np.ones((RANKS, steps)), first=first, metrics=values, nonfinite=facts, **more)


def everybody(step: int, metric: str = "loss") -> list[tuple[str, int, int]]:
    """All ranks' values of a step."""
    return [(metric, step, rank) for rank in range(RANKS)]


def past(node: str, step: int, attempt: int = 1) -> PastFault:
    """An earlier attempt's finding."""
    return PastFault(attempt, "numeric_fault", node, None, step)


class TestOneRank:
    def test_is_suspected_and_its_node_is_kept(self) -> None:
        _, answers = run(DETECTOR, [window([("grad_norm", 105, 6)])])

        (verdict,) = still_open(answers).values()
        assert (verdict.subject.kind, verdict.subject.rank, verdict.subject.node) == (SubjectKind.RANK, 6, "n1")
        assert (verdict.certainty, verdict.level) == (Certainty.SUSPECTED, Level.WARNING)
        assert verdict.proposal.kind is ProposalKind.NONE
        assert "Keep the node" in verdict.next
        assert "Inf" in verdict.verdict

    def test_the_same_node_at_another_step_of_another_attempt_is_proposed(self) -> None:
        _, answers = run(DETECTOR, [window([("grad_norm", 105, 6)], attempts=(past("n1", 99),))])

        (verdict,) = still_open(answers).values()
        assert (verdict.certainty, verdict.level) == (Certainty.CONFIRMED, Level.CRITICAL)
        assert (verdict.proposal.kind, verdict.proposal.node) == (ProposalKind.EXCLUDE_NODE, "n1")
        assert "silent corruption" in verdict.why

    def test_what_does_not_stop_is_confirmed_and_a_restart_is_proposed(self) -> None:
        _, answers = run(DETECTOR, [window([("loss", step, 6) for step in range(105, 120)])])

        (verdict,) = still_open(answers).values()
        assert (verdict.certainty, verdict.level) == (Certainty.CONFIRMED, Level.CRITICAL)
        assert verdict.proposal.kind is ProposalKind.RESTART_RUN
        assert "in 15 steps from step 105 to 119" in verdict.verdict
        assert {one.name: one.value for one in verdict.evidence}["steps with it"] == 15
        assert "Restart from a checkpoint before step 105" in verdict.next

    def test_what_does_not_stop_in_another_attempt_on_the_same_node_either_proposes_the_node(self) -> None:
        bad = [("loss", step, 6) for step in range(105, 120)]

        _, answers = run(DETECTOR, [window(bad, attempts=(past("n1", 105),))])

        (verdict,) = still_open(answers).values()
        assert (verdict.proposal.kind, verdict.proposal.node) == (ProposalKind.EXCLUDE_NODE, "n1")

    def test_the_same_step_on_another_node_is_the_data(self) -> None:
        _, answers = run(DETECTOR, [window([("grad_norm", 105, 6)], attempts=(past("n3", 105),))])

        (verdict,) = still_open(answers).values()
        assert verdict.subject.kind is SubjectKind.RUN
        assert verdict.proposal.kind is ProposalKind.NONE
        assert "data" in verdict.why

    def test_the_same_step_on_the_same_node_proves_nothing(self) -> None:
        _, answers = run(DETECTOR, [window([("grad_norm", 105, 6)], attempts=(past("n1", 105),))])

        (verdict,) = still_open(answers).values()
        assert verdict.certainty is Certainty.SUSPECTED
        assert verdict.proposal.kind is ProposalKind.NONE

    def test_another_node_in_an_earlier_attempt_does_not_count_against_this_one(self) -> None:
        _, answers = run(DETECTOR, [window([("grad_norm", 105, 6)], attempts=(past("n2", 99),))])

        assert next(iter(still_open(answers).values())).certainty is Certainty.SUSPECTED

    def test_everybodys_nan_right_after_it_is_its_spread(self) -> None:
        bad = [("grad_norm", 105, 6), *[one for step in range(106, 110) for one in everybody(step)]]

        _, answers = run(DETECTOR, [window(bad)])

        (verdict,) = still_open(answers).values()
        assert (verdict.subject.rank, verdict.level) == (6, Level.CRITICAL)
        assert {one.name: one.value for one in verdict.evidence}["ranks it spread to"] == RANKS

    def test_fifty_finite_steps_close_it_and_a_second_time_proposes(self) -> None:
        state, first = run(DETECTOR, [window([("grad_norm", 105, 6)], steps=60)])
        _, again = run(DETECTOR, [window([("grad_norm", 170, 5)], first=160)], state)

        assert [v.closed for v in verdicts_in(tuple(first))] == [CloseReason.RECOVERED]
        (verdict,) = still_open(again).values()
        assert (verdict.subject.rank, verdict.proposal.node) == (5, "n1")

    def test_a_first_time_that_people_dismissed_does_not_count(self) -> None:
        state, _ = run(DETECTOR, [window([("grad_norm", 105, 6)], steps=60)])

        _, again = run(DETECTOR, [window([("grad_norm", 170, 5)], first=160, dismissed=(past("n1", 105),))], state)

        (verdict,) = still_open(again).values()
        assert (verdict.certainty, verdict.proposal.kind) == (Certainty.SUSPECTED, ProposalKind.NONE)

    def test_all_ranks_of_one_node_are_the_node(self) -> None:
        _, answers = run(DETECTOR, [window([("grad_norm", 105, rank) for rank in range(4, 8)])])

        assert list(still_open(answers)) == [("numeric_fault", "NODE:n1")]


class TestEverybody:
    def test_at_once_is_data_or_model(self) -> None:
        _, answers = run(DETECTOR, [window(everybody(105) + everybody(106) + everybody(107))])

        (verdict,) = still_open(answers).values()
        assert (verdict.subject.kind, verdict.level) == (SubjectKind.RUN, Level.CRITICAL)
        assert verdict.proposal.kind is ProposalKind.RESTART_RUN

    def test_of_one_step_is_no_reason_to_restart(self) -> None:
        _, answers = run(DETECTOR, [window(everybody(105))])

        assert next(iter(still_open(answers).values())).proposal.kind is ProposalKind.NONE

    def test_one_skipped_update_of_loss_scaling_is_only_noted(self) -> None:
        _, answers = run(DETECTOR, [window(everybody(105, "grad_norm"))])

        (verdict,) = still_open(answers).values()
        assert verdict.level is Level.INFO

    def test_a_single_reporter_cannot_say_whose_it_is(self) -> None:
        _, answers = run(DETECTOR, [window([("loss", 105, 0)], reporters=[0])])

        (verdict,) = still_open(answers).values()
        assert (verdict.subject.kind, verdict.certainty) == (SubjectKind.RUN, Certainty.SUSPECTED)


def test_finite_values_are_healthy_and_no_values_are_undecided() -> None:
    _, healthy = run(DETECTOR, [window([])])
    _, nothing = run(DETECTOR, [columns_window(np.full((RANKS, 5), np.nan))])

    assert isinstance(healthy[0], Healthy)
    assert isinstance(nothing[0], Undecided)
