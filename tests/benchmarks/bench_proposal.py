"""How long from a fault until a proposal waits: `python -m tests.benchmarks.bench_proposal [--times N] [--faults KIND …]`.

An installation as `make run` starts it, with its practice run, which is set to propose: sixteen ranks on four named
nodes. Measured is from the POST that sets the fault to the answer of REST that shows the action in state PROPOSED, and
how much of it came after the finding was confirmed. After each the run is restarted on all its nodes. A lost node is
called lost after `no_telemetry_s`: 4 s in the practice run, 15 s by default.
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
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from tests.installation import OURS, Installation
from tests.marked import marking

BAR_S = 10.0
RUN = "practice"
REASON = "measured by the benchmark of proposals"

FAULTS: dict[str, dict[str, Any]] = {
    "crash": {"kind": "crash", "rank": 5},
    "lose_node": {"kind": "lose_node", "node": "practice-03"},
    "hang": {"kind": "hang", "rank": 5},
}

NEW_STEPS = 15
"""Past all that was reached before: an attempt that gains fewer is one of a loop, for which nothing is proposed."""

T = TypeVar("T")


def main() -> None:
    """Start an installation and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=["crash", "lose_node"])
    given = parser.parse_args()
    with installed() as site:
        reached = 0
        for kind in given.faults:
            rows = []
            for _ in range(given.times):
                reached = settled(site, above=reached)
                rows.append(measured(site, FAULTS[kind]))
                restarted(site)
            told(kind, rows)


class Site:
    """The installation as a caller of its REST sees it."""

    def __init__(self, installation: Installation) -> None:
        self.address = installation.address
        scopes = ("--scope", "read", "--scope", "operate")
        self.token = installation.manage("token_create", "--name", "bench", *scopes).splitlines()[-1]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask by REST; return the answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": f"bench-{time.time_ns()}"} if method == "POST" else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/api/v1/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


class Practising(Installation):
    """An installation with its practice run."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PACELINE_PRACTICE": "1", "PACELINE_OPEN": "0"}


@contextlib.contextmanager
def installed() -> Iterator[Site]:
    """A whole Paceline in a folder of its own, gone afterwards with all it started."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as root, marking(Path(root), hidden=OURS) as marked:
        installation = Practising(marked, Path(root) / "data")
        try:
            yield Site(installation.start())
        finally:
            if installation.process is not None and installation.process.poll() is None:
                installation.stop()


def settled(site: Site, *, above: int) -> int:
    """Wait until the run makes new steps, and nothing about it is open; return the step that it has reached."""

    def goes_on() -> int:
        run = site.ask("GET", f"runs/{RUN}")
        standing = [row for row in findings(site) if row["certainty"] == "CONFIRMED"]
        well = run["state"] == "RUNNING" and not standing and not run["open_action"] and not proposed(site)
        return int(run["step"] or 0) if well and (run["step"] or 0) >= above + NEW_STEPS else 0

    return wait_for(goes_on, "the practice run to go on without a fault", 300)


def measured(site: Site, fault: dict[str, Any]) -> tuple[float, float]:
    """Set a fault; return the seconds until a proposal waits, and how many of them after the finding was confirmed."""
    began = time.monotonic()
    site.ask("POST", "practice/faults", fault)
    action = wait_for(lambda: next(iter(proposed(site)), None), f"a proposal for {fault['kind']}", 120)
    took_s = time.monotonic() - began
    finding = next(row for row in findings(site) if row["id"] == action["finding"])
    asked_at, sure_at = (datetime.fromisoformat(row) for row in (action["requested_at"], finding["confirmed_at"]))
    return took_s, (asked_at - sure_at).total_seconds()


def restarted(site: Site) -> None:
    """Take the fault away and restart the run on all its nodes, which overtakes what was proposed."""
    site.ask("DELETE", "practice/faults")
    with contextlib.suppress(urllib.error.HTTPError):  # it may end by itself at this moment; then it is asked again
        site.ask("POST", "actions", {"kind": "RESTART_RUN", "run": RUN, "reason": REASON})
        return
    time.sleep(2)
    site.ask("POST", "actions", {"kind": "RESTART_RUN", "run": RUN, "reason": REASON})


def proposed(site: Site) -> list[dict[str, Any]]:
    """The proposals that wait."""
    return list(site.ask("GET", f"actions?run={RUN}&state=PROPOSED")["results"])


def findings(site: Site) -> list[dict[str, Any]]:
    """The open findings of the run."""
    return list(site.ask("GET", f"runs/{RUN}/findings?state=OPEN")["results"])


def wait_for(holds: Callable[[], T | None], what: str, seconds: float) -> T:
    """Return what `holds()` gives once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.05)
    sys.exit(f"waited {seconds:.0f} s for {what}")


def told(kind: str, rows: list[tuple[float, float]]) -> None:
    """Print what was measured."""
    took, after = (sorted(values) for values in zip(*rows, strict=True))
    held = "held" if took[-1] < BAR_S else "MISSED"
    print(
        f"{kind:<10} fault → proposal  n {len(took)}  median {statistics.median(took):.2f} s  worst {took[-1]:.2f} s  "
        f"bar {BAR_S:g} s: {held}  of it after the finding was confirmed: median {statistics.median(after):.2f} s, "
        f"worst {after[-1]:.2f} s  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
