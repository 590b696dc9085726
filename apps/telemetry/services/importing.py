"""Taking in whole tables at once: float32 arrays become sealed tiles without passing through reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from apps.common.errors import BadRequest, Conflict, Unprocessable
from apps.common.live import poke_on_commit, stream_group
from apps.common.tasks import queue_on_commit
from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.layout import TILE_COLUMNS
from apps.engine.tiles.metrics import limits_of, within_limits
from apps.fleet.services import cluster_ensure, nodes_ensure
from apps.journal.choices import StreamKey
from apps.journal.services import recording
from apps.runs.choices import AttemptState, Authority
from apps.runs.selectors import AttemptRow, attempt_by_id, run_by_id
from apps.runs.services import (
    RankPlace,
    attempt_end,
    attempt_open,
    attempt_progress,
    placement_merge,
    run_put,
    status_update,
)
from apps.telemetry.choices import OwnerKind, SeriesKind
from apps.telemetry.selectors.layouts import layout_of
from apps.telemetry.services.parse.steps import name_is_usable
from apps.telemetry.services.pyramids import Builder, levels_completed
from apps.telemetry.stores.inbox import fold_lock_wait
from apps.telemetry.stores.series import Writing, columns_write, metrics_add, series_open, series_save
from apps.telemetry.stores.tiles import order_note, tiles_save

MOST_METRICS = 64
TILES_AT_ONCE = 8
"""Tiles of one transaction: as many as one tile of the next level holds, so that it is made from memory."""

Cells = NDArray[np.float32]


class AlreadyKnown(Conflict):
    """The attempt has values already: an import is for a new one."""

    code = "import_already_known"


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the ranks of an import sit. ranks: which rank each row of the table is. placed: ranks whose place is known,
    those without a row among them; `seats` (counted over all nodes), `stages` and `coords` ([{name: place}] or empty)
    are theirs."""

    ranks: NDArray[np.int64]
    world_size: int
    ranks_per_node: int
    node_prefix: str
    placed: NDArray[np.int64]
    seats: NDArray[np.int64]
    stages: NDArray[np.int64]
    coords: Sequence[Mapping[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made. `values`: cells that were there; `refused`: those that cannot be, left out."""

    run: str
    attempt_id: int
    steps: int
    ranks: int
    values: int
    refused: int


def attempt_import(
    *,
    run: str,
    cluster: str,
    key: str,
    metric: str,
    steps: NDArray[np.int64],
    values: Cells,
    placed: Placed,
    step_s: float | None,
    layout: Mapping[str, int],
    reason: str,
    by: str,
    source: str,
    now: datetime,
) -> Imported:
    """Make an ended attempt out of a table float32 [row, step]; `placed.ranks` says which rank each row is.

    Its steps follow each other so that the last one ends now; each takes `step_s`, or what the slowest rank took.

    Raises:
        BadRequest: no metric can be called that.
        Conflict: the run has an open attempt, or the same key was taken before.
        Unprocessable: no value of the table can be one.
    """
    if not name_is_usable(metric):
        raise BadRequest(f"metric: “{metric[:63]}” has other signs than letters, digits and underscores.")
    values, refused = _possible(metric, values)
    if np.isnan(values).all():
        raise Unprocessable("No value of the table can be one of this metric.", metric=metric)
    ended_s = _ends(steps, values, step_s, now=now)
    attempt = _attempt_made(
        run=run, cluster=cluster, key=key, placed=placed, layout=layout, began_s=float(ended_s[0]), by=by, source=source, now=now,
    )  # fmt: skip
    cells = np.full((values.shape[1], placed.world_size), ABSENT, np.float32)
    cells[:, placed.ranks] = values.T
    series_import(attempt_id=attempt.id, steps=steps, metrics={metric: cells.T}, ended_s=ended_s, now=now)
    with recording(now=now):
        attempt_end(
            attempt_id=attempt.id, reason=reason, authority=Authority.CLIENT, by=by, source=source, now=now,
            happened_at=datetime.fromtimestamp(float(ended_s[-1]), UTC),
        )  # fmt: skip
        queue_on_commit("diagnosis.windows_evaluate", attempt_id=attempt.id)
    return Imported(run, attempt.id, len(steps), len(placed.ranks), int((~np.isnan(values)).sum()), refused)


def series_import(
    *,
    attempt_id: int,
    steps: NDArray[np.int64],
    metrics: Mapping[str, Cells],
    ended_s: NDArray[np.float64],
    now: datetime,
) -> None:
    """Write arrays float32 [rank, step] of an attempt that has no values yet as sealed tiles; its columns are settled.

    steps: rising. ended_s: when each step ended, in seconds since 1970. A few tiles a transaction: an import that is
    killed leaves whole tiles, and a picture up to where it came.

    Raises:
        AlreadyKnown: the attempt has values.
    """
    attempt = attempt_by_id(attempt_id)
    work = _Work(attempt, steps, metrics, ended_s, now)
    tiles = np.unique(steps // TILE_COLUMNS)
    builder: Builder | None = None
    for at in range(0, len(tiles), TILES_AT_ONCE):
        builder = _tiles_write(work, builder, tiles[at : at + TILES_AT_ONCE].tolist())


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    attempt: AttemptRow
    steps: NDArray[np.int64]
    metrics: Mapping[str, Cells]
    ended_s: NDArray[np.float64]
    now: datetime

    @property
    def width(self) -> int:
        return len(next(iter(self.metrics.values())))


def _tiles_write(work: _Work, builder: Builder | None, tiles: Sequence[int]) -> Builder:
    with transaction.atomic():
        fold_lock_wait(OwnerKind.ATTEMPT, work.attempt.id)
        series = series_open(kind=SeriesKind.RANK, owner_id=work.attempt.id, now=work.now)
        if builder is None:
            builder = _builder(work, series)
        floor = series.row.hot_floor
        for tile in tiles:
            end = (tile + 1) * TILE_COLUMNS
            _tile_make(builder, series, work, tile, floor=floor, end=end)
            floor = end
        first, last = tiles[0] * TILE_COLUMNS, floor
        inside = (work.steps >= first) & (work.steps < last)
        _series_note(work, series, inside, floor=floor)
        tiles_save(series.id, builder.taken())
    return builder


def _builder(work: _Work, series: Writing) -> Builder:
    if series.row.version > 0:
        raise AlreadyKnown("This attempt has values already; import into a new one.", attempt=work.attempt.id)
    metrics_add(series, list(work.metrics), most=MOST_METRICS)
    world = max(work.attempt.world_size or 0, work.width)
    layout = layout_of(attempt_id=work.attempt.id, world=world)
    names = {number: name for name, number in series.numbers.items()}
    order_note(series.id, layout.order, nodes=layout.node)
    return Builder(series.id, SeriesKind.RANK, names, world, layout.order)


def _tile_make(builder: Builder, series: Writing, work: _Work, tile: int, *, floor: int, end: int) -> None:
    first = tile * TILE_COLUMNS
    columns = np.flatnonzero((work.steps >= first) & (work.steps < end))
    complete = levels_completed(before=floor, floor=end, tile=tile)
    for name, array in work.metrics.items():
        number = series.numbers[name]
        whole = np.full((TILE_COLUMNS, work.width), ABSENT, np.float32)
        whole[work.steps[columns] - first] = array[:, columns].T
        builder.seal(number, tile, whole.T, version=series.version)
        builder.pool_rows(number, tile, version=series.version)
        for level, above in complete:
            builder.pool_level(number, level, above, version=series.version)
    for level, _ in complete:
        builder.forget(level)


def _series_note(work: _Work, series: Writing, inside: NDArray[np.bool_], *, floor: int) -> None:
    """The columns of some tiles, the series' row, and how far the attempt and its run have come."""
    steps, row, run_id = work.steps[inside], series.row, work.attempt.run_id
    moments = [datetime.fromtimestamp(at, UTC) for at in work.ended_s[inside].tolist()]
    columns_write(series, steps=steps, at=moments, ranks=work.width, now=work.now)
    row.width = max(row.width, work.width)
    row.first_step = int(steps[0]) if row.first_step is None else row.first_step
    row.last_step = row.settled_step = int(steps[-1])
    row.filled += sum(int((~np.isnan(array[:, inside])).sum()) for array in work.metrics.values())
    row.hot_floor = floor
    series_save(series, now=work.now, changed=True)
    attempt_progress(attempt_id=work.attempt.id, first_step=row.first_step, last_step=row.last_step, now=work.now)
    status_update(
        run_id=run_id,
        step=row.last_step,
        first_step=row.first_step,
        series_version=series.version,
        last_report_at=moments[-1],
    )
    what = {"what": "series", "version": series.version, "attempt": work.attempt.id}
    poke_on_commit(stream_group("RUN", run_id), what)


def _attempt_made(
    *,
    run: str,
    cluster: str,
    key: str,
    placed: Placed,
    layout: Mapping[str, int],
    began_s: float,
    by: str,
    source: str,
    now: datetime,
) -> AttemptRow:
    with recording(now=now) as log:
        cluster_id = cluster_ensure(name=cluster, now=now)
        fields = {"layout": dict(layout), "gpus_per_node": placed.ranks_per_node} if layout else {}
        run_id, _ = run_put(slug=run, cluster_id=cluster_id, fields=fields, by=by, source=source, now=now)
        if run_by_id(run_id).attempt_state == AttemptState.OPEN:
            raise Conflict(f"“{run}” has an open attempt; import into a run of its own.", run=run)
        attempt, _ = attempt_open(
            run_id=run_id, key=key, world_size=placed.world_size, by=by, source=source,
            now=datetime.fromtimestamp(began_s, UTC),
        )  # fmt: skip
        placement_merge(attempt_id=attempt.id, places=_places(placed, cluster_id=cluster_id, now=now), past=True)
        log.add(
            StreamKey.run(run_id),
            kind="attempt.imported",
            text=f"Attempt {attempt.number} is an import: {len(placed.ranks)} of {placed.world_size} ranks",
            source=source,
            actor_name=by,
            payload={"attempt": attempt.id},
        )
    return attempt


def _places(placed: Placed, *, cluster_id: int, now: datetime) -> list[RankPlace]:
    numbers = placed.seats // placed.ranks_per_node
    digits = max(3, len(str(int(numbers.max()) + 1)))
    names = [f"{placed.node_prefix}{number + 1:0{digits}d}" for number in numbers.tolist()]
    nodes = nodes_ensure(cluster_id=cluster_id, names=set(names), now=now)
    coords = placed.coords or [{"pp": stage} for stage in placed.stages.tolist()]
    told = zip(placed.placed.tolist(), placed.seats.tolist(), names, coords, placed.stages.tolist(), strict=True)
    return [
        RankPlace(rank, nodes[name], local_rank=seat % placed.ranks_per_node, coords={**where, "pp": stage})
        for rank, seat, name, where, stage in told
    ]


def _possible(metric: str, values: Cells) -> tuple[Cells, int]:
    """The values that can be, and how many cannot."""
    lo, hi = limits_of([metric])
    fine = within_limits(values.reshape(1, -1), lo, hi).reshape(values.shape)
    return np.where(fine, values, ABSENT), int((~fine).sum())


def _ends(steps: NDArray[np.int64], values: Cells, step_s: float | None, *, now: datetime) -> NDArray[np.float64]:
    """When each step ended if the last one ends now and steps that are not in the table took what the others did."""
    slowest = np.fmax.reduce(values.astype(np.float64), axis=0)
    usual = step_s or float(np.nanmedian(slowest)) or 1.0
    took = np.full(len(steps), usual) if step_s else np.nan_to_num(slowest, nan=usual)
    between = np.diff(steps, prepend=steps[0]) - 1
    since = np.cumsum(took + np.maximum(between, 0) * usual)
    oldest = (now - timedelta(days=3650)).timestamp()
    ends: NDArray[np.float64] = np.maximum(now.timestamp() - (since[-1] - since), oldest)
    return ends
