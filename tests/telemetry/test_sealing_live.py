"""Sealing beside a fold and beside readers, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from django.db import close_old_connections, connection, transaction

from apps.telemetry.models import HotBlock, Series
from apps.telemetry.selectors.columns import columns_settled
from apps.telemetry.selectors.heatmap import heatmap_open, heatmap_read
from apps.telemetry.selectors.pictures import Ask
from apps.telemetry.services.sealing import series_seal
from apps.telemetry.stores.inbox import fold_lock_wait
from tests.telemetry.values import patch_write, series_write

pytestmark = pytest.mark.django_db(transaction=True)

STEPS, BATCH = 960, 12


def expected(steps: np.ndarray) -> np.ndarray:
    """Whole numbers below 2,048 survive rounding: what is read must be exactly this."""
    return (1 + (np.arange(8)[:, None] * 131 + steps[None, :]) % 2000).astype(np.float32)


def fold(attempt_id: int, first: int, *, now: datetime) -> None:
    """Write a batch as the fold does: under the owner's lock, late values into patches."""
    steps = np.arange(first, first + BATCH)
    with transaction.atomic():
        fold_lock_wait("ATTEMPT", attempt_id)
        cells = expected(steps)
        cells[3, 0] = np.nan
        series_write(attempt_id, {"compute_s": cells}, first=first, now=now)
        late = first - 20 * BATCH
        if late >= 0:  # the value that was left out comes twenty batches later
            value = float(expected(np.array([late]))[3, 0])
            if late < Series.objects.get(kind="RANK", owner_id=attempt_id).hot_floor:
                patch_write(attempt_id, "compute_s", [(3, late, value)], now=now, fill=True)
            else:
                one = np.full((8, 1), np.nan)
                one[3] = value
                series_write(attempt_id, {"compute_s": one}, first=late, now=now)


class Beside:
    """Runs something again and again in a thread until it is told to stop; keeps what went wrong."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.over, self.error, self.times = work, threading.Event(), None, 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                self.work()
                self.times += 1
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def stop(self) -> None:
        self.over.set()
        self.thread.join(60)
        if self.error is not None:
            raise self.error


def test_readers_see_every_value_while_two_sealers_and_a_fold_are_at_work(attempt: Any, now: datetime) -> None:
    seen = np.zeros((8, STEPS), bool)

    def seal() -> None:
        series_seal(kind="RANK", owner_id=attempt.id, now=now)

    def look() -> None:
        picture = heatmap_read(heatmap_open(attempt, Ask(metric="compute_s", first=0, end=STEPS, columns=STEPS)))
        drawn = picture.drawn
        there = ~np.isnan(drawn.cells)
        assert np.array_equal(drawn.cells[there], expected(drawn.steps)[there])
        assert there[seen[:, drawn.steps]].all(), "a value that was there is gone"
        seen[:, drawn.steps] |= there

    fold(attempt.id, 0, now=now)
    beside = [Beside(seal), Beside(seal), Beside(look)]
    try:
        for first in range(BATCH, STEPS, BATCH):
            fold(attempt.id, first, now=now)
    finally:
        for one in beside:
            one.stop()
    series_seal(kind="RANK", owner_id=attempt.id, now=now)
    look()
    close_old_connections()

    settled = columns_settled(attempt_id=attempt.id, after_step=None, limit=2 * STEPS)
    missing = np.argwhere(np.isnan(settled.values["compute_s"])).tolist()
    floor = Series.objects.get().hot_floor
    assert missing == [[3, step] for step in range(STEPS - 20 * BATCH, STEPS, BATCH)]
    assert floor >= STEPS - 128 - 64
    assert not HotBlock.objects.filter(col__lt=floor).exists()
    assert min(one.times for one in beside) > 0
