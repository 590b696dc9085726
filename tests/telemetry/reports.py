"""Reports as tests write them: into the inbox as the door does, then folded at a moment of the test's choosing."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from apps.telemetry.models import Inbox
from apps.telemetry.selectors.blocks import columns_read
from apps.telemetry.selectors.series import series_of
from apps.telemetry.services.fold import Folded, inbox_fold
from apps.telemetry.services.heads import head_read


def packed(ranks: Iterable[int], steps: Iterable[int], values: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    """The packed form of `steps`; values are float32 [rank, step], plain NaN is absent."""
    bits = np.stack([np.where(np.isnan(array), np.float32("nan"), array) for array in values.values()]).astype("<f4")
    return {
        "ranks": list(ranks),
        "steps": list(steps),
        "names": list(values),
        "f32": base64.b64encode(bits.tobytes()).decode(),
    }


class Site:
    """One attempt's inbox."""

    def __init__(self, attempt_id: int, now: datetime) -> None:
        self.attempt_id = attempt_id
        self.now = now

    def put(
        self,
        *,
        sender: str = "trn001",
        boot: str = "b1",
        seq: int = 1,
        at: float = 0.0,
        sent: float | None = None,
        body_bytes: int = 0,
        **parts: Any,
    ) -> None:
        """Put a report into the inbox, received `at` seconds after `now` (and sent then, if `sent` says nothing)."""
        moment = self.now + timedelta(seconds=at if sent is None else sent)
        body = {"sender": sender, "boot": boot, "seq": seq, "sent_at": moment.isoformat(), **parts}
        self.put_raw(orjson.dumps(body) + b" " * body_bytes, at=at)

    def put_raw(self, body: bytes, *, at: float = 0.0, seq: int = 1) -> None:
        """Put a body into the inbox that need not be a report."""
        try:
            head = head_read(body, scope_kind="ATTEMPT", default_sender="trn001")
            known: dict[str, Any] = {
                "sender": head.sender, "boot": head.boot, "seq": head.seq, "sent_at": head.sent_at,
                "newest_step": head.newest_step, "beats": head.beats, "exits": head.exits, "body": head.body,
            }  # fmt: skip
        except Exception:
            known = {"sender": "trn001", "boot": "b0", "seq": seq, "body": body}
        Inbox.objects.create(
            owner_kind="ATTEMPT",
            owner_id=self.attempt_id,
            scope_kind="ATTEMPT",
            scope_id=self.attempt_id,
            received_at=self.now + timedelta(seconds=at),
            **known,
        )

    def fold(self, after: float = 0.0, **more: Any) -> Folded:
        """Fold at `after` seconds after `now`."""
        return inbox_fold(attempt_id=self.attempt_id, now=self.now + timedelta(seconds=after), **more)

    def value(self, metric: str, steps: Iterable[int]) -> NDArray[np.float32]:
        """The values of a metric, float32 [rank, step]."""
        series = series_of("RANK", self.attempt_id)
        assert series is not None
        read = columns_read(
            series_id=series.id,
            width=series.width,
            numbers={metric: series.numbers[metric]},
            steps=np.array(list(steps), np.int64),
        )
        return read[metric]
