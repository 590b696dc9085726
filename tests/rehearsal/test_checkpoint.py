"""A checkpoint counts only when it is marked complete and every byte is the one that was saved."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apps.rehearsal.trainer import checkpoint
from apps.rehearsal.trainer.checkpoint import CheckpointBroken

FLAT = np.random.default_rng(5).standard_normal(1003, dtype=np.float32)


def shards_written(root: Path, step: int, *, count: int = 4, flat: np.ndarray = FLAT) -> list[checkpoint.Shard]:
    checkpoint.checkpoint_begin(root, step=step)
    return [checkpoint.shard_write(root, step=step, index=i, count=count, flat=flat) for i in range(count)]


def saved(root: Path, *steps: int) -> Path:
    for step in steps:
        folder = checkpoint.checkpoint_commit(root, step=step, shards=shards_written(root, step))
    return folder


@pytest.mark.parametrize("count", [1, 3, 4, 16])
def test_what_was_saved_comes_back_to_the_bit_however_many_ranks_wrote_it(tmp_path: Path, count: int) -> None:
    flat = FLAT.copy()
    flat[:3] = [np.nan, -0.0, np.inf]
    checkpoint.checkpoint_commit(tmp_path, step=20, shards=shards_written(tmp_path, 20, count=count, flat=flat))

    loaded = checkpoint.checkpoint_load(tmp_path, step=20)

    assert loaded.tobytes() == flat.tobytes()


def test_shards_without_a_commit_are_no_checkpoint(tmp_path: Path) -> None:
    shards_written(tmp_path, 20)

    assert checkpoint.checkpoint_steps(tmp_path) == []
    with pytest.raises(CheckpointBroken, match="not complete"):
        checkpoint.checkpoint_load(tmp_path, step=20)


def test_a_folder_without_its_mark_is_no_checkpoint(tmp_path: Path) -> None:
    (saved(tmp_path, 20) / checkpoint.MARK).unlink()

    assert checkpoint.checkpoint_steps(tmp_path) == []
    assert checkpoint.checkpoint_choose(tmp_path, wanted=None) == 0


def flip(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-4])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_a_flipped_bit_a_cut_shard_and_a_missing_one_are_noticed(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    harm(saved(tmp_path, 20) / "shard-00002.f32")

    with pytest.raises(CheckpointBroken):
        checkpoint.checkpoint_load(tmp_path, step=20)


def test_the_wanted_step_is_taken_else_the_newest_sound_one_before_it(tmp_path: Path) -> None:
    saved(tmp_path, 20, 40, 60)

    assert checkpoint.checkpoint_choose(tmp_path, wanted=40) == 40
    assert checkpoint.checkpoint_choose(tmp_path, wanted=59) == 40
    assert checkpoint.checkpoint_choose(tmp_path, wanted=None) == 60
    assert checkpoint.checkpoint_choose(tmp_path, wanted=0) == 0
    (tmp_path / "step-00000060" / "shard-00000.f32").write_bytes(b"spoilt")
    assert checkpoint.checkpoint_choose(tmp_path, wanted=None) == 40


def test_rotation_keeps_the_newest_and_names_what_went(tmp_path: Path) -> None:
    saved(tmp_path, 20, 40, 60, 80)

    gone = checkpoint.checkpoints_rotate(tmp_path, keep=2)

    assert gone == [20, 40]
    assert checkpoint.checkpoint_steps(tmp_path) == [60, 80]
    assert checkpoint.checkpoints_rotate(tmp_path, keep=2) == []


def test_a_continuation_that_was_given_up_leaves_no_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path, 20, 40, 60)

    assert checkpoint.checkpoints_discard_after(tmp_path, step=20) == [40, 60]
    assert checkpoint.checkpoint_steps(tmp_path) == [20]


def test_a_save_of_a_step_that_exists_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    other = FLAT + 1

    checkpoint.checkpoint_commit(tmp_path, step=20, shards=shards_written(tmp_path, 20, count=2, flat=other))

    assert np.array_equal(checkpoint.checkpoint_load(tmp_path, step=20), other)


def test_what_a_broken_save_left_does_not_get_into_the_next_one(tmp_path: Path) -> None:
    shards_written(tmp_path, 20, count=8)

    folder = checkpoint.checkpoint_commit(tmp_path, step=20, shards=shards_written(tmp_path, 20, count=2))

    assert sorted(path.name for path in folder.glob("shard-*")) == ["shard-00000.f32", "shard-00001.f32"]
