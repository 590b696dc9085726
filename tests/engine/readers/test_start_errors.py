"""The words of what cannot start: of several ranks, and only of mistakes that no retry mends."""

import re
from pathlib import Path

import pytest

from apps.engine.readers.start_errors import start_error

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
