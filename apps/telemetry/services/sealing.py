"""Sealing: hot columns become tiles, late values go into theirs, pooled levels follow. One tile a transaction.

A sealer works out its tiles while folds go on, then takes the fold's lock for the moment of writing; if the fold wrote
into the same columns meanwhile, the work is thrown away and done again later. A kill at any moment leaves what was.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction
from django.db.models import F

from apps.common.errors import NotFound
from apps.engine.tiles import hot
from apps.engine.tiles.layout import BLOCK, HOT_HORIZON, TILE_COLUMNS
from apps.runs.choices import AttemptState
from apps.runs.selectors import attempt_by_id, attempts_open
from apps.telemetry.choices import OwnerKind, SeriesKind
from apps.telemetry.models import Patch, Series
from apps.telemetry.selectors.layouts import Layout, layout_of
from apps.telemetry.selectors.patches import patches_lay
from apps.telemetry.selectors.series import SeriesRow, series_of
from apps.telemetry.selectors.tiles import cells_whole, orders_of
from apps.telemetry.services.pyramids import Builder, levels_above, levels_completed
from apps.telemetry.stores.inbox import fold_lock_wait
from apps.telemetry.stores.tiles import (
    HotBlob,
    hot_blobs,
    hot_delete,
    hot_first,
    hot_state,
    order_note,
    orders_forget,
    orders_stale,
    patched_tiles,
    patches_delete,
    patches_load,
    seal_lock,
    tiles_save,
    tiles_trim,
)

SWEEP_S = 5.0
"""How long one sweep works: half its period, so that other slow tasks get their turn."""

MOST_TILES = 16
"""Tiles of one series in a row before the next series has its turn."""

CLOSE_AFTER = timedelta(minutes=10)
"""An ended attempt that heard nothing for so long is sealed to its end."""

GAUGES_KEPT = timedelta(days=90)
"""How long gauges of nodes are kept at full detail; incidents keep their own copy of what they saw."""
TRIMMED_AT_ONCE = 10_000

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: tiles sealed, tiles that late values were merged into, pooled tiles made anew."""

    sealed: int = 0
    merged: int = 0
    remade: int = 0

    def __add__(self, other: "Swept") -> "Swept":
        return Swept(self.sealed + other.sealed, self.merged + other.merged, self.remade + other.remade)


def tiles_sweep(*, now: datetime, clock: Clock = time.monotonic, most_s: float = SWEEP_S) -> Swept:
    """Seal, merge and remake what is due, of every series in turn, until the time is up."""
    until = clock() + most_s
    done = Swept()
    for kind, owner_id in _due(now=now):
        done += series_seal(kind=kind, owner_id=owner_id, now=now, clock=clock, until=until)
        if clock() >= until:
            break
    return done


def series_seal(
    *, kind: str, owner_id: int, now: datetime, clock: Clock = time.monotonic, until: float = float("inf")
) -> Swept:
    """Seal the tiles of one series that are due, at most `MOST_TILES`, merge its late values, remake what is stale."""
    sealed = merged = remade = 0
    while sealed < MOST_TILES and clock() < until and tile_seal(kind=kind, owner_id=owner_id, now=now):
        sealed += 1
    series = series_of(kind, owner_id)
    if series is None:
        return Swept(sealed)
    for tile in patched_tiles(series.id, limit=MOST_TILES):
        if clock() >= until:
            break
        merged += patches_merge(kind=kind, owner_id=owner_id, tile=tile)
    while kind == SeriesKind.RANK and clock() < until and order_remake(owner_id=owner_id):
        remade += 1
    _close(series, now=now)
    return Swept(sealed, merged, remade)


def tile_seal(*, kind: str, owner_id: int, now: datetime) -> bool:
    """Seal the lowest tile that is due; return whether there was one and it could be done now."""
    with transaction.atomic():
        series = series_of(kind, owner_id)
        if series is None or not seal_lock(series.id):
            return False
        lowest = hot_first(series.id)
        if lowest is None:
            return False
        tile = lowest // TILE_COLUMNS
        first, end = tile * TILE_COLUMNS, (tile + 1) * TILE_COLUMNS
        if end > _sealable(series, now=now):
            return False
        before = hot_state(series.id, first=first, end=end)
        # Read after the state: a metric that a fold adds from here on changes it, and the work is thrown away.
        builder, layout = _builder(_again(series))
        _seal_cells(builder, tile, hot_blobs(series.id, first=first, end=end))
        for level, above in levels_completed(before=series.hot_floor, floor=end, tile=tile):
            for metric in builder.names if builder.order is not None else ():
                builder.pool_level(metric, level, above, version=before[1])
        # The fold reads and writes hot blocks under this lock: what is compared now cannot change until the commit.
        fold_lock_wait(_owner(series.kind), series.owner_id)
        if hot_state(series.id, first=first, end=end) != before or hot_first(series.id) != lowest:
            return False
        _write(builder, layout)
        hot_delete(series.id, first=first, end=end, floor=end)
        return True


def patches_merge(*, kind: str, owner_id: int, tile: int) -> bool:
    """Merge a tile's late values into it and into what is pooled of it; return whether it could be done now."""
    with transaction.atomic():
        series = series_of(kind, owner_id)
        if series is None or not seal_lock(series.id) or tile * TILE_COLUMNS >= series.hot_floor:
            return False
        values, up_to_id, version = patches_load(series.id, tile)
        if not len(values):
            return False
        builder, layout = _builder(_again(series))  # after the values: so every metric of them has a name
        metrics = [metric for metric in np.unique(values["metric"]).tolist() if metric in builder.names]
        for metric in metrics:
            mine = values[values["metric"] == metric]
            width = max(builder.world, int(mine["entity"].max()) + 1)
            cells = cells_whole(series.id, metric, tile=tile, rows=width)
            if cells is None:
                cells = np.full((TILE_COLUMNS, width), hot.ABSENT, np.float32).T
            laid = patches_lay(cells, mine, first_entity=0, first_column=tile * TILE_COLUMNS)
            builder.seal(metric, tile, laid, version=version)
        _pool(builder, metrics, tile, floor=series.hot_floor, version=version)
        # Late values that come from here on have higher numbers and stay; the ones read are in the tile.
        _write(builder, layout)
        patches_delete(series.id, tile, up_to_id=up_to_id)
        return True


def order_remake(*, owner_id: int) -> bool:
    """Make one pooled tile of an attempt anew that was made with another placement; return whether there was one."""
    with transaction.atomic():
        series = series_of(SeriesKind.RANK, owner_id)
        orders = orders_of(series.id) if series is not None else set()
        if series is None or not orders:
            return False
        builder, layout = _builder(series)
        assert builder.order is not None
        if orders == {builder.order.version} or not seal_lock(series.id):
            return False
        stale = orders_stale(series.id, builder.order.version, limit=1)
        if not stale:
            orders_forget(series.id, keep=builder.order.version)
            return False
        level, tile = stale[0]
        for metric in builder.names:
            if level == 0:
                builder.pool_rows(metric, tile, version=0)
            else:
                builder.pool_level(metric, level, tile, version=0)
        _write(builder, layout)
        return True


def series_trim(*, now: datetime) -> int:
    """Delete gauges that are kept long enough; return how many tiles went. Values of ranks stay with their run."""
    ids = list(Series.objects.filter(kind__in=(SeriesKind.GPU, SeriesKind.NODE)).values_list("pk", flat=True))
    oldest = int((now - GAUGES_KEPT).timestamp()) // 15
    return tiles_trim(ids, before_column=oldest, limit=TRIMMED_AT_ONCE)


def _due(*, now: datetime) -> Iterable[tuple[str, int]]:
    """Series with something to do: columns behind the horizon, late values, an attempt that is over. Longest waiting first."""
    settled = Series.objects.filter(closed=False, settled_step__gte=F("hot_floor") + TILE_COLUMNS + HOT_HORIZON - 1)
    patched = Series.objects.filter(pk__in=Patch.objects.values("series_id").distinct())
    quiet = Series.objects.filter(
        closed=False, kind=SeriesKind.RANK, last_step__isnull=False, changed_at__lt=now - CLOSE_AFTER
    ).exclude(owner_id__in=[attempt.id for attempt in attempts_open()])
    found = (settled | patched | quiet).distinct().order_by("changed_at", "pk")
    return list(found.values_list("kind", "owner_id"))


def _sealable(series: SeriesRow, *, now: datetime) -> int:
    """The column before which everything may be sealed."""
    if series.settled_step is None:
        return 0
    if series.kind == SeriesKind.RANK and _over(series, now=now):
        return (series.settled_step // TILE_COLUMNS + 1) * TILE_COLUMNS
    return series.settled_step + 1 - HOT_HORIZON


def _over(series: SeriesRow, *, now: datetime) -> bool:
    """Whether nothing more is expected of an attempt: it ended, all is settled, and it is quiet."""
    if series.last_step is None or series.settled_step is None or series.settled_step < series.last_step:
        return False
    try:
        attempt = attempt_by_id(series.owner_id)
    except NotFound:
        return False
    return attempt.state == AttemptState.ENDED and _quiet(series.id, now=now)


def _quiet(series_id: int, *, now: datetime) -> bool:
    return Series.objects.filter(pk=series_id, changed_at__lt=now - CLOSE_AFTER).exists()


def _close(series: SeriesRow, *, now: datetime) -> None:
    """Leave a series alone from here on once all of it is sealed; the next value opens it again."""
    if series.kind != SeriesKind.RANK or series.last_step is None or series.hot_floor <= series.last_step:
        return
    if _over(series, now=now) and not patched_tiles(series.id, limit=1):
        Series.objects.filter(pk=series.id, version=series.version).update(closed=True)


def _again(series: SeriesRow) -> SeriesRow:
    """Return a series as it is by now."""
    return series_of(series.kind, series.owner_id) or series


def _owner(kind: str) -> str:
    return OwnerKind.ATTEMPT if kind == SeriesKind.RANK else OwnerKind.CLUSTER


def _builder(series: SeriesRow) -> tuple[Builder, Layout | None]:
    names = {number: name for name, number in series.numbers.items()}
    if series.kind != SeriesKind.RANK:
        return Builder(series.id, series.kind, names, max(series.width, 1), None), None
    world = max(attempt_by_id(series.owner_id).world_size or 0, series.width, 1)
    layout = layout_of(attempt_id=series.owner_id, world=world)
    return Builder(series.id, series.kind, names, world, layout.order), layout


def _seal_cells(builder: Builder, tile: int, blobs: Sequence[HotBlob]) -> None:
    """Make the level-0 tiles of the blobs of one tile's columns, and their pooled rows."""
    version = max(blob.version for blob in blobs)
    width = max(blob.block * BLOCK + blob.width for blob in blobs)
    ids = [number for number in hot.ids_of([blob.data for blob in blobs]) if number in builder.names]
    cells = {metric: np.full((TILE_COLUMNS, width), hot.ABSENT, np.float32) for metric in ids}
    for blob in blobs:
        block = hot.read(blob.data)
        column = blob.col - tile * TILE_COLUMNS
        for metric, row in zip(block.metric_ids, block.cells, strict=True):
            if metric in cells:
                cells[metric][column, blob.block * BLOCK : blob.block * BLOCK + len(row)] = row
    for metric, values in cells.items():
        builder.seal(metric, tile, values.T, version=version)
        builder.pool_rows(metric, tile, version=version)


def _pool(builder: Builder, metrics: Sequence[int], tile: int, *, floor: int, version: int) -> None:
    """Make anew what is pooled of a sealed tile: its rows, and the complete levels above it."""
    if builder.order is None:
        return
    for metric in metrics:
        builder.pool_rows(metric, tile, version=version)
        for level, above in levels_above(tile=tile, floor=floor):
            builder.pool_level(metric, level, above, version=version)


def _write(builder: Builder, layout: Layout | None) -> None:
    if builder.order is not None and layout is not None and any(t.ratio or t.level_entities for t in builder.made):
        order_note(builder.series_id, builder.order, nodes=layout.node)
    tiles_save(builder.series_id, builder.made)
