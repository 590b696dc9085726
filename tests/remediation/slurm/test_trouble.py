"""A controller that is down, stopped or slow: nothing is done twice, nothing is lost, and it is said what is not known."""

from __future__ import annotations

import signal
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.remediation import launchers, services
from apps.remediation.launchers import slurm_cli
from apps.remediation.launchers.slurm_cli import SlurmCli
from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain
from apps.remediation.models import Order
from apps.remediation.selectors import action_by_id, look_lines
from apps.remediation.selectors.schedulers import SchedulerRow
from apps.runs.services import attempt_open
from tests.remediation.conftest import is_watched
from tests.remediation.slurm.test_submit import claimed, running
from tests.slurm import Slurm


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., SlurmCli]:
    """Slurm's programs, replaced by small scripts: `programs(sbatch="exit 1")`."""

    def make(**scripts: str) -> SlurmCli:
        for name, script in scripts.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return SlurmCli(SchedulerRow(cluster_id=1, cluster="north", kind="SLURM", programs=str(tmp_path)))

    return make


class TestPrograms:
    def test_one_that_hangs_is_ended_with_all_it_started(
        self, programs: Callable[..., SlurmCli], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tests.remediation.conftest import alive, wait_for

        monkeypatch.setattr(slurm_cli, "CHANGE_S", 0.5)
        cli = programs(scontrol=f"sleep 600 & echo $! > {tmp_path}/pid; wait")

        with pytest.raises(LaunchUncertain):
            cli.change("scontrol", "release", "1")

        wait_for(lambda: not alive(int((tmp_path / "pid").read_text())), "the child to be ended too")

    @pytest.mark.parametrize(
        ("said", "raised"),
        [
            ("sbatch: error: Batch job submission failed: Invalid node name specified", LaunchRefused),
            ("sbatch: error: Unable to contact slurm controller (connect failure)", LaunchUnavailable),
            ("slurm_suspend error: Unexpected message received", LaunchUncertain),
            ("error: Socket timed out on send/recv operation", LaunchUncertain),
        ],
    )
    def test_what_a_failure_means_is_read_from_its_sentence(
        self, programs: Callable[..., SlurmCli], said: str, raised: type[Exception]
    ) -> None:
        cli = programs(sbatch=f"echo '{said}' >&2; exit 1")

        with pytest.raises(raised):
            cli.change("sbatch", "--parsable")

    def test_one_that_is_not_there_did_nothing(self, programs: Callable[..., SlurmCli]) -> None:
        with pytest.raises(LaunchUnavailable):
            programs().change("sbatch")

    def test_output_without_end_is_cut_off(
        self, programs: Callable[..., SlurmCli], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slurm_cli, "MOST_OUTPUT", 1_000_000)

        with pytest.raises(LaunchUnavailable):
            programs(scontrol="yes NodeName=trn001").node_names()

    def listing(self, count: int) -> str:
        return "\n\n".join(f"JobId={n} JobName=run.{n}\n   JobState=RUNNING Restarts=0" for n in range(1, count + 1))

    def test_hundreds_of_jobs_are_one_question(self, programs: Callable[..., SlurmCli], tmp_path: Path) -> None:
        (tmp_path / "listing").write_text(self.listing(500))
        cli = programs(
            scontrol=f'echo "$*" >> {tmp_path}/asked; cat {tmp_path}/listing',
            sacct=f'echo "$*" >> {tmp_path}/asked',
        )

        found = cli.jobs(*range(101, 401), 9_999)
        starts = cli.accounted(7, 8)

        asked = (tmp_path / "asked").read_text().splitlines()
        assert sorted(found) == list(range(101, 401))
        assert starts == {7: [], 8: []}
        assert asked[0] == "--all show job"
        assert [("--jobs=7,8" in words.split()) for words in asked] == [False, True]

    def test_a_listing_that_is_too_long_is_asked_for_job_by_job(
        self, programs: Callable[..., SlurmCli], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slurm_cli, "MOST_OUTPUT", 1_000_000)
        one = "echo JobId=$4 JobName=run; echo '   JobState=RUNNING Restarts=0'"

        found = programs(scontrol=f'test -z "$4" && exec yes JobId=1; {one}').jobs(1, 2, 3, 4)

        assert sorted(found) == [1, 2, 3, 4]

    def test_all_calls_of_an_order_share_a_budget(self, programs: Callable[..., SlurmCli], tmp_path: Path) -> None:
        programs(scontrol="echo NodeName=trn001 State=IDLE")
        cli = SlurmCli(SchedulerRow(cluster_id=1, cluster="north", kind="SLURM", programs=str(tmp_path)), budget_s=0.0)

        with pytest.raises(LaunchUnavailable):
            cli.node_names()

    def test_nothing_of_pacelines_environment_gets_to_them(
        self, programs: Callable[..., SlurmCli], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DATABASE_URL", "postgresql://secret")

        assert "secret" not in programs(sinfo="env").ask("sinfo").text


@pytest.mark.django_db
class TestController:
    @pytest.fixture
    def own_run(self, make_run: Callable[..., Any], slurm_own: Slurm, settle_slurm: Callable[..., None]) -> Any:
        settle_slurm(slurm_own)
        return make_run("dense-7b", launcher={"kind": "SLURM", "command": ["/bin/sleep", "600"], "stop_grace_s": 0})

    def test_one_that_is_down_is_unavailable_and_the_order_waits(
        self, own_run: Any, slurm_own: Slurm, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        asked = ask("RESTART_RUN", own_run)
        slurm_own.controller_signal(signal.SIGKILL)

        outcome = launchers.order_carry_out(order := claimed(asked))
        services.order_settle(order_id=order.id, claim=order.claim, outcome=outcome, now=datetime.now(UTC))
        waits = Order.objects.get(pk=order.id).state
        slurm_own.controller_start()
        row = work(asked.id, until=is_watched, seconds=60)

        assert outcome.kind == "UNAVAILABLE"
        assert waits == "WAITING"
        assert len(slurm_own.queue()) == 1
        assert row.state == "RUNNING"

    def test_one_that_stops_in_the_middle_of_a_submission_leaves_one_job_that_runs(
        self,
        own_run: Any,
        slurm_own: Slurm,
        ask: Callable[..., Any],
        work: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(slurm_cli, "CHANGE_S", 1.0)
        asked = ask("RESTART_RUN", own_run)
        order = claimed(asked)
        change = SlurmCli.change

        def stopped(self: SlurmCli, program: str, *words: str, **more: Any) -> Any:
            if program == "sbatch":
                slurm_own.controller_signal(signal.SIGSTOP)
            return change(self, program, *words, **more)

        monkeypatch.setattr(SlurmCli, "change", stopped)
        outcome = launchers.order_carry_out(order)
        monkeypatch.undo()
        services.order_settle(order_id=order.id, claim=order.claim, outcome=outcome, now=datetime.now(UTC))
        doubted = Order.objects.get(pk=order.id).state
        looks = look_lines(action_by_id(asked.id))
        slurm_own.controller_signal(signal.SIGCONT)
        row = work(asked.id, until=is_watched, seconds=90)

        assert (outcome.kind, doubted) == ("UNCERTAIN", "UNCERTAIN")
        assert looks == [f"squeue --states=all --name=dense-7b.{order.code}"]
        running(slurm_own, int(row.orders[-1].receipt["receipt"]))
        assert len(slurm_own.queue()) == 1

    @pytest.mark.parametrize("program", ["release", "requeuehold"])
    def test_one_that_dies_after_it_was_told_leaves_a_doubt_and_no_second_job(
        self,
        make_run: Callable[..., Any],
        slurm_own: Slurm,
        settle_slurm: Callable[..., None],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        program: str,
    ) -> None:
        settle_slurm(slurm_own)
        foreign = program == "requeuehold"
        command = {} if foreign else {"command": ["/bin/sleep", "600"], "stop_grace_s": 0}
        run = make_run("dense-7b", launcher={"kind": "SLURM", **command})
        if foreign:
            job_id = slurm_own.submit("sleep 600")
            running(slurm_own, job_id)
            now = datetime.now(UTC)
            attempt_open(
                run_id=run.id, key=f"slurm:{job_id}.0", external_id="", world_size=1, by="t", source="API", now=now
            )
        asked = ask("RESTART_RUN", run)
        order, change = claimed(asked), SlurmCli.change

        def dying(self: SlurmCli, name: str, *words: str, **more: Any) -> Any:
            said = change(self, name, *words, **more)
            if words[:1] == (program,):
                slurm_own.saved()
                slurm_own.controller_signal(signal.SIGKILL)
            return said

        monkeypatch.setattr(SlurmCli, "change", dying)
        outcome = launchers.order_carry_out(order)
        monkeypatch.undo()
        services.order_settle(order_id=order.id, claim=order.claim, outcome=outcome, now=datetime.now(UTC))
        slurm_own.controller_start()
        row = work(asked.id, until=is_watched, seconds=90)

        assert outcome.kind == "UNCERTAIN"
        assert "something was done already" in outcome.text
        assert len(slurm_own.queue()) == 1
        assert row.state == "RUNNING"
