"""The program as a launcher starts it: real processes, real sockets, real deaths."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest

from apps.rehearsal.trainer import checkpoint, main
from apps.rehearsal.trainer.faults import Placement, fault_make, faults_write, placement_read
from tests.rehearsal.crew import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """One started program in its folder."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        self.log = folder / f"log-{len(list(folder.glob('log-*')))}"
        command = [sys.executable, "-m", "apps.rehearsal.trainer", "--directory", str(folder)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--nodes", "a,b", "--ranks-per-node", "2", "--step-s", "0", *arguments],
                cwd=ROOT,
                env={**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}", "PACELINE_ATTEMPT_KEY": "try-1", **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def running(self) -> Placement:
        """Return who runs, once it runs."""
        wait_until(lambda: placement_read(self.folder) is not None or self.process.poll() is not None)
        placement = placement_read(self.folder)
        assert placement is not None, self.words()
        return placement

    def fault(self, kind: str, **target: Any) -> None:
        chosen = {"rank": None, "node": None, "value": None, **target}
        faults_write(self.folder, (fault_make(self.running(), kind=kind, **chosen),))

    def words(self) -> str:
        return self.log.read_text()

    def ended(self) -> int:
        return self.process.wait(60)

    @property
    def saved(self) -> list[int]:
        return checkpoint.checkpoint_steps(self.folder / "checkpoints")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(*arguments: str, **environ: str) -> Program:
        started.append(Program(tmp_path, *arguments, **environ))
        return started[-1]

    yield begin
    for program in started:
        program.process.kill()
        program.process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


Start = Callable[..., Program]


def test_it_trains_to_its_last_step_and_leaves_nothing_running(start: Start) -> None:
    program = start("--steps", "60", "--step-s", "0.02")
    pids = [place.pid for place in program.running().ranks]

    assert program.ended() == 0
    assert program.saved == [20, 40, 60]
    assert not any(alive(pid) for pid in pids)
    assert placement_read(program.folder) is None
    losses = [float(line.split()[4]) for line in program.words().splitlines() if " loss " in line]
    assert losses[-1] < 0.5


def test_told_to_stop_it_stops_and_says_so_by_its_status(start: Start) -> None:
    program = start("--step-s", "0.05", "--checkpoint-every", "2")
    pids = [place.pid for place in program.running().ranks]
    wait_until(lambda: bool(program.saved))

    program.process.terminate()

    assert program.ended() == 143
    assert not any(alive(pid) for pid in pids)


def test_a_killed_parent_takes_all_its_ranks_along(start: Start) -> None:
    program = start("--step-s", "0.05")
    pids = [place.pid for place in program.running().ranks]

    assert len(pids) > 1
    assert all(alive(pid) for pid in pids)
    program.process.kill()
    program.ended()

    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_killed_in_the_middle_of_a_save_it_goes_on_from_the_save_before(start: Start) -> None:
    first = start("--step-s", "0.02", "--checkpoint-every", "5")
    wait_until(lambda: bool(first.saved))
    first.fault("slow_checkpoint", value=30)
    root = first.folder / "checkpoints"
    wait_until(lambda: any(root.glob("*.partial/shard-*")))
    first.process.kill()
    first.ended()
    complete = first.saved

    faults_write(first.folder, ())
    second = start("--steps", str(complete[-1] + 5), "--checkpoint-every", "5")

    assert second.ended() == 0
    assert f"4 ranks on a, b; resuming from step {complete[-1]}" in second.words()
    assert second.saved[-1] == complete[-1] + 5


def test_without_the_excluded_node_a_smaller_world_goes_on_at_the_wanted_step(start: Start) -> None:
    assert start("--steps", "40", "--checkpoint-every", "10").ended() == 0

    program = start(
        "--steps", "60", PACELINE_EXCLUDE_NODES="a", PACELINE_RESUME_STEP="20", PACELINE_ATTEMPT_KEY="try-2"
    )

    assert program.ended() == 0
    assert "2 ranks on b; resuming from step 20" in program.words()
    assert program.saved[-1] == 60


@pytest.mark.parametrize(("value", "words"), [(0, "killed by SIGKILL"), (7, "exit status 7")])
def test_a_crashed_rank_ends_the_program_after_a_grace(start: Start, value: int, words: str) -> None:
    program = start("--step-s", "0.02", "--grace-s", "0.3")
    pids = [place.pid for place in program.running().ranks]

    program.fault("crash", rank=2, value=value)

    assert program.ended() == 1
    assert f"rank 2 on b: {words}" in program.words()
    assert not any(alive(pid) for pid in pids)


def test_the_others_live_on_in_the_collective_for_the_grace(start: Start) -> None:
    program = start("--step-s", "0.02", "--grace-s", "60")
    places = program.running().ranks

    program.fault("crash", rank=1)

    wait_until(lambda: not alive(places[1].pid))
    wait_until(lambda: "rank 1 on a: killed by SIGKILL" in program.words())
    assert [alive(place.pid) for place in places] == [True, False, True, True]
    assert program.process.poll() is None


def test_a_lost_node_loses_all_it_had_at_once(start: Start) -> None:
    program = start("--step-s", "0.02", "--lost-node-grace-s", "0.5")
    places = program.running().ranks

    program.fault("lose_node", node="b")

    wait_until(lambda: not any(alive(place.pid) for place in places[2:]))
    assert program.ended() == 1
    assert "node b is lost" in program.words()


def test_a_crash_of_an_earlier_attempt_does_not_come_again(start: Start) -> None:
    first = start("--step-s", "0.02", "--grace-s", "0.1")
    first.fault("crash", rank=0)
    assert first.ended() == 1

    assert start("--steps", "40", PACELINE_ATTEMPT_KEY="try-2").ended() == 0


def test_a_hang_past_the_time_out_ends_as_a_failure(start: Start) -> None:
    program = start("--step-s", "0.02", "--collective-timeout-s", "0.5", "--grace-s", "0.1")

    program.fault("hang", rank=3)

    assert program.ended() == 1
    assert "waited 0.5 s for a neighbour" in program.words()


def test_gauges_of_every_node_are_written(start: Start) -> None:
    program = start("--step-s", "0.02")
    program.running()
    path = program.folder / "nodes" / "b" / "gpus.json"

    wait_until(lambda: path.exists() and json.loads(path.read_text())[0]["utilization"] > 0)

    assert len(json.loads(path.read_text())) == 2


def test_a_folder_in_use_and_no_nodes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "LOCK_S", 0.1)
    with (tmp_path / "lock").open("a") as lock:
        flock(lock.fileno(), LOCK_EX)
        assert main.main(["--directory", str(tmp_path)], {}) == main.BUSY
    assert "another attempt is running" in capsys.readouterr().err

    assert main.main(["--nodes", "a"], {"PACELINE_EXCLUDE_NODES": "a"}) == main.REFUSED
    assert "every node is excluded" in capsys.readouterr().err


def test_ctrl_c_stops_it_as_a_launcher_does(start: Start) -> None:
    program = start("--step-s", "0.05")
    program.running()

    program.process.send_signal(signal.SIGINT)

    assert program.ended() == 143
