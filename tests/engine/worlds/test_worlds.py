"""Worlds are the same each time they are told, and hold what their truth says."""

import numpy as np
import pytest

from apps.engine.detection import Phase, SubjectKind, Trigger
from apps.engine.detectors import registry
from apps.engine.worlds import (
    BEGAN_AT,
    WORLDS,
    World,
    clock_window,
    columns_window,
    placement_of,
    settled_steps,
    tell,
    windows,
)

EACH = pytest.mark.parametrize("world", [pytest.param(world, id=name) for name, world in WORLDS.items()])


@EACH
class TestEveryWorld:
    def test_is_told_the_same_way_for_the_same_seed_and_otherwise_for_another(self, world: World) -> None:
        one, same, other = tell(world, seed=4), tell(world, seed=4), tell(world, seed=5)

        assert one.compute.tobytes() == same.compute.tobytes()
        assert one.start.tobytes() == same.start.tobytes()
        assert one.compute.tobytes() != other.compute.tobytes()

    def test_its_truths_name_detectors_and_ranks_on_their_own_node(self, world: World) -> None:
        for truth in world.truths:
            assert truth.cause in registry()
            assert 0 <= truth.since_step < world.steps
            if truth.subject.rank is not None:
                assert truth.subject.node == world.node_name(truth.subject.rank)

    def test_steps_follow_each_other_and_time_never_runs_back(self, world: World) -> None:
        story = tell(world)
        finite = story.start[np.isfinite(story.start)]

        assert (np.diff(finite) > 0).all()
        assert len(finite) == settled_steps(story) + 1

    def test_the_clock_never_hears_the_future(self, world: World) -> None:
        story = tell(world)
        end = float(story.start[np.isfinite(story.start)][-1])
        for now in np.linspace(BEGAN_AT, end + 100, 25).tolist():
            window = clock_window(story, now)

            assert not (window.beats.heard_at > now).any()
            assert all(fact.heard_at <= now for fact in window.facts)
            assert all(word.heard_at <= now for word in window.checkpoints)


class TestOneStory:
    def test_a_rank_starts_steps_waits_and_ends(self) -> None:
        world = WORLDS["steady_run"]
        story = tell(world)
        everybody = np.ones(world.ranks)

        def phases(at: float) -> set[Phase]:
            return {Phase(int(p)) for p in story.rank_states(everybody * at)[1]}

        begin = float(story.start[50])
        assert phases(BEGAN_AT + 1) == {Phase.STARTUP}
        assert phases(float(story.start[0]) + 1) == {Phase.FIRST_STEP}
        assert phases(begin + 0.1) == {Phase.DATA}
        assert phases(begin + 1.5) == {Phase.COMPUTE}
        assert Phase.COMMUNICATION in phases(begin + 3.3)
        assert phases(float(story.start[100]) - 5) == {Phase.CHECKPOINT}
        assert phases(float(story.start[-1]) + 1) == {Phase.SHUTDOWN}

    def test_in_a_hang_one_rank_stays_outside_and_all_others_inside(self) -> None:
        story = tell(WORLDS["hang_at_step_412"])

        window = clock_window(story, float(story.start[412]) + 60)

        assert window.beats.step.tolist() == [412] * 16
        assert np.flatnonzero(window.beats.phase != Phase.COMMUNICATION).tolist() == [6]

    def test_a_lost_node_falls_silent_and_an_unheard_one_goes_on(self) -> None:
        lost, unheard = tell(WORLDS["lost_node"]), tell(WORLDS["unheard_node"])

        gone = clock_window(lost, float(lost.start[130]) + 60).beats
        voiceless = clock_window(unheard, float(unheard.start[160])).beats

        assert (gone.step[:12] == 130).all()
        assert (gone.step[12:] < 131).all()
        assert voiceless.step.max() >= 158
        assert (voiceless.step[4:8] <= 140).all()

    def test_columns_hold_what_ranks_measure_and_the_slowest_waits_least(self) -> None:
        story = tell(WORLDS["one_hot_gpu"])

        columns = columns_window(story, 300, 340).columns

        slow = columns.values["compute_s"].argmax(axis=0)
        assert (slow == 5).mean() > 0.9
        assert (columns.values["communication_s"].argmin(axis=0) == slow).all()

    def test_stages_are_blocks_and_nodes_are_filled_in_order(self) -> None:
        placement = placement_of(WORLDS["whole_stage_slow"])

        assert placement.stage.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
        assert placement.node.tolist() == placement.stage.tolist()

    def test_windows_of_columns_hold_each_step_once(self) -> None:
        story = tell(WORLDS["crash_at"])

        steps = [s for window in windows(story, Trigger.COLUMNS, columns=7) for s in window.columns.steps.tolist()]

        assert steps == list(range(120))


def test_there_is_a_steady_world_and_one_of_every_kind_of_subject_the_detectors_name() -> None:
    kinds = {truth.subject.kind for world in WORLDS.values() for truth in world.truths}

    assert WORLDS["steady_run"].truths == ()
    assert {SubjectKind.RANK, SubjectKind.NODE, SubjectKind.RUN} <= kinds
    assert {truth.cause for world in WORLDS.values() for truth in world.truths} == set(registry())
