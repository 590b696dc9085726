"""The whole way with real parts: a practice run started by an action, troubled, moved off its node, and stopped.

Nothing is played here but the GPUs: the program is launched by the local launcher, reports through the real client and
node sender, and Paceline's own processes find out what is wrong.
"""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from apps.rehearsal.selectors import practice_folder, practice_read, practice_run
from apps.rehearsal.trainer.faults import KINDS
from apps.runs.selectors import RunRow, attempt_by_id
from tests.site import LiveSite

pytestmark = pytest.mark.slow

FOUND_WITHIN_S = 60.0
"""A bound against waiting for ever; how fast a fault is found is measured elsewhere."""


@pytest.fixture
def site(live_site: LiveSite, settings: Any) -> LiveSite:
    settings.DATA_DIR = live_site.folder
    live_site.workers()
    return live_site


@pytest.fixture
def practice(site: LiveSite) -> Any:
    """A practice run of eight ranks on four nodes that has made some steps; stopped afterwards."""
    call_command("practice", "--start", "--ranks", "8", "--nodes", "4")
    try:
        site.wait(lambda: (practice_run().step or 0) >= 30, "the practice run to make thirty steps", 90)
        yield practice_run()
    finally:
        call_command("practice", "--stop")


def call(site: LiveSite, token: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Ask the live site by REST; return the answer."""
    request = urllib.request.Request(
        f"{site.url}/api/v1/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


@pytest.fixture
def ask(site: LiveSite, make_token: Callable[..., str]) -> Callable[..., Any]:
    token = make_token("read", "operate")
    return lambda method, path, body=None, **headers: call(site, token, method, path, body, **headers)


def found(ask: Callable[..., Any], cause: str) -> dict[str, Any] | None:
    """Return the open finding of this cause, if there is one."""
    findings = ask("GET", "findings?state=OPEN")["results"]
    return next((finding for finding in findings if finding["cause"] == cause), None)


def test_a_slow_node_is_named_excluded_and_the_rest_goes_on(
    site: LiveSite, practice: RunRow, ask: Callable[..., Any]
) -> None:
    ask("POST", "practice/faults", {"kind": "slow_rank", "rank": 5, "value": 1.8})
    finding = site.wait(lambda: found(ask, "compute_straggler"), "the slow rank to be found", FOUND_WITHIN_S)
    assert finding["subject"]["node"] == "practice-03"

    action = ask(
        "POST",
        "actions",
        {
            "kind": "RESTART_RUN",
            "run": practice.slug,
            "reason": "practice-03 holds the others back",
            "options": {"exclude_nodes": ["practice-03"]},
        },
        **{"Idempotency-Key": "slow-node"},
    )

    def moved() -> bool:
        run = practice_run()
        return run.attempt_number == practice.attempt_number + 1 and (run.step or 0) > 0 and run.step_s is not None

    site.wait(moved, "a new attempt to make steps", 60)
    run = practice_run()
    assert run.attempt_id is not None
    attempt = attempt_by_id(run.attempt_id)
    placement = practice_read()
    assert attempt.world_size == 6
    assert placement.nodes == ("practice-01", "practice-02", "practice-04")
    assert (
        attempt.resumed_from_step
        == placement.resumed_from_step
        == ask("GET", f"actions/{action['id']}")["price"]["from_step"]
    )


@pytest.mark.parametrize(
    ("kind", "rank", "cause"),
    [("hang", 2, "hang"), ("crash", 2, "rank_lost"), ("nan", 2, "numeric_fault")],
)
def test_a_fault_of_one_rank_becomes_a_finding(
    site: LiveSite, practice: RunRow, ask: Callable[..., Any], kind: str, rank: int, cause: str
) -> None:
    assert kind in KINDS

    ask("POST", "practice/faults", {"kind": kind, "rank": rank})

    seen = site.wait(
        lambda: [row for row in ask("GET", f"runs/{practice.slug}/findings")["results"] if row["cause"] == cause],
        f"{kind} to be found",
        FOUND_WITHIN_S,
    )
    assert seen[0]["run"] == practice.slug


def test_stopped_it_leaves_no_process(site: LiveSite, practice: RunRow) -> None:
    pids = [place.pid for place in practice_read().ranks]

    call_command("practice", "--stop")

    assert not practice_read().running
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert practice_run().attempt_state == "ENDED"
    assert not (practice_folder(practice) / "placement.json").exists()
