"""What the local launcher bounds, and what it knows of an end: limits, output on disk, want of memory."""

# ruff: noqa: F811 - fixtures of another module are named as arguments

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.remediation.launchers import wrapper
from apps.remediation.launchers.local import LAST_LINES, LocalLauncher
from tests.remediation.conftest import wait_for
from tests.remediation.test_local import launch_row, launcher, order  # noqa: F401 - fixtures

MIB = 1024 * 1024
TALKER = """
import sys, time
line = 'x' * 99
for number in range(60_000):
    print(f"{number:07d} {line}", flush=True)
print("the last word", flush=True)
time.sleep(600)
"""
SAYS_LIMITS = """
import json, os, resource
print(json.dumps({
    "data": resource.getrlimit(resource.RLIMIT_DATA), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "core": resource.getrlimit(resource.RLIMIT_CORE), "nice": os.nice(0),
    "oom": int(open("/proc/self/oom_score_adj").read()),
}), flush=True)
"""


def limited(mine: Any, **limits: int) -> Any:
    return replace(mine, setting=replace(mine.setting, limits=limits))


def ended(launcher: LocalLauncher, receipt: Any) -> Any:
    return wait_for(lambda: (look := launcher.look(launch_row(receipt))) and look.gone and look, "the end", 30)


class TestLimits:
    def test_each_process_gets_what_is_set_and_cannot_take_it_back(
        self,
        launcher: LocalLauncher,
        order: Callable[..., Any],
        launches: Path,
    ) -> None:
        receipt = launcher.launch(limited(order(SAYS_LIMITS), nice=7, memory_mib=512, open_files=64, core_mib=0))
        ended(launcher, receipt)

        said = json.loads((launches / "ord_1" / "stdout.log").read_text())
        assert said["data"] == [512 * MIB, 512 * MIB]
        assert said["files"] == [64, 64]
        assert said["core"] == [0, 0]
        assert said["nice"] == os.nice(0) + 7
        assert said["oom"] == wrapper.OOM_SCORE

    def test_without_any_a_program_has_those_of_whoever_started_it(
        self,
        launcher: LocalLauncher,
        order: Callable[..., Any],
        launches: Path,
    ) -> None:
        import resource

        receipt = launcher.launch(order(SAYS_LIMITS))
        ended(launcher, receipt)

        said = json.loads((launches / "ord_1" / "stdout.log").read_text())
        assert said["files"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
        assert said["nice"] == os.nice(0)

    def test_a_program_that_wants_more_memory_than_it_may_have_ends_with_its_own_words(
        self,
        launcher: LocalLauncher,
        order: Callable[..., Any],
    ) -> None:
        receipt = launcher.launch(limited(order("b'x' * (900 * 1024 * 1024)"), memory_mib=256))

        fact = ended(launcher, receipt)

        assert fact.status == 1
        assert fact.last_words.endswith("MemoryError")

    def test_a_limit_that_this_machine_does_not_give_is_a_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wrapper.os, "geteuid", lambda: 1000)
        monkeypatch.setattr(wrapper.resource, "getrlimit", lambda which: (256, 4096))

        assert wrapper.limits_refused({"open_files": 10_000}) == (
            "launcher.limits.open_files: 10,000 is more than this machine allows (4,096)"
        )
        assert wrapper.limits_refused({"open_files": 4096, "nice": 3}) == ""


class TestOutput:
    def test_the_oldest_is_cut_while_the_program_goes_on_talking(
        self,
        launcher: LocalLauncher,
        order: Callable[..., Any],
        launches: Path,
    ) -> None:
        path = launches / "ord_1" / "stdout.log"
        launcher.launch(limited(order(TALKER), output_mib=1))

        def said_all() -> bool:
            return path.exists() and path.read_bytes()[-14:] == b"the last word\n"

        wait_for(said_all, "the last word", 60)
        wait_for(lambda: path.stat().st_blocks * 512 <= MIB, "the output to be cut", 20)

        kept = path.read_bytes().replace(b"\0", b"").decode().splitlines()[1:]
        numbers = [int(line.split()[0]) for line in kept[:-1]]
        assert kept[-1] == "the last word"
        assert numbers == list(range(numbers[0], 60_000))  # no line of what is kept is missing
        assert len(numbers) > 1000

    def test_a_short_one_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "stdout.log"
        path.write_bytes(b"x" * 5000)

        assert wrapper.output_cut(str(path), MIB) is False
        assert wrapper.output_cut(str(tmp_path / "none"), MIB) is False
        assert path.read_bytes() == b"x" * 5000

    def test_the_last_hundred_lines_are_kept_of_whichever_output_has_any(
        self,
        launcher: LocalLauncher,
        order: Callable[..., Any],
    ) -> None:
        receipt = launcher.launch(order("for n in range(500): print('line', n)\nraise SystemExit(3)"))

        fact = ended(launcher, receipt)

        assert fact.status == 3
        assert fact.last_words.splitlines() == [f"line {n}" for n in range(500 - LAST_LINES, 500)]


class TestWantOfMemory:
    def test_the_kernels_own_log_names_who_was_ended(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        records = [
            b"6,900,1000,-;Killed process 17 (before)\n",
            b"3,901,5000,-;Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n",
            b"3,902,6000,-;something else\n",
        ]
        reader, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)  # a packet a read, as the kernel's log gives a record
        for record in records:
            os.write(writer, record)
        real = os.open
        monkeypatch.setattr(wrapper.os, "open", lambda path, *a: reader if path == "/dev/kmsg" else real(path, *a))

        assert wrapper.oom_victims(since_us=2000) == [(4711, "python3")]

    @pytest.mark.parametrize(
        ("kills", "victims", "words"),
        [
            (0, [(7, "python")], ""),
            (1, [(7, "python")], "the kernel ended it for want of memory"),
            (1, [(8, "rank")], "meanwhile the kernel ended rank (pid 8) for want of memory"),
            (1, [], "meanwhile the kernel ended 1 process of this machine for want of memory"),
            (2, [], "meanwhile the kernel ended 2 processes of this machine for want of memory"),
        ],
    )
    def test_it_is_said_only_if_the_kernel_did_it_meanwhile(
        self, kills: int, victims: list[tuple[int, str]], words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = wrapper.Wrapper("/nowhere", {})
        mine.pid = 7
        monkeypatch.setattr(wrapper, "oom_kills", lambda: mine.kills_before + kills)
        monkeypatch.setattr(wrapper, "oom_victims", lambda since_us: victims)

        assert mine._oom_words(9, signal.SIGKILL) == words
        assert mine._oom_words(0, None) == ""

    def test_a_program_that_the_kernel_really_ended_is_known(
        self,
        launcher: LocalLauncher,
        order: Callable[..., Any],
        small_group: Path,
    ) -> None:
        text = (
            f"import os; open('{small_group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
            "kept = [bytearray(1024 * 1024) for _ in range(400)]"
        )

        fact = ended(launcher, launcher.launch(order(text)))

        assert (fact.signal, fact.note) == (signal.SIGKILL, "the kernel ended it for want of memory")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of little memory, where this machine lets us make one."""
    roots = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    limits = {"memory.limit_in_bytes": "67108864", "memory.max": "67108864", "memory.swap.max": "0"}
    for root in roots:
        group = root / f"paceline-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            found = [group / name for name in limits if (group / name).exists()]
            if not found:
                continue
            for path in found:
                path.write_text(limits[path.name])
            yield group
            return
        except OSError:
            continue
        finally:
            wait_for(lambda group=group: removed(group), "the group to be empty", 10)
    pytest.skip("this machine lets nobody here make a control group with a memory limit")


def removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def test_the_wrapper_needs_nothing_but_the_standard_library() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import runpy; runpy.run_path({wrapper.__file__!r}, run_name='looked at')"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
