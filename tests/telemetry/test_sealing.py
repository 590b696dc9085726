"""Sealing: what is read stays the same, nothing is lost whenever it stops, late values find their place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.db import transaction
from numpy.typing import NDArray

from apps.engine.tiles.hot import COUNT_BIT
from apps.fleet.services import nodes_ensure
from apps.runs.services import RankPlace, attempt_end, placement_merge
from apps.telemetry.choices import SeriesKind
from apps.telemetry.models import HotBlock, Patch, Series, SeriesOrder, Tile
from apps.telemetry.selectors.columns import columns_settled
from apps.telemetry.selectors.heatmap import heatmap_open, heatmap_read
from apps.telemetry.selectors.pictures import Ask, Heatmap
from apps.telemetry.services import sealing
from apps.telemetry.services.gauges import Gauge, gauges_write
from apps.telemetry.services.sealing import patches_merge, series_seal, series_trim, tile_seal, tiles_sweep
from tests.telemetry.values import patch_write, series_write

pytestmark = pytest.mark.django_db

ERROR = 2.0**-10
"""Twice the declared error of a sealed value: a ratio has one of its value and one of its median."""


def random_cells(ranks: int, steps: int, *, seed: int = 1, absent: float = 0.02) -> NDArray[np.float32]:
    """Step times with a straggler, some of them missing."""
    rng = np.random.default_rng(seed)
    cells = (3 * (1 + 0.02 * rng.normal(size=(ranks, steps)))).astype(np.float32)
    cells[ranks // 2] *= 1.4
    cells[rng.random(cells.shape) < absent] = np.nan
    return cells


def drawn(attempt: Any, **ask: Any) -> Heatmap:
    return heatmap_read(heatmap_open(attempt, Ask(**{"metric": "compute_s", "first": 0, **ask})))


def same(before: Heatmap, after: Heatmap) -> bool:
    assert np.array_equal(before.drawn.steps, after.drawn.steps)
    # Rounding may change the order of rows that are equally slow: they are compared by their ranks.
    old, new = np.argsort(before.rows.first_rank), np.argsort(after.rows.first_rank)
    return bool(np.allclose(before.drawn.cells[old], after.drawn.cells[new], rtol=ERROR, atol=0, equal_nan=True))


def seal_all(attempt: Any, *, now: datetime) -> int:
    return series_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now).sealed


ASKS = [
    {"relative": relative, "pool": pool, "columns": columns, "rows": rows, "order": order}
    for relative in ("none", "peers", "self", "step")
    for pool, columns, rows, order in [
        ("worst", 2000, 512, "rank"), ("worst", 90, 4, "stage"), ("mean", 90, 8, "node"), ("min", 40, 512, "slowest"),
    ]
]  # fmt: skip


class TestReadersSeeTheSame:
    @pytest.mark.parametrize("first", [0, 37, 4000])
    def test_before_and_after_in_every_picture(
        self, attempt: Any, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime, first: int
    ) -> None:
        places = [RankPlace(rank=rank, node_id=0, coords={"pp": rank // 4}) for rank in range(8)]
        placement_merge(attempt_id=attempt.id, places=places)
        series_write(attempt.id, {"compute_s": random_cells(8, 700)}, first=first, now=now)
        before = [drawn(attempt, **ask) for ask in ASKS]

        sealed = seal_all(attempt, now=now)
        after = [drawn(attempt, **ask) for ask in ASKS]

        assert sealed >= 8
        assert Series.objects.get().hot_floor == first // 64 * 64 + 64 * sealed
        assert not HotBlock.objects.filter(col__lt=Series.objects.get().hot_floor).exists()
        assert [ask for ask, old, new in zip(ASKS, before, after, strict=True) if not same(old, new)] == []

    def test_of_more_ranks_than_a_block_has(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        attempt = make_attempt(make_run("wide"), world_size=1100, per_node=8)
        node = 1
        places = [RankPlace(rank=rank, node_id=node + rank // 8, coords={"pp": rank % 2}) for rank in range(1100)]
        placement_merge(attempt_id=attempt.id, places=places)
        series_write(attempt.id, {"compute_s": random_cells(1100, 700)}, now=now)
        asks = [*ASKS, {"ranks": ((3, 9), (1050, 1060)), "relative": "peers"}, {"rows": 30, "columns": 700}]
        before = [drawn(attempt, **ask) for ask in asks]

        seal_all(attempt, now=now)
        after = [drawn(attempt, **ask) for ask in asks]

        levels = set(Tile.objects.values_list("ratio", "level_columns", "level_entities"))
        assert levels == {
            (ratio, column, entity) for ratio in (False, True) for column in (0, 1) for entity in (0, 1, 2)
        }
        assert [ask for ask, old, new in zip(asks, before, after, strict=True) if not same(old, new)] == []

    def test_of_stages_whose_medians_are_kept(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        attempt = make_attempt(make_run("middle"), world_size=40)
        places = [RankPlace(rank=rank, node_id=0, coords={"pp": rank % 2}) for rank in range(40)]
        placement_merge(attempt_id=attempt.id, places=places)
        series_write(attempt.id, {"compute_s": random_cells(40, 300)}, now=now)
        asks = [{"relative": "peers"}, {"relative": "peers", "ranks": ((7, 9),)}]
        before = [drawn(attempt, **ask) for ask in asks]

        seal_all(attempt, now=now)
        after = [drawn(attempt, **ask) for ask in asks]
        patch_write(attempt.id, "compute_s", [(rank, 3, 8.0) for rank in range(0, 40, 2)], now=now)
        late = drawn(attempt, relative="peers").drawn.cells[:4, 3].tolist()
        series_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)

        assert Tile.objects.filter(ratio=True, level_columns=0).exists()
        assert all(same(old, new) for old, new in zip(before, after, strict=True))
        assert late[0] == late[2] == 1
        assert np.allclose(drawn(attempt, relative="peers").drawn.cells[:4, 3], late, rtol=ERROR)

    def test_detectors_read_the_same_settled_columns(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": random_cells(8, 300), "tokens": np.full((8, 300), 8191)}, now=now)
        before = columns_settled(attempt_id=attempt.id, after_step=None, limit=1000)

        seal_all(attempt, now=now)
        after = columns_settled(attempt_id=attempt.id, after_step=None, limit=1000)

        assert np.array_equal(before.steps, after.steps)
        assert np.array_equal(before.values["tokens"], after.values["tokens"])
        assert np.allclose(before.values["compute_s"], after.values["compute_s"], rtol=2**-11, equal_nan=True)

    def test_steps_with_gaps_of_thousands(self, attempt: Any, now: datetime) -> None:
        for first in (5, 3_000, 40_000, 700_000):
            series_write(attempt.id, {"compute_s": random_cells(8, 70, seed=first)}, first=first, now=now)
        before = [drawn(attempt, columns=columns) for columns in (200, 4000)]

        seal_all(attempt, now=now + timedelta(hours=1))
        after = [drawn(attempt, columns=columns) for columns in (200, 4000)]

        assert all(same(old, new) for old, new in zip(before, after, strict=True))

    def test_levels_of_thousands_of_steps(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        attempt = make_attempt(make_run("long"), world_size=2)
        cells = random_cells(2, 9_000)
        series_write(attempt.id, {"compute_s": cells}, now=now)

        while seal_all(attempt, now=now):
            pass

        assert set(Tile.objects.values_list("level_columns", flat=True)) == {0, 1, 2}
        seen = drawn(attempt, columns=40)
        expected = np.fmax.reduceat(cells, np.arange(0, 9_000, 256), axis=1)
        assert seen.steps_per_column == 256
        assert np.allclose(seen.drawn.cells, expected, rtol=2**-11)


class TestWhatIsDue:
    def test_the_newest_columns_stay_hot(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": random_cells(8, 64 + 128 - 1)}, now=now)
        assert tiles_sweep(now=now).sealed == 0

        series_write(attempt.id, {"compute_s": random_cells(8, 1)}, first=64 + 128 - 1, now=now)
        assert tiles_sweep(now=now).sealed == 1

    def test_what_is_not_settled_stays_hot(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": random_cells(8, 400)}, now=now, settled=False)

        assert tiles_sweep(now=now).sealed == 0

    def test_an_attempt_that_is_over_and_quiet_is_sealed_to_its_end(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": random_cells(8, 100)}, now=now)
        attempt_end(attempt_id=attempt.id, reason="FINISHED", authority="CLIENT", by="t", source="API", now=now)

        early, late = tiles_sweep(now=now + timedelta(minutes=9)), tiles_sweep(now=now + timedelta(minutes=11))

        series = Series.objects.get()
        assert (early.sealed, late.sealed, HotBlock.objects.count()) == (0, 2, 0)
        assert (series.hot_floor, series.closed) == (128, True)

    def test_a_late_value_opens_a_closed_series_again(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": np.ones((8, 100))}, now=now)
        attempt_end(attempt_id=attempt.id, reason="FINISHED", authority="CLIENT", by="t", source="API", now=now)
        tiles_sweep(now=now + timedelta(minutes=11))
        patch_write(attempt.id, "compute_s", [(3, 50, 7.0)], now=now + timedelta(minutes=12))

        swept = tiles_sweep(now=now + timedelta(minutes=13))

        assert (swept.merged, Patch.objects.count()) == (1, 0)
        assert drawn(attempt).drawn.cells[3, 50] == 7

    def test_a_sweep_ends_when_its_time_is_up(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": random_cells(8, 700)}, now=now)
        ticks = iter(range(1000))

        swept = tiles_sweep(now=now, clock=lambda: float(next(ticks)), most_s=4)

        assert 0 < swept.sealed < 8


class TestNothingIsLost:
    def test_a_write_that_comes_in_between_makes_the_sealer_do_it_again(
        self, attempt: Any, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        series_write(attempt.id, {"compute_s": np.ones((8, 300))}, now=now)
        waits = sealing.fold_lock_wait

        def fold_first(kind: str, owner_id: int) -> None:
            series_write(
                attempt.id, {"compute_s": np.full((8, 1), 9.0), "loss": np.full((8, 1), 2.0)}, first=5, now=now
            )
            waits(kind, owner_id)

        monkeypatch.setattr(sealing, "fold_lock_wait", fold_first)
        first = tile_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)
        monkeypatch.setattr(sealing, "fold_lock_wait", waits)
        again = tile_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)

        assert (first, again) == (False, True)
        assert drawn(attempt).drawn.cells[:, 5].tolist() == [9] * 8
        assert drawn(attempt, metric="loss").drawn.cells[:, 5].tolist() == [2] * 8

    @pytest.mark.parametrize("step", ["tiles_save", "order_note", "hot_delete"])
    def test_a_sealer_that_dies_leaves_what_was(
        self, attempt: Any, now: datetime, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        series_write(attempt.id, {"compute_s": random_cells(8, 700)}, now=now)
        for _ in range(7):
            assert tile_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)
        before = drawn(attempt)

        def die(*args: Any, **more: Any) -> None:
            real(*args, **more)
            raise ConnectionError("killed")

        real = getattr(sealing, step)
        monkeypatch.setattr(sealing, step, die)
        with pytest.raises(ConnectionError), transaction.atomic():
            tile_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)

        assert np.array_equal(before.drawn.cells, drawn(attempt).drawn.cells, equal_nan=True)
        monkeypatch.setattr(sealing, step, real)
        assert tile_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)
        assert same(before, drawn(attempt))

    def test_a_metric_that_only_some_ranks_send_keeps_its_holes(self, attempt: Any, now: datetime) -> None:
        cells = np.full((8, 300), np.nan)
        cells[2, 10:20] = 1.5
        series_write(attempt.id, {"compute_s": np.ones((8, 300)), "gc_s": cells}, now=now)

        seal_all(attempt, now=now)

        assert np.allclose(drawn(attempt, metric="gc_s").drawn.cells, cells, equal_nan=True)

    def test_an_unknown_counter_stays_exact(self, attempt: Any, now: datetime) -> None:
        cells = np.arange(8 * 300).reshape(8, 300) + 1_000_000
        series_write(attempt.id, {"shards_read": cells, "compute_s": np.ones((8, 300))}, now=now)

        seal_all(attempt, now=now)

        assert np.array_equal(drawn(attempt, metric="shards_read").drawn.cells, cells)


class TestLateValues:
    def test_show_before_and_after_they_are_merged_in_every_picture(self, attempt: Any, now: datetime) -> None:
        cells = np.full((8, 700), 2.0, np.float32)
        cells[4, 100] = np.nan
        series_write(attempt.id, {"compute_s": cells}, now=now)
        seal_all(attempt, now=now)
        patch_write(attempt.id, "compute_s", [(4, 100, 9.0), (1, 300, 8.0)], now=now, fill=True)
        patch_write(attempt.id, "compute_s", [(0, 300, 4.0)], now=now)
        asks = [{"columns": 2000}, {"columns": 40}, {"columns": 40, "relative": "peers"}, {"columns": 40, "pool": "mean"},
                {"columns": 90, "rows": 2, "relative": "self"}]  # fmt: skip
        before = [drawn(attempt, **ask) for ask in asks]

        merged = series_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now).merged
        after = [drawn(attempt, **ask) for ask in asks]

        plain = before[0].drawn.cells
        assert (plain[4, 100], plain[1, 300], plain[0, 300]) == (9, 2, 4)
        assert before[1].drawn.cells[4, 100 // before[1].steps_per_column] == 9
        assert (merged, Patch.objects.count()) == (2, 0)
        assert [ask for ask, old, new in zip(asks, before, after, strict=True) if not same(old, new)] == []

    def test_for_a_step_nobody_had_logged_make_a_tile_of_their_own(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": np.ones((8, 10))}, now=now)
        series_write(attempt.id, {"compute_s": np.ones((8, 200))}, first=1000, now=now)
        seal_all(attempt, now=now)
        patch_write(attempt.id, "compute_s", [(2, 70, 5.0)], now=now)

        before = drawn(attempt, first=64, end=128).drawn.cells
        merged = patches_merge(kind=SeriesKind.RANK, owner_id=attempt.id, tile=1)
        after = drawn(attempt, first=64, end=128).drawn.cells

        assert merged
        assert before[2, 6] == after[2, 6] == 5
        assert np.isnan(np.delete(after.ravel(), 2 * 64 + 6)).all()

    def test_of_which_the_last_wins_and_one_that_fills_never_does(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": np.ones((8, 300))}, now=now)
        seal_all(attempt, now=now)
        patch_write(attempt.id, "compute_s", [(0, 3, 4.0), (0, 3, 5.0)], now=now)
        patch_write(attempt.id, "compute_s", [(0, 3, 6.0), (1, 3, 7.0)], now=now, fill=True)

        before = drawn(attempt).drawn.cells[:2, 3].tolist()
        patches_merge(kind=SeriesKind.RANK, owner_id=attempt.id, tile=0)

        assert before == drawn(attempt).drawn.cells[:2, 3].tolist() == [5, 1]

    def test_a_cursor_brings_their_columns_merged_or_not(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": np.ones((8, 300))}, now=now)
        seal_all(attempt, now=now)
        cursor = drawn(attempt).cursor
        patch_write(attempt.id, "compute_s", [(0, 3, 4.0)], now=now)

        before = drawn(attempt, since=cursor).drawn
        patches_merge(kind=SeriesKind.RANK, owner_id=attempt.id, tile=0)
        after = drawn(attempt, since=cursor).drawn

        assert 3 in before.steps.tolist()
        assert before.steps.tolist() == after.steps.tolist()
        assert before.cells[0].tolist() == after.cells[0].tolist()

    def test_a_seal_alone_is_no_change_to_a_cursor(self, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": np.ones((8, 300))}, now=now)
        cursor = drawn(attempt).cursor

        seal_all(attempt, now=now)

        assert drawn(attempt, since=cursor).drawn.steps.tolist() == []


class TestPlacement:
    def test_that_changes_makes_the_pooled_ratios_anew(self, attempt: Any, now: datetime, cluster: int) -> None:
        cells = np.outer([1, 1, 1, 1, 4, 4, 4, 4], np.ones(700))
        series_write(attempt.id, {"compute_s": cells}, now=now)
        seal_all(attempt, now=now)
        nodes = nodes_ensure(cluster_id=cluster, names=["trn001", "trn002"], now=now)
        places = [RankPlace(rank=r, node_id=nodes[f"trn00{1 + r // 4}"], coords={"pp": r // 4}) for r in range(8)]
        placement_merge(attempt_id=attempt.id, places=places)

        before = drawn(attempt, relative="peers", columns=40).drawn.cells
        old = SeriesOrder.objects.get().version
        swept = series_seal(kind=SeriesKind.RANK, owner_id=attempt.id, now=now)
        after = drawn(attempt, relative="peers", columns=40).drawn.cells

        assert swept.remade == 1
        assert SeriesOrder.objects.get().version != old
        assert (before == 1).all()
        assert (after == 1).all()


class TestGauges:
    def test_of_a_cluster_are_sealed_and_read_and_in_the_end_let_go(self, cluster: int, now: datetime) -> None:
        start = now.timestamp() - 15 * 300
        gauges = [
            Gauge(entity=slot, at_s=start + 15 * column, values={"temperature_c": 60.0 + slot, "utilization": 0.5})
            for column in range(300)
            for slot in range(4)
        ]
        with transaction.atomic():
            gauges_write(kind=SeriesKind.GPU, cluster_id=cluster, gauges=gauges, most_metrics=64, now=now)

        swept = tiles_sweep(now=now)

        series = Series.objects.get(kind=SeriesKind.GPU)
        assert swept.sealed >= 2
        assert set(Tile.objects.values_list("level_columns", "level_entities", "ratio")) == {(0, 0, False)}
        assert not Tile.objects.filter(metric__gte=COUNT_BIT).exists()
        assert series.hot_floor % 64 == 0
        kept = Tile.objects.count()
        assert series_trim(now=now) == 0
        assert (series_trim(now=now + timedelta(days=91)), Tile.objects.count()) == (kept, 0)
