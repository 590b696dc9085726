"""What reporting costs a training process: 8 ranks on one node, 10,000 steps each, against a server on loopback.

    python client/bench/bench_step_cost.py [--ranks 8] [--steps 10000] [--pause-ms 1]

Prints the cost of a step with three phases and a logged loss (an empty step, so that all of it is ours), what memory grew
by from before the import, and what the reporting threads took of a processor. Exits 1 if a number is past its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEP_US_BOUND = 20.0
MEMORY_MIB_BOUND = 10.0
SOURCE = Path(__file__).resolve().parents[1] / "src"


class Discards(BaseHTTPRequestHandler):
    """Accepts everything and keeps only counts."""

    protocol_version = "HTTP/1.1"
    reports = 0
    sent_bytes = 0

    def log_message(self, *_: object) -> None:
        return

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(size)
        if self.path.endswith("/reports"):
            Discards.reports += 1
            Discards.sent_bytes += size
        answer = b'{"id": "att_1"}'
        self.send_response(202)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST


def memory_mib() -> float:
    """Return this process's resident memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def rank_main(steps: int, pause_s: float) -> None:
    """Be one rank: step, measure each step, print the figures."""
    before_mib = memory_mib()
    sys.path.insert(0, str(SOURCE))
    import paceline

    pace = paceline.start()
    took: list[float] = [0.0] * steps
    measured = time.perf_counter
    highest_mib, cpu_before, began = before_mib, time.process_time(), measured()
    for step in range(steps):
        at = measured()
        with pace.step(step):
            with pace.phase("data"):
                pass
            with pace.phase("compute"):
                pass
            with pace.phase("communication"):
                pass
        pace.log(loss=0.5)
        took[step] = measured() - at
        if pause_s:
            time.sleep(pause_s)
        if step % 500 == 0:
            highest_mib = max(highest_mib, memory_mib())
    wall_s, cpu_s, sends = measured() - began, time.process_time() - cpu_before, pace.sends
    highest_mib = max(highest_mib, memory_mib())
    pace.finish()
    ordered = sorted(took)
    figures = {
        "median_us": 1e6 * statistics.median(took),
        "p99_us": 1e6 * ordered[int(0.99 * steps)],
        "growth_mib": highest_mib - before_mib,
        "cpu_share": cpu_s / wall_s,
        "sends": sends,
        "own_us": 1e6 * sum(took) / steps,
        "wall_s": wall_s,
    }
    print(json.dumps(figures), flush=True)


def run(ranks: int, steps: int, pause_s: float) -> list[dict[str, float]]:
    """Run all ranks of one node and return their figures."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Discards)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="pc-") as folder:
        environ = {
            "PATH": os.environ["PATH"],
            "PACELINE_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "PACELINE_RUN": "bench",
            "PACELINE_ATTEMPT_KEY": "bench",
            "PACELINE_SPOOL_DIR": f"{folder}/spool",
            "PACELINE_LOCAL_DIR": f"{folder}/local",
            "WORLD_SIZE": str(ranks),
        }
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", "--steps", str(steps), "--pause-ms", str(1000 * pause_s)],
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        figures = [json.loads(process.communicate()[0]) for process in processes]
    server.shutdown()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--pause-ms", type=float, default=1.0, help="what a step lasts besides")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(given.steps, given.pause_ms / 1000)
        return 0
    figures = run(given.ranks, given.steps, given.pause_ms / 1000)
    medians = [one["median_us"] for one in figures]
    senders = [one["growth_mib"] for one in figures if one["sends"]]
    others = [one["growth_mib"] for one in figures if not one["sends"]]
    print(f"{given.ranks} ranks x {given.steps} steps, {figures[0]['wall_s']:.1f} s")
    print(f"a step costs, us: median {statistics.median(medians):.1f} (worst rank {max(medians):.1f}), p99 "
          f"{max(one['p99_us'] for one in figures):.1f} (worst rank)")  # fmt: skip
    print(
        f"memory grows by, MiB: sender {max(senders, default=0):.1f}, other ranks at most {max(others, default=0):.1f}"
    )
    threads = [one["cpu_share"] - one["own_us"] / 1e6 * given.steps / one["wall_s"] for one in figures]
    print(f"processor besides the steps, share of one: sender and pauses {max(threads):.3f}, median rank "
          f"{statistics.median(threads):.3f}")  # fmt: skip
    print(f"{Discards.reports} reports, {Discards.sent_bytes / 1024:.0f} KiB on the wire")
    within = max(medians) < STEP_US_BOUND and max(senders + others) < MEMORY_MIB_BOUND
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
