"""Who keeps a standing run from going on: the one that did not come, not the ones that wait."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from apps.engine.detection import Phase, Subject, SubjectKind, Window
from apps.engine.detection.arrays import Flags, Ints
from apps.engine.detectors._presence import Presence, left


@dataclass(frozen=True, eq=False, slots=True)
class Culprit:
    """The ranks that hold the others up (none: everyone is inside), and how that is known. `stood`: who was heard while
    the run stood, then or now."""

    ranks: Ints
    how: str
    inside: Flags
    missing: Flags
    stood: Flags


def culprit_of(window: Window, who: Presence, *, stood_at: float) -> Culprit:
    """Return who holds a standing run up.

    stood_at: receive time by which everybody's reports were from after the run stopped. Who was heard later and is silent
    now fell silent in a run that stood already: it counts as it was last heard, and is not why the run stands.

    In this order: ranks that can no longer be heard (of those that had not ended); ranks of an earlier step than the
    others, of those the ones not inside a collective; in the same step the ranks outside a collective while the others
    are in one. If half of several ranks or more would be named, nobody is: then it is the run.
    Cost: O(ranks). Source: figures §11.2 (missing ranks first; a missing rank that itself waits is a victim), case 32.
    """
    beats = window.beats
    stood = who.fresh | (who.missing & (beats.heard_at > stood_at))
    inside = stood & (beats.phase == Phase.COMMUNICATION)
    missing = who.missing & ~stood
    behind = stood & (beats.step == beats.step[stood].min()) & (beats.step < beats.step[stood].max())
    outside = stood & ~inside
    gone = who.missing & left(window)
    for how, named in (
        ("left", gone),
        ("missing", missing),
        ("behind", behind & ~inside if (behind & ~inside).any() else behind),
        ("outside", outside if inside.any() else np.zeros_like(outside)),
    ):
        count = int(named.sum())
        if count == 1 or 0 < 2 * count < int((stood | missing).sum()):
            return Culprit(np.flatnonzero(named).astype(np.int32), how, inside & who.fresh, who.missing, stood)
    how = "inside" if inside.sum() == stood.sum() else "together"
    return Culprit(np.zeros(0, np.int32), how, inside & who.fresh, who.missing, stood)


def subject_of(window: Window, ranks: Ints) -> Subject:
    """Return the subject a set of ranks makes: one rank, the node all are on, else the run.

    >>> subject_of(None, np.zeros(0, np.int32)).key
    'RUN'
    """
    if not len(ranks):
        return Subject(SubjectKind.RUN)
    placement = window.placement
    node = placement.node_name(int(ranks[0]))
    if len(ranks) == 1:
        rank = int(ranks[0])
        return Subject(SubjectKind.RANK, rank=rank, node=node, gpu=placement.gpu(rank))
    if node is not None and len(set(placement.node[ranks].tolist())) == 1:
        return Subject(SubjectKind.NODE, node=node)
    return Subject(SubjectKind.RUN, nodes=tuple(sorted({placement.nodes[i] for i in placement.node[ranks] if i >= 0})))


MOST_VICTIMS = 1024
"""Beyond this many the list says nothing that "everybody else" does not."""


def victims_of(ranks: Collection[int], world_size: int) -> tuple[int, ...]:
    """Return everybody else, if somebody is named and they can be listed.

    >>> victims_of([1], 4), victims_of([], 4)
    ((0, 2, 3), ())
    """
    if not ranks or world_size > MOST_VICTIMS:
        return ()
    named = set(ranks)
    return tuple(rank for rank in range(world_size) if rank not in named)
