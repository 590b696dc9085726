"""Measure the tile store's pure part: bytes a sample, and CPU time of writing, reading, pooling and drawing.

    python -m tests.benchmarks.bench_tiles [ranks] [steps]

One core is used. Times are the best of some rounds, in milliseconds of CPU time unless said otherwise.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from apps.engine.tiles import codec, heatgrid, hot, pooled, ratio, scatter
from apps.engine.tiles.heatgrid import Part
from apps.engine.tiles.layout import BLOCK, TILE_COLUMNS, StageNodeOrder, bucket_for, stage_node_order
from apps.engine.tiles.metrics import Kind, metric_of
from apps.engine.tiles.pyramid import Pooled, pool_columns, pool_entities
from apps.engine.tiles.rounding import Cells
from apps.engine.tiles.rows import plan_for, row_layout
from tests.engine.tiles.arrays import training_metrics


def best_ms(work: Callable[[], object], rounds: int = 5) -> float:
    """The least CPU time of some rounds, in ms."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def blocks(cells: Cells) -> list[tuple[int, int, Cells]]:
    """(first rank, first column, cells) of each tile, as a sealer has them: a block's columns one after the other."""
    rows, columns = range(0, len(cells), BLOCK), range(0, cells.shape[1], TILE_COLUMNS)
    return [(r, c, np.ascontiguousarray(cells[r : r + BLOCK, c : c + TILE_COLUMNS].T).T) for r in rows for c in columns]


def bench_sizes() -> None:
    print(
        "\nsealed level-0 tiles, 1,024 ranks x 64 steps: bytes a sample, largest relative error, ms to write and to read"
    )
    sizes = []
    for name, cells in training_metrics().items():
        kind = metric_of(name).kind
        blob = codec.encode(cells, kind)
        info = codec.read_info(blob)
        error = float(np.max(np.abs(codec.decode(blob) - cells) / np.abs(cells)))
        sizes.append(len(blob) / cells.size)
        by_column = np.ascontiguousarray(cells.T).T
        write, read = best_ms(lambda: codec.encode(by_column, kind), 20), best_ms(lambda: codec.decode(blob), 20)  # noqa: B023
        print(f"  {name:16} {sizes[-1]:.3f}  {error:.6f}  {write:.2f}  {read:.2f}  {info.mode.name} {info.domain.name}")
    print(f"  mean of {len(sizes)} metrics {np.mean(sizes):.3f} bytes a sample")


def bench_pyramid(n_ranks: int) -> None:
    """All pooled levels of 512 steps: what they cost beside level 0, in bytes and in time."""
    print(f"\npooled levels of {n_ranks:,} ranks x 512 steps, per level-0 sample: bytes, ns")
    order = stage_node_order(np.arange(n_ranks) * 8 // n_ranks, np.arange(n_ranks) // 8)
    total_bytes = total_ns = 0.0
    metrics = training_metrics(n_ranks, 512)
    for name, cells in metrics.items():
        metric = metric_of(name)
        cells = np.asfortranarray(cells)
        kinds = [("value", lambda c=cells: c, metric.kind)]
        if metric.compared:
            kinds.append(("ratio", lambda c=cells: ratio.to_peers(c, order), Kind.ROUNDED))
        level0 = sum(len(codec.encode(tile, metric.kind)) for _, _, tile in blocks(cells)) / cells.size
        level0_ns = best_ms(lambda: [codec.encode(t, metric.kind) for _, _, t in blocks(cells)], 1) * 1e6  # noqa: B023
        line, sample_bytes, sample_ns = f"  {name:16} level 0 {level0:.3f}", level0, level0_ns / cells.size
        for label, make, kind in kinds:
            start = time.process_time()
            stored = sum(map(len, _levels(make(), order, kind, metric.worst)))
            spent = 1e9 * (time.process_time() - start) / cells.size
            line += f"  {label} levels {stored / cells.size:.3f} B {spent:.0f} ns"
            sample_bytes, sample_ns = sample_bytes + stored / cells.size, sample_ns + spent
        print(line)
        total_bytes, total_ns = total_bytes + sample_bytes, total_ns + sample_ns
    n = len(metrics)
    print(f"  mean, all levels: {total_bytes / n:.3f} bytes and {total_ns / n:.0f} ns a sample", end="")
    print(f" = {1000 * n / total_ns:.1f} M samples a CPU-second")


def _levels(cells: Cells, order: StageNodeOrder, kind: Kind, worst: str) -> list[bytes]:
    """Every pooled tile over `cells`; the last column level of 512 steps is 1/8 of a tile and counted as such."""
    found = []
    level = Pooled.of(cells)
    for entity_level in (0, 1, 2):
        if entity_level:
            level = pool_entities(level, order, entity_level)
        columns, column_level = level, 0
        while column_level < 3:
            if (entity_level, column_level) != (0, 0):
                found += _tiles(columns, kind, worst, entity_level, column_level, order.version)
            columns, column_level = pool_columns(columns), column_level + 1
    return found


def _tiles(level: Pooled, kind: Kind, worst: str, entity_level: int, column_level: int, version: str) -> list[bytes]:
    rows, columns = level.shape
    return [
        pooled.encode(
            Pooled(
                *(getattr(level, name)[r : r + BLOCK, c : c + TILE_COLUMNS] for name in ("min", "max", "sum", "count"))
            ),
            kind,
            "min" if worst == "min" else "max",
            column_level=column_level,
            entity_level=entity_level,
            order_version=version,
        )
        for r in range(0, rows, BLOCK)
        for c in range(0, columns, TILE_COLUMNS)
    ]


def bench_heatmap(n_ranks: int, n_steps: int) -> None:
    print(f"\nheatmap of {n_ranks:,} ranks x {n_steps:,} steps from sealed tiles, ms")
    stage, node = np.arange(n_ranks) * 8 // n_ranks, np.arange(n_ranks) // 8
    order = stage_node_order(stage, node)
    cells = training_metrics(n_ranks, n_steps)["compute_s"]
    sealed = [(r, c, codec.encode(tile, Kind.ROUNDED)) for r, c, tile in blocks(cells)]
    grouped = pool_entities(Pooled.of(cells), order, 1)
    at = {"column_level": 0, "entity_level": 1, "order_version": order.version}
    sealed8 = []
    for r in range(0, len(grouped.max), BLOCK):
        for c in range(0, n_steps, TILE_COLUMNS):
            part = [plane[r : r + BLOCK, c : c + TILE_COLUMNS] for plane in vars(grouped).values()]
            blob = pooled.encode(Pooled(*part), Kind.ROUNDED, "max", **at)
            sealed8.append((r, c, blob[: pooled.read_info(blob).worst_bytes]))
    print(f"  level 0: {len(sealed)} tiles, {sum(len(b) for *_, b in sealed) / 1e6:.1f} MB", end="; ")
    print(f"groups of 8: {len(sealed8)} first planes, {sum(len(b) for *_, b in sealed8) / 1e6:.2f} MB")
    for by in ("rank", "node", "stage"):
        rows = row_layout(order, stage, node, by=by, max_rows=512)
        plan = plan_for(first=0, last=n_steps - 1, max_columns=600, order=order, rows=rows)
        ask = {"order": order, "rows": rows, "bucket": plan.bucket, "pool": "worst", "worst": "max"}
        layout_ms = best_ms(lambda: row_layout(order, stage, node, by=by, max_rows=512))  # noqa: B023
        pooled_ms = best_ms(
            lambda: heatgrid.assemble((Part(pooled.decode(b, ("max",))["max"], r, c, 1) for r, c, b in sealed8), **ask)  # noqa: B023
        )
        full_ms = best_ms(lambda: heatgrid.assemble((Part(codec.decode(b), r, c) for r, c, b in sealed), **ask))  # noqa: B023
        grid = heatgrid.assemble((Part(codec.decode(b), r, c) for r, c, b in sealed), **ask)
        print(
            f"  by {by:5} {grid.cells.shape}: rows {layout_ms:.1f}, pooled level {pooled_ms:.1f}, level 0 {full_ms:.1f}"
        )
    bench_relative(order, stage, node, sealed, n_ranks, n_steps)
    print(f"  decode alone {best_ms(lambda: [codec.decode(b) for *_, b in sealed]):.1f}", end="; ")
    rows = row_layout(order, stage, node, by="rank", max_rows=n_ranks)
    ask = {"order": order, "rows": rows, "bucket": bucket_for(0, n_steps - 1, n_steps), "pool": "worst", "worst": "max"}
    full = best_ms(lambda: heatgrid.assemble((Part(codec.decode(b), r, c) for r, c, b in sealed), **ask), 3)
    print(f"all {n_ranks * n_steps / 1e6:.1f} M values in full {full:.1f}")


def bench_relative(
    order: StageNodeOrder, stage: np.ndarray, node: np.ndarray, sealed: list, n_ranks: int, n_steps: int
) -> None:
    """Drawings whose values are divided rank by rank, column range by column range."""
    rows = row_layout(order, stage, node, by="rank", max_rows=512)
    plan = plan_for(first=0, last=n_steps - 1, max_columns=600, order=order, rows=rows, by_rank=True)
    ask = {"order": order, "rows": rows, "bucket": plan.bucket, "pool": "worst", "worst": "max"}
    own = np.full(n_ranks, 3.1, np.float32)
    divided = {
        "self": lambda cells: ratio.to_self(cells, own),
        "step": ratio.to_step,
        "peers": lambda cells: ratio.to_peers(cells, order),
    }
    for relative, divide in divided.items():

        def draw(divide: Callable[[Cells], Cells] = divide) -> object:
            return heatgrid.assemble(
                (Part(divide(_columns(sealed, c)), 0, c) for c in range(0, n_steps, TILE_COLUMNS)), **ask
            )

        print(f"  relative={relative} from level 0: {best_ms(draw, 3):.1f}")


def _columns(sealed: list, column: int) -> Cells:
    """All ranks of one tile's columns."""
    return np.concatenate([codec.decode(blob).T for _, c, blob in sealed if c == column], axis=1).T


def bench_hot() -> None:
    print("\nhot blocks of 8 metrics x 1,024, µs each")
    ids = list(range(8))
    blob = hot.write(hot.empty(ids))
    print(f"  write {1000 * best_ms(lambda: [hot.write(hot.empty(ids)) for _ in range(100)]) / 100:.1f}", end="; ")
    print(f"read {1000 * best_ms(lambda: [hot.read(blob) for _ in range(100)]) / 100:.1f}", end="; ")
    many = [blob] * 64
    print(f"stack {1000 * best_ms(lambda: hot.stack(many, ids, BLOCK)) / 64:.1f}", end="; ")
    stacked = hot.stack(many, ids, BLOCK)
    print(f"unstack {1000 * best_ms(lambda: hot.unstack(stacked, ids)) / 64:.1f}")
    rng = np.random.default_rng(0)
    n = 64 * BLOCK
    shuffled = rng.permutation(n)
    where = {"blocks": shuffled // BLOCK, "rows": np.arange(8), "entities": shuffled % BLOCK}
    values = rng.random((8, n)).astype(np.float32)
    for rule in (scatter.Rule.OVERWRITE, scatter.Rule.FILL):
        spent = best_ms(lambda: scatter.scatter(stacked, values=values, rule=rule, **where))  # noqa: B023
        print(f"  scatter {rule.name} {1e6 * spent / values.size:.1f} ns a value")


def main() -> None:
    n_ranks, n_steps = (int(arg) for arg in (sys.argv[1:3] + ["16384", "1000"][len(sys.argv) - 1 :]))
    bench_sizes()
    bench_pyramid(min(n_ranks, 4096))
    bench_heatmap(n_ranks, n_steps)
    bench_hot()


if __name__ == "__main__":
    main()
