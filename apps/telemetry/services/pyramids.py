"""Making tiles: sealed cells, and everything pooled that follows from them (engine/tiles/README.md).

What a builder made it also reads: a level is made of the level below, stored or made a moment ago.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles import codec, pooled, ratio
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import BLOCK, COLUMN_LEVELS, COLUMN_POOL, TILE_COLUMNS, StageNodeOrder
from apps.engine.tiles.metrics import KNOWN, Kind, Metric, is_integral, metric_of
from apps.engine.tiles.pyramid import Pooled, concatenated, pool_columns, pool_entities
from apps.telemetry.selectors.tiles import WIDE, cells_whole, pooled_whole
from apps.telemetry.stores.tiles import TileBlob

Cells = NDArray[np.float32]

MEDIANS_FROM = 16
"""Ranks a stage from which its medians are kept: 4 bytes of them a column beside 16 values of half a byte or more."""

SCOPES = {"RANK": "rank", "GPU": "gpu", "NODE": "node"}


@dataclass(eq=False)
class Builder:
    """Makes the tiles of one series. `names`: metric number → name. `order` None: nothing is pooled."""

    series_id: int
    kind: str
    names: dict[int, str]
    world: int
    order: StageNodeOrder | None
    made: list[TileBlob] = field(default_factory=list)
    _cells: dict[tuple[int, int], Cells] = field(default_factory=dict)
    _medians: dict[tuple[int, int], Cells] = field(default_factory=dict)
    _pooled: dict[tuple[int, bool, int, int], Pooled] = field(default_factory=dict)

    @property
    def wide(self) -> bool:
        """Whether rows are pooled, too."""
        return self.order is not None and self.world > WIDE

    def seal(self, metric: int, tile: int, cells: Cells, *, version: int) -> None:
        """Make the level-0 tiles of whole columns [entity, 64]; blocks without a value get none."""
        stored = np.full((TILE_COLUMNS, len(cells)), ABSENT, np.float32)
        kind = self._metric(metric, cells).kind
        for block in range(-(-len(cells) // BLOCK)):
            part = cells[block * BLOCK : (block + 1) * BLOCK]
            if np.isnan(part).all():
                continue
            data = codec.encode(part, kind)
            stored[:, block * BLOCK : block * BLOCK + len(part)] = codec.decode(data).T
            self.made.append(TileBlob(metric, False, 0, 0, tile, block, version, data))
        self._cells[metric, tile] = stored.T

    def pool_rows(self, metric: int, tile: int, *, version: int) -> None:
        """Make the stages' medians of a level-0 tile, and of a wide series its pooled rows."""
        cells = self._whole(metric, tile) if self.order is not None else None
        if cells is None or self.order is None:
            return
        known = self._metric(metric, cells)
        if self.wide:
            self._rows(metric, known, Pooled.of(cells), is_ratio=False, level=0, tile=tile, version=version)
        if not known.compared or not (self.wide or medians_kept(self.order)):
            return
        medians = self._medians[metric, tile] = ratio.peer_medians(cells, self.order)
        self.made.append(TileBlob(metric, True, 0, 0, tile, 0, version, codec.encode(medians, Kind.EXACT)))
        if self.wide:
            relative = ratio.to_medians(cells, medians, self.order.stage_of_rank())
            self._rows(metric, known, Pooled.of(relative), is_ratio=True, level=0, tile=tile, version=version)

    def pool_level(self, metric: int, level: int, tile: int, *, version: int) -> None:
        """Make a tile of a column level out of the eight below it, its rows and its ratio."""
        for is_ratio in (False, True) if metric_of(self.names[metric]).compared else (False,):
            found = self._below(metric, is_ratio, level, tile)
            if found is None:
                continue
            known = self._metric(metric, found.max)
            self._keep(metric, known, found, is_ratio=is_ratio, levels=(level, 0), tile=tile, version=version)
            self._pooled[metric, is_ratio, level, tile] = found
            if self.wide:
                self._rows(metric, known, found, is_ratio=is_ratio, level=level, tile=tile, version=version)

    def taken(self) -> list[TileBlob]:
        """Return what was made since the last time, to be stored."""
        made, self.made = self.made, []
        return made

    def forget(self, level: int) -> None:
        """Let go of what tiles of a level were made from: it is stored, and nothing else will be made from it soon."""
        if level == 1:
            self._cells.clear()
            self._medians.clear()
        self._pooled = {key: found for key, found in self._pooled.items() if key[2] != level - 1}

    def _metric(self, metric: int, cells: Cells) -> Metric:
        name = self.names[metric]
        integral = name not in KNOWN and is_integral(cells)
        return metric_of(name, integral=integral, scope=SCOPES[self.kind])  # type: ignore[arg-type]

    def _whole(self, metric: int, tile: int) -> Cells | None:
        if (metric, tile) not in self._cells:
            found = cells_whole(self.series_id, metric, tile=tile, rows=self.world)
            if found is None:
                return None
            self._cells[metric, tile] = found
        cells = self._cells[metric, tile]
        if len(cells) == self.world:
            return cells
        out = np.full((TILE_COLUMNS, self.world), ABSENT, np.float32)
        kept = min(self.world, len(cells))
        out[:, :kept] = cells.T[:, :kept]
        return out.T

    def _below(self, metric: int, is_ratio: bool, level: int, tile: int) -> Pooled | None:
        """The columns of a tile of `level`: eight tiles of the level below, pooled; None if none of them has a value."""
        parts = [self._part(metric, is_ratio, level - 1, COLUMN_POOL * tile + n) for n in range(COLUMN_POOL)]
        if all(part is None for part in parts):
            return None
        nothing = _nothing(self.world)
        return pool_columns(concatenated([nothing if part is None else part for part in parts]))

    def _part(self, metric: int, is_ratio: bool, level: int, tile: int) -> Pooled | None:
        if level > 0:
            key = (metric, is_ratio, level, tile)
            if key in self._pooled:
                return self._pooled[key]
            levels = (level, 0)
            return pooled_whole(self.series_id, metric, ratio=is_ratio, levels=levels, tile=tile, rows=self.world)
        cells = self._whole(metric, tile)
        if cells is None:
            return None
        return Pooled.of(self._ratio(metric, tile, cells) if is_ratio else cells)

    def _ratio(self, metric: int, tile: int, cells: Cells) -> Cells:
        assert self.order is not None
        medians = self._medians.get((metric, tile))
        if medians is None:
            return ratio.to_peers(cells, self.order)
        return ratio.to_medians(cells, medians, self.order.stage_of_rank())

    def _rows(
        self, metric: int, known: Metric, found: Pooled, *, is_ratio: bool, level: int, tile: int, version: int
    ) -> None:
        assert self.order is not None
        for entity_level in (1, 2):
            found = pool_entities(found, self.order, entity_level)
            levels = (level, entity_level)
            self._keep(metric, known, found, is_ratio=is_ratio, levels=levels, tile=tile, version=version)

    def _keep(
        self,
        metric: int,
        known: Metric,
        found: Pooled,
        *,
        is_ratio: bool,
        levels: tuple[int, int],
        tile: int,
        version: int,
    ) -> None:
        kind = Kind.ROUNDED if is_ratio else known.kind
        for block in range(-(-found.shape[0] // BLOCK)):
            rows = slice(block * BLOCK, (block + 1) * BLOCK)
            part = Pooled(found.min[rows], found.max[rows], found.sum[rows], found.count[rows])
            if not part.count.any():
                continue
            data = pooled.encode(
                part,
                kind,
                known.worst,
                column_level=levels[0],
                entity_level=levels[1],
                order_version="0" * 16 if self.order is None else self.order.version,
            )
            self.made.append(TileBlob(metric, is_ratio, *levels, tile, block, version, data))


def medians_kept(order: StageNodeOrder) -> bool:
    """Return whether stages are large enough that keeping their medians costs little beside the values."""
    return order.n_entities >= MEDIANS_FROM * len(order.stages)


def levels_completed(*, before: int, floor: int, tile: int) -> list[tuple[int, int]]:
    """Return (level, tile) of the column levels that are complete once the sealed columns reach from `before` to `floor`.

    `tile` is the level-0 tile sealed last; between it and `before` nobody wrote. Finest level first.

    >>> levels_completed(before=448, floor=512, tile=7), levels_completed(before=512, floor=64_064, tile=1000)
    ([(1, 0)], [(2, 0), (3, 0)])
    """
    found = []
    for level in range(1, COLUMN_LEVELS):
        span = TILE_COLUMNS * COLUMN_POOL**level
        for holds in sorted({max(before - 1, 0) // span, tile * TILE_COLUMNS // span}):
            if before < (holds + 1) * span <= floor:
                found.append((level, holds))
    return found


def levels_above(*, tile: int, floor: int) -> list[tuple[int, int]]:
    """Return (level, tile) of the complete column levels that hold a level-0 tile, finest first.

    >>> levels_above(tile=9, floor=1024), levels_above(tile=9, floor=1000)
    ([(1, 1)], [])
    """
    found = []
    for level in range(1, COLUMN_LEVELS):
        span = TILE_COLUMNS * COLUMN_POOL**level
        holds = tile * TILE_COLUMNS // span
        if (holds + 1) * span <= floor:
            found.append((level, holds))
    return found


def _nothing(rows: int) -> Pooled:
    absent = np.full((TILE_COLUMNS, rows), ABSENT, np.float32).T
    return Pooled(absent, absent, absent, np.zeros((TILE_COLUMNS, rows), np.float32).T)
