"""What a restart costs: steps done again, downtime as this run's own restarts measured it, and when it is paid back.

Costs are GPU-hours of the whole run. What is not measured yet is None, and a sum with an unmeasured part is None too.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from apps.diagnosis.choices import FindingState
from apps.diagnosis.selectors import findings_of
from apps.engine.estimates.price import Spread, payback_steps, spread_of
from apps.remediation.choices import AT_A_SAVE, Moment
from apps.runs.choices import AttemptState
from apps.runs.selectors import (
    AttemptRow,
    CheckpointRow,
    RunRow,
    attempts_of,
    checkpoint_newest_trusted,
    checkpoints_of,
)

LOOK_BACK = 20
"""Restarts and saves older than these say little about the next one."""

LONGEST_RESTART_S = 24 * 3600.0
"""A gap longer than a day was a decision, not a restart."""

SLOW_SHARE = 0.01
"""Below this share of a step there is nothing to be paid back: it is within what a step varies by."""


NO_DOWNTIME = Spread(median_s=0.0, least_s=0.0, most_s=0.0, n=0)
"""Of what is stopped for good: nothing is waited for."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one choice. `wait_s` is how long until it begins, `full_pace_s` until the run is back at its step."""

    moment: str
    from_step: int | None
    stop_step: int | None
    steps: int | None
    redo_gpu_hours: float | None
    save_gpu_hours: float | None
    wait_s: float | None
    slow_gpu_hours: float | None
    downtime_s: float | None
    downtime_low_s: float | None
    downtime_high_s: float | None
    downtime_n: int
    downtime_gpu_hours: float | None
    gpu_hours: float | None
    full_pace_s: float | None
    payback_s: float | None

    def stored(self) -> dict[str, Any]:
        """Return it as an action keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the run goes: its ranks, a step's length now and at its best, and what going on like this costs an hour.

    `found_s`: seconds that open findings say they add to each step; it goes before the run's own best, which an attempt
    that was slow from its beginning does not know.
    """

    ranks: int | None
    step_s: float | None
    best_step_s: float | None
    found_s: float | None = None

    @property
    def slow_s(self) -> float | None:
        """Return the seconds that each step takes longer than it has to, None if not measured."""
        if self.found_s is not None:
            return self.found_s
        if not self.step_s or not self.best_step_s:
            return None
        return max(0.0, self.step_s - self.best_step_s)

    @property
    def slow_share(self) -> float | None:
        """Return the share of each step that is lost to slowness, None if not measured."""
        return None if self.slow_s is None or not self.step_s else self.slow_s / self.step_s

    @property
    def loss_per_hour(self) -> float | None:
        """Return the GPU-hours that each hour of going on costs."""
        share = self.slow_share
        return None if share is None or self.ranks is None else share * self.ranks

    def gpu_hours(self, seconds: float | None) -> float | None:
        """Return what `seconds` of the whole run are in GPU-hours."""
        return None if seconds is None or self.ranks is None else seconds * self.ranks / 3600


@dataclass(frozen=True, slots=True)
class Saves:
    """How this run saves: the newest usable step, steps between saves, seconds a save takes and blocks."""

    newest: CheckpointRow | None
    every_steps: int | None
    takes_s: float | None
    blocks_s: float | None


def downtime_of(attempts: Sequence[AttemptRow]) -> Spread | None:
    """Return how long this run's own restarts took, from one attempt's end to the next one's first step, None without any.

    `attempts`: newest first.
    """
    gaps = [
        (later.first_step_at - earlier.ended_at).total_seconds()
        for later, earlier in pairwise(attempts)
        if later.first_step_at is not None and earlier.ended_at is not None
    ]
    return spread_of([gap_s for gap_s in gaps if 0 <= gap_s <= LONGEST_RESTART_S][:LOOK_BACK])


def saves_of(run: RunRow) -> Saves:
    """Return how a run saves, as far as its saves or its settings tell."""
    rows = [row for row in checkpoints_of(run_id=run.id, limit=200) if row.saved_at is not None][:LOOK_BACK]
    steps = sorted({row.step for row in rows if row.attempt_id == run.attempt_id})
    between = [later - earlier for earlier, later in pairwise(steps)]
    setting = run.checkpoint_setting.get("interval_steps")
    every = int(median(between)) if between else (int(setting) if isinstance(setting, int | float) else None)
    takes = [row.duration_s for row in rows if row.duration_s is not None]
    blocks = [row.blocking_s for row in rows if row.blocking_s is not None]
    return Saves(
        newest=checkpoint_newest_trusted(run.id),
        every_steps=every or None,
        takes_s=median(takes) if takes else None,
        blocks_s=median(blocks) if blocks else None,
    )


def pace_of(run: RunRow) -> Pace:
    """Return how a run goes now."""
    open_ones = findings_of(attempt_id=run.attempt_id, state=FindingState.OPEN) if run.attempt_id is not None else []
    found_s = max((row.cost_s for row in open_ones if row.cost_s is not None), default=None)
    return Pace(ranks=run.world_size, step_s=run.step_s, best_step_s=run.own_best_step_s, found_s=found_s)


def resume_step_default(run: RunRow) -> int | None:
    """Return the step a restart begins from unless somebody chooses: the newest trusted save, else where it began.

    Where it began is no choice if that save is known and not trusted any more; then None: the program decides.
    """
    newest = checkpoint_newest_trusted(run.id)
    if newest is not None or run.resumed_from_step is None:
        return newest.step if newest is not None else None
    known = checkpoints_of(run_id=run.id, step=run.resumed_from_step, limit=1)
    return None if known else run.resumed_from_step


def newest_save(attempt_id: int) -> int:
    """Return the step of an attempt's newest usable save, -1 if there is none; steps are compared, never clocks."""
    rows = checkpoints_of(attempt_id=attempt_id, usable_only=True, limit=1)
    return rows[0].step if rows else -1


def prices_of(run: RunRow, *, from_step: int | None, goes_on: bool = True) -> list[Price]:
    """Return the price of each moment, the soonest first; a run without an open attempt can only be started now.

    `goes_on` False: it is stopped for good, so that only the steps given up count.
    """
    downtime = downtime_of(attempts_of(run.id, limit=LOOK_BACK + 1)) if goes_on else NO_DOWNTIME
    now = _price(
        run,
        moment=Moment.NOW,
        from_step=from_step,
        stop_step=run.step,
        wait_steps=0,
        save_s=0.0,
        downtime=downtime,
    )
    if run.attempt_state != AttemptState.OPEN:
        return [now]
    saves = saves_of(run)
    wait = _steps_to_save(run, saves)
    return [now, *(_price_at_save(run, saves, moment, wait, downtime) for moment in AT_A_SAVE)]


def _price_at_save(run: RunRow, saves: Saves, moment: str, wait: int | None, downtime: Spread | None) -> Price:
    step = None if run.step is None or wait is None else run.step + wait
    behind = None
    if saves.takes_s is not None and run.step_s:
        behind = int(-(-saves.takes_s // run.step_s))  # the steps that are made while the save is being written
    return _price(
        run,
        moment=moment,
        from_step=step,
        stop_step=None if step is None or behind is None else step + behind,
        wait_steps=None if wait is None or behind is None else wait + behind,
        save_s=saves.blocks_s,
        downtime=downtime,
    )


def _steps_to_save(run: RunRow, saves: Saves) -> int | None:
    if run.step is None or not saves.every_steps:
        return None
    anchor = saves.newest.step if saves.newest is not None else 0
    return saves.every_steps - (run.step - anchor) % saves.every_steps


def _price(
    run: RunRow,
    *,
    moment: str,
    from_step: int | None,
    stop_step: int | None,
    wait_steps: int | None,
    save_s: float | None,
    downtime: Spread | None,
) -> Price:
    pace = pace_of(run)
    back_to = from_step if from_step is not None else _start_of(run)
    steps = None if stop_step is None or back_to is None else max(0, stop_step - back_to)
    redo_s = None if steps is None or pace.step_s is None else steps * pace.step_s
    wait_s = 0.0 if wait_steps == 0 else None if wait_steps is None or pace.step_s is None else wait_steps * pace.step_s
    slow_s = 0.0 if wait_s == 0 else None if wait_s is None else wait_s * (pace.slow_share or 0.0)
    downtime_s = downtime.median_s if downtime is not None else None
    costs = (redo_s, save_s, slow_s, downtime_s)
    cost_s = None if any(cost is None for cost in costs) else sum(cost for cost in costs if cost is not None)
    times = (wait_s, downtime_s, redo_s)
    return Price(
        moment=str(moment),
        from_step=from_step,
        stop_step=stop_step,
        steps=steps,
        redo_gpu_hours=pace.gpu_hours(redo_s),
        save_gpu_hours=pace.gpu_hours(save_s),
        wait_s=wait_s,
        slow_gpu_hours=pace.gpu_hours(slow_s),
        downtime_s=downtime_s,
        downtime_low_s=downtime.least_s if downtime is not None else None,
        downtime_high_s=downtime.most_s if downtime is not None else None,
        downtime_n=downtime.n if downtime is not None else 0,
        downtime_gpu_hours=pace.gpu_hours(downtime_s),
        gpu_hours=pace.gpu_hours(cost_s),
        full_pace_s=None if any(part is None for part in times) else sum(part for part in times if part is not None),
        payback_s=None if downtime is NO_DOWNTIME else _payback_s(pace, cost_s),
    )


def _start_of(run: RunRow) -> int | None:
    """Return where a program begins that is told no step: anew if there never was a save, else where it finds one (None)."""
    if run.resumed_from_step is not None or checkpoints_of(run_id=run.id, limit=1):
        return None
    return max(0, (run.first_step or 0) - 1)


def _payback_s(pace: Pace, cost_s: float | None) -> float | None:
    """Return after how long going on slowly would have cost as much; None where there is nothing to be paid back."""
    if cost_s is None or pace.slow_s is None or pace.step_s is None or (pace.slow_share or 0.0) <= SLOW_SHARE:
        return None
    steps = payback_steps(cost_s, slowdown_s=pace.slow_s)
    return None if steps is None else steps * pace.step_s
