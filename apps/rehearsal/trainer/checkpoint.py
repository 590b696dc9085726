"""Checkpoints on disk. One counts only when it is marked complete, and only if every shard still has its digest.

`step-00000120/` holds one file per shard, `manifest.json` with the digests, and `COMPLETE`, which comes last. Until the
manifest stands, the folder is called `step-00000120.partial`: whatever dies in between leaves nothing that could be
taken for a checkpoint. Shards are slices of one flat vector, so that any number of ranks can restore them.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MARK = "COMPLETE"
MANIFEST = "manifest.json"
FORMAT = 1
DIGEST_BYTES = 32


class CheckpointBroken(Exception):
    """A checkpoint is incomplete or its bytes are not those that were saved."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One written slice: its digest, raw, and its size."""

    digest: bytes
    size_bytes: int


def shard_write(root: Path, *, step: int, index: int, count: int, flat: NDArray[np.float32]) -> Shard:
    """Write slice `index` of `count` of `flat` into the unfinished checkpoint of `step`; it is on disk on return."""
    folder = _partial(root, step)
    folder.mkdir(parents=True, exist_ok=True)
    content = np.ascontiguousarray(np.array_split(flat, count)[index], dtype="<f4").tobytes()
    _write_synced(folder / _shard_name(index), content)
    return Shard(digest=hashlib.sha256(content).digest(), size_bytes=len(content))


def checkpoint_commit(root: Path, *, step: int, shards: list[Shard]) -> Path:
    """Make the written shards of `step` a checkpoint: manifest, final name, mark, in this order; return its folder."""
    partial, final = _partial(root, step), _final(root, step)
    names = [{"file": _shard_name(i), "sha256": s.digest.hex(), "bytes": s.size_bytes} for i, s in enumerate(shards)]
    manifest = {"format": FORMAT, "step": step, "shards": names}
    _write_synced(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
    _sync_folder(partial)
    checkpoint_delete(root, step=step)
    os.rename(partial, final)
    _write_synced(final / f"{MARK}.new", b"")
    os.rename(final / f"{MARK}.new", final / MARK)
    _sync_folder(final)
    _sync_folder(root)
    return final


def checkpoint_begin(root: Path, *, step: int) -> None:
    """Remove what an earlier, broken save of `step` may have left, and make the folder for a new one."""
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(_partial(root, step), ignore_errors=True)
    _partial(root, step).mkdir()


def checkpoint_load(root: Path, *, step: int) -> NDArray[np.float32]:
    """Return the flat vector that was saved at `step`, bit for bit.

    Raises: CheckpointBroken when the mark, a shard or a digest is not right.
    """
    folder = _final(root, step)
    if not (folder / MARK).exists():
        raise CheckpointBroken(f"the checkpoint of step {step} is not complete")
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        contents = [_shard_read(folder, entry) for entry in manifest["shards"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointBroken(f"the checkpoint of step {step} cannot be read: {error}") from error
    return np.frombuffer(b"".join(contents), dtype="<f4").astype(np.float32)


def checkpoint_steps(root: Path) -> list[int]:
    """Return the steps of all complete checkpoints, ascending."""
    try:
        folders = list(root.iterdir())
    except FileNotFoundError:
        return []
    names = (folder.name.partition("-") for folder in folders if (folder / MARK).exists())
    return sorted(int(number) for word, _, number in names if word == "step" and number.isdecimal())


def checkpoint_choose(root: Path, *, wanted: int | None) -> int:
    """Return the step to resume from: `wanted`, else the newest sound one not past it, else 0 for a fresh start.

    Without a wish, the newest sound one. Nothing older than `wanted` is taken while `wanted` itself is sound.
    """
    for step in reversed(checkpoint_steps(root)):
        if wanted is not None and step > wanted:
            continue
        try:
            checkpoint_load(root, step=step)
        except CheckpointBroken:
            continue
        return step
    return 0


def checkpoint_delete(root: Path, *, step: int) -> bool:
    """Remove the checkpoint of `step`; its mark goes first. Return whether there was one."""
    folder = _final(root, step)
    existed = (folder / MARK).exists()
    (folder / MARK).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return existed


def checkpoints_rotate(root: Path, *, keep: int, sound: int | None = None) -> list[int]:
    """Remove all but the newest `keep` complete checkpoints and that of step `sound`; return the steps that went, ascending."""
    old = checkpoint_steps(root)[: -keep or None]
    return [step for step in old if step != sound and checkpoint_delete(root, step=step)]


def checkpoints_discard_after(root: Path, *, step: int) -> list[int]:
    """Remove checkpoints past `step`: they belong to a continuation that was given up. Return their steps."""
    return [later for later in checkpoint_steps(root) if later > step and checkpoint_delete(root, step=later)]


def _shard_read(folder: Path, entry: dict[str, str]) -> bytes:
    content = (folder / Path(entry["file"]).name).read_bytes()
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointBroken(f"{folder.name}/{entry['file']} is not what was saved")
    return content


def _shard_name(index: int) -> str:
    return f"shard-{index:05d}.f32"


def _final(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def _partial(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}.partial"


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
