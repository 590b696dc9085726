"""What ends before its reporter begins: only its launcher hears why, and what cannot start is not tried again."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.diagnosis.selectors import findings_of
from apps.diagnosis.services import clocks_evaluate
from apps.engine.estimates.retry_chains import Next
from apps.remediation import services
from apps.remediation.services.proposing import retry_of
from apps.runs.selectors import attempt_by_id, run_by_id
from tests.remediation.test_proposals import TestRetrying, proposals

NO_MODULE = "import sys\nimport megatron_of_nobody\n"
NO_FILE = "open('/nowhere/tokens.bin')\n"
OUT_OF_MEMORY = (
    "import sys\nprint('FileNotFoundError: no cache yet', file=sys.stderr)\nraise RuntimeError('CUDA error')\n"
)
LAST = {
    NO_MODULE: "ModuleNotFoundError: No module named 'megatron_of_nobody'",
    NO_FILE: "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/tokens.bin'",
}


@pytest.fixture
def ended(
    make_run: Callable[..., Any], launches: Path, ask: Callable[..., Any], work: Callable[..., Any]
) -> Callable[[list[str]], Any]:
    """Let the local launcher start a program that ends at once: gives its run."""

    def start(command: list[str]) -> Any:
        launcher = {"kind": "LOCAL", "command": command, "directory": str(launches.parent)}
        run = make_run("hasty", launcher=launcher, mode="PROPOSE")
        done = work(ask("RESTART_RUN", run).id)
        assert done.state == "FAILED", done.outcome
        return run_by_id(run.id)

    return start


def consider_retry(run: Any, find: Callable[..., Any]) -> list[Any]:
    """Let a finding call for another try; gives what is proposed."""
    find(**TestRetrying.RETRY, run_id=run.id, attempt_id=run.attempt_id)
    services.findings_consider(now=datetime.now(UTC))
    return proposals()


@pytest.mark.parametrize("text", LAST)
def test_a_mistake_in_the_last_line_is_not_tried_again_and_is_quoted(
    ended: Callable[[list[str]], Any], program: Callable[..., list[str]], find: Callable[..., Any], text: str
) -> None:
    run = ended(program(text))

    decided = retry_of(run, now=datetime.now(UTC))
    proposed = consider_retry(run, find)
    clocks_evaluate(attempt_id=run.attempt_id, now=datetime.now(UTC))

    assert (decided.next, decided.why) == (Next.ASK, f"it cannot start: “{LAST[text]}”")
    assert proposed == []
    (loop,) = (row for row in findings_of(attempt_id=run.attempt_id) if row.cause == "restart_loop")
    assert loop.verdict == f"It cannot start: its program said “{LAST[text]}” before the first step."


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exec python-of-nobody train.py", "not found"),
        ("exit 126", "exit status 126: the command could not be executed"),
    ],
)
def test_a_command_that_a_shell_cannot_run_is_not_tried_again(
    ended: Callable[[list[str]], Any], find: Callable[..., Any], command: str, said: str
) -> None:
    run = ended(["/bin/sh", "-c", command])

    decided = retry_of(run, now=datetime.now(UTC))

    assert decided.next == Next.ASK
    assert said in decided.why
    assert consider_retry(run, find) == []


def test_what_a_machine_may_cause_is_tried_again(
    ended: Callable[[list[str]], Any], program: Callable[..., list[str]], find: Callable[..., Any]
) -> None:
    run = ended(program(OUT_OF_MEMORY))

    assert attempt_by_id(run.attempt_id).start_error == ""
    assert [row.kind for row in consider_retry(run, find)] == ["RESTART_RUN"]
