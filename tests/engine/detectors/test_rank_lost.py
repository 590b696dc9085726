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
    Launched,
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

    @pytest.mark.parametrize("rank", [10, 1])
    def test_of_one_that_was_survived_and_one_that_was_not_the_second_is_named(self, rank: int) -> None:
        survived, last = exit_of(1), exit_of(rank, heard_s=100)
        state, _ = run(DETECTOR, [look(2, (survived,))], going())
        state, answers = run(
            DETECTOR, [look(40, (survived,), step=[25] * 16), look(98, (survived,), step=[30] * 16)], state
        )

        _, after = run(DETECTOR, [look(102, (survived, last), step=[30] * 16)], state)

        assert verdicts_in(answers)[0].closed is CloseReason.RECOVERED
        verdict = only(after)
        assert (verdict.subject.rank, verdict.subject.node) == (rank, f"n{rank // 4}")
        assert verdict.victims == ()

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


class TestOneThatTookNoLeave:
    """An attempt that failed so soon that no silence means anything: what names the culprit is that all others left."""

    def over(
        self,
        after_s: float = 9.0,
        *,
        mute: tuple[int, ...] = (5,),
        mute_s: float = -1.0,
        left_s: float = 7.5,
        per_node: int = 1,
        ranks: int = 16,
        phase: Phase = Phase.SHUTDOWN,
        attempt: dict[str, object] | None = None,
        **more: object,
    ) -> Window:
        """A look at an attempt that is over: all but the mute ranks ended by themselves."""
        is_mute = [rank in mute for rank in range(ranks)]
        return clock_window(
            NOW + after_s,
            step=[18 if one else 19 for one in is_mute],
            phase=[Phase.COMPUTE if one else phase for one in is_mute],
            heard_at=[NOW + (mute_s if one else left_s) for one in is_mute],
            per_node=per_node,
            attempt={"ended": True, **(attempt or {})},
            **more,  # type: ignore[arg-type]
        )

    def test_is_named_with_its_node_although_it_was_alone_on_it(self) -> None:
        verdict = only(run(DETECTOR, [self.over()], going())[1])

        assert (verdict.subject.kind, verdict.subject.rank, verdict.subject.node) == (SubjectKind.RANK, 5, "n5")
        assert (verdict.certainty, verdict.proposal.kind) == (Certainty.CONFIRMED, ProposalKind.RESTART_RUN)
        assert verdict.verdict == "Lost: rank 5 on n5, silent before the 15 other ranks ended."
        assert {one.name: one.value for one in verdict.evidence}["silent before the others left"] == 8.5

    def test_a_node_all_of_whose_ranks_took_none_is_what_to_exclude(self) -> None:
        verdict = only(run(DETECTOR, [self.over(mute=(4, 5, 6, 7), per_node=4)], going())[1])

        assert verdict.subject.key == "NODE:n1"
        assert (verdict.proposal.kind, verdict.proposal.node) == (ProposalKind.EXCLUDE_NODE, "n1")

    @pytest.mark.parametrize("more", [{"left_s": 3.0}, {"ranks": 2, "mute": (1,)}])
    def test_is_only_likely_where_a_lost_word_would_look_the_same(self, more: dict[str, object]) -> None:
        verdict = only(run(DETECTOR, [self.over(**more)])[1])  # type: ignore[arg-type]

        assert (verdict.certainty, verdict.proposal.kind) == (Certainty.SUSPECTED, ProposalKind.NONE)
        assert "not proven" in verdict.why

    @pytest.mark.parametrize("phase", [Phase.COMPUTE, Phase.COMMUNICATION])
    def test_nobody_is_named_when_all_vanish_alike(self, phase: Phase) -> None:
        looks = [self.over(after_s, phase=phase, left_s=-1.0) for after_s in (2, 6, 9, 30)]

        assert verdicts_in(run(DETECTOR, looks, going())[1]) == ()

    @pytest.mark.parametrize(
        "more",
        [
            {"mute": (5, 9)},  # on two nodes: a word or two from many is no sign of who was first
            {"mute": tuple(range(1, 16))},
            {"mute_s": 8.0},  # heard after the others had left
            {"mute_s": 7.4, "ranks": 2, "mute": (1,)},  # both at once, and one word was lost
            {"watch_began_at": NOW + 2},  # Paceline was blind meanwhile
            {"attempt": {"stopping": True}},
            {"attempt": {"ended": False}},
        ],
    )
    def test_nobody_is_named_where_the_end_singles_out_nobody(self, more: dict[str, object]) -> None:
        looks = [self.over(after_s, **more) for after_s in (9, 11)]  # type: ignore[arg-type]

        assert [verdict.subject.key for verdict in verdicts_in(run(DETECTOR, looks)[1])] == []

    def test_one_that_hung_could_not_take_leave_and_was_not_lost(self) -> None:
        hung = (Launched(1, NOW - 3600, ended_at=NOW + 8, outcome="HUNG"),)

        assert verdicts_in(run(DETECTOR, [self.over(chain=hung)], going())[1]) == ()

    def test_a_word_that_was_only_late_takes_it_back(self) -> None:
        state, _ = run(DETECTOR, [self.over()], going())

        _, answers = run(DETECTOR, [self.over(11, mute=())], state)

        assert [verdict.closed for verdict in verdicts_in(tuple(answers))] == [CloseReason.RECOVERED]

    def test_an_order_to_start_again_is_no_recovery(self) -> None:
        state, _ = run(DETECTOR, [self.over()], going())

        _, answers = run(DETECTOR, [self.over(11, attempt={"stopping": True})], state)

        assert [(verdict.subject.rank, verdict.closed) for verdict in verdicts_in(tuple(answers))] == [(5, None)]

    def test_exits_of_the_others_that_are_told_later_are_its_wave(self) -> None:
        state, _ = run(DETECTOR, [self.over()], going())
        late = replace(exit_of(3, heard_s=10.0, code=1), node="n3")

        _, answers = run(DETECTOR, [self.over(12, facts=(late,))], state)

        assert (only(answers).subject.rank, only(answers).victims) == (5, (3,))

    def test_its_own_exit_told_later_says_how_it_ended(self) -> None:
        state, _ = run(DETECTOR, [self.over()], going())
        own = replace(exit_of(5, heard_s=10.0, code=-9), node="n5")

        _, answers = run(DETECTOR, [self.over(12, facts=(own,))], state)

        assert only(answers).verdict == "Rank 5 on n5 was killed by SIGKILL."

    def test_stays_what_it_is_while_the_end_is_looked_at(self) -> None:
        looks = [self.over(after_s) for after_s in range(9, 60, 2)]

        _, answers = run(DETECTOR, looks, going())

        assert {(verdict.identity, verdict.closed) for verdict in verdicts_in(tuple(answers))} == {
            (("rank_lost", "RANK:5"), None)
        }
