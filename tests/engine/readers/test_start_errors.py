"""The words of what cannot start: of several ranks, and only of mistakes that no retry mends."""

import re
from pathlib import Path

import pytest

from apps.engine.readers.start_errors import launch_error, start_error

LOG = Path(__file__).resolve().parents[4] / "shared" / "samples" / "failure-logs" / "nvrx_permission_denied_fanout.log"


class TestStartError:
    def test_takes_what_several_ranks_say_apart_from_their_own_numbers(self) -> None:
        said = [(n, f"[rank{n}]: ModuleNotFoundError: No module named 'flash_attn' (pid {n}77)") for n in (0, 1, 2)]

        assert start_error(said).startswith("ModuleNotFoundError: No module named 'flash_attn'")

    @pytest.mark.parametrize(
        "line",
        ["NCCL error: unhandled system error", "CUDA error: out of memory", "OSError: [Errno 5] Input/output error"],
    )
    def test_takes_nothing_that_a_machine_may_cause(self, line: str) -> None:
        assert start_error([(0, line), (1, line)]) == ""

    def test_takes_nothing_of_one_rank_or_of_nobody(self) -> None:
        assert start_error([(0, "ImportError: x"), (None, "ImportError: x"), (0, "ImportError: x")]) == ""

    @pytest.mark.skipif(not LOG.is_file(), reason="needs ../shared/samples/failure-logs, which is not here")
    def test_reads_the_fan_out_of_a_real_log(self) -> None:
        text = LOG.read_text()
        lines = [(int(rank), line) for rank, line in re.findall(r"^(\d+): (.*)$", text, re.MULTILINE)]

        assert start_error(lines).startswith("PermissionError: [Errno 13] Permission denied: ")


TORCHRUN = """
Traceback (most recent call last):
  File "/work/train.py", line 3, in <module>
    import flash_attn
{line}
E1130 12:00:00.123000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 7)
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper
    return f(*args, **kwargs)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 7)
  traceback : To enable traceback see the documentation of errors
============================================================
"""


class TestLaunchError:
    @pytest.mark.parametrize(
        "line", ["ModuleNotFoundError: No module named 'flash_attn'", "train.py: error: unrecognized arguments: --lr2"]
    )
    def test_finds_the_mistake_behind_what_a_launcher_says_of_it(self, line: str) -> None:
        assert launch_error(TORCHRUN.format(line=line), status=1) == line

    def test_finds_it_in_the_words_of_srun_itself(self) -> None:
        said = "srun: error: execve(): /work/trian.py: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2"

        assert "trian.py" in launch_error(said, status=2)

    @pytest.mark.parametrize(
        ("said", "status"),
        [
            (TORCHRUN.format(line="torch.OutOfMemoryError: CUDA out of memory"), 1),
            ("FileNotFoundError: no cache yet\nNCCL error: unhandled system error", 1),
            ("UserWarning: libnuma: No such file or directory", 1),
            ("ImportError: x", None),
            ("ImportError: x", 0),
            ("sh: 1: /work/train: Input/output error", 126),
            ("", 1),
        ],
    )
    def test_takes_nothing_that_was_got_over_or_that_a_machine_may_cause(self, said: str, status: int | None) -> None:
        assert launch_error(said, status=status) == ""

    def test_believes_a_shell_that_could_not_find_its_command(self) -> None:
        assert launch_error("sh: 1: torchrum: introuvable", status=127) == "sh: 1: torchrum: introuvable"
        assert launch_error("", status=127) == "exit status 127: the command was not found"
