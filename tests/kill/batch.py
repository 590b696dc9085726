"""Many seeds in one installation, one after the other: the later ones strike while the earlier ones recover."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.installation import OURS
from tests.kill import plan
from tests.kill.house import HERE, House
from tests.kill.plan import Case
from tests.kill.strike import REASON, Strike
from tests.kill.verdict import OVER, facts_of, judge
from tests.marked import marking

QUIET_S = 240.0
"""An order whose worker died is in doubt after 60 s; then it is read back, and perhaps tried again."""


@dataclass(frozen=True)
class Result:
    """What became of one seed."""

    seed: int
    words: str
    reached: str
    state: str
    wrong: tuple[str, ...]
    seconds: float


def batch_run(cases: Sequence[Case], folder: Path) -> list[Result]:
    """Run seeds in one installation and judge each of them."""
    with marking(folder, hidden=OURS) as marked:
        house = House(marked, folder)
        try:
            house.start()
            if any(case.launcher == plan.SLURM for case in cases):
                house.slurm_start()
            prepare(house, cases)
            struck = [strike(house, case) for case in cases]
            settle(house)
            return [result(house, *one) for one in struck]
        finally:
            house.stop()


def prepare(house: House, cases: Iterable[Case]) -> None:
    """Make the runs, and start those that are to be stopped or started again."""
    running, foreign = [], []
    for case in cases:
        folder = house.run_folder(case.slug)
        folder.mkdir()
        cluster = "slurm" if case.launcher == plan.SLURM else f"c-{case.slug}"
        house.insist("PUT", f"runs/{case.slug}", {"cluster": cluster, "launcher": launcher(house, case)})
        if case.launcher == plan.LEDGER:
            opened = {"key": case.slug, "world_size": 1, "nodes": [f"node-{case.slug}"]}
            house.insist("POST", f"runs/{case.slug}/attempts", opened)
        elif case.wish == "requeue":
            house.foreign_submit(case.slug)
            foreign.append(case.slug)
        elif case.wish in ("restart", "stop"):
            wish = {"kind": "RESTART_RUN", "run": case.slug, "reason": REASON}
            made = house.insist("POST", "actions", wish, **{"Idempotency-Key": f"first-{case.slug}"})
            running.append(made["id"])
    for action in running:
        is_running(house, action)
    for slug in foreign:
        house.wait(
            lambda slug=slug: house.insist("GET", f"runs/{slug}")["state"] == "RUNNING",  # type: ignore[misc]
            f"the job of {slug} to report",
            180,
            step_s=0.2,
        )


def is_running(house: House, action: str) -> None:
    """Wait until a first start went well."""
    house.wait(
        lambda: house.insist("GET", f"actions/{action}")["state"] == "SUCCEEDED",
        f"the first start {action}",
        180,
        step_s=0.2,
    )


def launcher(house: House, case: Case) -> dict[str, object]:
    folder = str(house.run_folder(case.slug))
    if case.launcher == plan.WEBHOOK:
        return {"kind": "WEBHOOK", "url": f"http://127.0.0.1:{house.receiver_port}/paceline"}
    if case.launcher == plan.LOCAL:
        command = [sys.executable, "-I", "-S", str(HERE / "program.py"), folder]
        return {"kind": "LOCAL", "command": command, "directory": folder, "stop_grace_s": 6}
    if case.wish == "requeue":
        return {"kind": "SLURM"}
    if case.launcher == plan.SLURM:
        command = ["--ntasks=1", sys.executable, "-I", "-S", str(HERE / "program.py"), folder]
        return {"kind": "SLURM", "command": command, "directory": folder, "stop_grace_s": 6}
    return {}


def strike(house: House, case: Case) -> tuple[Case, str, str, float]:
    """Strike one seed; a strike that fails is told as what it is."""
    began, one, failed = time.monotonic(), Strike(house, case), ""
    try:
        one.run()
    except AssertionError as error:
        failed = str(error)
    seconds = time.monotonic() - began
    print(f"  seed {case.seed}: {case.words}; {failed.partition(chr(10))[0] or 'done'}; {seconds:.1f} s", flush=True)
    return case, one.reached, failed, seconds


def settle(house: House) -> None:
    """Wait until no action is on its way, or as long as that may take; whoever is judged then is judged as it stands."""
    house.wait(house.is_whole, "everybody to be back", 180)
    states = ", ".join(f"'{state}'" for state in (*OVER, "DISMISSED"))
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end and house.sql(
        f"SELECT 1 FROM remediation_action WHERE state NOT IN ({states}) LIMIT 1"
    ):
        time.sleep(0.5)
    # What was seen to be over may have an end to write down: launches are looked at each second, Slurm's jobs with its reads.
    time.sleep(10.0 if house.slurm is not None else 2.0)


def result(house: House, case: Case, reached: str, failed: str, seconds: float) -> Result:
    facts = facts_of(house, case)
    wrong = [*judge(facts), *([f"the harness: {failed}"] if failed else [])]
    state = facts.actions[-1].state if facts.actions else "none"
    if wrong:
        wrong.append(repr(facts))
    return Result(case.seed, case.words, reached, state, tuple(wrong), round(seconds, 2))
