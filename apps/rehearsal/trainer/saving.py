"""How the ranks save together: every one its shard, then rank 0 makes them one checkpoint, and the client is told."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apps.rehearsal.trainer import checkpoint
from apps.rehearsal.trainer.checkpoint import DIGEST_BYTES, Shard
from apps.rehearsal.trainer.collectives import Collectives
from apps.rehearsal.trainer.faults import Fault
from apps.rehearsal.trainer.model import State
from apps.rehearsal.trainer.stopping import Stop

QUEUE_FILE = "store.lock"
POLL_S = 0.02


class Saver:
    """Saves, rotates and reports for one rank. `sound`: the newest step saved when no step was left out before it."""

    def __init__(
        self, root: Path, *, keep: int, collectives: Collectives, pace: Any, stop: Stop, sound: int | None = None
    ) -> None:
        self._root = root
        self._keep = keep
        self._ring = collectives
        self._pace = pace
        self._stop = stop
        self._sound = sound

    def save(self, state: State, slow: Fault | None, *, sound: bool = True) -> None:
        """Save `state`; all ranks call it at the same step. `slow`: the store takes one shard at a time, slowly.

        `sound` False: steps were left out since the last save. What is saved then takes the place of no older, sound one.
        """
        began = time.monotonic()
        rank, size = self._ring.rank, self._ring.size
        if rank == 0:
            checkpoint.checkpoint_begin(self._root, step=state.step)
            self._pace.checkpoint(step=state.step, state="STARTED")
        self._ring.barrier()
        with self._turn(slow) as queue_s:
            shard = checkpoint.shard_write(self._root, step=state.step, index=rank, count=size, flat=state.flat())
            if slow is not None:
                self._stop.sleep_until(time.monotonic() + slow.value)
        took_s = time.monotonic() - began
        self._report(state.step, "WRITTEN", duration_s=took_s, queue_s=queue_s, bytes=shard.size_bytes)
        shards = self._shards(shard)
        if rank == 0:
            if sound:
                self._sound = state.step
            self._commit(state.step, shards, began=began, queue_s=queue_s)
        self._ring.barrier()

    def discard_after(self, step: int) -> None:
        """Remove what a given-up continuation saved past `step`; for rank 0, after the restore."""
        for later in checkpoint.checkpoints_discard_after(self._root, step=step):
            self._pace.checkpoint(step=later, state="DELETED")

    def _commit(self, step: int, shards: list[Shard], *, began: float, queue_s: float) -> None:
        checkpoint.checkpoint_commit(self._root, step=step, shards=shards)
        took_s = time.monotonic() - began
        size_bytes = sum(shard.size_bytes for shard in shards)
        self._report(step, "SAVED", duration_s=took_s, queue_s=queue_s, bytes=size_bytes, blocking_s=took_s)
        for old in checkpoint.checkpoints_rotate(self._root, keep=self._keep, sound=self._sound):
            self._pace.checkpoint(step=old, state="DELETED")

    def _shards(self, mine: Shard) -> list[Shard]:
        blobs = self._ring.all_gather(mine.digest + mine.size_bytes.to_bytes(8, "little"))
        return [Shard(blob[:DIGEST_BYTES], int.from_bytes(blob[DIGEST_BYTES:], "little")) for blob in blobs]

    def _report(self, step: int, state: str, **numbers: float) -> None:
        self._pace.checkpoint(step=step, state=state, **{k: round(v, 4) for k, v in numbers.items()})

    @contextmanager
    def _turn(self, slow: Fault | None) -> Iterator[float]:
        """Wait for the store's one place while it is slow; yield the seconds waited."""
        if slow is None:
            yield 0.0
            return
        began = time.monotonic()
        handle = os.open(self._root / QUEUE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _locked(handle):
                self._stop.sleep_until(time.monotonic() + POLL_S)
            yield time.monotonic() - began
        finally:
            os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
