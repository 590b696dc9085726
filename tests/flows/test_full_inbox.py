"""A full inbox delays neither a check that goes by the clock nor a button: they have processes of their own."""

import os
import signal
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.installation import OURS, Installation
from tests.marked import eventually, marking

pytestmark = pytest.mark.slow

WAITING_REPORTS = 200


@pytest.fixture
def jammed(tmp_path: Path) -> Iterator[Installation]:
    """An installation whose folding stands still: as long as it does, the inbox only grows."""
    with marking(tmp_path, hidden=OURS) as marked:
        installation = Installation(marked, tmp_path / "data").start()
        assert eventually(lambda: all(map(installation.pid, ("--queues=fold", "--queues=watch", "--queues=orders"))))
        os.kill(installation.pid("--queues=fold"), signal.SIGSTOP)
        yield installation


class Sender:
    """A node that reports one attempt."""

    def __init__(self, api: httpx.Client, attempt: str) -> None:
        self.api, self.attempt, self.boot, self.seq = api, attempt, uuid.uuid4().hex, 0

    def report(self, **parts: Any) -> None:
        self.seq += 1
        moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        body = {"sender": "trn001", "boot": self.boot, "seq": self.seq, "sent_at": moment, **parts}
        self.api.post(f"attempts/{self.attempt}/reports", json=body).raise_for_status()

    def step(self, number: int) -> None:
        """Report one step of two ranks and where they are."""
        beats = [{"rank": rank, "step": number, "phase": "compute", "phase_age_s": 0.1} for rank in (0, 1)]
        self.report(steps={"ranks": [0, 1], "steps": [number], "metrics": {"step_s": [[1.0], [1.0]]}}, beats=beats)


def test_a_crash_is_found_and_a_button_obeyed_while_nothing_is_folded(jammed: Installation, tmp_path: Path) -> None:
    scopes = [word for scope in ("admin", "operate", "read", "report") for word in ("--scope", scope)]
    secret = jammed.manage("token_create", "--name", "test", *scopes)
    pressed = tmp_path / "pressed"
    launcher = {"kind": "LOCAL", "command": ["touch", str(pressed)], "directory": str(tmp_path), "nodes": ["trn001"]}
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=f"{jammed.address}/api/v1/", headers=headers, timeout=60.0) as api:
        api.put("runs/crowded", json={"cluster": "north"}).raise_for_status()
        opened = api.post("runs/crowded/attempts", json={"key": "slurm:1.0.0", "world_size": 2})
        api.put("runs/waiting", json={"cluster": "north", "launcher": launcher}).raise_for_status()
        sender = Sender(api, opened.json()["id"])
        sender.report(placement=[{"rank": rank, "node": "trn001", "local_rank": rank} for rank in (0, 1)])
        for number in range(WAITING_REPORTS):
            sender.step(number)

        moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        sender.report(events=[{"kind": "exit", "happened_at": moment, "rank": 1, "code": 1}])
        action = {"kind": "RESTART_RUN", "run": "waiting", "reason": "start it although the inbox is full"}
        api.post("actions", json=action, headers={"Idempotency-Key": uuid.uuid4().hex}).raise_for_status()

        assert eventually(lambda: [row["cause"] for row in api.get("runs/crowded/findings").json()["results"]])
        assert api.get("runs/crowded/findings").json()["results"][0]["cause"] == "rank_lost"
        assert eventually(pressed.exists)
        assert api.get("runs/crowded").json()["step"] is None  # nothing was folded meanwhile

        os.kill(jammed.pid("--queues=fold"), signal.SIGCONT)
        assert eventually(lambda: api.get("runs/crowded").json()["step"] == WAITING_REPORTS - 1)
