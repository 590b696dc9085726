"""Which columns are neither baseline nor evidence."""

from collections.abc import Iterable, Sequence

import numpy as np

from apps.engine.detection.arrays import Flags, Floats, Steps

WARMUP_STEPS = 3
"""Steps after a start or resume that are not evidence: compilation, first collectives and cold caches touch the first;
two more let clocks settle. Source: ours, after public reports of a first iteration of 145 s against 125 s."""

NEIGHBOUR_STEPS = 1
"""Steps after a save or an evaluation that still carry its cost (flushing, refilling prefetch queues). Source: ours."""

PAUSES = ("checkpoint_s", "evaluation_s")
"""The metrics that say how long a rank stood in a save or an evaluation; the client sends them with the step before."""


def skip_columns(
    steps: Steps,
    *,
    first_step: int,
    checkpoint_steps: Iterable[int] = (),
    pauses_s: Sequence[Floats] = (),
    warmup_steps: int = WARMUP_STEPS,
) -> Flags:
    """Return for each column whether it must be left out, bool [c].

    steps: int64 [c], the columns' steps.
    first_step: the first step of the attempt (after a resume: the step it resumed at); warm-up counts from here.
    checkpoint_steps: steps at which a save was taken; that step and the next are left out.
    pauses_s: float32 [ranks, c] each, seconds inside a save or an evaluation, NaN = not reported; a column in which any
        rank paused is left out, and so is the next.

    The answer depends on step numbers only, not on where a window was cut, save that a pause known from `pauses_s`
    alone marks its neighbour inside the same columns: give one column more in front.
    Cost: O(c · ranks). Source: ours, after cases 44, 47 and 48 of public reports.

    >>> skip_columns(np.arange(10), first_step=0, checkpoint_steps=[6]).astype(int).tolist()
    [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    """
    skip: Flags = np.less(steps, first_step + warmup_steps)
    marked = np.fromiter(checkpoint_steps, np.int64)
    for after in range(NEIGHBOUR_STEPS + 1):
        skip |= np.isin(steps, marked + after)
    for pause_s in pauses_s:
        paused: Flags = np.any(pause_s > 0, axis=0)
        skip |= paused
        skip[1:] |= paused[:-1] & (np.diff(steps) <= NEIGHBOUR_STEPS)
    return skip
