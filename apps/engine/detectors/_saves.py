"""How long saves took and how much of that was waiting for the store; what `checkpoint_queue` decides from."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from apps.engine.detection import Checkpoint, Window

ENDED = ("SAVED", "DELETED")
"""A save that was rotated away was a save; one that failed measures the failure."""

GROWN = 1.2
"""From here on a queue that lengthens is a trend; a few percent are how saves differ. Source: ours."""


@dataclass(frozen=True, slots=True)
class Save:
    """One measured save: `share` 0..1 of `took_s` was waiting; `by_spread`: that is the spread over ranks, a stand-in.

    `lost_s`: how long training stood for the waiting. `lost_share`: of the time since the save before it (or the
    beginning). `gap_steps`: since the save before it, None for the first. `own`: of this attempt.
    """

    step: int
    at: float
    took_s: float
    queue_s: float
    share: float
    by_spread: bool
    lost_s: float
    lost_share: float
    gap_steps: int | None
    shards: int
    own: bool


def saves_in(window: Window) -> list[Save]:
    """Return the saves of the window that tell how long they waited, in order of time.

    Queued is what the slowest shard says of itself (`queue_s`). Where ranks tell only how long their shard took, the
    spread over ranks stands for it: the first shard served waits for nobody, the last one for all.
    Cost: O(n log n). Source: figures §6 (2.03 s a write, 1.89 of it queued: a share of 0.931); the stand-in is ours,
    after case 39 of public reports (least and most over ranks of one save: 1.0 and 10.0 s).
    """
    ended = [one for one in window.checkpoints if one.kind == "save" and one.state in ENDED and one.duration_s]
    newest: dict[tuple[bool, int], Checkpoint] = {}
    for one in sorted(ended, key=lambda one: one.heard_at):
        newest[one.heard_at >= window.attempt.started_at, one.step] = one
    ordered = sorted(newest.items(), key=lambda item: item[1].heard_at)
    saves: list[Save] = []
    before: Checkpoint | None = None
    for (own, _), one in ordered:
        previous = before if own and before is not None and before.heard_at >= window.attempt.started_at else None
        save = _save(window, one, previous, own=own)
        before = one
        if save is not None:
            saves.append(save)
    return saves


def saves_ended(window: Window) -> int:
    """Return how many saves of this attempt ended well, whatever they tell of their time."""
    began = window.attempt.started_at
    own = [one for one in window.checkpoints if one.kind == "save" and one.state in ENDED and one.heard_at >= began]
    return len({one.step for one in own})


def _save(window: Window, one: Checkpoint, previous: Checkpoint | None, *, own: bool) -> Save | None:
    took_s, queue_s = one.duration_s or 0.0, one.queue_s
    by_spread = queue_s is None
    if queue_s is None:
        if one.fastest_s is None or one.shards < 2:
            return None
        queue_s = max(took_s - one.fastest_s, 0.0)
    share = min(queue_s / took_s, 1.0)
    lost_s = share * (took_s if one.blocking_s is None else min(one.blocking_s, took_s))
    since = window.attempt.started_at if previous is None else previous.heard_at
    gap_s = max(one.heard_at - since, took_s)
    return Save(
        step=one.step,
        at=one.heard_at,
        took_s=took_s,
        queue_s=queue_s,
        share=share,
        by_spread=by_spread,
        lost_s=lost_s,
        lost_share=min(lost_s / gap_s, 1.0),
        gap_steps=one.step - previous.step if previous is not None and one.step > previous.step else None,
        shards=one.shards,
        own=own,
    )


def queue_by_writers(saves: Sequence[Save], *, fewer_than: int) -> tuple[int, float] | None:
    """Return (writers, median seconds queued) of the saves with fewest writers, None unless fewer than now wrote then."""
    counts = sorted({save.shards for save in saves if 0 < save.shards < fewer_than})
    return (counts[0], median(save.queue_s for save in saves if save.shards == counts[0])) if counts else None


def grows(saves: Sequence[Save]) -> bool:
    """Return whether at least three saves each waited longer than the one before, the last by a fifth than the first."""
    rising = all(later.queue_s > earlier.queue_s for earlier, later in pairwise(saves))
    return len(saves) >= 3 and rising and saves[-1].queue_s >= GROWN * saves[0].queue_s
