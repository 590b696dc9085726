"""What reporting costs a training process: 8 ranks on one node, 10,000 steps each, against a server on loopback.

    python client/bench/bench_step_cost.py [--ranks 8] [--steps 10000] [--work-us 0] [--sleep-us 1000]

Between steps a rank sleeps or computes, as `--sleep-us` and `--work-us` say; the step itself has three empty phases and a
logged loss, so that all of it is ours. The same step with `with` blocks that do nothing stands beside it: after a sleep
everything is cold, and then those cost a lot as well. Prints what memory grew by from before the import, too, and what the
reporting threads took of a processor. Exits 1 if a number is past its bound.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def memory_mib() -> float:
    """Return this process's resident memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Nothing:
    """`with` blocks that do nothing, called the same way."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return

    def step(self, _number: int) -> Nothing:
        return self

    def phase(self, _name: str) -> Nothing:
        return self

    def log(self, **_values: float) -> None:
        return


def compute(seconds: float) -> None:
    """Be busy in Python."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(200))


def step_cost(pace: Any, number: int) -> float:
    """Return the seconds one step takes."""
    began = time.perf_counter()
    with pace.step(number):
        with pace.phase("data"):
            pass
        with pace.phase("compute"):
            pass
        with pace.phase("communication"):
            pass
    pace.log(loss=0.5)
    return time.perf_counter() - began


def rank_main(steps: int, work_s: float, sleep_s: float) -> None:
    """Be one rank: step, measure each step, print the figures. Nothing is imported before, so that all of it counts."""
    took: list[float] = [0.5 + step for step in range(steps)]
    empty: list[float] = []
    nothing = Nothing()
    before_mib = memory_mib()
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
    import paceline

    pace = paceline.start()
    highest_mib, began = before_mib, time.perf_counter()
    cpu = dict.fromkeys(("all", "own"), 0.0)
    cpu["all"], cpu["own"] = time.process_time(), time.thread_time()
    for step in range(steps):
        compute(work_s)
        time.sleep(sleep_s)
        took[step] = step_cost(pace, step)
        if step % 10 == 0:
            compute(work_s)
            time.sleep(sleep_s)
            empty.append(step_cost(nothing, step))
            highest_mib = max(highest_mib, memory_mib())
    wall_s, sends = time.perf_counter() - began, pace.sends
    besides_s = time.process_time() - cpu["all"] - (time.thread_time() - cpu["own"])
    highest_mib = max(highest_mib, memory_mib())
    pace.finish()
    print(wall_s, besides_s, highest_mib - before_mib, int(sends))
    print(*took)
    print(*empty)


if __name__ == "__main__" and sys.argv[1:2] == ["rank"]:
    rank_main(int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
    sys.exit()

import argparse  # noqa: E402  # the ranks above do without
import statistics  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: E402

STEP_US_BOUND = 20.0
MEMORY_MIB_BOUND = 10.0


@dataclass(frozen=True)
class Figures:
    """What one rank measured."""

    wall_s: float
    besides_s: float
    growth_mib: float
    sends: bool
    took_us: list[float]
    empty_us: list[float]

    @property
    def median_us(self) -> float:
        return statistics.median(self.took_us)

    @property
    def p99_us(self) -> float:
        return sorted(self.took_us)[int(0.99 * len(self.took_us))]

    @property
    def besides_share(self) -> float:
        """What the threads besides the training's took of a processor."""
        return self.besides_s / self.wall_s


def figures_read(text: str) -> Figures:
    head, *rows = ([float(word) for word in line.split()] for line in text.splitlines())
    took_us, empty_us = ([1e6 * seconds for seconds in row] for row in rows)
    return Figures(head[0], head[1], head[2], bool(head[3]), took_us, empty_us)


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


def run(ranks: int, steps: int, *, work_s: float, sleep_s: float) -> list[Figures]:
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
                [sys.executable, __file__, "rank", str(steps), str(work_s), str(sleep_s)],
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        figures = [figures_read(process.communicate()[0]) for process in processes]
    server.shutdown()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--work-us", type=float, default=0.0, help="what a rank computes between steps")
    parser.add_argument(
        "--sleep-us", type=float, default=1000.0, help="what it sleeps besides: everything is cold then"
    )
    given = parser.parse_args()
    figures = run(given.ranks, given.steps, work_s=given.work_us / 1e6, sleep_s=given.sleep_us / 1e6)
    medians = [one.median_us for one in figures]
    growth = max(one.growth_mib for one in figures)
    others = max((one.growth_mib for one in figures if not one.sends), default=0.0)
    print(f"{given.ranks} ranks x {given.steps} steps in {figures[0].wall_s:.1f} s")
    print(f"step, us:      median {statistics.median(medians):.1f}, worst rank's {max(medians):.1f}, its p99 "
          f"{max(one.p99_us for one in figures):.1f}")  # fmt: skip
    print(f"empty step, us: median {statistics.median(statistics.median(one.empty_us) for one in figures):.1f}")
    print(f"memory, MiB:   the sender's process {growth:.1f}, others at most {others:.1f}")
    print(f"processor:     {100 * max(one.besides_share for one in figures):.1f} % of one in the sender's process, "
          f"{100 * statistics.median(one.besides_share for one in figures):.1f} % in the others")  # fmt: skip
    print(f"wire:          {Discards.reports} reports, {Discards.sent_bytes / 1024:.0f} KiB")
    return 0 if max(medians) < STEP_US_BOUND and growth < MEMORY_MIB_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
