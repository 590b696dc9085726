"""Thirty seeds of the kill tests, and that their judge is not blind; a thousand are `make kill-test`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kill import plan
from tests.kill.batch import Result, batch_run
from tests.kill.plan import STAGES, VICTIMS, case_of
from tests.kill.verdict import ActionFact, Facts, OrderFact, judge

SEEDS = 30

FINE = Facts(
    case=replace(case_of(0), launcher=plan.LOCAL, wish="start"),
    actions=(
        ActionFact(7, "RESTART_RUN", "SUCCEEDED", "Attempt 1 runs.", True, (OrderFact("ord_1", "LAUNCH", "DONE", ""),)),
    ),
    evidence=(("begun", "order:ord_1", "4711", "99"),),
    alive=("order:ord_1",),
    cancel_answers=(),
    log_holes=0,
    held=False,
    launches_alive=1,
    attempts_open=1,
    exclusions_open=0,
    exclusions=0,
    status_excluded=False,
)


DOUBTED = OrderFact("ord_1", "LAUNCH", "UNCERTAIN", "nobody came back")


def ended(state: str, **more: Any) -> tuple[ActionFact, ...]:
    return (replace(FINE.actions[0], state=state, **more),)


class TestTheJudge:
    def test_has_nothing_to_say_of_a_start_that_went_well(self) -> None:
        assert judge(FINE) == []

    @pytest.mark.parametrize(
        ("facts", "words"),
        [
            ({"evidence": (*FINE.evidence, ("double", "order:ord_1", "4712", "99"))}, "beside a living one"),
            ({"evidence": FINE.evidence * 2}, "begun 2 times"),
            ({"evidence": (*FINE.evidence, ("again", "ord_1"))}, "again after it was done"),
            ({"alive": ("order:ord_1", "order:ord_0")}, "live at once"),
            ({"alive": ()}, "the restart succeeded, and what lives is ()"),
            ({"actions": ended("CANCELLED", began=False)}, "was executed"),
            ({"actions": ended("RUNNING")}, "for ever"),
            ({"actions": ended("UNCERTAIN")}, "does not say what to look at"),
            ({"actions": ended("UNCERTAIN", orders=(DOUBTED,))}, "does not say what to look at"),
            ({"actions": ended("UNCERTAIN", orders=(DOUBTED,), look=("GET ord_0",))}, "does not say what to look at"),
            (
                {"actions": ended("UNCERTAIN", orders=(replace(DOUBTED, error=""),), look=("GET ord_1",))},
                "does not say what to look at",
            ),
            ({"actions": ended("FAILED", outcome="")}, "without a word"),
            ({"actions": ()}, "is not there"),
            ({"cancel_answers": (200,)}, "a cancel was answered 200"),
            ({"held": True}, "held by an action that is over"),
            ({"log_holes": 1}, "holes"),
            ({"launches_alive": 0}, "0 launches are known"),
            ({"attempts_open": 2}, "attempts are open"),
            ({"exclusions": 1}, "nobody named"),
        ],
    )
    def test_sees(self, facts: dict[str, Any], words: str) -> None:
        assert words in "; ".join(judge(replace(FINE, **facts)))

    @pytest.mark.parametrize(
        ("kind", "look"),
        [
            ("LAUNCH", "squeue --states=all --name=run.ord_1"),
            ("STOP", "scontrol show job 41"),
            ("STOP", "ps -fp 4711"),
        ],
    )
    def test_is_content_with_a_doubt_that_says_what_to_look_at(self, kind: str, look: str) -> None:
        order = replace(DOUBTED, kind=kind)

        assert judge(replace(FINE, actions=ended("UNCERTAIN", orders=(order,), look=(look,)))) == []


class TestThePlan:
    def test_comes_to_every_stage_of_every_way_with_every_victim(self) -> None:
        wanted = {(way, stage, victim) for way, stages in STAGES.items() for stage in stages for victim in VICTIMS}
        all_launchers = (plan.LOCAL, plan.WEBHOOK, plan.SLURM, plan.LEDGER)

        cases = [case_of(seed, launchers=all_launchers) for seed in range(len(wanted))]

        assert {((case.launcher, case.wish), case.stage, case.victim) for case in cases} == wanted

    def test_thirty_seeds_kill_everybody_at_every_stage(self) -> None:
        cases = [case_of(seed) for seed in range(SEEDS)]

        assert {case.victim for case in cases} == set(VICTIMS)
        assert {case.stage for case in cases} == {stage for stages in STAGES.values() for stage in stages}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    folder: Path = tmp_path_factory.mktemp("kill")
    return batch_run([case_of(seed) for seed in range(SEEDS)], folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_whatever_dies_nothing_is_started_twice_lost_or_done_after_a_cancel(results: list[Result]) -> None:
    assert [(one.seed, one.words, one.wrong) for one in results if one.wrong] == []
    assert len(results) == SEEDS
