"""How much the way from bytes received to values stored costs: `python -m tests.benchmarks.bench_ingest`.

Real processes: PostgreSQL with everything on that keeps data, Valkey, one web process, one fold worker. A generator of
its own process posts reports of 8 ranks × 2 steps × 8 metrics from 2,048 senders over 32 connections. CPU is that of
all processes but the generator, from the first report to the empty inbox.

    --reports N         reports in all (default 40,960, the sketch's load)
    --form packed|arrays
    --repeats SHARE     0..1: how many reports are sent a second time
Without --form and --repeats: packed with 0, 5 and 100 % repeats, then arrays, each on an installation of its own.
    --live SECONDS      instead: the live load of DESIGN §9 for so long (a report each 5 s of 8 × 1 × 8 and 8 beats)
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ["step_s", "compute_s", "communication_s", "data_s", "optimizer_s", "loss", "grad_norm", "tokens"]
NODES, RANKS_A_NODE, STEPS, CONNECTIONS = 2048, 8, 2, 32
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]


def steps_of(rng: np.random.Generator, form: str, steps: int) -> dict[str, Any]:
    """One node's numbers, without ranks and steps."""
    values = rng.normal(5, 0.1, (len(NAMES), RANKS_A_NODE, steps)).astype("<f4")
    if form == "packed":
        return {"names": NAMES, "f32": base64.b64encode(values.tobytes()).decode()}
    return {"metrics": {name: np.round(values[n].astype(float), 4).tolist() for n, name in enumerate(NAMES)}}


def body_of(pool: list[dict[str, Any]], node: int, seq: int, steps: int, *, beats: bool = False) -> bytes:
    """The report number `seq` of a node."""
    ranks = list(range(node * RANKS_A_NODE, node * RANKS_A_NODE + RANKS_A_NODE))
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    first = seq * steps
    told = {"ranks": ranks, "steps": list(range(first, first + steps)), "ended_at": [at] * steps}
    report = {
        "sender": f"node-{node:04d}",
        "boot": "0f" * 16,
        "seq": seq,
        "sent_at": at,
        "steps": {**told, **pool[(node + seq) % len(pool)]},
    }
    if beats:
        report["beats"] = [
            {"rank": rank, "step": first + steps, "phase": "compute", "phase_age_s": 0.4} for rank in ranks
        ]
    return json.dumps(report, separators=(",", ":")).encode()


class Line:
    """One connection that posts reports and keeps how long each answer took."""

    def __init__(self, port: int, path: str, token: str) -> None:
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self.port = port
        self.took: list[float] = []

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def post(self, body: bytes) -> None:
        began = time.perf_counter()
        self.writer.write(self.head + b"%d\r\n\r\n" % len(body) + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        said = await self.reader.readexactly(length)
        if b" 202 " not in answer[:20]:
            raise SystemExit(f"{answer!r} {said!r}")
        self.took.append(time.perf_counter() - began)


async def flood(port: int, path: str, token: str, *, reports: int, form: str, repeats: float) -> list[float]:
    """Post as fast as answers come."""
    rng = np.random.default_rng(1)
    pool = [steps_of(rng, form, STEPS) for _ in range(64)]
    lines = [Line(port, path, token) for _ in range(CONNECTIONS)]

    async def work(number: int, line: Line) -> None:
        await line.open()
        for seq in range(reports // NODES):
            for node in range(number, NODES, CONNECTIONS):
                body = body_of(pool, node, seq, STEPS)
                await line.post(body)
                if rng.random() < repeats:
                    await line.post(body)

    await asyncio.gather(*(work(number, line) for number, line in enumerate(lines)))
    return [took for line in lines for took in line.took]


async def live(port: int, path: str, token: str, *, seconds: float) -> list[float]:
    """Every sender reports once in five seconds, spread evenly."""
    rng = np.random.default_rng(1)
    pool = [steps_of(rng, "packed", 1) for _ in range(64)]
    lines = [Line(port, path, token) for _ in range(CONNECTIONS)]
    began = time.perf_counter()

    async def work(number: int, line: Line) -> None:
        await line.open()
        nodes = range(number, NODES, CONNECTIONS)
        for seq in range(int(seconds / 5)):
            for place, node in enumerate(nodes):
                due = began + 5 * (seq + place / len(nodes))
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await line.post(body_of(pool, node, seq, 1, beats=True))

    await asyncio.gather(*(work(number, line) for number, line in enumerate(lines)))
    return [took for line in lines for took in line.took]


def generate(arguments: argparse.Namespace) -> None:
    """The generator's process: prints the answers' times as JSON."""
    common = (arguments.port, arguments.path, arguments.token)
    if arguments.live:
        took = asyncio.run(live(*common, seconds=arguments.live))
    else:
        took = asyncio.run(flood(*common, reports=arguments.reports, form=arguments.form, repeats=arguments.repeats))
    print(json.dumps([len(took), float(np.percentile(took, 50)), float(np.percentile(took, 99)), max(took)]))


def cpu_s(root: int) -> float:
    """CPU seconds of a process and all below it, ended children that were waited for included."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)], spent[int(entry)] = int(fields[1]), sum(int(field) for field in fields[11:15])
    return sum(ticks for pid, ticks in spent.items() if root in _line_of(pid, parents)) / TICKS


def _line_of(pid: int, parents: dict[int, int]) -> set[int]:
    found = set()
    while pid and pid not in found:
        found.add(pid)
        pid = parents.get(pid, 0)
    return found


CASES = (("packed", 0.0), ("packed", 0.05), ("packed", 1.0), ("arrays", 0.0))


def main() -> None:
    """Start everything, load it, say what it cost; each case in a process and an installation of its own."""
    arguments = read_arguments()
    if arguments.generate:
        generate(arguments)
    elif arguments.form is None and arguments.repeats is None and not arguments.live:
        for form, repeats in CASES:
            command = [sys.executable, "-m", "tests.benchmarks.bench_ingest", f"--reports={arguments.reports}",
                       f"--form={form}", f"--repeats={repeats}"]  # fmt: skip
            subprocess.run(command, cwd=ROOT, check=True)
    else:
        arguments.form, arguments.repeats = arguments.form or "packed", arguments.repeats or 0.0
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """One case, on an installation of its own."""
    from tests.benchmarks.bench_site import BenchSite

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder, BenchSite(Path(folder)) as site:
        path, token = site.attempt(world_size=NODES * RANKS_A_NODE)
        before = site.cpu()
        began = time.perf_counter()
        command = [sys.executable, "-m", "tests.benchmarks.bench_ingest", "--generate", f"--port={site.port}",
                   f"--path={path}", f"--token={token}", f"--reports={arguments.reports}", f"--form={arguments.form}",
                   f"--repeats={arguments.repeats}", f"--live={arguments.live}"]  # fmt: skip
        answers, p50, p99, worst = json.loads(subprocess.check_output(command, cwd=ROOT))
        sent = time.perf_counter() - began
        site.drained()
        whole = time.perf_counter() - began
        cost = {name: after - before[name] for name, after in site.cpu().items()}
        samples = site.samples()
        what = "the live load" if arguments.live else f"{arguments.form}, {100 * arguments.repeats:.0f} % repeats"
        print(f"{what}: {answers:,} answers in {sent:.1f} s ({answers / sent:,.0f}/s), inbox empty after {whole:.1f} s")
        print(f"  answers: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, slowest {worst * 1000:.0f} ms")
        told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in sorted(cost.items()))
        share = 100 * sum(cost.values()) / whole
        print(f"  CPU seconds: {told}; all {sum(cost.values()):.2f} = {share:.0f} % of a core")
        print(f"  {samples:,} samples stored: {samples / sum(cost.values()) / 1e6:.2f} M samples per CPU-second")


def read_arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=40_960)
    parser.add_argument("--form", choices=("packed", "arrays"))
    parser.add_argument("--repeats", type=float)
    parser.add_argument("--live", type=float, default=0.0)
    parser.add_argument("--generate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--token", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
