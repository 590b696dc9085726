"""A run that stands is told from one that saves, evaluates or starts; the one that holds it up from those that wait."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from apps.engine.detection import (
    Certainty,
    CloseReason,
    Fact,
    Healthy,
    Level,
    Phase,
    ProposalKind,
    Stack,
    State,
    SubjectKind,
    Undecided,
    Verdict,
    Window,
    verdicts_in,
)
from apps.engine.detectors.hang import DETECTOR
from tests.engine.detectors.kit import NOW, clock_window, run

COMMUNICATION, COMPUTE, DATA, CHECKPOINT = Phase.COMMUNICATION, Phase.COMPUTE, Phase.DATA, Phase.CHECKPOINT


def learnt(ranks: int = 8, *, step_s: float = 4.0, steps: int = 20, until: float = NOW) -> State:
    """The memory of a run that made `steps` steps of `step_s` seconds, the last of them at `until`."""
    looks = (
        clock_window(until - (steps - 1 - n) * step_s, step=[n] * ranks, phase=[COMPUTE] * ranks) for n in range(steps)
    )
    return run(DETECTOR, looks)[0]


def standing(after_s: float, phase: list[Phase], *, step: list[int] | None = None, **more: object) -> Window:
    """A look `after_s` seconds after the last step (19) began."""
    return clock_window(NOW + after_s, step=step or [19] * len(phase), phase=phase, **more)  # type: ignore[arg-type]


class TestWhen:
    def test_is_suspected_past_the_floor_and_confirmed_at_twice_the_floor(self) -> None:
        held = [COMMUNICATION] * 7 + [DATA]

        state, before = run(DETECTOR, [standing(59, held)], learnt())
        state, suspected = run(DETECTOR, [standing(61, held)], state)
        state, still = run(DETECTOR, [standing(119, held)], state)
        _, confirmed = run(DETECTOR, [standing(121, held)], state)

        assert verdicts_in(before) == ()
        assert [v.certainty for v in verdicts_in((*suspected, *still))] == [Certainty.SUSPECTED] * 2
        assert verdicts_in(confirmed)[0].certainty is Certainty.CONFIRMED
        assert verdicts_in(confirmed)[0].level is Level.CRITICAL
        assert verdicts_in(confirmed)[0].proposal.kind is ProposalKind.RESTART_RUN

    def test_slow_steps_raise_the_limit_above_the_floor(self) -> None:
        state = learnt(step_s=30.0)

        _, early = run(DETECTOR, [standing(149, [COMMUNICATION] * 8)], state)
        _, late = run(DETECTOR, [standing(151, [COMMUNICATION] * 8)], state)

        assert verdicts_in(early) == ()
        assert verdicts_in(late)[0].certainty is Certainty.SUSPECTED

    def test_the_practice_floor_of_four_seconds_is_obeyed(self) -> None:
        limits = {"hang_floor_s": 4.0, "no_telemetry_s": 4.0}

        _, answers = run(DETECTOR, [standing(8.5, [COMMUNICATION] * 8, limits=limits)], learnt(step_s=0.2))

        assert verdicts_in(answers)[0].certainty is Certainty.CONFIRMED

    def test_start_up_and_first_step_have_half_an_hour(self) -> None:
        for phase in (Phase.STARTUP, Phase.RESTORE, Phase.FIRST_STEP):
            begin = clock_window(NOW, step=[0] * 4, phase=[phase] * 4)
            healthy = clock_window(NOW + 1790, step=[0] * 4, phase=[phase] * 4)
            stuck = clock_window(NOW + 1810, step=[0] * 4, phase=[phase] * 4)

            state, before = run(DETECTOR, [begin, healthy])
            _, after = run(DETECTOR, [stuck], state)

            assert verdicts_in(before) == ()
            assert verdicts_in(after)[0].certainty is Certainty.SUSPECTED

    def test_ranks_that_wait_for_one_that_saves_are_patient(self) -> None:
        _, answers = run(DETECTOR, [standing(s, [CHECKPOINT] + [COMMUNICATION] * 7) for s in (5, 600)], learnt())

        assert verdicts_in(answers) == ()

    def test_a_save_may_take_twice_the_longest_of_this_attempt_and_no_less_than_five_minutes(self) -> None:
        windows = [standing(2, [CHECKPOINT] * 8), standing(202, [COMPUTE] * 8, step=[20] * 8)]
        state, _ = run(DETECTOR, windows, learnt())
        state, _ = run(DETECTOR, [standing(210, [CHECKPOINT] * 8, step=[20] * 8)], state)

        _, early = run(DETECTOR, [standing(210 + 399, [CHECKPOINT] * 8, step=[20] * 8)], state)
        _, late = run(DETECTOR, [standing(210 + 401, [CHECKPOINT] * 8, step=[20] * 8)], state)

        assert verdicts_in(early) == ()
        assert verdicts_in(late)[0].certainty is Certainty.SUSPECTED

    def test_an_unknown_phase_has_the_longest_limit(self) -> None:
        unknown = [Phase.UNKNOWN] * 8

        _, early = run(DETECTOR, [standing(s, unknown) for s in (1, 1790)], learnt())
        _, late = run(DETECTOR, [standing(s, unknown) for s in (1, 1810)], learnt())

        assert verdicts_in(early) == ()
        assert verdicts_in(late)[0].certainty is Certainty.SUSPECTED

    def test_limits_are_forgotten_with_the_attempt(self) -> None:
        fresh = DETECTOR.state_fresh()
        first = standing(0, [COMMUNICATION] * 8)

        _, answers = run(DETECTOR, [first, standing(300, [COMMUNICATION] * 8)], fresh)

        assert isinstance(answers[-1], Undecided)
        assert "3 steps" in answers[-1].lack[0]

    def test_saves_evaluations_and_a_slow_first_step_are_no_hangs_but_a_stall_is_one(self) -> None:
        verdicts = []
        state = DETECTOR.state_fresh()
        for window in a_long_run():
            state, answers = DETECTOR.evaluate(window, state)
            verdicts += [(window.now, verdict) for verdict in verdicts_in(answers)]

        opened = {verdict.began_at for _, verdict in verdicts}
        assert len(opened) == 1
        assert verdicts[-1][1].closed is CloseReason.RECOVERED
        assert any(verdict.certainty is Certainty.CONFIRMED for _, verdict in verdicts)


def a_long_run() -> Iterator[Window]:
    """Steps of 10 s, first step 9 min, a save of 40 s each 100, an evaluation of 12 min each 1,000, one stall of 20 min."""
    now = NOW
    for step in range(2100):
        spans = [(Phase.FIRST_STEP, 540.0)] if step == 0 else [(COMPUTE, 6.0), (COMMUNICATION, 4.0)]
        if step % 100 == 99:
            spans.append((CHECKPOINT, 40.0))
        if step % 1000 == 999:
            spans.append((Phase.EVALUATION, 720.0))
        if step == 2050:
            spans.append((COMMUNICATION, 1200.0))
        for phase, length in spans:
            for look in np.arange(0.0, length, 10.0).tolist():
                yield clock_window(now + look, step=[step] * 4, phase=[phase] * 4)
            now += length


class TestWho:
    def confirmed(self, window: Window) -> object:
        _, answers = run(DETECTOR, [window], learnt(len(window.placement)))
        return verdicts_in(answers)[-1]

    def test_the_rank_that_never_came_to_the_collective_is_named(self) -> None:
        verdict = self.confirmed(standing(130, [COMMUNICATION] * 5 + [DATA] + [COMMUNICATION] * 2))

        assert (verdict.subject.kind, verdict.subject.rank, verdict.subject.node) == (SubjectKind.RANK, 5, "n1")
        assert verdict.victims == (0, 1, 2, 3, 4, 6, 7)
        assert "data" in verdict.why

    def test_a_rank_of_an_earlier_step_is_named_before_one_outside(self) -> None:
        phases = [COMMUNICATION] * 6 + [COMPUTE, DATA]

        verdict = self.confirmed(standing(130, phases, step=[19] * 6 + [19, 18]))

        assert verdict.subject.rank == 7

    def test_a_missing_rank_is_named_first(self) -> None:
        heard = [NOW + 130.0] * 8
        heard[2] = NOW + 10

        verdict = self.confirmed(standing(130, [COMMUNICATION] * 7 + [DATA], heard_at=heard))

        assert verdict.subject.rank == 2
        assert "can no longer be heard" in verdict.verdict

    def test_a_whole_missing_node_is_the_node(self) -> None:
        heard = [NOW + 130.0] * 12
        heard[4:8] = [NOW + 10.0] * 4

        verdict = self.confirmed(standing(130, [COMMUNICATION] * 12, heard_at=heard))

        assert (verdict.subject.kind, verdict.subject.node) == (SubjectKind.NODE, "n1")

    def test_everybody_inside_is_the_run_and_points_to_the_network(self) -> None:
        verdict = self.confirmed(standing(130, [COMMUNICATION] * 8))

        assert verdict.subject.kind is SubjectKind.RUN
        assert verdict.victims == ()
        assert "network" in verdict.why

    def test_says_of_a_suspicion_without_a_rank_who_waits_and_no_cause(self) -> None:
        _, answers = run(DETECTOR, [standing(70, [COMMUNICATION] * 8)], learnt())
        verdict = verdicts_in(answers)[-1]

        said = f"{verdict.verdict} {verdict.why} {verdict.next}"
        assert verdict.certainty is Certainty.SUSPECTED
        assert "has not ended for 70 s" in said
        assert "8 of 8 reporting ranks wait in a collective" in said
        assert "not known yet" in said
        assert "network" not in said

    def test_says_how_many_report_wait_and_are_missing(self) -> None:
        verdict = self.confirmed(standing(130, [COMMUNICATION] * 7 + [DATA]))

        counts = {one.name: one.value for one in verdict.evidence}
        assert counts["ranks reporting"] == 8
        assert counts["ranks inside a collective"] == 7
        assert counts["ranks missing"] == 0

    def test_of_two_ranks_the_one_outside_is_named(self) -> None:
        verdict = self.confirmed(standing(130, [COMMUNICATION, DATA]))

        assert verdict.subject.rank == 1


WAITING = [("rank.py", "_step"), ("collectives.py", "all_reduce"), ("ring.py", "_wait")]
ELSEWHERE = [("rank.py", "_step"), ("rank.py", "_hang"), ("stopping.py", "sleep_until")]


def stack(rank: int, frames: list[tuple[str, str]], *, step: int = 19) -> Stack:
    """A stack as the client sends it; every rank stands on another line of the same functions."""
    told = "".join(f'  File "/srv/{file}", line {rank + 10}, in {name}\n    code()\n' for file, name in frames)
    return Stack(rank, f"in communication for 6 s, last step {step}\nthread MainThread\n{told}\nthread other\n")


class TestByItsStacks:
    def hang(self, stacks: list[Stack], **more: object) -> Verdict:
        window = standing(130, [COMMUNICATION] * 8, stacks=tuple(stacks), **more)
        return verdicts_in(run(DETECTOR, [window], learnt(8))[1])[-1]

    def test_the_one_that_stands_elsewhere_while_all_are_inside_is_named_with_how_sure_that_is(self) -> None:
        verdict = self.hang([stack(rank, ELSEWHERE if rank == 5 else WAITING) for rank in range(8)])

        assert (verdict.subject.kind, verdict.subject.rank, verdict.subject.node) == (SubjectKind.RANK, 5, "n1")
        assert "rank 5 on n1 stands elsewhere" in verdict.verdict
        assert "7 of 8 ranks that sent their stacks wait alike, in all_reduce (collectives.py:10)" in verdict.why
        assert "Rank 5 stood in _hang (rank.py:15): likely the one they wait for, not proven" in verdict.why
        assert "7 of 8 reporting ranks wait in a collective" in verdict.why
        assert "8 of 8" not in verdict.why
        assert {one.name: one.value for one in verdict.evidence}["ranks inside a collective"] == 7
        assert verdict.next.startswith("Look at the stacks of rank 5 ")
        assert verdict.proposal.kind is ProposalKind.RESTART_RUN

    def test_names_nobody_where_all_stand_alike_and_then_speaks_of_no_named_ranks(self) -> None:
        verdict = self.hang([stack(rank, WAITING) for rank in range(8)])

        assert verdict.subject.kind is SubjectKind.RUN
        assert "named" not in verdict.next

    def test_stacks_of_an_earlier_step_say_nothing_of_this_one(self) -> None:
        stale = [stack(rank, ELSEWHERE if rank == 5 else WAITING, step=12) for rank in range(8)]

        assert self.hang(stale).subject.kind is SubjectKind.RUN

    def test_a_few_stacks_of_many_ranks_name_nobody(self) -> None:
        few = [stack(rank, ELSEWHERE if rank == 5 else WAITING) for rank in (4, 5, 6)]

        assert self.hang(few).subject.kind is SubjectKind.RUN

    def test_two_halves_that_stand_apart_name_nobody(self) -> None:
        halves = [stack(rank, ELSEWHERE if rank < 4 else WAITING) for rank in range(8)]

        assert self.hang(halves).subject.kind is SubjectKind.RUN

    def test_stages_wait_in_calls_of_their_own(self) -> None:
        receiving = [("rank.py", "_step"), ("pipe.py", "receive")]
        stacks = [stack(rank, receiving if rank >= 4 else ELSEWHERE if rank == 1 else WAITING) for rank in range(8)]
        stage = np.array([0] * 4 + [1] * 4, np.int32)
        window = standing(130, [COMMUNICATION] * 8, stacks=tuple(stacks))
        window = replace(window, placement=replace(window.placement, stage=stage))

        (verdict,) = verdicts_in(run(DETECTOR, [window], learnt(8))[1])

        assert verdict.subject.rank == 1

    def test_when_they_come_after_the_first_look_the_finding_about_the_run_gives_way(self) -> None:
        state, _ = run(DETECTOR, [standing(62, [COMMUNICATION] * 8)], learnt())
        stacks = tuple(stack(rank, ELSEWHERE if rank == 5 else WAITING) for rank in range(8))

        _, answers = run(DETECTOR, [standing(64, [COMMUNICATION] * 8, stacks=stacks)], state)

        old, new = verdicts_in(answers)
        assert (old.subject.kind, old.closed) == (SubjectKind.RUN, CloseReason.MERGED)
        assert new.subject.rank == 5


class TestWhatComesLater:
    """The run stands already; then a node is lost."""

    def then_lost(self, held: list[Phase], *, ranks: slice, **more: object) -> list[Verdict]:
        """The verdicts after ranks fell silent at 150 s of a hang that was confirmed at 121 s."""
        state, _ = run(DETECTOR, [standing(62, held, **more), standing(121, held, **more)], learnt(len(held)))
        answers = []
        for after_s in (160.0, 170.0, 400.0):
            heard = np.full(len(held), NOW + after_s)
            heard[ranks] = NOW + 150
            state, said = run(DETECTOR, [standing(after_s, held, heard_at=list(heard), **more)], state)
            answers += said
        return list(verdicts_in(answers))

    def test_the_one_that_held_the_run_up_first_is_still_named(self) -> None:
        said = self.then_lost([COMMUNICATION] * 2 + [DATA] + [COMMUNICATION] * 9, ranks=slice(4, 8))

        assert [(one.subject.key, one.certainty, one.closed) for one in said] == [
            ("RANK:2", Certainty.CONFIRMED, None)
        ] * 3
        assert {one.name: one.value for one in said[-1].evidence}["ranks missing"] == 4

    def test_also_if_its_own_node_is_the_lost_one(self) -> None:
        said = self.then_lost([COMMUNICATION] * 2 + [DATA] + [COMMUNICATION] * 9, ranks=slice(0, 4))

        assert {(one.subject.key, one.closed) for one in said} == {("RANK:2", None)}

    def test_also_if_it_is_known_by_its_stack(self) -> None:
        stacks = tuple(stack(rank, ELSEWHERE if rank == 2 else WAITING) for rank in range(12))

        said = self.then_lost([COMMUNICATION] * 12, ranks=slice(4, 8), stacks=stacks)

        assert {(one.subject.key, one.closed) for one in said} == {("RANK:2", None)}

    def test_a_hang_of_nobody_is_not_blamed_on_a_node_that_stood_with_the_others(self) -> None:
        said = self.then_lost([COMMUNICATION] * 12, ranks=slice(4, 8))

        assert {(one.subject.key, one.closed) for one in said} == {("RUN", None)}


class TestWhatEndsOrHoldsIt:
    def test_is_not_confirmed_by_who_went_silent_with_its_whole_node(self) -> None:
        heard = [NOW + 130.0] * 12
        heard[4:8] = [NOW + 10.0] * 4

        _, answers = run(DETECTOR, [standing(130, [COMMUNICATION] * 12, heard_at=heard)], learnt(12))

        (verdict,) = verdicts_in(answers)
        assert verdict.certainty is Certainty.SUSPECTED
        assert verdict.proposal.kind is ProposalKind.NONE

    def test_a_suspicion_of_nobody_gives_way_to_a_crash(self) -> None:
        state, _ = run(DETECTOR, [standing(62, [COMMUNICATION] * 8)], learnt())
        crash = (Fact("exit", NOW + 63, rank=1, code=1),)

        _, answers = run(DETECTOR, [standing(64, [COMMUNICATION] * 8, facts=crash)], state)

        assert [verdict.closed for verdict in verdicts_in(answers)] == [CloseReason.MERGED]

    def test_an_attempt_that_has_ended_does_not_hang(self) -> None:
        state, _ = run(DETECTOR, [standing(62, [COMMUNICATION] * 8)], learnt())

        _, answers = run(DETECTOR, [standing(130, [COMMUNICATION] * 8, attempt={"ended": True})], state)

        assert [verdict.closed for verdict in verdicts_in(answers)] == [CloseReason.MERGED]

    def test_a_confirmed_hang_outlives_the_crash_it_ends_in(self) -> None:
        state, _ = run(DETECTOR, [standing(130, [COMMUNICATION] * 8)], learnt())
        crash = (Fact("exit", NOW + 600, rank=1, code=-6),)

        _, answers = run(DETECTOR, [standing(601, [COMMUNICATION] * 8, facts=crash)], state)

        assert [verdict.closed for verdict in verdicts_in(answers)] == [None]

    @pytest.mark.parametrize(
        ("phase", "attempt"),
        [(Phase.SHUTDOWN, {}), (CHECKPOINT, {"stopping": True}), (CHECKPOINT, {"ended": True})],
    )
    def test_that_its_ranks_are_stopped_is_no_recovery(self, phase: Phase, attempt: dict[str, bool]) -> None:
        state, _ = run(DETECTOR, [standing(130, [COMMUNICATION] * 8)], learnt())

        _, answers = run(DETECTOR, [standing(140, [phase] * 8, attempt=attempt)], state)

        assert [verdict.closed for verdict in verdicts_in(answers)] == [None]

    def test_of_an_attempt_that_is_over_nobody_is_said_to_have_ordered_its_end(self) -> None:
        window = standing(130, [COMMUNICATION] * 8, attempt={"ended": True, "stopping": True})

        (answer,) = run(DETECTOR, [window], learnt())[1]

        assert isinstance(answer, Undecided)
        assert "order" not in answer.sentence

    def test_a_step_closes_it(self) -> None:
        state, _ = run(DETECTOR, [standing(130, [COMMUNICATION] * 8)], learnt())

        _, answers = run(DETECTOR, [standing(140, [COMPUTE] * 8, step=[20] * 8)], state)

        assert verdicts_in(answers)[0].closed is CloseReason.RECOVERED
        assert isinstance(answers[-1], Healthy)

    def test_the_length_of_a_confirmed_hang_is_not_learnt_as_normal(self) -> None:
        state = learnt(steps=4)
        state, _ = run(DETECTOR, [standing(s, [COMMUNICATION] * 8, step=[3] * 8) for s in (130, 3000)], state)
        state, _ = run(DETECTOR, [standing(3010, [COMPUTE] * 8, step=[4] * 8)], state)

        _, answers = run(DETECTOR, [standing(3010 + 125, [COMMUNICATION] * 8, step=[4] * 8)], state)

        assert verdicts_in(answers)[0].certainty is Certainty.CONFIRMED

    def test_the_clock_starts_anew_after_a_blind_period(self) -> None:
        held = [COMMUNICATION] * 8
        state = learnt()

        _, blind = run(DETECTOR, [standing(500, held, watch_began_at=NOW + 450)], state)
        _, later = run(DETECTOR, [standing(512, held, watch_began_at=NOW + 450)], state)

        assert verdicts_in(blind) == ()
        assert verdicts_in(later)[0].certainty is Certainty.SUSPECTED

    def test_nobody_heard_is_no_hang(self) -> None:
        window = standing(130, [COMMUNICATION] * 8, heard_at=[NOW + 5.0] * 8)

        _, answers = run(DETECTOR, [window], learnt())

        assert isinstance(answers[0], Undecided)

    def test_a_known_crash_is_not_called_a_hang(self) -> None:
        crash = (Fact("exit", NOW + 3, rank=1, code=1),)

        _, answers = run(DETECTOR, [standing(130, [COMMUNICATION] * 8, facts=crash)], learnt())

        assert verdicts_in(answers) == ()

    def test_a_crash_that_the_run_outlived_hides_no_later_hang(self) -> None:
        crash = (Fact("exit", NOW - 40, rank=1, code=1),)

        _, answers = run(DETECTOR, [standing(130, [COMMUNICATION] * 8, facts=crash)], learnt())

        assert verdicts_in(answers)[0].certainty is Certainty.CONFIRMED

    def test_a_rank_that_left_with_code_0_while_the_others_wait_is_named(self) -> None:
        heard = [NOW + 130.0] * 8
        heard[6] = NOW + 4
        gone = (Fact("exit", NOW + 4, rank=6, code=0),)

        _, answers = run(DETECTOR, [standing(130, [COMMUNICATION] * 8, heard_at=heard, facts=gone)], learnt())

        (verdict,) = verdicts_in(answers)
        assert verdict.subject.rank == 6
        assert "has ended" in verdict.verdict

    def test_an_order_to_stop_is_no_hang(self) -> None:
        window = standing(130, [COMMUNICATION] * 8, attempt={"stopping": True})

        assert verdicts_in(run(DETECTOR, [window], learnt())[1]) == ()

    def test_when_another_rank_turns_out_to_be_the_culprit_the_first_finding_is_merged(self) -> None:
        state, _ = run(DETECTOR, [standing(62, [COMMUNICATION] * 7 + [DATA])], learnt())
        heard = [NOW + 90.0] * 8
        heard[0] = NOW + 10.0

        _, answers = run(DETECTOR, [standing(90, [COMMUNICATION] * 7 + [DATA], heard_at=heard)], state)

        old, new = verdicts_in(answers)
        assert (old.subject.rank, old.closed) == (7, CloseReason.MERGED)
        assert (new.subject.rank, new.closed) == (0, None)


def test_its_idea_of_a_step_is_the_median() -> None:
    state = learnt(step_s=4.0)

    assert np.median(state.values["samples"]) == pytest.approx(4.0)


def test_a_look_without_news_changes_nothing() -> None:
    state = learnt()
    look = standing(70, [COMMUNICATION] * 8)

    once, first = DETECTOR.evaluate(look, state)
    twice, second = DETECTOR.evaluate(look, once)

    assert first == second
    assert once.write() == twice.write()


def test_a_hang_of_thousands_of_ranks_lists_no_victims() -> None:
    look = standing(130, [COMMUNICATION] * 2047 + [DATA])

    _, answers = run(DETECTOR, [replace(look, watch_began_at=NOW - 3600)], learnt(2048))

    assert verdicts_in(answers)[0].victims == ()
