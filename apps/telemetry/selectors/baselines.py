"""Each rank's own past: its median over the attempt's first evidence steps, frozen once there are enough of them."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np

from apps.engine.tiles import ratio
from apps.telemetry.selectors.cells import Cells, cells_read
from apps.telemetry.selectors.marks import Marks, pauses_read
from apps.telemetry.selectors.series import SeriesRow

BASELINE_STEPS = 200
"""Evidence steps that the baseline is made of (DESIGN §4)."""

STRETCH = 256
"""Steps read at once while looking for them."""
MOST_STRETCHES = 40
"""An attempt that logs every fiftieth step still gets its baseline."""
KEPT = 32

_kept: "OrderedDict[tuple[int, int, int, Marks], Baseline]" = OrderedDict()
_lock = Lock()


@dataclass(frozen=True, eq=False, slots=True)
class Baseline:
    """values: float32 [rank], NaN where a rank has no past. `steps`: evidence steps used; `frozen`: it will not change."""

    values: Cells
    steps: int

    @property
    def frozen(self) -> bool:
        """Whether there were enough steps."""
        return self.steps >= BASELINE_STEPS


def baseline_of(series: SeriesRow, number: int, marks: Marks, *, world: int) -> Baseline:
    """Return what a rank's values are held against with `relative=self`.

    Only settled steps count; steps next to a checkpoint, an evaluation or a start do not.
    """
    key = (series.id, number, world, marks)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    found = _read(series, number, marks, world)
    if found.frozen:
        with _lock:
            _kept[key] = found
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
    return found


def _read(series: SeriesRow, number: int, marks: Marks, world: int) -> Baseline:
    kept: list[Cells] = []
    steps = 0
    first = series.first_step or 0
    last = -1 if series.settled_step is None else series.settled_step
    for _ in range(MOST_STRETCHES):
        if first > last or steps >= BASELINE_STEPS:
            break
        end = min(first + STRETCH, last + 1)
        cells = cells_read(series, number, first=first, end=end, width=world)
        paused = pauses_read(series, first=first, end=end, width=world)
        evidence = ~marks.skip(np.arange(first, end, dtype=np.int64), paused) & ~np.isnan(cells).all(axis=0)
        part = cells[:, evidence][:, : BASELINE_STEPS - steps]
        kept.append(part)
        steps += part.shape[1]
        first = end
    if not steps:
        return Baseline(np.full(world, np.nan, np.float32), 0)
    return Baseline(ratio.baseline(np.ascontiguousarray(np.concatenate(kept, axis=1).T).T), steps)
