"""What every detector must hold, whatever its cause. A new module in `apps/engine/detectors` is tested here by itself."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from apps.engine.detection import (
    Certainty,
    Detector,
    Level,
    ProposalKind,
    Subject,
    Trigger,
    Undecided,
    Verdict,
    Window,
    verdicts_in,
)
from apps.engine.detectors import registry
from apps.engine.worlds import WORLDS, Truth, World, columns_window, settled_steps, tell, windows
from tests.engine.detectors.kit import found, permuted, print_of, run, silenced, still_open, stored

DETECTORS = [pytest.param(detector, id=cause) for cause, detector in registry().items()]
OWN = [
    pytest.param(detector, world, truth, id=f"{truth.cause}-{world.name}")
    for world in WORLDS.values()
    for truth in world.truths
    for detector in [registry()[truth.cause]]
]
AFTER_S = 200.0
"""How long the clock looks on: past the confirmation of a hang."""


def own_world(detector: Detector) -> World:
    """A world in which this detector must find something."""
    return next(world for world in WORLDS.values() if any(truth.cause == detector.cause for truth in world.truths))


def around(detector: Detector, world: World, *, columns: int = 1) -> Iterator[Window]:
    """The windows of a world; the clock looks from a while before the fault until after it."""
    yield from windows(tell(world), detector.trigger, columns=columns, until_s=AFTER_S)


def mapped(verdict: Verdict, new: np.ndarray) -> Verdict:
    """The verdict of a world in which rank r is called new[r], without what only reads differently."""
    subject = verdict.subject
    rank = None if subject.rank is None else int(new[subject.rank])
    cells = tuple(replace(cell, ranks=tuple(sorted(int(new[r]) for r in cell.ranks))) for cell in verdict.cells)
    victims = tuple(sorted(int(new[r]) for r in verdict.victims))
    evidence = tuple(one for one in verdict.evidence if not isinstance(one.value, str))
    return replace(
        verdict,
        subject=replace(subject, rank=rank),
        victims=victims,
        cells=cells,
        evidence=evidence,
        verdict="",
        why="",
        next="",
    )


@pytest.mark.parametrize("detector", DETECTORS)
class TestEveryDetector:
    """The suite of DESIGN §5 and the conventions."""

    def test_declares_what_it_is_and_why_its_limits_are_what_they_are(self, detector: Detector) -> None:
        assert detector.title
        assert detector.evaluate.__doc__
        for limit in detector.limits:
            assert limit.reason, limit.name
            assert limit.source, limit.name
            assert limit.least <= limit.default <= limit.most
        assert (detector.delay.columns is None) == (detector.trigger is not Trigger.COLUMNS)

    def test_leaves_its_input_unchanged(self, detector: Detector) -> None:
        state = detector.state_fresh()
        for window in around(detector, own_world(detector), columns=40):
            before, kept = print_of(window), state.write()

            after, _ = detector.evaluate(window, state)

            assert print_of(window) == before
            assert state.write() == kept
            state = after

    def test_follows_a_permutation_of_ranks(self, detector: Detector) -> None:
        world = own_world(detector)
        new = np.random.default_rng(7).permutation(world.ranks)
        same = np.arange(world.ranks)

        _, plain = run(detector, around(detector, world, columns=40))
        _, moved = run(detector, (permuted(window, new) for window in around(detector, world, columns=40)))

        expected = {mapped(v, new).identity: mapped(v, new) for v in found(plain).values()}
        assert expected
        assert {v.identity: mapped(v, same) for v in found(moved).values()} == expected

    def test_is_undecided_when_nobody_is_heard(self, detector: Detector) -> None:
        world = own_world(detector)
        everybody = list(range(world.ranks))

        _, answers = run(detector, (silenced(w, everybody) for w in around(detector, world, columns=40)))

        assert {type(answer) for answer in answers} == {Undecided}

    def test_never_names_a_rank_that_sent_nothing(self, detector: Detector) -> None:
        world = WORLDS["steady_run"]
        ranks = [1, 6, 7]

        _, answers = run(detector, (silenced(w, ranks) for w in around(detector, world, columns=40)))

        named = {verdict.subject.rank for verdict in verdicts_in(tuple(answers))}
        assert named & set(ranks) == set()

    def test_is_undecided_below_its_declared_minimum(self, detector: Detector) -> None:
        story = tell(own_world(detector))
        if detector.trigger is Trigger.COLUMNS:
            first = story.world.steps - 20 if settled_steps(story) == story.world.steps else 5
            few = columns_window(story, first, first + detector.minimum.columns - 1)
        else:
            few = silenced(next(windows(story, detector.trigger)), range(story.world.ranks))

        _, answers = detector.evaluate(few, detector.state_fresh())

        assert [type(answer) for answer in answers] == [Undecided]
        assert all(answer.lack and answer.sentence for answer in answers if isinstance(answer, Undecided))

    def test_two_half_windows_are_one_whole(self, detector: Detector) -> None:
        world = own_world(detector)
        if detector.trigger is Trigger.COLUMNS:
            end = settled_steps(tell(world))
            cuts = [end // 7, end // 3, end // 2, end - 3]
            story = tell(world)
            whole_state, whole = run(detector, [columns_window(story, 0, end)])
            edges = [0, *cuts, end]
            parts = [columns_window(story, a, b) for a, b in pairwise(edges)]
            half_state, half = run(detector, parts)
        else:
            looks = list(around(detector, world))
            whole_state, whole = run(detector, looks)
            half_state, half = run(detector, (look for look in looks for _ in range(2)))

        assert half_state.write() == whole_state.write()
        assert found(half) == found(whole)

    def test_its_state_survives_the_store(self, detector: Detector) -> None:
        kept, lost = detector.state_fresh(), detector.state_fresh()
        for window in around(detector, own_world(detector), columns=7):
            kept, plain = detector.evaluate(window, kept)
            lost, after = detector.evaluate(window, stored(lost))

            assert after == plain
            assert stored(lost).write() == kept.write()

    @pytest.mark.slow
    def test_a_steady_world_gives_no_more_than_the_declared_false_alarms(self, detector: Detector) -> None:
        world = replace(WORLDS["steady_run"], steps=10_000 if detector.trigger is Trigger.COLUMNS else 4_900)
        state, alarms, seen = detector.state_fresh(), set(), 0
        for window in windows(tell(world, seed=3), detector.trigger):
            state, answers = detector.evaluate(window, state)
            alarms |= {(v.identity, v.since_step) for v in verdicts_in(answers)}
            seen += 1

        assert seen >= 9_900
        assert len(alarms) <= detector.false_alarm_p * seen


@pytest.mark.parametrize(("detector", "world", "truth"), OWN)
def test_its_own_world_is_found_within_the_declared_delay(detector: Detector, world: World, truth: Truth) -> None:
    story = tell(world)
    state = detector.state_fresh()
    for window in windows(story, detector.trigger, until_s=AFTER_S):
        state, answers = detector.evaluate(window, state)
        hits = [v for v in verdicts_in(answers) if v.identity == (truth.cause, truth.subject.key) and not v.closed]
        if hits and (truth.cause != "hang" or hits[0].certainty is Certainty.CONFIRMED):
            break
    else:
        pytest.fail("never found")

    hit = hits[0]
    assert hit.subject.node == truth.subject.node
    if detector.delay.columns is not None:
        evidence = ~columns_window(story, truth.since_step, int(hit.found_step or 0) + 1).columns.skip
        assert evidence.sum() <= detector.delay.columns
    else:
        assert window.now - story.start[truth.since_step] <= (detector.delay.seconds or 0)


@pytest.mark.parametrize("world", [pytest.param(world, id=name) for name, world in WORLDS.items()])
def test_a_world_is_told_apart_by_its_cause_and_only_a_nodes_own_is_to_be_excluded(world: World) -> None:
    story = tell(world)
    truths = {truth.cause for truth in world.truths}
    own = {truth.subject.node for truth in world.truths if truth.subject.node}

    verdicts = []
    for detector in registry().values():
        _, answers = run(detector, windows(story, detector.trigger, columns=10, look_every_s=6.0, until_s=AFTER_S))
        verdicts += [verdict for verdict in verdicts_in(tuple(answers)) if verdict.level is not Level.INFO]
    excluding = [verdict for verdict in verdicts if verdict.proposal.kind is ProposalKind.EXCLUDE_NODE]

    assert truths <= {verdict.cause for verdict in verdicts} <= truths | set(world.also)
    assert {verdict.certainty for verdict in excluding} <= {Certainty.CONFIRMED}
    assert {verdict.proposal.node for verdict in excluding} <= own


def test_the_registry_finds_every_module_by_itself() -> None:
    assert list(registry()) == sorted(registry())
    assert {"checkpoint_stale", "compute_straggler", "hang", "no_telemetry", "numeric_fault", "rank_lost"} <= set(
        registry()
    )


def test_a_subject_is_the_same_subject_in_every_window() -> None:
    rank = Subject(WORLDS["one_hot_gpu"].truths[0].subject.kind, rank=5, node="node-01")

    assert rank.key == replace(rank, node=None).key == "RANK:5"


def test_still_open_means_the_last_word_was_not_a_closing_one() -> None:
    detector = registry()["compute_straggler"]

    _, answers = run(detector, windows(tell(WORLDS["slow_spell"]), detector.trigger, columns=20))

    assert found(answers)
    assert still_open(answers) == {}
