"""What a restart costs: steps done again, downtime as restarts measured it, and when it is paid back.

Costs are GPU-hours of the whole run. What is not measured yet is None, and a sum with an unmeasured part is None too.
A run that has not restarted yet has the downtime of other runs here, else what its own start took; the price says so.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any

from apps.diagnosis.choices import FindingState
from apps.diagnosis.selectors import findings_of
from apps.engine.estimates.price import Spread, spread_of
from apps.incidents.losses import cured_share_of, loss_share_of
from apps.remediation.choices import AT_A_SAVE, Moment
from apps.remediation.selectors.actions import orders_asked
from apps.runs.choices import AttemptState, Trust
from apps.runs.selectors import (
    AttemptRow,
    CheckpointRow,
    RunRow,
    attempts_beside,
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
    """The price of one choice. `wait_s` is how long until it begins, `full_pace_s` until the run is back at its step.

    `downtime_from`: whose restarts the downtime is of, a `DowntimeFrom`; empty = not measured.
    """

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
    downtime_from: str
    downtime_gpu_hours: float | None
    gpu_hours: float | None
    full_pace_s: float | None
    payback_s: float | None

    def stored(self) -> dict[str, Any]:
        """Return it as an action keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the run goes: its ranks, a step's length now, and the share of its GPU-hours that is lost as it goes on.

    `lost_share` None: nothing is known to cost anything. `cured_share`: what of it a restart would give back.
    """

    ranks: int | None
    step_s: float | None
    lost_share: float | None
    cured_share: float | None

    @property
    def loss_per_hour(self) -> float | None:
        """Return the GPU-hours that each hour of going on costs."""
        return None if self.lost_share is None or self.ranks is None else self.lost_share * self.ranks

    def gpu_hours(self, seconds: float | None) -> float | None:
        """Return what `seconds` of the whole run are in GPU-hours."""
        return None if seconds is None or self.ranks is None else seconds * self.ranks / 3600


class DowntimeFrom(StrEnum):
    """Whose restarts a downtime was measured on: the run's own, those of others of its cluster and launcher, or none
    yet: then the run's own start, which is a restart without its stop."""

    OWN = "OWN"
    CLUSTER = "CLUSTER"
    START = "START"


@dataclass(frozen=True, slots=True)
class Downtime:
    """A downtime (None = nothing is known of it) and where it is from."""

    spread: Spread | None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Saves:
    """How this run saves: the newest usable step, steps between saves, seconds a save takes and blocks."""

    newest: CheckpointRow | None
    every_steps: int | None
    takes_s: float | None
    blocks_s: float | None


def downtime_of(attempts: Sequence[AttemptRow]) -> Spread | None:
    """Return how long this run's own restarts took, None without any: to the next attempt's first step, from the end of
    the one before, or from the order where that came later: a restart does not take what a person needs to decide on it.

    `attempts`: newest first.
    """
    asked = orders_asked([row.order_id for row in attempts if row.order_id is not None])
    gaps = [
        (later.first_step_at - max(earlier.ended_at, asked.get(later.order_id or 0, earlier.ended_at))).total_seconds()
        for later, earlier in pairwise(attempts)
        if later.run_id == earlier.run_id and later.first_step_at is not None and earlier.ended_at is not None
    ]
    return spread_of([gap_s for gap_s in gaps if 0 <= gap_s <= LONGEST_RESTART_S][:LOOK_BACK])


def downtime_known(run: RunRow) -> Downtime:
    """Return the downtime to reckon with: of this run's own restarts, else of others here, else its newest own start."""
    mine = attempts_of(run.id, limit=LOOK_BACK + 1)
    if (own := downtime_of(mine)) is not None:
        return Downtime(own, DowntimeFrom.OWN)
    kind = str(run.launcher.get("kind") or "")
    others = attempts_beside(run_id=run.id, cluster_id=run.cluster_id, launcher_kind=kind, limit=200)
    if (beside := downtime_of(others)) is not None:
        return Downtime(beside, DowntimeFrom.CLUSTER)
    starts = [(row.first_step_at - row.started_at).total_seconds() for row in mine if row.first_step_at is not None]
    started = spread_of([start_s for start_s in starts if 0 <= start_s <= LONGEST_RESTART_S][:1])
    return Downtime(started, DowntimeFrom.START) if started is not None else Downtime(None)


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
    lost, cured = loss_share_of(run, open_ones), cured_share_of(run, open_ones)
    return Pace(ranks=run.world_size, step_s=run.step_s, lost_share=lost, cured_share=cured)


def resume_step_default(run: RunRow) -> int | None:
    """Return the step a restart begins from unless somebody chooses: the newest trusted save, else where it began.

    Where it began is no choice if that save is known and not trusted any more; then None: the program decides.
    """
    newest = checkpoint_newest_trusted(run.id)
    if newest is not None or run.resumed_from_step is None:
        return newest.step if newest is not None else None
    known = checkpoints_of(run_id=run.id, step=run.resumed_from_step, limit=1)
    return None if known else run.resumed_from_step


def choice_needed(run: RunRow, from_step: int | None) -> tuple[CheckpointRow, ...]:
    """Return the suspect saves among which (or the beginning) a person must choose, newest first; none: no need.

    A restart takes what can be trusted. Where nothing can, what to give up is for a person to say.
    """
    if from_step is not None or resume_step_default(run) is not None:
        return ()
    rows = [row for row in checkpoints_of(run_id=run.id, limit=200) if row.trust == Trust.SUSPECT]
    return tuple(sorted(rows, key=lambda row: (row.attempt_id, row.step), reverse=True))


def choice_words(run: RunRow, suspects: Sequence[CheckpointRow]) -> str:
    """Return the sentence that asks for a choice."""
    steps = ", ".join(f"{row.step:,}" for row in suspects[:3])
    return (
        f"No checkpoint of {run.slug} can be trusted. Say from where to go on: from_step {steps} "
        f"({'suspect: ' if len(suspects) < 4 else 'and older ones, all suspect: '}saved after a numeric fault began), "
        "or 0 for the beginning."
    )


def newest_save(attempt_id: int) -> int:
    """Return the step of an attempt's newest usable save, -1 if there is none; steps are compared, never clocks."""
    rows = checkpoints_of(attempt_id=attempt_id, usable_only=True, limit=1)
    return rows[0].step if rows else -1


def prices_of(run: RunRow, *, from_step: int | None, goes_on: bool = True) -> list[Price]:
    """Return the price of each moment, the soonest first; a run without an open attempt can only be started now.

    `goes_on` False: it is stopped for good, so that only the steps given up count.
    """
    downtime = downtime_known(run) if goes_on else Downtime(NO_DOWNTIME)
    now = _price(
        run,
        moment=Moment.NOW,
        from_step=from_step,
        stop_step=run.step,
        wait_steps=0,
        save_s=0.0,
        downtime=downtime,
    )
    if not saves_to_come(run):
        return [now]
    saves = saves_of(run)
    wait = _steps_to_save(run, saves)
    return [now, *(_price_at_save(run, saves, moment, wait, downtime) for moment in AT_A_SAVE)]


def saves_to_come(run: RunRow) -> bool:
    """Return whether a save can be awaited that a restart would take: not of what stands, nor while saves are suspect."""
    stands = (pace_of(run).lost_share or 0.0) >= 1.0
    return run.attempt_state == AttemptState.OPEN and run.suspect_from_step is None and not stands


def _price_at_save(run: RunRow, saves: Saves, moment: str, wait: int | None, downtime: Downtime) -> Price:
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
    downtime: Downtime,
) -> Price:
    pace = pace_of(run)
    back_to = from_step if from_step is not None else _start_of(run)
    steps = None if stop_step is None or back_to is None else max(0, stop_step - back_to)
    redo_s = None if steps is None or pace.step_s is None else steps * pace.step_s
    wait_s = 0.0 if wait_steps == 0 else None if wait_steps is None or pace.step_s is None else wait_steps * pace.step_s
    slow_s = 0.0 if wait_s == 0 else None if wait_s is None else wait_s * (pace.lost_share or 0.0)
    spread = downtime.spread
    downtime_s = spread.median_s if spread is not None else None
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
        downtime_low_s=spread.least_s if spread is not None else None,
        downtime_high_s=spread.most_s if spread is not None else None,
        downtime_n=spread.n if spread is not None else 0,
        downtime_from=downtime.source,
        downtime_gpu_hours=pace.gpu_hours(downtime_s),
        gpu_hours=pace.gpu_hours(cost_s),
        full_pace_s=None if any(part is None for part in times) else sum(part for part in times if part is not None),
        payback_s=None if spread is NO_DOWNTIME else _payback_s(pace, cost_s),
    )


def _start_of(run: RunRow) -> int | None:
    """Return where a program begins that is told no step: anew if there never was a save, else where it finds one (None)."""
    if run.resumed_from_step is not None or checkpoints_of(run_id=run.id, limit=1):
        return None
    return max(0, (run.first_step or 0) - 1)


def _payback_s(pace: Pace, cost_s: float | None) -> float | None:
    """Return after how long going on would have lost as much; None where there is nothing to be paid back (ski rental)."""
    if cost_s is None or pace.cured_share is None or pace.cured_share <= SLOW_SHARE:
        return None
    return cost_s / pace.cured_share
