"""What tests of remediation start from: runs with launchers, tiny programs, workers driven by hand, and no orphans."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

REASON = "Throttles on heat since 01:56, all GPUs"

SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("up", flush=True)
while True:
    time.sleep(0.05)
"""


def wait_for(holds: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    """Return what `holds()` gives once it is true; fail with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s for {what}")


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def launches(tmp_path: Path, settings: Any) -> Iterator[Path]:
    """The folder of launches of this test; whatever was started there is gone afterwards."""
    from apps.remediation.launchers import wrapper

    settings.DATA_DIR = tmp_path
    yield tmp_path / "launches"
    mark = str(tmp_path).encode()
    for pid in wrapper.pids_all():
        try:
            started_here = mark in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if started_here and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a small Python program; gives the command that starts it."""

    def write(text: str = SLEEPER, *arguments: str) -> list[str]:
        path = tmp_path / f"program-{len(list(tmp_path.glob('program-*')))}.py"
        path.write_text(text)
        return [sys.executable, "-S", str(path), *arguments]

    return write


@pytest.fixture
def local_run(make_run: Callable[..., Any], launches: Path, program: Callable[..., list[str]]) -> Any:
    """A run that the local launcher starts: a program that sleeps until it is asked to leave."""
    launcher = {
        "kind": "LOCAL",
        "command": program(),
        "directory": str(launches.parent),
        "environment": {"MARK": str(launches.parent)},
        "nodes": ["trn001", "trn002", "trn003"],
        "stop_grace_s": 2.0,
    }
    return make_run("dense-7b", launcher=launcher)


@pytest.fixture
def who(operator: Any) -> Any:
    """The operator as a caller."""
    from apps.accounts.selectors import principal_of_user

    return principal_of_user(operator)


@pytest.fixture
def boss(admin: Any) -> Any:
    """The admin as a caller."""
    from apps.accounts.selectors import principal_of_user

    return principal_of_user(admin)


@pytest.fixture
def ask(who: Any) -> Callable[..., Any]:
    """Ask for an action as the operator: `ask("RESTART_RUN", run)`."""
    from apps.remediation.services import action_request

    def request(
        kind: str, run: Any = None, *, node: int | None = None, now: datetime | None = None, **more: Any
    ) -> Any:
        given = {"principal": who, "reason": REASON, "source": "API", **more}
        return action_request(
            kind=kind, run_id=run.id if run else None, node_id=node, now=now or datetime.now(UTC), **given
        )

    return request


@pytest.fixture
def work() -> Callable[..., Any]:
    """Do what workers and the clock would do, here and now, until an action needs nothing more; gives its row."""
    from apps.remediation import launchers, selectors, tasks

    def run(action_id: int, *, until: Callable[[Any], bool] | None = None, seconds: float = 15.0) -> Any:
        def step() -> Any:
            moment = datetime.now(UTC)
            for waiting in selectors.actions_waiting():
                tasks.services.action_advance(action_id=waiting, now=moment)
            for order_id in [*selectors.orders_due(now=moment), *selectors.orders_unheard(now=moment)]:
                tasks.order_run(order_id=order_id)
            for order_id in selectors.orders_uncertain(now=moment):
                tasks.order_look(order_id=order_id)
            launchers.launches_look(now=moment)
            for watched in selectors.actions_watched():
                tasks.services.action_watch(action_id=watched, now=moment)
            row = selectors.action_by_id(action_id)
            done = until(row) if until is not None else not row.is_open
            return row if done else None

        return wait_for(step, f"action {action_id}", seconds)

    return run


@pytest.fixture
def reports() -> Callable[..., None]:
    """Let a run's open attempt report a step, as telemetry would."""
    from apps.runs.selectors import run_by_id
    from apps.runs.services import attempt_progress, status_update

    def report(run: Any, *, first_step: int = 1, step: int | None = None) -> None:
        moment, newest = datetime.now(UTC), step if step is not None else first_step
        attempt_id = run_by_id(run.id).attempt_id
        attempt_progress(attempt_id=attempt_id, first_step=first_step, last_step=newest, now=moment)
        status_update(run_id=run.id, step=newest, first_step=first_step, step_s=2.0, last_report_at=moment)

    return report


@pytest.fixture
def hooked(make_run: Callable[..., Any], make_attempt: Callable[..., Any]) -> Any:
    """A run that is set to propose, and runs on trn001 and trn002."""
    from apps.runs.selectors import run_by_id

    run = make_run("dense-7b", launcher={"kind": "WEBHOOK", "url": "http://127.0.0.1:9/"}, mode="PROPOSE")
    make_attempt(run)
    return run_by_id(run.id)


@pytest.fixture
def find(hooked: Any, now: datetime) -> Callable[..., Any]:
    """Open a confirmed finding about trn001 that proposes its exclusion."""
    from apps.diagnosis.models import Finding

    def make(**more: Any) -> Any:
        given: dict[str, Any] = {
            "run_id": hooked.id,
            "attempt_id": hooked.attempt_id,
            "cause": "thermal_throttle",
            "class_name": "COMPUTE",
            "level": "CRITICAL",
            "certainty": "CONFIRMED",
            "subject": {"kind": "NODE", "node": "trn001"},
            "subject_key": "NODE:trn001",
            "place_key": "NODE:trn001",
            "score": 1.2,
            "score_meaning": "times its peers",
            "found_at": now,
            "coverage_have": 8,
            "coverage_of": 8,
            "verdict": "trn001 throttles on heat",
            "why": "w",
            "next": "n",
            "proposal_kind": "EXCLUDE_NODE",
            "proposal_node": "trn001",
        }
        return Finding.objects.create(**{**given, **more})

    return make


def is_watched(row: Any) -> bool:
    """Return whether all orders of an action are done and it waits for the program to report."""
    return (
        row.state == "RUNNING"
        and bool(row.orders)
        and row.orders[-1].kind == "LAUNCH"
        and row.orders[-1].state == "DONE"
    )
