"""What is drawn: one metric of a series, of all ranks or some, as values or against a reference."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import ratio
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.metrics import Metric
from apps.engine.tiles.pooled import Plane
from apps.engine.tiles.pyramid import Pool, plane_of
from apps.telemetry.selectors.cells import Cells
from apps.telemetry.selectors.layouts import Layout
from apps.telemetry.selectors.series import SeriesRow
from apps.telemetry.selectors.tiles import WIDE, orders_of

Ranks = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Source:
    """What is drawn: one metric of a series, all ranks or some, as values or against a reference.

    `chosen`: the ranks that are drawn, None for all. `baseline`: each rank's own past, for relative "self".
    """

    series: SeriesRow | None
    metric: Metric
    number: int
    layout: Layout
    relative: ratio.Relative
    pool: Pool
    chosen: Ranks | None = None
    baseline: Cells | None = None

    @cached_property
    def shown(self) -> Layout:
        """The layout of what is drawn."""
        return self.layout if self.chosen is None else self.layout.chosen(self.chosen)

    @cached_property
    def in_order(self) -> bool:
        """Whether what is pooled was made with the placement as it is known now."""
        return self.series is not None and orders_of(self.series.id) <= {self.layout.order.version}

    @cached_property
    def has_ratio(self) -> bool:
        """Whether ratios to peers are kept pooled."""
        return self.relative == "peers" and self.metric.compared and self.in_order

    @property
    def late(self) -> bool:
        """Whether values are held against their reference only when they are drawn."""
        return self.relative != "none" and not self.has_ratio

    @cached_property
    def by_rank(self) -> bool:
        """Whether only what is not pooled with other ranks will do."""
        return self.chosen is not None or self.layout.world <= WIDE or not self.in_order

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes of pooled tiles that the drawing wants."""
        how = plane_of(self.pool, self.metric.worst)
        return ("sum", "count") if how == "mean" else (how,)


def reference(source: Source) -> Callable[[Cells], Cells]:
    """Return the function that sets whole columns [rank, column] against their reference."""
    if source.relative == "peers":
        return lambda cells: ratio.to_peers(cells, source.layout.order)
    if source.relative == "step":
        return ratio.to_step
    if source.relative == "self" and source.baseline is not None:
        past = source.baseline
        return lambda cells: ratio.to_self(cells, past)
    return lambda cells: cells


def fitted(cells: Cells, world: int) -> Cells:
    """Return columns with exactly `world` ranks: those that were never heard are absent."""
    if cells.shape[0] == world:
        return cells
    out = np.full((cells.shape[1], world), ABSENT, np.float32)
    kept = min(world, cells.shape[0])
    out[:, :kept] = cells.T[:, :kept]
    return out.T
