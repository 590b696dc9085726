"""`make kill-test`: many seeds, in batches; goes on from where it stopped, and says what came of all of them.

make kill-test SEEDS=1000            seeds 0 to 999, those that are done already left out
make kill-test SEEDS=10 ARGS="--first 40 --afresh"
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kill import plan
from tests.kill.batch import batch_run
from tests.kill.plan import case_of

KEPT = Path(__file__).resolve().parents[2] / "build" / "kill-test.jsonl"
BATCH = 25


def main(arguments: list[str]) -> int:
    """Run what is asked for; return 0 if everything held."""
    parser = argparse.ArgumentParser(prog="make kill-test", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--afresh", action="store_true", help="forget what was done before")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file that remembers what is done")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="seeds an installation; what is done is kept after each"
    )
    parser.add_argument("--launchers", default=f"{plan.LOCAL},{plan.WEBHOOK},{plan.LEDGER}")
    given = parser.parse_args(arguments)
    launchers = tuple(given.launchers.split(","))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that whatever was started is ended
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    if given.afresh:
        given.kept.unlink(missing_ok=True)
    wanted = range(given.first, given.first + given.seeds)
    left = [seed for seed in wanted if seed not in done(given.kept, launchers)]
    for start in range(0, len(left), given.batch):
        seeds, began = left[start : start + given.batch], time.monotonic()
        with tempfile.TemporaryDirectory(prefix="paceline-kill-") as folder:
            results = batch_run([case_of(seed, launchers=launchers) for seed in seeds], Path(folder))
        with given.kept.open("a", encoding="utf-8") as file:
            for one in results:
                row = {**asdict(one), "launchers": launchers, "at": datetime.now(UTC).isoformat()}
                file.write(json.dumps(row) + "\n")
        print(f"seeds {seeds[0]} to {seeds[-1]}: {time.monotonic() - began:.0f} s", flush=True)
    rows = [row for seed, row in done(given.kept, launchers).items() if seed in wanted]
    print(summary(rows), flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


def done(path: Path, launchers: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    """Return what is known already of each seed under these launchers, the latest word of each."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {row["seed"]: row for row in rows if tuple(row["launchers"]) == launchers}


def summary(rows: list[dict[str, Any]]) -> str:
    """Return what came of all seeds, one line a fault and one for the whole."""
    wrong = [row for row in rows if row["wrong"]]
    lines = [f"seed {row['seed']} ({row['words']}): {'; '.join(row['wrong'])}" for row in wrong]
    states: dict[str, int] = {}
    stages: dict[str, int] = {}
    for row in rows:
        states[row["state"]] = states.get(row["state"], 0) + 1
        stages[row["reached"]] = stages.get(row["reached"], 0) + 1
    doubles = sum(
        any("second program" in text or "times" in text or "started" in text for text in row["wrong"]) for row in rows
    )
    lines.append(
        f"{len(rows)} seeds: {doubles} double starts, {len(wrong)} with anything wrong; ended as {counted(states)};"
        f" killed {counted(stages)}; {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}"
    )
    return "\n".join(lines)


def counted(counts: dict[str, int]) -> str:
    return ", ".join(
        f"{count} {name or 'nowhere'}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1])
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
