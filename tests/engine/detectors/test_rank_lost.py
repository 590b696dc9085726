"""A crash is seen from its exit, a lost node from its silence; what follows is their wave."""

from dataclasses import replace

import numpy as np
import pytest

from apps.engine.detection import (
    Certainty,
    Class,
    CloseReason,
    Fact,
    Healthy,
    Level,
    Phase,
    ProposalKind,
    State,
    SubjectKind,
    Undecided,
    Verdict,
    Window,
    verdicts_in,
)
from apps.engine.detectors.rank_lost import DETECTOR
from tests.engine.detectors.kit import NOW, clock_window, run, stored

WAITING = [Phase.COMMUNICATION] * 16


def exit_of(
    rank: int, *, heard_s: float = 0.0, happened_s: float | None = None, code: int = 1, sender: str = ""
) -> Fact:
    """The exit of a rank, heard `heard_s` after NOW; its sender's clock is an hour wrong."""
    happened = NOW + 3600 + (heard_s if happened_s is None else happened_s)
    return Fact("exit", NOW + heard_s, sender or f"n{rank // 4}", happened, rank, f"n{rank // 4}", code)


def look(
    after_s: float, facts: tuple[Fact, ...] = (), *, silent: dict[int, float] | None = None, **more: object
) -> Window:
    """A look after NOW; everybody waits in step 19 unless its node is silent since a moment."""
    heard = [NOW + after_s - 1] * 16
    for node, since_s in (silent or {}).items():
        heard[node * 4 : node * 4 + 4] = [NOW + since_s] * 4
    step = more.pop("step", [19] * 16)
    return clock_window(NOW + after_s, step=step, phase=WAITING, heard_at=heard, facts=facts, **more)  # type: ignore[arg-type]


def going(*, until_step: int = 19) -> State:
    """The memory of 16 ranks that made a step each 4 s until NOW."""
    looks = (
        clock_window(
            NOW - (until_step - n) * 4.0, step=[n] * 16, phase=WAITING, heard_at=[NOW - (until_step - n) * 4.0] * 16
        )
        for n in range(until_step + 1)
    )
    return run(DETECTOR, looks)[0]


def only(answers: list[object]) -> Verdict:
    """The one verdict that is open."""
    (verdict,) = [v for v in verdicts_in(answers) if v.closed is None]  # type: ignore[arg-type]
    return verdict


class TestCrash:
    def test_is_confirmed_at_the_first_look_after_the_exit(self) -> None:
        _, answers = run(DETECTOR, [look(2, (exit_of(5, code=1),))], going())

        verdict = only(answers)
        assert (verdict.subject.kind, verdict.subject.rank, verdict.subject.node) == (SubjectKind.RANK, 5, "n1")
        assert (verdict.certainty, verdict.level, verdict.class_) == (
            Certainty.CONFIRMED,
            Level.CRITICAL,
            Class.COORDINATION,
        )
        assert {one.name: one.value for one in verdict.evidence}["exit code"] == 1
        assert verdict.proposal.kind is ProposalKind.RESTART_RUN

    def test_says_for_good_that_nobody_else_failed_once_the_attempt_is_over(self) -> None:
        crash = (exit_of(5, code=1),)

        _, answers = run(DETECTOR, [look(2, crash), look(9, crash, attempt={"ended": True})], going())

        assert ["yet" in verdict.why for verdict in verdicts_in(tuple(answers))] == [True, False]

    def test_a_signal_is_told_by_its_name(self) -> None:
        _, answers = run(DETECTOR, [look(2, (exit_of(5, code=-9),))], going())

        verdict = only(answers)
        assert "SIGKILL" in verdict.verdict
        assert {one.name: one.value for one in verdict.evidence}["signal"] == 9

    def test_signals_sent_by_the_launcher_afterwards_are_consequences(self) -> None:
        first = exit_of(1, code=1)
        wave = tuple(exit_of(rank, heard_s=20, code=-15 if rank % 2 else -9) for rank in range(16) if rank != 1)

        state, _ = run(DETECTOR, [look(2, (first,))], going())
        _, answers = run(DETECTOR, [look(22, (first, *wave))], state)

        verdict = only(answers)
        assert verdict.subject.rank == 1
        assert len(verdict.victims) == 15
        assert 1 not in verdict.victims

    def test_the_launchers_sigkill_right_after_the_failure_does_not_hide_it(self) -> None:
        facts = (
            exit_of(1, happened_s=0.0, code=1),
            exit_of(2, happened_s=0.4, code=-9),
            exit_of(3, happened_s=0.4, code=-9),
        )

        assert only(run(DETECTOR, [look(2, facts)], going())[1]).subject.rank == 1

    def test_a_killed_rank_is_the_origin_of_the_errors_that_follow_it(self) -> None:
        facts = (
            exit_of(2, happened_s=0.0, code=-9),
            exit_of(1, happened_s=0.2, code=1),
            exit_of(9, heard_s=0.3, code=1),
        )

        assert only(run(DETECTOR, [look(2, facts)], going())[1]).subject.rank == 2

    def test_time_outs_minutes_later_are_its_wave_and_not_new_findings(self) -> None:
        first = exit_of(14)
        late = tuple(exit_of(rank, heard_s=60.0 + 30 * rank, code=-6) for rank in range(8))

        state, _ = run(DETECTOR, [look(2, (first,))], going())
        _, answers = run(DETECTOR, [look(600, (first, *late))], state)

        verdict = only(answers)
        assert verdict.subject.rank == 14
        assert verdict.victims == tuple(range(8))

    def test_two_nodes_that_fail_in_the_same_second_stay_one_of(self) -> None:
        facts = (exit_of(2, heard_s=0.0, happened_s=500.0), exit_of(13, heard_s=0.6, happened_s=-500.0))

        verdict = only(run(DETECTOR, [look(2, facts)], going())[1])

        assert verdict.subject.kind is SubjectKind.RUN
        assert "One of ranks 2 and 13" in verdict.verdict

    def test_only_sigterm_everywhere_means_somebody_stopped_the_job(self) -> None:
        facts = tuple(exit_of(rank, code=-15) for rank in range(16))

        verdict = only(run(DETECTOR, [look(2, facts)], going())[1])

        assert verdict.subject.kind is SubjectKind.RUN
        assert "outside" in verdict.verdict
        assert verdict.proposal.kind is ProposalKind.NONE

    def test_a_better_origin_that_arrives_within_seconds_replaces_the_first(self) -> None:
        early, better = exit_of(9, heard_s=0.5, code=1), exit_of(2, heard_s=0.4, code=-11)

        state, _ = run(DETECTOR, [look(1, (early,))], going())
        _, answers = run(DETECTOR, [look(3, (early, better))], state)

        old, new = verdicts_in(answers)
        assert (old.subject.rank, old.closed) == (9, CloseReason.MERGED)
        assert new.subject.rank == 2

    def test_code_0_is_no_failure(self) -> None:
        facts = tuple(exit_of(rank, code=0) for rank in range(16))

        _, answers = run(DETECTOR, [look(2, facts)], going())

        assert isinstance(answers[-1], Healthy)

    def test_exits_while_an_order_stops_the_run_are_wanted(self) -> None:
        facts = tuple(exit_of(rank, code=-15) for rank in range(16))

        _, answers = run(DETECTOR, [look(2, facts, attempt={"stopping": True})], going())

        assert verdicts_in(answers) == ()

    def test_a_run_that_goes_on_has_survived_it(self) -> None:
        fact = exit_of(5)
        state, _ = run(DETECTOR, [look(2, (fact,))], going())

        _, answers = run(DETECTOR, [look(40, (fact,), step=[25] * 16), look(44, (fact,), step=[26] * 16)], state)

        assert verdicts_in(answers)[0].closed is CloseReason.RECOVERED
        assert isinstance(answers[-1], Healthy)

    @pytest.mark.parametrize("rank", [None, -1, 16])
    def test_an_exit_of_no_rank_of_this_world_is_nobodys(self, rank: int | None) -> None:
        fact = replace(exit_of(1), rank=rank)

        assert verdicts_in(run(DETECTOR, [look(2, (fact,))], going())[1]) == ()

    def test_a_repeated_exit_counts_once(self) -> None:
        fact = exit_of(5)
        once, first = run(DETECTOR, [look(2, (fact,))], going())
        twice, second = run(DETECTOR, [look(2, (fact, fact))], stored(once))

        assert once.write() == twice.write()
        assert first == second


class TestLostNode:
    def test_a_silent_node_whose_others_stand_is_lost(self) -> None:
        state, early = run(DETECTOR, [look(s, silent={2: -4.0}) for s in (4, 8, 10)], going())
        _, late = run(DETECTOR, [look(s, silent={2: -4.0}) for s in (12, 16)], state)

        assert verdicts_in(early) == ()
        suspected, confirmed = verdicts_in(late)
        assert (suspected.certainty, confirmed.certainty) == (Certainty.SUSPECTED, Certainty.CONFIRMED)
        assert (confirmed.subject.kind, confirmed.subject.node) == (SubjectKind.NODE, "n2")
        assert (confirmed.proposal.kind, confirmed.proposal.node) == (ProposalKind.EXCLUDE_NODE, "n2")

    def test_a_silent_node_whose_others_go_on_only_lost_its_voice(self) -> None:
        looks = [look(4.0 * n, silent={2: 0.0}, step=[19 + n] * 16) for n in range(1, 20)]

        _, answers = run(DETECTOR, looks, going())

        assert verdicts_in(answers) == ()

    def test_exits_of_the_others_are_the_lost_nodes_wave(self) -> None:
        state, _ = run(DETECTOR, [look(22, silent={2: 0.0})], going())
        wave = tuple(exit_of(rank, heard_s=30.0, code=1) for rank in (0, 1, 5, 14))

        _, answers = run(DETECTOR, [look(32, wave, silent={2: 0.0})], state)

        verdict = only(answers)
        assert verdict.subject.node == "n2"
        assert verdict.victims == (0, 1, 5, 14)

    def test_when_the_others_fail_first_the_node_that_told_nothing_is_found_by_its_silence(self) -> None:
        wave = tuple(exit_of(rank, heard_s=1.0) for rank in range(16) if rank // 4 != 2)
        state, at_first = run(DETECTOR, [look(3, wave, silent={2: 0.0})], going())

        _, answers = run(DETECTOR, [look(17, wave, silent={2: 0.0})], state)

        assert only(at_first).subject.node != "n2"
        old, new = verdicts_in(answers)
        assert old.closed is CloseReason.MERGED
        assert (new.subject.key, new.certainty) == ("NODE:n2", Certainty.CONFIRMED)

    def suspected(self) -> State:
        return run(DETECTOR, [look(s, silent={2: -4.0}) for s in (4, 8, 10, 12)], going())[0]

    @pytest.mark.parametrize("phase", [Phase.SHUTDOWN, Phase.CHECKPOINT])
    def test_a_lost_node_does_not_recover_by_what_the_others_do_before_they_end(self, phase: Phase) -> None:
        window = look(14, silent={2: -4.0})
        others = np.where(window.placement.node == 2, window.beats.phase, int(phase)).astype(np.int8)

        _, answers = run(DETECTOR, [replace(window, beats=replace(window.beats, phase=others))], self.suspected())

        assert only(answers).subject.node == "n2"

    def test_a_silent_node_is_lost_for_sure_once_the_attempt_failed_with_it(self) -> None:
        over = look(14, silent={0: 13.0, 1: 13.0, 2: -4.0, 3: 13.0}, attempt={"ended": True})

        _, answers = run(DETECTOR, [over, replace(over, now=NOW + 60)], self.suspected())

        assert {v.closed for v in verdicts_in(answers)} == {None}
        assert (only(answers[-1:]).certainty, only(answers[-1:]).level) == (Certainty.CONFIRMED, Level.CRITICAL)
        assert only(answers[-1:]).proposal.node == "n2"

    def test_a_node_that_is_heard_again_has_recovered(self) -> None:
        _, answers = run(DETECTOR, [look(14)], self.suspected())

        assert verdicts_in(answers)[0].closed is CloseReason.RECOVERED

    def test_a_node_that_ended_well_is_not_lost(self) -> None:
        gone = tuple(exit_of(rank, code=0) for rank in range(8, 12))

        _, answers = run(DETECTOR, [look(s, gone, silent={2: 0.0}) for s in (16, 22, 60)], going())

        assert verdicts_in(answers) == ()

    def test_nobody_heard_is_undecided(self) -> None:
        _, answers = run(DETECTOR, [look(60, silent={0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0})], going())

        assert isinstance(answers[-1], Undecided)

    def test_a_blind_period_makes_nobody_lost(self) -> None:
        window = look(600, silent={2: 0.0}, watch_began_at=NOW + 590)

        assert verdicts_in(run(DETECTOR, [window], going())[1]) == ()


def test_a_node_that_falls_silent_after_a_lost_one_is_its_wave() -> None:
    both = {1: 0.0, 2: 30.0}
    first = run(DETECTOR, [look(25, silent={1: 0.0}), look(29, silent={1: 0.0})], going())[0]

    answers = run(DETECTOR, [look(after, silent=both) for after in (50, 55)], first)[1]

    assert [verdict.subject.node for verdict in verdicts_in(answers)] == ["n1", "n1"]


def test_nodes_that_fall_silent_together_are_named_together() -> None:
    answers = run(DETECTOR, [look(after, silent={1: 0.0, 2: 4.0}) for after in (25, 30)], going())[1]

    assert verdicts_in(answers)[-1].subject.nodes == ("n1", "n2")
