"""Who stands elsewhere in the program than the ranks that wait in a collective, by the stacks they sent."""

from dataclasses import dataclass

import numpy as np

from apps.engine.detection import Phase, Window
from apps.engine.detection.arrays import Flags, Ints
from apps.engine.readers.stacks import StackRead, parting, stack_read, stacks_grouped

LEAST_ALIKE = 3
"""So many ranks of a stage must wait alike before another one stands out: of two stacks neither is the odd one."""
LEAST_SHARE = 0.5
"""Of the ranks that are heard, at least this share must have sent a stack of this step, or the odd one may be among the
others."""


@dataclass(frozen=True, eq=False, slots=True)
class OddOnes:
    """Ranks whose stack is not that of the many. `sent`, `alike`: how many stacks there were, and how many wait alike.
    `where`: the call that the odd ones are in and the many are not; `others`: the other way round."""

    ranks: Ints
    sent: int
    alike: int
    where: str
    others: str


def odd_ones(window: Window, fresh: Flags) -> OddOnes | None:
    """Return the few whose stack differs from the stack of most ranks of their stage that wait in a collective.

    Only stacks of the step that their rank stands in count. Stages do different things, so each is looked at by itself.
    None: too few stacks, no such many, or not few.
    Cost: O(stacks).
    Source: ours: in a collective everybody waits for the one that has not come, so the many are the victims (§5).
    """
    step = window.beats.step
    read: dict[int, StackRead] = {}
    for stack in window.stacks:
        if 0 <= stack.rank < len(fresh) and fresh[stack.rank]:
            one = stack_read(stack.text)
            if one.frames and one.step == int(step[stack.rank]):
                read[stack.rank] = one
    if len(read) < max(LEAST_ALIKE + 1, LEAST_SHARE * int(fresh.sum())):
        return None
    odd: list[int] = []
    alike, many, few = 0, None, None
    for stage in sorted({int(window.placement.stage[rank]) for rank in read}):
        mine = {rank: one for rank, one in read.items() if int(window.placement.stage[rank]) == stage}
        *rest, most = stacks_grouped(mine)
        waits = bool((window.beats.phase[list(most.ranks)] == Phase.COMMUNICATION).all())
        if not waits or len(most.ranks) < max(LEAST_ALIKE, len(mine) // 2 + 1):
            return None
        alike += len(most.ranks)
        odd += [rank for group in rest for rank in group.ranks]
        if rest and few is None:
            few, many = rest[0].stack, most.stack
    if few is None or many is None or not (len(odd) == 1 or 2 * len(odd) < len(read)):
        return None
    own, common = parting(few, many), parting(many, few)
    return OddOnes(
        ranks=np.array(sorted(odd), np.int32),
        sent=len(read),
        alike=alike,
        where=own.words if own else few.frames[-1].words,
        others=common.words if common else many.frames[-1].words,
    )
