"""The training loop: what it does, what it tells the client, and what each fault does to it."""

import gc
import math
import time
from pathlib import Path

import numpy as np
import pytest

from apps.rehearsal.trainer import checkpoint, rank
from apps.rehearsal.trainer.faults import faults_write
from tests.rehearsal.crew import ThreadCrew, wait_until


def test_all_ranks_reach_the_same_state_and_the_loss_falls(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=60)

    states = crew.run()

    assert all(np.array_equal(states[0].flat(), state.flat()) for state in states)
    losses = [np.mean([pace.values[step]["loss"] for pace in crew.paces]) for step in (1, 60)]
    assert losses[1] < 0.4 * losses[0]
    assert crew.paces[2].steps_done == list(range(1, 61))


def test_every_step_goes_through_the_phases_in_order(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=4, checkpoint_every=2)

    crew.run()

    usual = ["data", "compute", "communication", "optimizer"]
    assert [phase for step, phase in crew.paces[1].phases if step == 3] == usual
    assert [phase for step, phase in crew.paces[1].phases if step == 4] == [*usual, "checkpoint"]
    assert (None, "startup") in crew.paces[1].phases


def test_a_save_is_written_by_all_saved_once_and_the_oldest_go(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=8, checkpoint_every=2, keep=2)

    crew.run()

    assert [[fields["step"] for fields in pace.told("WRITTEN")] for pace in crew.paces] == [[2, 4, 6, 8]] * 4
    assert [[fields["step"] for fields in pace.told("SAVED")] for pace in crew.paces] == [[2, 4, 6, 8], [], [], []]
    assert [fields["step"] for fields in crew.paces[0].told("DELETED")] == [2, 4]
    assert checkpoint.checkpoint_steps(tmp_path / rank.CHECKPOINTS) == [6, 8]
    assert crew.paces[0].told("SAVED")[0]["bytes"] == 8 * rank.model.PARAMETERS


def test_a_smaller_world_goes_on_where_the_larger_one_was_to_the_bit(tmp_path: Path) -> None:
    whole = ThreadCrew(tmp_path, steps=4, checkpoint_every=4).run()
    saved = checkpoint.checkpoint_load(tmp_path / rank.CHECKPOINTS, step=4)

    smaller = ThreadCrew(tmp_path, nodes="a", first_step=4, attempt="try-2", steps=6, checkpoint_every=4)
    states = smaller.run()

    assert saved.tobytes() == whole[0].flat().tobytes()
    assert smaller.paces[1].steps_done == [5, 6]
    assert states[0].step == 6
    restored = smaller.paces[0].told("RESTORED")
    assert [(fields["step"], fields["kind"]) for fields in restored] == [(4, "restore")]
    assert (None, "restore") in smaller.paces[1].phases


def test_the_same_world_resumed_ends_in_the_very_state_of_one_that_never_stopped(tmp_path: Path) -> None:
    straight = ThreadCrew(tmp_path, steps=8, checkpoint_every=4).run()

    resumed = ThreadCrew(tmp_path, first_step=4, attempt="try-2", steps=8, checkpoint_every=4).run()

    assert straight[0].flat().tobytes() == resumed[3].flat().tobytes()


def test_going_back_drops_the_checkpoints_of_the_given_up_continuation(tmp_path: Path) -> None:
    ThreadCrew(tmp_path, steps=6, checkpoint_every=2).run()

    crew = ThreadCrew(tmp_path, first_step=2, attempt="try-2", steps=3, checkpoint_every=2)
    crew.run()

    assert [fields["step"] for fields in crew.paces[0].told("DELETED")] == [4, 6]
    assert checkpoint.checkpoint_steps(tmp_path / rank.CHECKPOINTS) == [2]


def test_a_slow_rank_is_busy_while_the_others_wait(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=3, step_s=0.05)
    crew.fault("slow_rank", rank=2, value=8)

    crew.run()

    assert crew.loads[2] > max(crew.loads[:2] + crew.loads[3:])


def test_nan_shows_in_one_rank_only_and_spoils_nobody(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=2)
    crew.fault("nan", rank=1)

    states = crew.run()

    told = [pace.values[2] for pace in crew.paces]
    assert [math.isnan(values["loss"]) for values in told] == [False, True, False, False]
    assert [math.isnan(values["grad_norm"]) for values in told] == [False, True, False, False]
    assert all(np.isfinite(state.flat()).all() for state in states)


def test_what_is_saved_while_steps_are_left_out_does_not_push_out_the_save_before(tmp_path: Path) -> None:
    ThreadCrew(tmp_path, steps=4, checkpoint_every=2, keep=2).run()
    crew = ThreadCrew(tmp_path, first_step=4, attempt="try-2", steps=12, checkpoint_every=2, keep=2)
    crew.fault("nan", rank=1)

    crew.run()

    assert checkpoint.checkpoint_steps(tmp_path / rank.CHECKPOINTS) == [4, 10, 12]


def test_once_no_step_is_left_out_saves_rotate_as_ever(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=12, checkpoint_every=2, keep=2)

    crew.run()

    assert checkpoint.checkpoint_steps(tmp_path / rank.CHECKPOINTS) == [10, 12]


def test_a_hang_holds_everybody_until_it_is_taken_away(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=5)
    crew.fault("hang", rank=3)

    crew.start()
    wait_until(lambda: all(pace.phases[-1:] == [(1, "communication")] for pace in crew.paces))
    assert all(not pace.steps_done for pace in crew.paces)
    faults_write(tmp_path, ())
    states = crew.join()

    assert [state.step for state in states] == [5] * 4


def test_a_rank_that_hangs_on_its_way_is_not_yet_in_the_collective(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=2)
    crew.fault("hang", rank=3, value=1)

    crew.start()
    where = [[(1, "communication")]] * 3 + [[(1, "compute")]]
    wait_until(lambda: [pace.phases[-1:] for pace in crew.paces] == where)
    faults_write(tmp_path, ())

    assert [state.step for state in crew.join()] == [2] * 4


def test_a_slow_store_makes_shards_queue_one_behind_the_other(tmp_path: Path) -> None:
    crew = ThreadCrew(tmp_path, steps=1, checkpoint_every=1)
    crew.fault("slow_checkpoint", value=0.05)

    crew.run()

    queued_s = sorted(pace.told("WRITTEN")[0]["queue_s"] for pace in crew.paces)
    assert all(queued_s[place] >= place * 0.05 - 0.01 for place in range(4))
    assert crew.paces[0].told("SAVED")[0]["duration_s"] >= 0.2


def test_a_collection_pause_is_spent_by_the_collector(tmp_path: Path) -> None:
    spent_s: list[float] = []
    began = [0.0]

    def note(phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        spent_s.append(now - began[0]) if phase == "stop" else began.__setitem__(0, now)

    gc.callbacks.append(note)
    try:
        rank.collect_garbage(0.05)
    finally:
        gc.callbacks.remove(note)

    assert sum(spent_s) > 0.025


def test_a_collection_pause_is_nothing_but_collection() -> None:
    before = len(gc.get_objects())

    began = time.process_time()
    rank.collect_garbage(0.05)

    assert time.process_time() > began
    assert len(gc.get_objects()) < before + 1000


def test_pauses_cost_about_as_much_wherever_they_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(rank, "collect_garbage", paused.append)
    one = ThreadCrew(tmp_path, steps=100)
    one.fault("gc_pauses", rank=0)

    one.run()

    assert 35 <= len(paused) <= 65


def test_pauses_come_on_some_ranks_at_some_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(rank, "collect_garbage", paused.append)
    crew = ThreadCrew(tmp_path, steps=100)
    crew.fault("gc_pauses", value=40)

    crew.run()

    assert 30 <= len(paused) <= 100
    assert set(paused) == {0.04}
