"""What a restart costs and when it pays back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apps.engine.checks import at_least, not_negative, positive

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Spread:
    """What was measured n times: median, least and most, all in seconds."""

    median_s: float
    least_s: float
    most_s: float
    n: int


@dataclass(frozen=True, slots=True)
class RestartPrice:
    """What it costs to stop now and go on from a checkpoint; None = not measured.

    steps: steps to do again. redo_s: seconds that takes at full pace. downtime: from the stop to the next first step.
    cost_s: seconds of the whole run, redo and downtime together. gpu_hours: the same in GPU-hours.
    payback_steps, payback_s: how many steps at full pace, and seconds of them, save as much as it costs.
    due: whether the slowdown so far has already cost as much (then restarting is the better bet).
    """

    steps: int | None
    redo_s: float | None
    downtime: Spread | None
    cost_s: float | None
    gpu_hours: float | None
    payback_steps: int | None
    payback_s: float | None
    due: bool | None


def spread_of(durations_s: Sequence[float]) -> Spread | None:
    """Return median, least and most of measured durations, None without any.

    durations_s: seconds each; NaN = not measured, left out.

    >>> spread_of([40.0, 60.0, 50.0]), spread_of([])
    (Spread(median_s=50.0, least_s=40.0, most_s=60.0, n=3), None)
    """
    known = [float(value) for value in durations_s if math.isfinite(value) and value >= 0]
    return Spread(float(np.median(known)), min(known), max(known), len(known)) if known else None


def at_risk_gpu_hours(steps: int | None, *, step_s: float | None, gpus: int) -> float | None:
    """Return what `steps` steps of the whole run are in GPU-hours, None if steps or their time are not known.

    >>> at_risk_gpu_hours(576, step_s=50.0, gpus=1024)
    8192.0
    """
    if steps is None or step_s is None:
        return None
    at_least("gpus", gpus, 1)
    return at_least("steps", steps, 0) * positive("step_s", step_s) * gpus / SECONDS_PER_HOUR


def payback_steps(cost_s: float, *, slowdown_s: float) -> int | None:
    """Return after how many steps a slowdown of `slowdown_s` a step has cost as much as `cost_s`, None if never.

    cost_s: what the remedy costs, seconds of the whole run. slowdown_s: seconds a step takes longer than healthy.

    This is ski rental: go on renting (running slowly) until the rent paid equals the price of buying; never more than
    twice the best that hindsight could do.
    Source: FALCON's mitigation ladder, figures §4: Σ (t_iter − t_healthy) ≥ cost. Its figures: healthy 1.0 s, slow
    1.3 s: a remedy of 60 s after 200 steps, one of 1,200 s after 4,000.

    >>> payback_steps(60.0, slowdown_s=0.3), payback_steps(1200.0, slowdown_s=0.3), payback_steps(60.0, slowdown_s=0.0)
    (200, 4000, None)
    """
    not_negative("cost_s", cost_s)
    if not_negative("slowdown_s", slowdown_s) == 0:
        return None
    # A quotient like 60 / 0.3 may lie a hair above the whole number it is.
    return math.ceil(cost_s / slowdown_s - 1e-9)


def restart_price(
    *,
    newest_step: int | None,
    checkpoint_step: int | None,
    step_s: float | None,
    best_step_s: float | None,
    gpus: int,
    downtimes_s: Sequence[float] = (),
    slow_steps: int | None = None,
    slowdown_s: float | None = None,
) -> RestartPrice:
    """Return the price of stopping now and going on from the newest trusted checkpoint.

    newest_step, checkpoint_step: steps; None = not known, or no trusted checkpoint. step_s: seconds a step takes now.
    best_step_s: seconds at the run's own best, at which steps are done again; without it `step_s` is taken.
    downtimes_s: downtime of this run's own restarts, seconds each. slowdown_s: seconds a finding adds to each step;
    without it `step_s − best_step_s`. slow_steps: steps it has lasted.

    A part that was not measured makes the sums None, never smaller.

    >>> price = restart_price(newest_step=1100, checkpoint_step=1000, step_s=1.3, best_step_s=1.0, gpus=1024,
    ...                       downtimes_s=[80.0, 120.0], slow_steps=700, slowdown_s=0.3)
    >>> price.steps, price.cost_s, round(price.gpu_hours, 2), price.payback_steps, price.payback_s, price.due
    (100, 200.0, 56.89, 667, 667.0, True)
    """
    steps = None if newest_step is None or checkpoint_step is None else max(newest_step - checkpoint_step, 0)
    pace_s = best_step_s if best_step_s is not None else step_s
    redo_s = None if steps is None or pace_s is None else steps * positive("step_s", pace_s)
    downtime = spread_of(downtimes_s)
    cost_s = None if redo_s is None or downtime is None else redo_s + downtime.median_s
    lost_s = slowdown_s
    if lost_s is None and step_s is not None and best_step_s is not None:
        lost_s = max(step_s - best_step_s, 0.0)
    back = None if cost_s is None or lost_s is None else payback_steps(cost_s, slowdown_s=lost_s)
    return RestartPrice(
        steps=steps,
        redo_s=redo_s,
        downtime=downtime,
        cost_s=cost_s,
        gpu_hours=None if cost_s is None else cost_s * at_least("gpus", gpus, 1) / SECONDS_PER_HOUR,
        payback_steps=back,
        payback_s=None if back is None or pace_s is None else back * pace_s,
        due=None if back is None or slow_steps is None else slow_steps >= back,
    )
