"""Which ranks have left their attempt, by their own or a survivor's word, and who therefore has to speak no more."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from apps.runs.selectors import AttemptRow, placement_of
from apps.telemetry.selectors.facts import FactRow
from apps.telemetry.selectors.ranks import ranks_now
from apps.telemetry.selectors.senders import SenderHeard, senders_heard


@dataclass(frozen=True, eq=False, slots=True)
class Leaving:
    """gone: bool [ranks], who left. exits: how, of those of whom it was told. last_at: when the last of them was heard
    to leave, None if nobody did."""

    gone: NDArray[np.bool_]
    exits: dict[int, FactRow]
    last_at: datetime | None

    @property
    def everybody(self) -> bool:
        """Whether no rank is left."""
        return len(self.gone) > 0 and bool(self.gone.all())


def ranks_left(attempt: AttemptRow, *, now: datetime) -> Leaving:
    """Return who has left: told of an exit, or finished and shutting down. Who is heard again after its exit has not."""
    heard = ranks_now(attempt.id, now)
    size = attempt.world_size or 0
    known = heard.ranks < size
    ranks, beat_at = heard.ranks[known], np.full(size, -np.inf)
    beat_at[ranks] = heard.heard_at[known]
    leaving = np.array([word == "shutdown" for word in heard.phase], np.bool_)[known] if len(known) else known
    left_at = np.full(size, -np.inf)
    left_at[ranks[leaving]] = heard.heard_at[known][leaving]
    exits = {
        rank: fact
        for rank, fact in heard.exited.items()
        if 0 <= rank < size and max(left_at[rank], fact.received_at.timestamp()) >= beat_at[rank]
    }
    for rank, fact in exits.items():
        left_at[rank] = max(left_at[rank], fact.received_at.timestamp())
    gone = np.isfinite(left_at)
    return Leaving(gone, exits, datetime.fromtimestamp(float(left_at[gone].max()), UTC) if gone.any() else None)


def senders_expected(
    attempt: AttemptRow, *, within: timedelta, now: datetime, known: list[SenderHeard] | None = None
) -> list[SenderHeard]:
    """Return the senders of an open attempt that have to speak now, by name: those heard `within` a time of late, and
    of the others those that have a rank left. `known`: its senders, where they were read already."""
    rows = senders_heard([attempt.id])[attempt.id] if known is None else known
    if all(now - row.last_received_at <= within for row in rows):
        return rows
    left = ranks_left(attempt, now=now)
    if not left.gone.any():
        return rows
    if left.everybody:
        return [row for row in rows if now - row.last_received_at <= within]
    placement = placement_of(attempt.id)
    nodes = placement.nodes[: len(left.gone)] if placement is not None else np.zeros(0, np.int64)
    here = {int(node) for node in np.unique(nodes)}
    alive = {int(node) for node in np.unique(nodes[~left.gone[: len(nodes)]])}
    return [
        row for row in rows if row.node_id not in here or row.node_id in alive or now - row.last_received_at <= within
    ]
