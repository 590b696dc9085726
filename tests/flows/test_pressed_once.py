"""A button that was pressed is obeyed exactly once, whatever dies between the press and its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.flows.standing import LONG_S, Standing
from tests.site import ROOT

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, time
from pathlib import Path
import paceline
with Path(sys.argv[1]).open("a") as launched:
    launched.write(f"{os.getpid()}\\n")
pace = paceline.start()
for step in range(100_000):
    with pace.step(step):
        time.sleep(0.05)
"""
"""Notes that it was started, and reports steps like any training program."""


class Launched:
    """The run that is started by a button, and every start of its program."""

    def __init__(self, standing: Standing, folder: Path) -> None:
        self.standing, self.notes = standing, folder / "launched"
        (folder / "program.py").write_text(PROGRAM)
        launcher = {
            "kind": "LOCAL",
            "command": [sys.executable, str(folder / "program.py"), str(self.notes)],
            "directory": str(folder),
            "environment": {"PYTHONPATH": str(ROOT / "client" / "src"), "PACELINE_INTERVAL_S": "1"},
            "nodes": ["trn001"],
            "stop_grace_s": 2,
        }
        assert standing.ask("PUT", "runs/pressed", {"cluster": "north", "launcher": launcher})[0] == 201

    def press(self, key: str) -> tuple[int, Any]:
        body = {"kind": "RESTART_RUN", "run": "pressed", "reason": "it shall run, whatever happens here"}
        return self.standing.ask("POST", "actions", body, **{"Idempotency-Key": key})

    @property
    def pids(self) -> list[int]:
        """The process of every start, in order."""
        return [int(line) for line in self.notes.read_text().split()] if self.notes.exists() else []

    def succeeded(self, code: str) -> Any:
        """Return the action once it has succeeded."""

        def done() -> Any:
            action = self.standing.read(f"actions/{code}")
            assert action["state"] in ("REQUESTED", "RUNNING", "UNCERTAIN", "SUCCEEDED"), action
            return action if action["state"] == "SUCCEEDED" else None

        return self.standing.site.wait(done, "the action to succeed", 2 * LONG_S)


@pytest.fixture
def launched(standing: Standing, tmp_path: Path) -> Iterator[Launched]:
    found = Launched(standing, tmp_path)
    yield found
    for pid in found.pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def no_worker_and_no_broker(standing: Standing, launched: Launched) -> str:
    """Press while the broker is away and the worker dead; both come back later."""
    standing.site.kill("worker-orders")
    standing.broker_lost()
    status, action = launched.press("once")
    assert status == 201
    standing.servers.start("valkey")
    standing.site.worker("orders")
    return str(action["id"])


def killed_between_start_and_note(standing: Standing, launched: Launched) -> str:
    """Press, and kill the worker when it has started the program and could not yet write down that it did."""
    with psycopg.connect(standing.servers.servers.database_url) as holder:
        holder.execute("LOCK TABLE remediation_launch IN SHARE MODE")
        status, action = launched.press("once")
        assert status == 201
        standing.site.wait(lambda: launched.pids, "the program to start", LONG_S)
        standing.broker().flushall()
        standing.site.kill("worker-orders")
    standing.site.worker("orders")
    return str(action["id"])


@pytest.mark.parametrize("disaster", [no_worker_and_no_broker, killed_between_start_and_note])
def test_what_was_pressed_is_done_once(
    standing: Standing, launched: Launched, disaster: Callable[[Standing, Launched], str]
) -> None:
    code = disaster(standing, launched)
    again, other = launched.press("once"), launched.press("twice")
    done = launched.succeeded(code)

    assert (again[0], again[1]["id"], other[0]) == (200, code, 409)
    assert len(launched.pids) == 1
    assert [order["kind"] for order in done["orders"]] == ["LAUNCH"]
    kinds = [row["kind"] for row in standing.events("pressed")]
    assert [kinds.count(kind) for kind in ("action.requested", "attempt.opened", "action.succeeded")] == [1, 1, 1]
