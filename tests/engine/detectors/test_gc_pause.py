"""Collections that hold the run up are told, with who paused and what to do; machines are never blamed for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apps.engine.detection import (
    Certainty,
    CloseReason,
    Healthy,
    Level,
    ProposalKind,
    SubjectKind,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors import registry
from apps.engine.detectors.gc_pause import DETECTOR
from apps.engine.worlds import WORLDS, Fault, FaultKind, tell, windows
from tests.engine.detectors.kit import columns_window, found, run, still_open

BASE_S = 0.45


def look(pauses: Any, *, without: tuple[str, ...] = (), **more: Any) -> Window:
    """A window of ranks that compute for 0.45 s a step and pause as given, [ranks, steps]; the others wait."""
    pauses = np.asarray(pauses, float)
    compute = BASE_S + pauses
    wait = compute.max(axis=0) - compute + 0.05
    metrics = {"gc_s": pauses, "step_s": compute + wait, "communication_s": wait}
    kept = {name: values for name, values in metrics.items() if name not in without}
    return columns_window(compute, metrics=kept, **more)


def spread(ranks: int, steps: int, *, every: int = 2, pause_s: float = 0.15) -> np.ndarray:
    """Pauses of one rank after the other, in every so many steps."""
    pauses = np.zeros((ranks, steps))
    for turn, step in enumerate(range(0, steps, every)):
        pauses[5 * turn % ranks, step] = pause_s
    return pauses


def only(answers: list[Any]) -> Verdict:
    (verdict,) = still_open(answers).values()
    return verdict


class TestPausesInTurn:
    def test_are_one_finding_about_the_run_with_its_price_and_the_remedy(self) -> None:
        verdict = only(run(DETECTOR, [look(spread(16, 40))])[1])

        values = {one.name: (one.value, one.unit) for one in verdict.evidence}
        assert verdict.subject.kind is SubjectKind.RUN
        assert verdict.cost_s == pytest.approx(0.075, rel=0.01)
        assert values["step time ÷ without collection"] == (pytest.approx(0.575 / 0.5, rel=0.01), "×")
        assert values["a pause"] == (pytest.approx(0.15), "s")
        assert values["steps held up"] == (16, "")
        assert values["ranks that paused in the same step"] == (1.0, "ranks")
        assert "gc.disable()" in verdict.next
        assert "every 500 steps" in verdict.next
        assert verdict.proposal.kind is ProposalKind.NONE

    def test_are_critical_from_a_tenth_on_and_confirmed_by_repetition(self) -> None:
        strong = only(run(DETECTOR, [look(spread(16, 40))])[1])
        mild = only(run(DETECTOR, [look(spread(16, 40, pause_s=0.05))])[1])

        assert (strong.level, strong.certainty) == (Level.CRITICAL, Certainty.CONFIRMED)
        assert (mild.level, mild.certainty) == (Level.WARNING, Certainty.CONFIRMED)

    @pytest.mark.parametrize(("pause_s", "expected"), [(0.028, 0), (0.034, 1)])
    def test_are_told_from_three_percent_on(self, pause_s: float, expected: int) -> None:
        answers = run(DETECTOR, [look(spread(16, 64, pause_s=pause_s))])[1]

        assert len(still_open(answers)) == expected

    def test_may_be_told_from_elsewhere_on_by_the_runs_setting(self) -> None:
        window = look(spread(16, 64, pause_s=0.05), limits={"gc_slowdown": 1.2})

        assert still_open(run(DETECTOR, [window])[1]) == {}

    def test_that_come_once_in_hundreds_of_steps_on_each_of_many_ranks_are_found_by_the_long_look(self) -> None:
        verdict = only(run(DETECTOR, [look(spread(64, 256, every=20, pause_s=0.4))])[1])

        assert verdict.subject.kind is SubjectKind.RUN
        assert verdict.score == pytest.approx(1.04, abs=0.01)

    def test_close_when_they_end_and_are_not_found_again(self) -> None:
        pauses = np.concatenate([spread(16, 60), np.zeros((16, 60))], axis=1)

        answers = run(DETECTOR, [look(pauses)])[1]

        (last,) = found(answers).values()
        assert last.closed is CloseReason.RECOVERED
        assert last.next == "Nothing to do."
        assert isinstance(run(DETECTOR, [look(pauses), look(np.zeros((16, 60)), first=130)])[1][-1], Healthy)


class TestOneRank:
    def test_is_named_with_its_node_and_without_a_proposal(self) -> None:
        pauses = np.zeros((16, 40))
        pauses[6, ::3] = 0.15

        verdict = only(run(DETECTOR, [look(pauses)])[1])

        assert (verdict.subject.kind, verdict.subject.rank, verdict.subject.node) == (SubjectKind.RANK, 6, "n1")
        assert verdict.victims == tuple(rank for rank in range(16) if rank != 6)
        assert verdict.proposal.kind is ProposalKind.NONE
        assert "exclude none" in verdict.next

    def test_becomes_the_run_when_others_pause_too(self) -> None:
        first = np.zeros((16, 40))
        first[6, ::3] = 0.15
        answers = run(DETECTOR, [look(first), look(spread(16, 40), first=60)])[1]

        last = found(answers)
        assert last["gc_pause", "RANK:6"].closed is CloseReason.MERGED
        assert last["gc_pause", "RUN"].closed is None

    def test_a_run_of_one_process_is_the_run(self) -> None:
        pauses = np.zeros((1, 40))
        pauses[0, ::3] = 0.15

        assert only(run(DETECTOR, [look(pauses)])[1]).subject.kind is SubjectKind.RUN


class TestWhatIsNoFault:
    def test_a_pause_of_a_rank_that_would_have_waited_costs_nothing(self) -> None:
        pauses = spread(8, 40, pause_s=0.1)
        compute = np.full((8, 40), BASE_S)
        compute[:4] += 0.2
        pauses[:4] = 0
        work = compute + pauses
        wait = work.max(axis=0) - work
        metrics = {"gc_s": pauses, "step_s": work + wait, "communication_s": wait}

        assert still_open(run(DETECTOR, [columns_window(work, metrics=metrics)])[1]) == {}

    def test_one_long_collection_is_an_event(self) -> None:
        pauses = np.zeros((16, 40))
        pauses[3, 20:22] = 2.0

        assert still_open(run(DETECTOR, [look(pauses)])[1]) == {}

    def test_collections_of_all_ranks_together_are_told_to_come_less_often(self) -> None:
        pauses = np.zeros((16, 64))
        pauses[:, ::4] = 0.3

        verdict = only(run(DETECTOR, [look(pauses)])[1])

        assert "same step" in verdict.why
        assert verdict.next.startswith("Collect less often")

    @pytest.mark.parametrize("missing", ["gc_s", "step_s"])
    def test_without_the_numbers_it_is_undecided_and_says_what_it_lacks(self, missing: str) -> None:
        (answer,) = run(DETECTOR, [look(spread(16, 40), without=(missing,))])[1]

        assert isinstance(answer, Undecided)
        assert missing in answer.lack[0]

    def test_columns_beside_a_save_are_no_evidence(self) -> None:
        (answer,) = run(DETECTOR, [look(spread(16, 40), skip=np.ones(40, bool))])[1]

        assert isinstance(answer, Undecided)


class TestBesideTheStraggler:
    @pytest.mark.parametrize("world", ["gc_pauses", "gc_of_one_rank", "untold_pauses", "planned_collections"])
    def test_no_rank_is_called_slow_hardware_because_it_collects(self, world: str) -> None:
        straggler = registry()["compute_straggler"]

        answers = run(straggler, windows(tell(WORLDS[world], seed=11), straggler.trigger, columns=50))[1]

        assert found(answers) == {}

    def test_a_rank_that_is_slow_and_collects_is_named_for_its_slowness_by_its_work_alone(self) -> None:
        fault = Fault(FaultKind.SLOW, 100, (5,), factor=1.2)
        world = WORLDS["gc_pauses"]
        both = replace(world, faults=(*world.faults, fault))
        straggler = registry()["compute_straggler"]

        answers = run(straggler, windows(tell(both), straggler.trigger, columns=50))[1]

        assert [verdict.subject.rank for verdict in still_open(answers).values()] == [5]
        assert only(answers).score == pytest.approx(1.2, abs=0.03)
