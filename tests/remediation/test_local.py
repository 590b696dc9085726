"""The local launcher, with real processes and without a database."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.remediation.launchers import wrapper
from apps.remediation.launchers.local import LocalLauncher, environment_of
from apps.remediation.launchers.processes import Process, Seen, process_look, process_signal
from apps.remediation.launching import LaunchRefused, LaunchUncertain
from apps.remediation.selectors.rows import LaunchRow, OrderInHand
from apps.runs.launcher import LauncherSetting
from tests.remediation.conftest import alive, wait_for

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
NASTY = "<img src=x onerror=alert(1)>; rm -rf ~ $(touch gone) `id` \"quoted\" 'single' | tee x"


@pytest.fixture
def launcher(launches: Path) -> LocalLauncher:
    return LocalLauncher(launches)


@pytest.fixture
def order(launches: Path, program: Callable[..., list[str]]) -> Callable[..., OrderInHand]:
    """Make an order to start a program: `order(text, "argument", code="ord_1")`."""

    def make(*words: str, code: str = "ord_1", tries: int = 1, grace_s: float = 2.0, **more: Any) -> OrderInHand:
        setting = LauncherSetting(
            kind="LOCAL",
            command=tuple(program(*words)),
            directory=str(launches.parent),
            environment={"MARK": str(launches.parent)},
            stop_grace_s=grace_s,
        )
        given: dict[str, Any] = {
            "id": 1,
            "code": code,
            "kind": "LAUNCH",
            "tries": tries,
            "claim": "c",
            "claimed_at": NOW,
            "asked_at": None,
            "action": "act_1",
            "action_kind": "RESTART_RUN",
            "run": "dense-7b",
            "setting": setting,
            "attempt_key": "order:ord_1",
            "resume_step": 1200,
            "nodes": ("trn001", "trn002"),
            "exclude_nodes": ("trn003",),
            "launch": None,
            "token": "pace_secret",
        }
        return OrderInHand(**{**given, **more})

    return make


def launch_row(receipt: Any) -> LaunchRow:
    return LaunchRow(
        id=1,
        order_id=1,
        run_id=1,
        run="dense-7b",
        practice=False,
        attempt_id=1,
        launcher="LOCAL",
        state="ALIVE",
        external_id="",
        token_id=None,
        started_at=NOW,
        ended_at=None,
        exit_status=None,
        exit_signal=None,
        last_words="",
        **receipt.facts,
    )


def program_pid(folder: Path) -> int:
    return int(json.loads((folder / "started.json").read_text())["program_pid"])


def stop_of(order: OrderInHand, receipt: Any, **more: Any) -> OrderInHand:
    return replace(order, kind="STOP", launch=launch_row(receipt), **more)


class TestLaunch:
    def test_a_program_runs_with_what_it_is_told_and_nothing_of_paceline_s_own(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        text = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.argv[1:]]), flush=True)"

        launcher.launch(order(text, NASTY))

        output = wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text(), "the program's output")
        environment, directory, arguments = json.loads(output)
        assert arguments == [NASTY]
        assert directory == str(launches.parent)
        assert environment["PACELINE_TOKEN"] == "pace_secret"
        assert environment["PACELINE_RUN"] == "dense-7b"
        assert environment["PACELINE_ATTEMPT_KEY"] == "order:ord_1"
        assert environment["PACELINE_RESUME_STEP"] == "1200"
        assert environment["PACELINE_NODES"] == "trn001,trn002"
        assert environment["PACELINE_EXCLUDE_NODES"] == "trn003"
        assert "DATABASE_URL" in os.environ
        assert "DATABASE_URL" not in environment
        assert not (launches.parent / "gone").exists()

    def test_nothing_on_disk_holds_the_token(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        launcher.launch(order())

        kept = b"".join(path.read_bytes() for path in (launches / "ord_1").iterdir())
        assert b"pace_secret" not in kept

    def test_a_second_launch_of_the_same_order_finds_the_first(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand]
    ) -> None:
        first = launcher.launch(order())

        again = launcher.launch(order(tries=2))

        assert again.facts == first.facts

    def test_two_workers_with_one_order_start_one_program(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path, tmp_path: Path
    ) -> None:
        mine = order(
            "import pathlib, sys, os, time; pathlib.Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(60)",
            str(tmp_path),
        )
        folder = launches / "ord_1"
        folder.mkdir(parents=True)
        words = json.dumps(
            {
                "command": list(mine.setting.command),
                "directory": "",
                "environment": environment_of(mine),
                "stop_grace_s": 1,
            }
        ).encode()
        command = [sys.executable, "-I", "-S", wrapper.__file__, str(folder)]
        pairs = [
            subprocess.Popen([*command, number], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for number in ("1", "1", "2")
        ]

        answers = [json.loads(pair.communicate(words, timeout=10)[0])["state"] for pair in pairs]

        def started() -> list[Path]:
            return [path for path in tmp_path.iterdir() if path.name.isdigit()]

        assert "STARTED" in answers
        wait_for(
            started, "the program to say that it is there"
        )  # a wrapper says so when it is begun, before its first line
        time.sleep(0.5)  # a second one would have come by then
        assert len(started()) == 1

    def test_a_program_that_is_not_there_is_refused_with_its_name(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand]
    ) -> None:
        mine = order()
        missing = replace(mine, setting=replace(mine.setting, command=("/no/such/program",)))

        with pytest.raises(LaunchRefused, match="/no/such/program: No such file"):
            launcher.launch(missing)

        assert launcher.read_back(missing).began is False

    def test_the_program_outlives_whoever_launched_it(
        self, launches: Path, order: Callable[..., OrderInHand], tmp_path: Path
    ) -> None:
        mine = order()
        words = {
            "command": list(mine.setting.command),
            "directory": "",
            "environment": environment_of(mine),
            "stop_grace_s": 1,
        }
        folder = launches / "ord_1"
        folder.mkdir(parents=True)
        parent = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import subprocess, sys, time;"
                "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True);"
                "p.communicate(sys.stdin.buffer.read()); print('done', flush=True); time.sleep(60)",
                *[sys.executable, "-I", "-S", wrapper.__file__, str(folder), "1"],
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps(words).encode())
        parent.stdin.close()
        assert parent.stdout.readline() == b"done\n"

        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(5)

        assert alive(program_pid(folder))


class TestEnd:
    @pytest.mark.parametrize(
        ("text", "status", "number"),
        [
            ("raise SystemExit(0)", 0, None),
            ("raise SystemExit(7)", 7, None),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
        ],
    )
    def test_the_wrapper_writes_down_how_it_ended(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], text: str, status: int, number: int
    ) -> None:
        row = launch_row(launcher.launch(order(text)))

        fact = wait_for(lambda: (look := launcher.look(row)) and look.gone and look, "the end")

        assert (fact.status, fact.signal, fact.asked) == (status, number, False)
        assert abs((datetime.now(UTC) - fact.ended_at).total_seconds()) < 30

    def test_nothing_a_program_leaves_behind_outlives_it(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], tmp_path: Path
    ) -> None:
        text = (
            "import os, sys, time, pathlib\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
            "        time.sleep(600)\n"
            "    os._exit(0)\n"
            "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
        )

        row = launch_row(launcher.launch(order(text, str(tmp_path / "grandchild"), grace_s=0.5)))

        wait_for(lambda: (look := launcher.look(row)) and look.gone, "the end of all")
        assert not alive(int((tmp_path / "grandchild").read_text()))

    def test_a_wrapper_that_was_killed_leaves_a_program_that_is_still_known(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        mine = order()
        receipt = launcher.launch(mine)
        row, orphan = launch_row(receipt), program_pid(launches / "ord_1")
        wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text() == "up\n", "the program")
        os.kill(receipt.facts["pid"], signal.SIGKILL)
        wait_for(lambda: not alive(receipt.facts["pid"]), "the wrapper's end")

        still = launcher.look(row)
        wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text(), "the program's word")
        stopped = launcher.stop(stop_of(mine, receipt))

        assert still is not None
        assert still.gone is False
        assert stopped.done
        assert not alive(orphan)
        gone = launcher.look(row)
        assert gone is not None
        assert (gone.gone, gone.status, gone.signal) == (True, None, None)
        assert gone.last_words == "up"


class TestStop:
    def test_a_program_is_asked_first_and_gone_when_the_receipt_says_so(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        mine = order()
        receipt = launcher.launch(mine)
        pid = program_pid(launches / "ord_1")
        wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text() == "up\n", "the program")

        answer = launcher.stop(stop_of(mine, receipt))

        assert answer.done
        assert not alive(pid)
        fact = launcher.look(launch_row(receipt))
        assert fact is not None
        assert (fact.gone, fact.status, fact.asked) == (True, 143, True)

    def test_one_that_does_not_listen_is_killed_after_its_grace(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        mine = order(
            DEAF,
            grace_s=0.3,
        )
        receipt = launcher.launch(mine)
        wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text() == "up\n", "the program")

        answer = launcher.stop(stop_of(mine, receipt))

        fact = launcher.look(launch_row(receipt))
        assert answer.done
        assert fact is not None
        assert fact.signal == signal.SIGKILL

    def test_while_the_grace_lasts_the_receipt_says_look_again(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        mine = order(
            DEAF,
            grace_s=60,
        )
        receipt = launcher.launch(mine)
        wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text() == "up\n", "the program")

        answer = launcher.stop(stop_of(mine, receipt))

        assert not answer.done
        assert alive(receipt.facts["pid"])

    def test_a_pid_that_now_belongs_to_another_process_is_never_touched(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand]
    ) -> None:
        mine = order("raise SystemExit(0)")
        receipt = launcher.launch(mine)
        wait_for(lambda: launcher.look(launch_row(receipt)).gone, "the end")  # type: ignore[union-attr]
        stranger = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        recycled = replace(receipt, facts={**receipt.facts, "pid": stranger.pid})
        folder = Path(receipt.facts["directory"])
        (folder / "exit.json").unlink()

        answer = launcher.stop(stop_of(mine, recycled))

        assert answer.done
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()

    def test_a_process_of_another_boot_is_gone_and_one_of_another_namespace_out_of_sight(self) -> None:
        row = wrapper.process_read(os.getpid())
        assert row is not None
        mine = Process(wrapper.boot_id(), wrapper.pid_namespace(), os.getpid(), row[3])

        assert process_look(mine) == Seen.ALIVE
        assert process_look(replace(mine, boot_id="another")) == Seen.GONE
        assert process_look(replace(mine, pid_namespace="pid:[1]")) == Seen.HIDDEN
        assert process_look(replace(mine, start_ticks=1)) == Seen.GONE
        assert process_signal(replace(mine, start_ticks=1), signal.SIGKILL) is False


class TestReadBack:
    def test_an_order_nobody_began_can_never_begin_any_more(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        found = launcher.read_back(order())

        with pytest.raises(LaunchUncertain):
            launcher.launch(order())  # the late worker
        assert found.began is False
        assert not (launches / "ord_1" / "started.json").exists()

    def test_the_next_try_of_that_order_may_begin(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand]
    ) -> None:
        launcher.read_back(order())

        receipt = launcher.launch(order(tries=2))

        assert alive(receipt.facts["pid"])

    def test_an_order_that_began_is_found(self, launcher: LocalLauncher, order: Callable[..., OrderInHand]) -> None:
        receipt = launcher.launch(order())

        found = launcher.read_back(order())

        assert found.began is True
        assert found.receipt.facts == receipt.facts

    def test_a_stop_is_read_back_from_the_process_itself(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand]
    ) -> None:
        mine = order()
        receipt = launcher.launch(mine)

        before = launcher.read_back(stop_of(mine, receipt))
        launcher.stop(stop_of(mine, receipt))
        after = launcher.read_back(stop_of(mine, receipt))

        assert (before.began, after.began) == (False, True)

    def test_an_orphan_that_outstays_its_grace_is_killed(
        self, launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path
    ) -> None:
        mine = order(
            DEAF,
            grace_s=0.1,
        )
        receipt = launcher.launch(mine)
        wait_for(lambda: (launches / "ord_1" / "stdout.log").read_text() == "up\n", "the program")
        orphan = program_pid(launches / "ord_1")
        os.kill(receipt.facts["pid"], signal.SIGKILL)
        wait_for(lambda: not alive(receipt.facts["pid"]), "the wrapper's end")

        first = launcher.stop(stop_of(mine, receipt))
        then = launcher.stop(stop_of(mine, receipt, asked_at=NOW, claimed_at=NOW + timedelta(seconds=2)))

        assert (first.done, then.done) == (False, True)
        assert not alive(orphan)


def test_only_folders_of_launches_are_ever_removed(
    launcher: LocalLauncher, order: Callable[..., OrderInHand], launches: Path, tmp_path: Path
) -> None:
    receipt = launcher.launch(order("raise SystemExit(0)"))
    row = launch_row(receipt)
    wait_for(lambda: (look := launcher.look(row)) and look.gone, "the end")
    outside = tmp_path / "data"
    outside.mkdir()

    gone = launcher.trim([row, replace(row, directory=str(outside)), replace(row, directory=str(launches))])

    assert gone == 1
    assert not Path(receipt.facts["directory"]).exists()
    assert outside.is_dir()
    assert launches.is_dir()
