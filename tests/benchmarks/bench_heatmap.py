"""What pictures and tiles cost: `python -m tests.benchmarks.bench_heatmap [--ranks N] [--steps N] [--rounds N]`.

A PostgreSQL of its own with everything on that keeps data. 8 metrics are imported as arrays, the newest 160 steps are
written as hot blocks, then pictures are drawn, in this process, from opening the view to the packed answer. CPU is that
of this process and of PostgreSQL.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.bench_ingest import cpu_s

HOT_STEPS = 160


def main() -> None:
    """Start PostgreSQL, fill it, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2048, help="steps that are imported, beside the hot ones")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        running = _servers(Path(folder))
        try:
            attempt = bench_import(given.ranks, given.steps)
            bench_sizes()
            bench_pictures(attempt, given.ranks, given.steps + HOT_STEPS, rounds=given.rounds)
            bench_seal(attempt)
        finally:
            running.stop()


def _servers(folder: Path) -> Any:
    from apps.config.local.folder import folder_open
    from apps.config.local.servers import servers_choose, servers_start

    chosen = servers_choose(folder_open(folder / "servers"), environment={}, settings={"shared_buffers": "512MB"})
    running = servers_start(chosen)
    os.environ.update(
        DATABASE_URL=running.servers.database_url, REDIS_URL=running.servers.redis_url, OPENBLAS_NUM_THREADS="1",
        PACELINE_DATA_DIR=str(folder / "site"), PACELINE_SECRET_KEY="bench " * 10,
        DJANGO_SETTINGS_MODULE="apps.config.settings",
    )  # fmt: skip
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    return running


def bench_import(ranks: int, steps: int) -> Any:
    """Import arrays, then write the hot end; print samples a CPU-second."""
    from apps.common.clock import now
    from apps.fleet.services import cluster_ensure, nodes_ensure
    from apps.runs.selectors import attempt_by_id
    from apps.runs.services import RankPlace, attempt_open, placement_merge, run_put
    from apps.telemetry.services.importing import series_import
    from tests.engine.tiles.arrays import training_metrics
    from tests.telemetry.values import series_write

    moment = now()
    cluster = cluster_ensure(name="bench", now=moment)
    run_id, _ = run_put(slug="bench", cluster_id=cluster, fields={}, by="bench", source="COMMAND", now=moment)
    row, _ = attempt_open(run_id=run_id, key="b/1", world_size=ranks, by="bench", source="COMMAND", now=moment)
    names = [f"node-{place:04d}" for place in range(-(-ranks // 8))]
    nodes = nodes_ensure(cluster_id=cluster, names=names, now=moment)
    stages = max(1, min(8, ranks // 64))
    places = [
        RankPlace(rank=r, node_id=nodes[names[r // 8]], local_rank=r % 8, coords={"pp": r * stages // ranks})
        for r in range(ranks)
    ]
    placement_merge(attempt_id=row.id, places=places)
    metrics = training_metrics(ranks, steps + HOT_STEPS)
    at = np.arange(steps, dtype=np.int64)
    old = {name: values[:, :steps] for name, values in metrics.items()}
    cpu, wall = cpu_s(os.getpid()), time.perf_counter()
    series_import(attempt_id=row.id, steps=at, metrics=old, ended_s=moment.timestamp() + 5.0 * at, now=moment)
    cpu, wall = cpu_s(os.getpid()) - cpu, time.perf_counter() - wall
    samples = ranks * steps * len(metrics)
    print(
        f"\nimport of {ranks:,} ranks x {steps:,} steps x {len(metrics)} metrics, pooled levels and database included:"
    )
    print(f"  {samples / cpu / 1e6:.1f} M samples a CPU-second, {samples / wall / 1e6:.1f} M a second")
    hot = {name: values[:, steps:] for name, values in metrics.items()}
    series_write(row.id, hot, first=steps, now=moment)
    return attempt_by_id(row.id)


def bench_sizes() -> None:
    """Bytes a sample of sealed tiles, and of everything that is pooled of them."""
    from django.db import connection

    with connection.cursor() as c:
        c.execute("VACUUM ANALYZE telemetry_tile")
        c.execute("""SELECT m.name, sum(pg_column_size(t.data)) FROM telemetry_tile t
            JOIN telemetry_seriesmetric m ON m.series_id = t.series_id AND m.number = t.metric
            WHERE NOT ratio AND level_columns = 0 AND level_entities = 0 GROUP BY 1 ORDER BY 1""")
        level_0 = dict(c.fetchall())
        c.execute("SELECT sum(pg_column_size(data)), pg_total_relation_size('telemetry_tile') FROM telemetry_tile")
        everything, on_disk = c.fetchone() or (0, 0)
        c.execute("SELECT filled FROM telemetry_series")
        samples = (c.fetchone() or (1,))[0]
    print("\nbytes a sample (pg_column_size):")
    for name, size in level_0.items():
        print(f"  {name:16} {size / (samples / len(level_0)):.3f}")
    print(f"  mean of {len(level_0)} metrics, level 0: {sum(level_0.values()) / samples:.3f}")
    print(
        f"  with pooled levels and ratios: {everything / samples:.3f}; the table with its indexes: {on_disk / samples:.3f}"
    )


def bench_pictures(attempt: Any, ranks: int, steps: int, *, rounds: int) -> None:
    """Milliseconds of pictures, median and 95th percentile."""
    last = {"first": steps - 1000, "end": steps}
    print(
        f"\npictures of {ranks:,} ranks, 1,000 of {steps:,} steps unless said otherwise: p50, p95 ms of time, mean ms of CPU in "
        f"this process; n = {rounds}"
    )
    for relative in ("none", "peers", "self", "step"):
        for order in ("rank", "node", "stage", "slowest"):
            ask = {**last, "rows": 512, "columns": 600, "relative": relative, "order": order}
            _show(f"512 x 600, {relative}, by {order}", _drawer(attempt, **ask), rounds)
    _show("in full, none", _drawer(attempt, **last, rows=4096, columns=1000), rounds)
    _show("in full, peers", _drawer(attempt, **last, rows=4096, columns=1000, relative="peers"), rounds)
    _show("all steps, peers", _drawer(attempt, first=0, rows=512, columns=600, relative="peers"), rounds)
    _show("newest 240, nodes, peers", _drawer(attempt, rows=max(1, ranks // 8), columns=240, relative="peers"), rounds)
    since = _cursor_before(attempt)
    _show("one new column since", _drawer(attempt, rows=512, columns=240, relative="peers", since=since), rounds)
    _show("nothing new (304)", _opener(attempt), rounds)


def _drawer(attempt: Any, **ask: Any) -> Callable[[], object]:
    from apps.telemetry.api.pictures import picture_binary
    from apps.telemetry.selectors.heatmap import heatmap_open, heatmap_read
    from apps.telemetry.selectors.pictures import Ask

    return lambda: picture_binary(heatmap_read(heatmap_open(attempt, Ask(metric="compute_s", **ask))))


def _opener(attempt: Any) -> Callable[[], object]:
    from apps.telemetry.selectors.heatmap import heatmap_open
    from apps.telemetry.selectors.pictures import Ask

    return lambda: heatmap_open(attempt, Ask(metric="compute_s")).key


def _cursor_before(attempt: Any) -> str:
    """A cursor from before the newest column was written."""
    from apps.common.clock import now
    from apps.telemetry.selectors.heatmap import heatmap_open, heatmap_read
    from apps.telemetry.selectors.pictures import Ask
    from tests.telemetry.values import series_write

    ask = Ask(metric="compute_s", rows=512, columns=240, relative="peers")
    before = heatmap_read(heatmap_open(attempt, ask))
    assert before.last_step is not None
    world = before.layout.world
    series_write(attempt.id, {"compute_s": np.full((world, 1), 3.0)}, first=before.last_step + 1, now=now())
    return before.cursor


def bench_seal(attempt: Any) -> None:
    """How long it takes to seal a tile of hot columns, and what the fold waits for."""
    from apps.common.clock import now
    from apps.telemetry.services.sealing import tile_seal
    from tests.engine.tiles.arrays import training_metrics
    from tests.telemetry.values import series_write

    world, step = attempt.world_size, attempt.last_step + HOT_STEPS + 2
    series_write(attempt.id, training_metrics(world, 64), first=step, now=now())
    cpu, wall = cpu_s(os.getpid()), time.perf_counter()
    sealed = tile_seal(kind="RANK", owner_id=attempt.id, now=now())
    print(f"\none tile of {world:,} ranks x 64 steps x 8 metrics sealed: {sealed}, "
          f"{1000 * (time.perf_counter() - wall):.0f} ms, {1000 * (cpu_s(os.getpid()) - cpu):.0f} ms of CPU")  # fmt: skip


def _show(name: str, work: Callable[[], object], rounds: int) -> None:
    work()
    times, spent = [], time.process_time()
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    spent = 1000 * (time.process_time() - spent) / rounds
    print(f"  {name:34} {np.percentile(times, 50):7.1f} {np.percentile(times, 95):7.1f} {spent:7.1f}")


if __name__ == "__main__":
    main()
