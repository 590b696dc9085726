"""Silence is said, by the receiver's clock, and never from before Paceline could hear."""

from dataclasses import replace

import numpy as np

from apps.engine.detection import (
    Certainty,
    Class,
    CloseReason,
    Fact,
    Healthy,
    Level,
    Phase,
    SubjectKind,
    Undecided,
    Window,
    verdicts_in,
)
from apps.engine.detectors.no_telemetry import DETECTOR
from tests.engine.detectors.kit import NOW, clock_window, run


def look(after_s: float, silent: dict[int, float], *, nodes: int = 6, **more: object) -> Window:
    """A look after NOW at nodes of two ranks, of which some are silent since a moment."""
    heard = [NOW + after_s - 1] * (2 * nodes)
    for node, since_s in silent.items():
        heard[2 * node : 2 * node + 2] = [NOW + since_s] * 2
    phase = [Phase.COMPUTE] * (2 * nodes)
    return clock_window(NOW + after_s, step=[7] * (2 * nodes), phase=phase, heard_at=heard, per_node=2, **more)  # type: ignore[arg-type]


class TestOneNode:
    def test_is_silent_after_three_report_intervals_and_no_sooner(self) -> None:
        _, early = run(DETECTOR, [look(15, {1: 0.0})])
        _, late = run(DETECTOR, [look(16, {1: 0.0})])

        assert verdicts_in(early) == ()
        (verdict,) = verdicts_in(late)
        assert (verdict.subject.kind, verdict.subject.node) == (SubjectKind.NODE, "n1")
        assert (verdict.class_, verdict.certainty, verdict.level) == (
            Class.WATCHING,
            Certainty.CONFIRMED,
            Level.WARNING,
        )
        assert verdict.began_at == NOW
        assert verdict.victims == (2, 3)

    def test_its_limit_can_be_set(self) -> None:
        _, answers = run(DETECTOR, [look(5, {1: 0.0}, limits={"no_telemetry_s": 4.0})])

        assert len(verdicts_in(answers)) == 1

    def test_a_word_closes_it(self) -> None:
        state, _ = run(DETECTOR, [look(16, {1: 0.0})])

        _, answers = run(DETECTOR, [look(18, {})], state)

        assert verdicts_in(answers)[0].closed is CloseReason.RECOVERED
        assert isinstance(answers[-1], Healthy)

    def test_that_its_ranks_end_is_no_word_of_it(self) -> None:
        state, _ = run(DETECTOR, [look(16, {1: 0.0})])
        killed = tuple(Fact("exit", NOW + 17, rank=rank, signal=9) for rank in (2, 3))

        _, answers = run(DETECTOR, [look(18, {1: 0.0}, facts=killed)], state)

        (closed,) = verdicts_in(answers)
        assert closed.closed is CloseReason.MERGED
        assert closed.verdict == "n1 went silent, then its ranks ended."

    def test_is_named_as_well_when_the_ranks_of_all_others_have_ended(self) -> None:
        crashed = tuple(Fact("exit", NOW + 5, rank=rank, code=1) for rank in range(12) if rank not in (2, 3))

        _, answers = run(DETECTOR, [look(16, {1: 0.0}, facts=crashed)])

        (verdict,) = verdicts_in(answers)
        assert (verdict.subject.kind, verdict.subject.node) == (SubjectKind.NODE, "n1")

    def test_the_clock_starts_anew_after_a_blind_period(self) -> None:
        _, blind = run(DETECTOR, [look(300, {1: 0.0}, watch_began_at=NOW + 290)])
        _, later = run(DETECTOR, [look(306, {1: 0.0}, watch_began_at=NOW + 290)])

        assert verdicts_in(blind) == ()
        assert verdicts_in(later)[0].began_at == NOW + 290

    def test_a_node_whose_ranks_all_ended_is_no_news(self) -> None:
        gone = tuple(Fact("exit", NOW, rank=rank, code=code) for rank, code in ((2, 0), (3, 1)))

        assert verdicts_in(run(DETECTOR, [look(60, {1: 0.0}, facts=gone)])[1]) == ()


class TestSeveral:
    def test_three_silent_nodes_are_one_finding_about_what_they_share(self) -> None:
        state, two = run(DETECTOR, [look(16, {1: 0.0, 2: 0.0})])
        _, three = run(DETECTOR, [look(18, {1: 0.0, 2: 0.0, 4: 0.0})], state)

        assert {v.subject.key for v in verdicts_in(two)} == {"NODE:n1", "NODE:n2"}
        merged = [v for v in verdicts_in(three) if v.closed]
        (shared,) = [v for v in verdicts_in(three) if not v.closed]
        assert {v.closed for v in merged} == {CloseReason.MERGED}
        assert (shared.subject.kind, shared.subject.nodes) == (SubjectKind.CLUSTER, ("n1", "n2", "n4"))

    def test_everybody_silent_is_the_run_and_says_that_nothing_else_is_judged(self) -> None:
        _, answers = run(DETECTOR, [look(16, dict.fromkeys(range(6), 0.0))])

        (verdict,) = verdicts_in(answers)
        assert (verdict.subject.kind, verdict.level) == (SubjectKind.RUN, Level.CRITICAL)
        assert "No other verdict" in verdict.next

    def test_a_run_on_one_node_is_called_so(self) -> None:
        _, answers = run(DETECTOR, [look(20, {0: 0.0}, nodes=1)])

        assert verdicts_in(answers)[0].verdict.endswith("from this run for 20 s: its only node is silent.")

    def test_a_run_of_one_node_is_silent_as_a_run(self) -> None:
        _, answers = run(DETECTOR, [look(16, {0: 0.0}, nodes=1)])

        assert verdicts_in(answers)[0].subject.kind is SubjectKind.RUN


def test_a_sender_whose_node_is_not_known_is_heard_and_missed_by_its_own_name() -> None:
    window = look(16, {1: 0.0})
    nowhere = replace(window.placement, node=np.full(12, -1, np.int32), nodes=())
    beats = replace(window.beats, sender_node=np.full(6, -1, np.int32))

    _, answers = run(DETECTOR, [replace(window, placement=nowhere, beats=beats)])

    (verdict,) = verdicts_in(answers)
    assert (verdict.subject.node, verdict.victims) == ("n1", ())


def test_an_attempt_whose_ranks_have_all_ended_is_silent_by_right() -> None:
    state, silent = run(DETECTOR, [look(16, {0: 0.0}, nodes=1)])
    exits = tuple(Fact("exit", NOW + 17, rank=rank, code=0) for rank in (0, 1))

    _, answers = run(DETECTOR, [look(300, {0: 0.0}, nodes=1, facts=exits)], state)

    assert len(verdicts_in(silent)) == 1
    (answer,) = answers
    assert isinstance(answer, Healthy)
    assert answer.sentence == "All 2 ranks have ended: nobody has to speak now."


def test_an_attempt_that_was_never_heard_is_undecided() -> None:
    _, answers = run(DETECTOR, [look(600, dict.fromkeys(range(6), float("nan")))])

    (answer,) = answers
    assert isinstance(answer, Undecided)
