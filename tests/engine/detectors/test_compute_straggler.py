"""A slow rank is named against its peers; a slow stage and a moving rank are not."""

from pathlib import Path

import numpy as np
import pytest

from apps.engine.detection import (
    Certainty,
    CloseReason,
    Healthy,
    Level,
    PastFault,
    ProposalKind,
    State,
    SubjectKind,
    Undecided,
    Verdict,
    skip_columns,
    verdicts_in,
)
from apps.engine.detectors.compute_straggler import DETECTOR
from apps.engine.readers.step_csv import step_csv_read
from tests.engine.detectors.kit import columns_window, found, run, still_open

TRACES = Path(__file__).parents[3].parent / "shared" / "samples" / "straggler-traces"
traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of real traces is not there")


def paces(ranks: int, steps: int, *, cv: float = 0.02, seed: int = 0) -> np.ndarray:
    """Healthy compute seconds around 3 s."""
    return 3 * (1 + cv * np.random.default_rng(seed).standard_normal((ranks, steps)))


def slowed(ranks: int, steps: int, rank: int, factor: float, first: int = 0, **more: float) -> np.ndarray:
    """The same, with one rank slower from a step on."""
    compute = paces(ranks, steps, **more)
    compute[rank, first:] *= factor
    return compute


def trace(name: str, *, per_node: int, stages: int) -> tuple[State, list[object]]:
    """What is found in a real trace whose ranks are listed stage by stage."""
    with (TRACES / f"bytedance_{name}_compute_seconds_step_x_rank.csv").open() as lines:
        table = step_csv_read(lines)
    state, answers = run(DETECTOR, [columns_window(table.values, per_node=per_node, stages=stages)])
    return state, list(answers)


@traces
class TestRealTraces:
    def test_the_one_slow_worker_is_named_with_its_lag(self) -> None:
        _, answers = trace("AR", per_node=2, stages=4)

        (verdict,) = verdicts_in(answers)
        assert verdict.subject.rank == 0
        assert round(verdict.score, 2) == 2.35
        assert verdict.certainty is Certainty.CONFIRMED
        assert verdict.cost_s == pytest.approx(25.0, abs=0.5)

    def test_a_slow_last_stage_is_the_partition(self) -> None:
        _, answers = trace("ST", per_node=2, stages=4)

        (answer,) = answers
        assert isinstance(answer, Undecided)
        assert "the partition" in answer.sentence
        assert "Stage 3 takes 1.63×" in answer.sentence

    def test_long_sequences_name_no_worker(self) -> None:
        _, answers = trace("SE", per_node=8, stages=2)

        assert verdicts_in(answers) == ()


class TestOneSlowRank:
    @pytest.mark.parametrize("ranks", [4, 8, 64, 512])
    def test_ten_percent_at_two_percent_noise_is_found_within_ten_steps(self, ranks: int) -> None:
        delays = []
        for seed in range(40):
            windows = [columns_window(slowed(ranks, 60, 1, 1.10, first=40, seed=seed))]
            verdict = found(run(DETECTOR, windows)[1]).get(("compute_straggler", "RANK:1"))
            delays.append((verdict.found_step or 0) - 50 + 1 if verdict else 99)

        assert np.mean(np.array(delays) <= 10) >= 0.95
        assert np.median(delays) <= 8

    @pytest.mark.slow
    def test_24_000_healthy_steps_of_64_ranks_raise_nothing(self) -> None:
        rng, state, raised = np.random.default_rng(5), DETECTOR.state_fresh(), 0
        for first in range(0, 24_000, 400):
            compute = 3 * (1 + 0.02 * rng.standard_normal((64, 400)))
            state, answers = DETECTOR.evaluate(columns_window(compute, first=first, per_node=8), state)
            raised += len(verdicts_in(answers))

        assert raised == 0

    @pytest.mark.parametrize("cv", [0.05, 0.10])
    def test_a_noisy_healthy_run_raises_nothing(self, cv: float) -> None:
        _, answers = run(DETECTOR, [columns_window(paces(64, 2000, cv=cv, seed=1))])

        assert verdicts_in(answers) == ()

    def test_a_spike_is_no_straggler(self) -> None:
        compute = paces(8, 100)
        compute[3, 60:63] *= 3

        _, answers = run(DETECTOR, [columns_window(compute)])

        assert verdicts_in(answers) == ()

    def test_says_since_when_and_what_it_costs(self) -> None:
        _, answers = run(DETECTOR, [columns_window(slowed(8, 80, 5, 1.5, first=40))])

        (verdict,) = verdicts_in(answers)
        assert verdict.since_step == 50
        assert verdict.began_at == pytest.approx(1_800_000_050)
        assert verdict.cost_s == pytest.approx(1.4, abs=0.1)
        assert "every step takes 1.4" in verdict.verdict
        assert verdict.cells[0].ranks == (5,)
        assert set(verdict.cells[0].steps) <= set(range(50, 90))

    def test_is_suspected_first_and_only_a_confirmed_one_proposes_the_node(self) -> None:
        state, early = run(DETECTOR, [columns_window(slowed(8, 48, 5, 1.5, first=40))])
        _, late = run(DETECTOR, [columns_window(slowed(8, 20, 5, 1.5), first=58)], state)

        (suspected,), (confirmed,) = verdicts_in(early), verdicts_in(late)
        assert (suspected.certainty, suspected.proposal.kind) == (Certainty.SUSPECTED, ProposalKind.NONE)
        assert (confirmed.certainty, confirmed.level) == (Certainty.CONFIRMED, Level.CRITICAL)
        assert (confirmed.proposal.kind, confirmed.proposal.node) == (ProposalKind.EXCLUDE_NODE, "n1")
        assert confirmed.identity == suspected.identity
        assert confirmed.found_step == suspected.found_step

    def test_five_percent_that_last_are_found_though_no_step_stands_out(self) -> None:
        _, answers = run(DETECTOR, [columns_window(slowed(48, 500, 20, 1.05, first=100, cv=0.01), per_node=8)])

        verdict = still_open(answers)[("compute_straggler", "RANK:20")]
        assert verdict.subject.node == "n2"
        assert verdict.score == pytest.approx(1.05, abs=0.005)

    def test_closes_after_a_lasting_recovery_and_not_at_the_first_good_step(self) -> None:
        compute = slowed(8, 200, 2, 1.4, first=50)
        compute[2, 100:] /= 1.4

        state, early = run(DETECTOR, [columns_window(compute[:, :110])])
        _, late = run(DETECTOR, [columns_window(compute[:, 110:], first=120)], state)

        assert ("compute_straggler", "RANK:2") in still_open(early)
        assert found(late)[("compute_straggler", "RANK:2")].closed is CloseReason.RECOVERED
        assert isinstance(late[-1], Healthy)

    def test_of_two_ranks_the_slower_is_only_suspected(self) -> None:
        _, answers = run(DETECTOR, [columns_window(slowed(2, 200, 1, 1.5, first=50))])

        (verdict,) = verdicts_in(answers)
        assert verdict.subject.rank == 1
        assert verdict.score == pytest.approx(1.5, abs=0.02)
        assert verdict.certainty is Certainty.SUSPECTED

    def test_the_culprit_waits_least(self) -> None:
        compute = slowed(8, 80, 5, 1.5, first=40)
        waits = compute.max(axis=0) - compute + 0.2

        _, answers = run(DETECTOR, [columns_window(compute, metrics={"communication_s": waits})])

        (verdict,) = verdicts_in(answers)
        (waiting,) = [one for one in verdict.evidence if one.name == "time in collectives"]
        assert float(waiting.value) < float(waiting.reference or 0) / 3


class TestNodeAndStage:
    def test_all_ranks_of_a_node_alike_are_the_node(self) -> None:
        compute = paces(16, 100)
        compute[4:8, 50:] *= 1.2

        _, answers = run(DETECTOR, [columns_window(compute)])

        (verdict,) = still_open(answers).values()
        assert (verdict.subject.kind, verdict.subject.node) == (SubjectKind.NODE, "n1")

    def test_a_rank_that_the_rest_of_its_node_follows_becomes_the_node(self) -> None:
        compute = paces(16, 140)
        compute[4, 50:] *= 1.2
        compute[5:8, 90:] *= 1.2

        _, answers = run(DETECTOR, [columns_window(compute)])

        assert list(still_open(answers)) == [("compute_straggler", "NODE:n1")]
        assert found(answers)[("compute_straggler", "RANK:4")].closed is CloseReason.MERGED

    def test_a_slow_rank_is_compared_inside_its_stage(self) -> None:
        compute = paces(16, 100)
        compute[8:] *= 1.6
        compute[3, 50:] *= 1.3

        _, answers = run(DETECTOR, [columns_window(compute, stages=2)])

        assert list(still_open(answers)) == [("compute_straggler", "RANK:3")]

    def test_a_rank_alone_in_its_stage_cannot_be_compared(self) -> None:
        _, answers = run(DETECTOR, [columns_window(slowed(4, 60, 2, 2.0), stages=4)])

        (answer,) = answers
        assert isinstance(answer, Undecided)
        assert answer.lack

    def test_the_name_follows_the_node_of_this_attempt_and_counts_its_history(self) -> None:
        past = (PastFault(1, "compute_straggler", "n1", 12, 400), PastFault(1, "hang", "n1", 12, 500))

        _, answers = run(DETECTOR, [columns_window(slowed(16, 80, 5, 1.5, first=20), attempts=past)])

        (verdict,) = verdicts_in(answers)
        (history,) = [one for one in verdict.evidence if "earlier attempts" in one.name]
        assert (verdict.subject.node, history.value) == ("n1", 1)


class TestWhatIsNoEvidence:
    def test_first_step_and_saves_are_neither_baseline_nor_evidence(self) -> None:
        compute = paces(8, 400)
        steps = np.arange(400)
        saved = steps % 20 == 19
        compute[2, 0] *= 10
        compute[2, saved] *= 4
        skip = skip_columns(steps, first_step=0, checkpoint_steps=steps[saved].tolist())

        _, answers = run(DETECTOR, [columns_window(compute, first=0, skip=skip)])

        assert verdicts_in(answers) == ()
        assert isinstance(answers[-1], Healthy)

    def test_pauses_for_garbage_collection_are_taken_off(self) -> None:
        compute, pause = paces(8, 100), np.zeros((8, 100))
        pause[3, 40:] = 1.0

        _, answers = run(DETECTOR, [columns_window(compute + pause, metrics={"gc_s": pause})])

        assert verdicts_in(answers) == ()

    def test_a_rank_with_more_tokens_is_not_slow(self) -> None:
        compute, tokens = paces(8, 100), np.full((8, 100), 4096.0)
        compute[3] *= 1.5
        tokens[3] *= 1.5

        _, answers = run(DETECTOR, [columns_window(compute, metrics={"tokens": tokens})])

        assert verdicts_in(answers) == ()

    def test_a_silent_rank_is_never_slow(self) -> None:
        compute = slowed(8, 100, 3, 1.5, first=20)
        compute[3, 24:] = np.nan

        _, answers = run(DETECTOR, [columns_window(compute)])

        assert verdicts_in(answers) == ()

    def test_eight_steps_are_asked_for_in_words(self) -> None:
        _, answers = run(DETECTOR, [columns_window(paces(8, 5))])

        (answer,) = answers
        assert isinstance(answer, Undecided)
        assert answer.lack == ("3 more evidence steps with compute_s of two ranks of one stage",)

    def test_a_limit_set_for_the_run_is_the_one_in_force(self) -> None:
        window = columns_window(
            slowed(8, 100, 3, 1.15, first=20), limits={"straggler_ratio": 1.3, "straggler_lasting_ratio": 2.0}
        )

        _, answers = run(DETECTOR, [window])

        assert verdicts_in(answers) == ()


def test_sixteen_thousand_ranks_are_remembered_in_little_space() -> None:
    state, _ = run(DETECTOR, [columns_window(paces(16_384, 30), per_node=8)])

    size = sum(len(packed["z"]) for packed in state.write()["arrays"].values())

    assert size < 200_000


def test_an_open_verdict_keeps_being_said_in_windows_without_columns() -> None:
    state, answers = run(DETECTOR, [columns_window(slowed(8, 60, 1, 1.5, first=20))])

    _, again = DETECTOR.evaluate(columns_window(np.zeros((8, 0))), state)

    assert isinstance(again[0], Verdict)
    assert again[0].identity == verdicts_in(answers)[0].identity
