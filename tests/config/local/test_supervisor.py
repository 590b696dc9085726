"""The supervisor over tiny programs: real processes, real signals."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.config.local.problems import DiskFull, ServerFailed
from apps.config.local.programs import Program
from apps.config.local.rotation import logs_rotate
from apps.config.local.supervisor import Backoff, Supervisor
from apps.config.local.voice import Voice
from apps.config.local.watch import StopAsked, Watch
from tests.marked import Marked, eventually, read_until

SLEEP = "exec sleep 1000"


def pid_of(line: str) -> int:
    return int(line.rsplit("pid ", 1)[1])


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Watch().installed() as watch:
        made = Supervisor(watch=watch, voice=Voice(), logs=tmp_path, backoff=Backoff(first_s=0.01, limit_s=0.02))
        yield made
        made.stop()


def program(tmp_path: Path, command: str, *, ready: Callable[[], bool] = lambda: True) -> Program:
    return Program(name="tiny", command=("sh", "-c", command), log=tmp_path / "tiny.log", folder=tmp_path, ready=ready)


class TestRestarts:
    def test_starts_a_killed_child_again_and_says_so(self, marked: Marked) -> None:
        keeper = marked.keeper(f"sleeper:0:{SLEEP}")
        first = pid_of(read_until(keeper, "pid"))

        os.kill(first, signal.SIGKILL)
        said = read_until(keeper, "started again")

        assert "sleeper    was killed by SIGKILL. Starting it again in 0.05 s." in said
        assert pid_of(said.replace(").", "")) != first
        assert eventually(lambda: marked.running("sleep 1000") - {first})

    def test_waits_longer_each_time_and_repeats_the_last_words(self, marked: Marked) -> None:
        keeper = marked.keeper(
            f"anchor:0:{SLEEP}", "weak:1:test -e ready || { touch ready; exec sleep 0.2; }; echo no luck; exit 3"
        )

        said = read_until(keeper, "in 0.1 s")

        assert "weak       ended with status 0. Starting it again in 0.05 s." in said
        assert "weak       ended with status 3. Last words: no luck Starting it again in 0.1 s." in said
        assert "anchor     was" not in said

    def test_forgives_earlier_failures_after_a_long_life(self) -> None:
        pauses = [Backoff(first_s=1.0, limit_s=8.0).pause_s(failures) for failures in range(1, 6)]

        assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]

    def test_gives_up_at_the_start_when_a_program_ends_again_and_again(
        self, supervisor: Supervisor, tmp_path: Path
    ) -> None:
        child = supervisor.add(program(tmp_path, "echo cannot open the store; exit 1", ready=lambda: False))

        with pytest.raises(ServerFailed, match=r"tiny did not start. Its last words: cannot open the store"):
            supervisor.await_ready(child, limit_s=20.0)

    def test_tells_a_full_disk_from_other_failures(self, supervisor: Supervisor, tmp_path: Path) -> None:
        child = supervisor.add(
            program(tmp_path, "echo 'could not write: No space left on device'; exit 1", ready=lambda: False)
        )

        with pytest.raises(DiskFull, match=r"is full. Free some space there"):
            supervisor.await_ready(child, limit_s=20.0)

    def test_kills_what_a_dead_child_left_before_its_successor_starts(self, marked: Marked) -> None:
        keeper = marked.keeper("pair:0:sleep 1001 & exec sleep 1000")
        first = pid_of(read_until(keeper, "pid"))
        assert eventually(lambda: marked.running("sleep 1001"))
        (orphan,) = marked.running("sleep 1001")

        os.kill(first, signal.SIGKILL)

        assert eventually(lambda: orphan not in marked.pids())
        assert eventually(lambda: marked.running("sleep 1001"))


class TestStopping:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_leaves_no_process_behind(self, marked: Marked, number: signal.Signals) -> None:
        keeper = marked.keeper(f"one:0:{SLEEP}", "two:1:sleep 1001 & exec sleep 1000")
        read_until(keeper, "two")

        keeper.send_signal(number)

        assert read_until(keeper, "done").endswith("keeper     done\n")
        assert keeper.wait(30) == 0
        assert marked.gone()

    def test_stops_those_that_need_others_first(self, marked: Marked) -> None:
        goodbye = "trap 'date +%s%N > {0}; exit' TERM; touch {0}.armed; while :; do sleep 0.05; done"
        keeper = marked.keeper(f"server:0:{goodbye.format('server')}", f"user:1:{goodbye.format('user')}")
        read_until(keeper, "user")
        assert eventually(lambda: len(list(marked.folder.glob("*.armed"))) == 2)

        keeper.terminate()
        keeper.wait(30)

        assert int((marked.folder / "user").read_text()) < int((marked.folder / "server").read_text())

    def test_kills_a_child_that_will_not_go(self, marked: Marked) -> None:
        keeper = marked.keeper("stubborn:1:trap '' TERM; touch armed; while :; do sleep 0.1; done")
        read_until(keeper, "pid")
        assert eventually((marked.folder / "armed").exists)

        keeper.terminate()

        assert "stubborn   did not stop in time and was killed." in read_until(keeper, "done")
        assert marked.gone()

    def test_children_die_with_a_supervisor_that_is_killed(self, marked: Marked) -> None:
        keeper = marked.keeper(f"one:0:{SLEEP}", f"two:1:{SLEEP}")
        read_until(keeper, "two")

        keeper.kill()

        assert marked.gone()

    def test_lets_a_run_with_a_session_of_its_own_go_on(self, marked: Marked) -> None:
        keeper = marked.keeper("launcher:1:setsid sh -c 'exec sleep 1002' & exec sleep 1000")
        read_until(keeper, "pid")
        assert eventually(lambda: marked.running("sleep 1002"))

        keeper.terminate()
        keeper.wait(30)

        assert list(marked.pids().values()) == ["sleep 1002"]

    def test_a_stop_during_a_wait_ends_the_wait(self, supervisor: Supervisor, tmp_path: Path) -> None:
        child = supervisor.add(program(tmp_path, SLEEP, ready=lambda: False))

        os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(StopAsked):
            supervisor.await_ready(child, limit_s=20.0)

    def test_two_signals_close_together_are_one_request(self) -> None:
        with Watch().installed() as watch:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

            assert watch.requests == 1


class TestCommands:
    def test_returns_a_commands_exit_status(self, supervisor: Supervisor, tmp_path: Path) -> None:
        assert supervisor.run(program(tmp_path, "exit 7"), limit_s=20.0) == 7

    def test_cuts_a_command_off_at_its_limit(self, supervisor: Supervisor, tmp_path: Path) -> None:
        assert supervisor.run(program(tmp_path, SLEEP), limit_s=0.1) is None

    def test_tells_how_a_background_command_ended(self, supervisor: Supervisor, tmp_path: Path) -> None:
        told: list[int] = []

        supervisor.begin(program(tmp_path, "exit 4"), told.append)

        def ended() -> bool:
            supervisor.tend()
            return told == [4]

        assert eventually(ended)


class TestLogs:
    def test_a_grown_log_is_copied_aside_and_goes_on_empty(self, tmp_path: Path) -> None:
        log = tmp_path / "web.log"
        with log.open("ab") as writer:
            writer.write(b"x" * 200)
            writer.flush()

            grown = logs_rotate(tmp_path, limit_bytes=100)
            writer.write(b"after")
            writer.flush()

        assert grown == [log]
        assert log.read_bytes() == b"after"
        assert (tmp_path / "web.log.1").read_bytes() == b"x" * 200

    def test_a_small_log_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "web.log").write_bytes(b"x" * 100)

        assert logs_rotate(tmp_path, limit_bytes=100) == []
