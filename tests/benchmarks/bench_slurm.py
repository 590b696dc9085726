"""How long from a press on "restart" until a Slurm job runs on the remaining nodes, at 63 real slurmd on this machine.

    python -m tests.benchmarks.bench_slurm [--nodes 63] [--times 5]

Paceline itself is whole: web, workers and beat as processes; the press comes over HTTP. Measured is from the request to
the moment at which the controller says that the job runs, and to the moment at which its program runs. The grace of the
stop is not counted by the bar; the old job of these measurements leaves at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BAR_S = 10.0
REASON = "measured by the benchmark of restarts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=63)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    from tests.slurm import Slurm, missing

    if absent := missing():
        sys.exit(f"Slurm is not installed here: {', '.join(absent)}")
    with installed() as site, tempfile.TemporaryDirectory(prefix="paceline-slurm-") as room:
        slurm = Slurm(Path(room), nodes=options.nodes)
        try:
            began = time.monotonic()
            slurm.start()
            print(f"{options.nodes} nodes up after {time.monotonic() - began:.1f} s")
            measured(site, slurm, "warm-up", ways(room, options.nodes)["requeued"])  # workers start within seconds
            for way, launcher in ways(room, options.nodes).items():
                rows = [measured(site, slurm, f"{way}-{place}", launcher) for place in range(options.times)]
                told(way, rows)
        finally:
            slurm.stop()


def ways(room: str, nodes: int) -> dict[str, dict[str, Any]]:
    """The two kinds of run: one that Paceline submits, one whose job somebody else did."""
    program = f"touch {room}/began-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}; exec sleep 3600"
    command = [f"--nodes={nodes - 1}", "--exclusive", "/bin/sh", "-c", program]
    return {
        "submitted": {"kind": "SLURM", "command": command, "directory": room, "stop_grace_s": 5},
        "requeued": {"kind": "SLURM"},
    }


def told(way: str, rows: list[tuple[float, float]]) -> None:
    """Print what was measured."""
    for name, values in zip(("running", "program up"), zip(*rows, strict=True), strict=True):
        worst = max(values)
        mark = "" if name != "running" else f"  bar {BAR_S:g} s: {'held' if worst < BAR_S else 'MISSED'}"
        print(
            f"{way:<10} press → {name:<10} n {len(values)}  median {statistics.median(values):.2f} s  worst {worst:.2f} s{mark}"
        )


@contextlib.contextmanager
def installed() -> Iterator[Any]:
    """A whole Paceline on servers of its own."""
    from apps.config.local.folder import folder_open
    from apps.config.local.servers import servers_choose, servers_start

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as root:
        chosen = servers_choose(folder_open(Path(root)), environment={}, settings={"shared_buffers": "128MB"})
        running = servers_start(chosen)
        try:
            os.environ |= {
                "DATABASE_URL": chosen.database_url,
                "REDIS_URL": chosen.redis_url,
                "PACELINE_SECRET_KEY": "only-for-the-benchmark",
                "PACELINE_DATA_DIR": root,
                "DJANGO_SETTINGS_MODULE": "apps.config.settings",
            }
            import django

            django.setup()
            from django.core.management import call_command

            call_command("migrate", verbosity=0)
            from tests.site import LiveSite

            site = LiveSite(Path(root), chosen)
            try:
                site.start()
                site.workers()
                yield site
            finally:
                site.stop()
        finally:
            running.stop()


def measured(site: Any, slurm: Any, slug: str, launcher: dict[str, Any]) -> tuple[float, float]:
    """Press "restart without node1" on a run that runs; gives the seconds until the job, and its program, run."""
    from apps.accounts.services import token_create
    from apps.common.access import SYSTEM
    from apps.fleet.services import cluster_ensure, nodes_ensure
    from apps.remediation.selectors import actions_of
    from apps.remediation.services import SchedulerFields, scheduler_set
    from apps.runs.services import attempt_open, run_put
    from tests.slurm import wait_for

    moment = datetime.now(UTC)
    slurm.clean()
    cluster_id = cluster_ensure(name=slug, now=moment)
    nodes_ensure(cluster_id=cluster_id, names=slurm.names, now=moment)
    fields = SchedulerFields(conf=str(slurm.conf), drains=True)
    scheduler_set(principal=SYSTEM, cluster_id=cluster_id, fields=fields, source="API", now=moment)
    run_id, _ = run_put(
        slug=slug, cluster_id=cluster_id, fields={"launcher": launcher}, by="bench", source="API", now=moment
    )
    script = f"touch {slurm.folder}/began-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}; exec sleep 3600"
    first = slurm.submit(script, f"--nodes={len(slurm.names) - 1}", "--exclusive", name=slug)
    wait_for(lambda: slurm.job(first).runs, "the first job to run", 60)
    attempt_open(
        run_id=run_id,
        key=f"slurm:{first}.0.batch",
        external_id=f"slurm:{first}",
        world_size=8,
        by="bench",
        source="API",
        now=moment,
    )
    _, token = token_create(
        name=slug, scopes=["operate", "read"], cluster_id=None, by="bench", source="API", now=moment
    )
    body = {"kind": "RESTART_RUN", "run": slug, "reason": REASON, "options": {"exclude_nodes": ["node1"]}}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": slug}
    request = urllib.request.Request(f"{site.url}/api/v1/actions", json.dumps(body).encode(), headers)
    pressed = time.monotonic()
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 201), answer.status

    def runs_again() -> Any:
        for number in slurm.queue():
            job = slurm.job(int(number))
            if job.runs and (job.id, job.restarts) != (first, 0):
                return job
        return None

    job = wait_for(runs_again, "the job to run again", 120, or_else=False)
    if job is None:
        row = actions_of(limit=1)[0]
        sys.exit(f"{slug} did not start again: {row.state} {row.outcome} {[step.text for step in row.milestones]}")
    running_s = time.monotonic() - pressed
    assert "node1" not in job.nodes.replace("node1", "node1,", 1).split(","), job.nodes
    wait_for((slurm.folder / f"began-{job.id}-{job.restarts}").exists, "its program to run", 60)
    return running_s, time.monotonic() - pressed


if __name__ == "__main__":
    main()
