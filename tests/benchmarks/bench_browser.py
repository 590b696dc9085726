"""What a reader waits for: `python -m tests.benchmarks.bench_browser [--loads N] [--reports N] [--seconds S]`.

A site of its own, Chromium without a GPU. Numbers of DESIGN §9: from navigation to the first heatmap at 1,024 ranks;
from a report that a sender posts to the websocket's message and to the column in the page; frames a second while
panning 2,048 rows × 1,000 columns. They depend on what else the machine does: the load average is printed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_site import BenchSite

HEAR = """(() => {
  window.heard = [];
  const Plain = window.WebSocket;
  window.WebSocket = class extends Plain {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", event => {
        if (String(event.data).includes('"series"')) window.heard.push(Date.now());
      });
    }
  };
})()"""

PAN = """async ({ms, by}) => {
  const view = window.paceline.view, gaps = [], draws = [], draw = view.heat.draw.bind(view.heat);
  view.heat.draw = () => { const t = performance.now(); draw(); draws.push(performance.now() - t); };
  return await new Promise(done => {
    const begun = performance.now(); let last = begun;
    const frame = now => {
      gaps.push(now - last); last = now;
      if (now - begun > ms) return done([gaps.slice(1), draws]);
      const {from, to} = view.heat.view; view.look({from: from - by, to: to - by});
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
}"""


def main() -> None:
    """Start a site and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=9)
    parser.add_argument("--reports", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder, BenchSite(Path(folder)) as site:
        from tests.console.browser import Reader, chromium
        from tests.console.world import Shape, World

        site.url = f"http://127.0.0.1:{site.port}"  # type: ignore[attr-defined]
        person()
        world = World(datetime.now(UTC), Shape(ranks=1024))
        world.all()
        world.post(site)
        long_run()
        print(f"load average {os.getloadavg()[0]:.1f}")
        with chromium() as browser:
            reader = Reader(browser, site, name="bench", width=1600)
            reader.page.set_default_timeout(60_000)
            reader.page.add_init_script(HEAR)
            first_heatmap(reader, given.loads)
            report_to_pixel(reader, world, site, given.reports)
            panning(reader, given.seconds)
        print(f"load average {os.getloadavg()[0]:.1f}")


def person() -> None:
    """Somebody who looks."""
    from apps.accounts.models import User

    User.objects.create_user("bench", password="bench bench bench", role="VIEWER")


def long_run() -> None:
    """2,048 ranks × 3,000 steps, imported as arrays."""
    import numpy as np

    from apps.common.clock import now
    from apps.fleet.services import cluster_ensure
    from apps.runs.services import attempt_open, run_put
    from apps.telemetry.services.importing import series_import

    moment = now()
    run_id, _ = run_put(
        slug="wide",
        cluster_id=cluster_ensure(name="wide", now=moment),
        fields={},
        by="bench",
        source="COMMAND",
        now=moment,
    )
    row, _ = attempt_open(run_id=run_id, key="wide/1", world_size=2048, by="bench", source="COMMAND", now=moment)
    rng = np.random.default_rng(1)
    compute = (7 * (1 + 0.01 * rng.standard_normal((2048, 3000)))).astype("<f4")
    at = np.arange(3000, dtype=np.int64)
    metrics = {"compute_s": compute}
    series_import(attempt_id=row.id, steps=at, metrics=metrics, ended_s=moment.timestamp() + 7.0 * at, now=moment)


def first_heatmap(reader: Any, loads: int) -> None:
    """From navigation to the painted picture, the browser's cache warm as after a first visit."""
    took = []
    for _ in range(loads):
        reader.open("/runs/dense-70b")
        reader.page.wait_for_function("() => performance.getEntriesByName('paceline-heatmap').length > 0")
        took.append(reader.page.evaluate("() => performance.getEntriesByName('paceline-heatmap')[0].startTime"))
    say("first heatmap, 1,024 ranks, ms", took)


def report_to_pixel(reader: Any, world: Any, site: Any, reports: int) -> None:
    """From the moment a step's reports are posted to the news of them, and to the column being in the page's picture."""
    from tests.console.world import FIRST, STEPS

    reader.page.evaluate(
        """() => { const v = window.paceline.view, update = v.heat.update.bind(v.heat); window.seen = {};
        v.heat.update = steps => { update(steps); for (const s of steps) window.seen[s] ??= Date.now(); }; }"""
    )
    told, took = [], []
    for number in range(reports):
        step, begun = FIRST + STEPS + number, time.time()
        world.one_step(site, step=step, seq=2 + number)
        reader.page.wait_for_function(f"() => window.seen[{step}]")
        took.append(reader.page.evaluate(f"() => window.seen[{step}]") - begun * 1000)
        told.append(reader.page.evaluate("at => window.heard.find(t => t >= at)", int(begun * 1000)) - begun * 1000)
    say("first report posted to websocket message, 1,024 ranks, ms", told)
    say("first report posted to column painted, 1,024 ranks, ms", took)


def panning(reader: Any, seconds: float) -> None:
    """Frames while the view moves by two columns a frame."""
    reader.open("/runs/wide?rows=ranks&steps=1900-2900")
    reader.page.wait_for_function(
        "() => window.paceline?.view.heat.owner && window.paceline.view.cells.steps.length > 500"
    )
    reader.page.wait_for_timeout(1500)
    gaps, draws = reader.page.evaluate(PAN, {"ms": seconds * 1000, "by": 2})
    print(f"panning 2,048 × 1,000: {1000 * len(gaps) / sum(gaps):.1f} frames/s")
    say("time between frames, ms", gaps)
    say("time in our drawing a frame, ms", draws)


def say(what: str, values: list[float]) -> None:
    """Print a measurement with its spread and n."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    print(json.dumps({"what": what, "n": len(values), "median": round(statistics.median(values), 1),
                      "p95": round(p95, 1), "max": round(ordered[-1], 1)}))  # fmt: skip


if __name__ == "__main__":
    main()
