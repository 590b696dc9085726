"""From the click to the process in a whole Paceline: real web process, real workers, real programs."""

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.remediation import selectors
from apps.remediation.models import Action, Launch
from apps.runs.selectors import attempts_of, run_by_id
from tests.remediation.conftest import REASON, alive, is_watched
from tests.remediation.test_webhook import Receiver, receiver  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

SOON_S = 90.0
"""A bound against waiting for ever, on a machine that is busy with other tests."""

PROGRAM = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
pathlib.Path(sys.argv[1], os.environ["PACELINE_ATTEMPT_KEY"].replace(":", "-")).write_text(str(time.time()))
while True:
    time.sleep(0.02)
"""


@pytest.fixture
def press(live_site: Any, make_token: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """Press a button over HTTP: `press("RESTART_RUN", run)` gives the action's answer."""
    token = make_token("read", "operate")

    def post(kind: str, run: Any, key: str = "k") -> dict[str, Any]:
        body = json.dumps({"kind": kind, "run": run.slug, "reason": REASON}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": key}
        request = urllib.request.Request(f"{live_site.url}/api/v1/actions", body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    return post


@pytest.fixture
def started(live_site: Any, make_run: Callable[..., Any], program: Callable[..., list[str]]) -> Any:
    """A run whose program writes down when it began; what is left of it is killed in the end."""
    marks = live_site.folder / "marks"
    marks.mkdir()
    command = program(PROGRAM, str(marks))
    yield make_run("dense-7b", launcher={"kind": "LOCAL", "command": command, "stop_grace_s": 5})
    for row in Launch.objects.exclude(pid=None):
        with contextlib.suppress(ProcessLookupError, OSError, ValueError):
            pid = json.loads((Path(row.directory) / "started.json").read_text())["program_pid"]
            os.kill(pid, signal.SIGKILL)


def orders_worker(site: Any, *, beat: bool = False) -> None:
    """Start the one worker that carries orders out, and beat where the clock is needed."""
    celery = ("-m", "celery", "-A", "apps.config.celery")
    site.run("worker-orders", *celery, "worker", "-Q", "orders", "-P", "solo", "--without-gossip", "--without-mingle")
    if beat:
        site.run("beat", *celery, "beat", "--schedule", str(site.folder / "beat"))


def marks(site: Any) -> list[float]:
    return sorted(float(path.read_text() or 0) for path in (site.folder / "marks").iterdir())


class TestClick:
    def test_a_click_starts_a_program_without_waiting_for_any_clock(
        self, live_site: Any, press: Callable[..., dict[str, Any]], started: Any
    ) -> None:
        orders_worker(live_site)

        answer = press("RESTART_RUN", started)

        live_site.wait(lambda: marks(live_site), "the program", SOON_S)
        live_site.wait(lambda: is_watched(selectors.action_by_code(answer["id"])), "the receipt", SOON_S)
        assert run_by_id(started.id).attempt_state == "OPEN"

    def test_a_restart_stops_and_starts_without_waiting_for_any_clock(
        self, live_site: Any, press: Callable[..., dict[str, Any]], started: Any
    ) -> None:
        orders_worker(live_site)
        first = press("RESTART_RUN", started)
        live_site.wait(lambda: marks(live_site), "the first program", SOON_S)
        live_site.wait(lambda: is_watched(selectors.action_by_code(first["id"])), "its receipt", SOON_S)
        Action.objects.update(state="SUCCEEDED")  # as if it had reported
        second = press("RESTART_RUN", started, key="k2")
        live_site.wait(lambda: len(marks(live_site)) == 2, "the second program", SOON_S)

        live_site.wait(lambda: is_watched(selectors.action_by_code(second["id"])), "its receipt", SOON_S)
        old, new = reversed(attempts_of(started.id))
        assert (old.reason, new.state) == ("PLANNED", "OPEN")


class TestKilled:
    def test_a_worker_killed_while_it_holds_an_order_leaves_a_doubt_that_is_read_back(
        self,
        live_site: Any,
        press: Callable[..., dict[str, Any]],
        make_run: Callable[..., Any],
        receiver: Receiver,  # noqa: F811
    ) -> None:
        run = make_run(launcher={"kind": "WEBHOOK", "url": receiver.url})
        receiver.pause_s, receiver.known = 3.0, (200, {"receipt": "job-9"})
        orders_worker(live_site)
        action = press("RESTART_RUN", run)
        live_site.wait(lambda: receiver.posts, "the message", SOON_S)

        live_site.kill("worker-orders")
        in_hand = selectors.action_by_code(action["id"]).orders[0].state
        orders_worker(live_site, beat=True)

        found = live_site.wait(
            lambda: is_watched(row := selectors.action_by_code(action["id"])) and row, "the read-back", SOON_S
        )
        assert in_hand == "CLAIMED"
        doubted = next(row for row in found.milestones if row.name == "uncertain")
        assert "did not come back" in doubted.text
        assert "uncertain" in [row.name for row in found.milestones]
        assert found.orders[0].receipt["receipt"] == "job-9"
        assert len(receiver.posts) == 1

    def test_programs_outlive_a_restart_of_paceline_and_are_found_again(
        self, live_site: Any, press: Callable[..., dict[str, Any]], started: Any
    ) -> None:
        orders_worker(live_site)
        press("RESTART_RUN", started)
        live_site.wait(lambda: Launch.objects.first(), "the launch", SOON_S)
        launch = Launch.objects.get()
        pid = json.loads((Path(launch.directory) / "started.json").read_text())["program_pid"]

        for name in list(live_site.children):
            live_site.kill(name)
        survives = alive(pid)
        live_site.start()
        orders_worker(live_site, beat=True)
        os.kill(pid, signal.SIGKILL)

        live_site.wait(lambda: not alive(launch.pid or 0), "the wrapper's end", SOON_S)
        attempt = live_site.wait(
            lambda: (row := attempts_of(started.id)[0]).state == "ENDED" and row, "the end to be noted", SOON_S
        )
        assert survives
        assert (attempt.reason, attempt.authority) == ("CRASHED", "WRAPPER")
