"""The whole way with real parts: a practice run started by an action, troubled, moved off its node, and stopped.

Nothing is played here but the GPUs: the program is launched by the local launcher, reports through the real client and
node sender, and Paceline's own processes find out what is wrong.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from apps.rehearsal.selectors import practice_read, practice_run
from apps.runs.selectors import RunRow, attempt_by_id, checkpoints_of
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
def practice(site: LiveSite) -> Iterator[RunRow]:
    """A practice run of eight ranks on four nodes that has made some steps; stopped afterwards."""
    try:
        call_command("practice", "--start", "--ranks", "8", "--nodes", "4", "--no-wait")
        site.wait(lambda: (practice_run().step or 0) >= 30, "the practice run to make thirty steps", 180)
        yield practice_run()
    finally:
        call_command("practice", "--stop", "--no-wait")
        site.wait(lambda: not practice_read().running, "the practice run to be gone", 60)


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


def checkpoint_steps_ever(run_id: int) -> set[int]:
    """Return the steps of all checkpoints that were ever told."""
    return {row.step for row in checkpoints_of(run_id=run_id)}


def found(ask: Callable[..., Any], cause: str) -> dict[str, Any] | None:
    """Return the open finding of this cause, if there is one."""
    findings = ask("GET", "findings?state=OPEN")["results"]
    return next((finding for finding in findings if finding["cause"] == cause), None)


def subject_of_rank(ask: Callable[..., Any], cause: str) -> dict[str, Any] | None:
    """Return what the open finding of this cause is about, once that is a rank."""
    finding = found(ask, cause)
    return finding["subject"] if finding is not None and finding["subject"]["kind"] == "RANK" else None


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
    assert attempt.resumed_from_step == placement.resumed_from_step
    assert placement.resumed_from_step in checkpoint_steps_ever(practice.id)
    assert site.wait(lambda: ask("GET", f"actions/{action['id']}")["state"] == "SUCCEEDED", "the action to succeed", 60)


def test_each_fault_of_a_rank_becomes_a_finding(site: LiveSite, practice: RunRow, ask: Callable[..., Any]) -> None:
    for kind, cause in (("nan", "numeric_fault"), ("hang", "hang"), ("crash", "rank_lost")):
        ask("POST", "practice/faults", {"kind": kind, "rank": 2})
        finding = site.wait(lambda cause=cause: found(ask, cause), f"{kind} to be found", FOUND_WITHIN_S)
        assert finding["run"] == practice.slug
        if kind == "hang":
            named = site.wait(lambda: subject_of_rank(ask, "hang"), "the stacks to name the rank", FOUND_WITHIN_S)
            assert (named["rank"], bool(named["node"])) == (2, True)
        ask("DELETE", "practice/faults")


@pytest.mark.parametrize(
    ("kind", "cause", "class_"),
    [("gc_pauses", "gc_pause", "COORDINATION"), ("slow_checkpoint", "checkpoint_queue", "RECOVERY")],
)
def test_what_the_program_does_itself_is_told_of_the_run_and_blames_no_machine(
    site: LiveSite, practice: RunRow, ask: Callable[..., Any], kind: str, cause: str, class_: str
) -> None:
    ask("POST", "practice/faults", {"kind": kind})

    finding = site.wait(lambda: found(ask, cause), f"{kind} to be found", FOUND_WITHIN_S)

    assert (finding["class"], finding["subject"]["kind"]) == (class_, "RUN")
    assert finding["proposal"]["kind"] == "NONE"
    assert {one["name"]: one["unit"] for one in finding["evidence"]}
    assert found(ask, "compute_straggler") is None
    incident = site.wait(
        lambda: next(iter(ask("GET", f"runs/{practice.slug}/incidents")["results"]), None), "its incident", 30
    )
    assert incident["cause"] == cause
    said = {row["cause"]: row["answer"] for row in ask("GET", f"attempts/{finding['attempt']}/detectors")["results"]}
    assert said[cause] == "VERDICT"


def test_stopped_it_leaves_no_process(site: LiveSite, practice: RunRow) -> None:
    pids = [place.pid for place in practice_read().ranks]

    call_command("practice", "--stop")

    assert not practice_read().running
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert practice_run().attempt_state == "ENDED"
