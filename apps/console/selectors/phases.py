"""Where a step goes: compute, waiting and the rest, of the suspect, of the others, and at the run's own best."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from apps.console.selectors.ranks import node_names
from apps.runs.selectors import RunRow, placement_of
from apps.telemetry.selectors import SettledColumns

ALONE = 1.05
"""A rank that computes so many times as long as its mates stands for its node."""
WAITS = "The culprit waits least; the others wait for it."
WIDTH, LEFT, RIGHT, BAR, ROW = 560.0, 100.0, 60.0, 22.0, 38.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: its look, where it begins and how wide it is in the drawing, its words where they fit."""

    look: str
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class PhaseBar:
    """One bar: whose step, its pieces, its length."""

    name: str
    total_s: float
    y: float
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What would be if the suspect kept pace."""

    node: str
    step_s: float
    then_s: float
    end_at: datetime | None
    then_end_at: datetime | None


@dataclass(frozen=True, slots=True)
class Phases:
    """The drawing; `lack` says why there is none."""

    bars: tuple[PhaseBar, ...]
    steps: int
    height: float
    sentence: str
    what_if: WhatIf | None
    lack: str = ""


def phases_of(
    run: RunRow, found: SettledColumns | None, *, suspects: list[str], slow: list[str], now: datetime
) -> Phases:
    """Return where the steps that `last_steps` read went, medians in seconds; the suspect is the first blamed node.

    `slow`: nodes whose computing is what a finding blames. Of another suspect nobody can say that the rest wait for it.
    """
    if run.attempt_id is None or found is None:
        return Phases((), 0, 0, "", None, "No step is settled yet.")
    values = found.values
    if "step_s" not in values or "compute_s" not in values:
        return Phases((), 0, 0, "", None, "Senders give no compute time apart from waiting.")
    names = np.array(node_names(placement_of(run.attempt_id), len(values["step_s"])))
    culprit = next((name for name in suspects if (names == name).any()), "")
    is_slow = culprit in slow
    mine = names == culprit if culprit else np.zeros(len(names), bool)
    alone = _alone(values["compute_s"], mine) if culprit else None
    if alone is not None:
        culprit, mine = f"rank {alone}", np.arange(len(names)) == alone
    if mine.all():
        culprit, mine = "", np.zeros(len(names), bool)  # the whole run sits there: nobody is left to compare it with
    others = _medians(values, ~mine)
    rows = [(f"{int((~mine).sum()):,} others" if culprit else "all ranks", others, 0.0)]
    extra = 0.0
    if culprit:
        own = _medians(values, mine)
        extra = max(0.0, own["compute_s"] - others["compute_s"])
        rows.insert(0, (culprit, own, extra))
    bars = _bars(rows, extra=extra, best_s=run.own_best_step_s, culprit=culprit)
    return Phases(
        bars=bars,
        steps=len(found.steps),
        height=26 + ROW * len(bars),
        sentence=WAITS if extra > 0 and is_slow else "",
        what_if=_what_if(run, culprit, others["step_s"], extra, now=now)
        if is_slow and extra > 0.01 * others["step_s"]
        else None,
    )


def _alone(compute: NDArray[np.float32], mine: NDArray[np.bool_]) -> int | None:
    """Return the one rank of a blamed node that is slow while its mates are not: its node's median would hide it."""
    ranks = np.flatnonzero(mine)
    known = [rank for rank in ranks if np.isfinite(compute[rank]).any()]
    if len(known) < 2:
        return None
    pace = {int(rank): float(np.nanmedian(compute[rank])) for rank in known}
    worst = max(pace, key=lambda rank: pace[rank])
    mates = float(np.median([value for rank, value in pace.items() if rank != worst]))
    return worst if pace[worst] > ALONE * mates else None


def _medians(values: dict[str, NDArray[np.float32]], ranks: NDArray[np.bool_]) -> dict[str, float]:
    found = {}
    for name, cells in values.items():
        known = cells[ranks][np.isfinite(cells[ranks])]
        found[name] = float(np.median(known)) if len(known) else 0.0
    return found


def _bars(
    rows: list[tuple[str, dict[str, float], float]], *, extra: float, best_s: float | None, culprit: str
) -> tuple[PhaseBar, ...]:
    parts = [
        (name, _parts(medians, made=made, waited=extra if culprit and not made else 0.0))
        for name, medians, made in rows
    ]
    if best_s is not None and extra > 0:
        parts.append(("before", _before(rows[-1][1], best_s=best_s)))
    longest = max(sum(seconds for _, seconds in bar) for _, bar in parts) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    return tuple(_bar(name, bar, scale, place) for place, (name, bar) in enumerate(parts))


def _parts(medians: dict[str, float], *, made: float, waited: float) -> list[tuple[str, float]]:
    compute, waits, data = medians["compute_s"] - made, medians.get("communication_s", 0.0), medians.get("data_s", 0.0)
    waited = min(waited, waits)
    rest = max(0.0, medians["step_s"] - medians["compute_s"] - waits - data)
    return [("c", compute), ("x", made), ("w", waits - waited), ("y", waited), ("d", data), ("o", rest)]


def _before(medians: dict[str, float], *, best_s: float) -> list[tuple[str, float]]:
    shorter = max(0.0, medians["step_s"] - best_s)
    waits = max(0.0, medians.get("communication_s", 0.0) - shorter)
    data = medians.get("data_s", 0.0)
    return [
        ("c", medians["compute_s"]),
        ("w", waits),
        ("d", data),
        ("o", max(0.0, best_s - medians["compute_s"] - waits - data)),
    ]


def _bar(name: str, parts: list[tuple[str, float]], scale: float, place: int) -> PhaseBar:
    pieces, at = [], LEFT
    for look, seconds in parts:
        width = seconds * scale
        if width >= 1.0:
            said = f"+{seconds:.2f}" if look in "xy" else f"{seconds:.2f}" + (" s" if look == "c" else "")
            pieces.append(
                Piece(look=look, x=at, width=max(1.0, width - 1.5), words=said if width > 38 and look != "o" else "")
            )
        at += width
    return PhaseBar(name=name, total_s=sum(seconds for _, seconds in parts), y=26 + ROW * place, pieces=tuple(pieces))


def _what_if(run: RunRow, node: str, step_s: float, extra: float, *, now: datetime) -> WhatIf:
    then = max(step_s - extra, run.own_best_step_s or 0.0)
    left = None if run.steps_planned is None or run.step is None else max(0, run.steps_planned - run.step - 1)
    return WhatIf(
        node=node,
        step_s=step_s,
        then_s=then,
        end_at=None if left is None else now + timedelta(seconds=left * step_s),
        then_end_at=None if left is None else now + timedelta(seconds=left * then),
    )
