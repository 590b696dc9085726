"""What every launcher keeps to, whatever it drives."""

import http.server
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.remediation.choices import LauncherKind
from apps.remediation.launchers import LAUNCHERS
from apps.remediation.launchers.local import LocalLauncher
from apps.remediation.launchers.slurm import SlurmLauncher
from apps.remediation.launchers.webhook import WebhookLauncher
from apps.remediation.launching import Launcher, LaunchRefused
from apps.remediation.selectors.rows import LaunchRow, OrderInHand
from apps.remediation.selectors.schedulers import SchedulerRow
from apps.runs.launcher import LauncherSetting
from tests.remediation.conftest import alive, wait_for
from tests.slurm import Slurm, slurm, slurm_session  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@dataclass
class Bench:
    """A launcher, what it is configured with, and how often what it drives was really started."""

    launcher: Launcher
    setting: LauncherSetting
    impossible: LauncherSetting
    starts: Callable[[], int]
    scheduler: SchedulerRow | None = None
    word: str = field(default_factory=lambda: secrets.token_hex(6))


@pytest.fixture
def local(launches: Path, program: Callable[..., list[str]], tmp_path: Path) -> Bench:
    text = (
        "import os, pathlib, sys, time\npathlib.Path(sys.argv[1], f'started-{os.getpid()}').touch()\ntime.sleep(600)\n"
    )
    setting = LauncherSetting(
        kind="LOCAL",
        command=tuple(program(text, str(tmp_path))),
        environment={"MARK": str(tmp_path)},
        stop_grace_s=2.0,
    )
    return Bench(
        launcher=LocalLauncher(launches),
        setting=setting,
        impossible=replace(setting, command=("/no/such/program",)),
        starts=lambda: len(list(tmp_path.glob("started-*"))),
    )


@pytest.fixture
def webhook() -> Iterator[Bench]:
    known: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["order"]
            if self.path.startswith("/never"):
                self.answer(422, {})
                return
            self.answer(200, {"receipt": known.setdefault(order, f"job-{len(known)}")})

        def do_GET(self) -> None:
            order = self.path.rpartition("/")[2]
            self.answer(200 if order in known else 404, {"receipt": known.get(order, "")})

        def answer(self, status: int, words: dict[str, Any]) -> None:
            content = json.dumps(words).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    setting = LauncherSetting(kind="WEBHOOK", url=f"{url}/hook", secret="s")
    yield Bench(
        launcher=WebhookLauncher(),
        setting=setting,
        impossible=replace(setting, url=f"{url}/never"),
        starts=lambda: len(known),
    )
    server.shutdown()
    server.server_close()


@pytest.fixture
def scheduled(slurm: Slurm, tmp_path: Path) -> Bench:  # noqa: F811
    text = f"touch {tmp_path}/started-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}; sleep 600"
    setting = LauncherSetting(
        kind="SLURM", command=("--nodes=2", "/bin/sh", "-c", text), directory=str(tmp_path), stop_grace_s=0.0
    )
    return Bench(
        launcher=SlurmLauncher(),
        setting=setting,
        impossible=replace(setting, command=("--partition=never", "/bin/true")),
        starts=lambda: len(list(tmp_path.glob("started-*"))),
        scheduler=SchedulerRow(cluster_id=1, cluster="north", kind="SLURM", conf=str(slurm.conf)),
    )


@pytest.fixture(params=["local", "webhook", "scheduled"])
def bench(request: pytest.FixtureRequest) -> Bench:
    found: Bench = request.getfixturevalue(request.param)
    return found


def order(bench: Bench, *, code: str = "ord_1", **more: Any) -> OrderInHand:
    given: dict[str, Any] = {
        "id": 1,
        "code": code,
        "kind": "LAUNCH",
        "tries": 1,
        "claim": "c",
        "claimed_at": NOW,
        "asked_at": None,
        "action": "act_1",
        "action_kind": "RESTART_RUN",
        "run": "dense-7b",
        "setting": bench.setting,
        "attempt_key": "order:ord_1",
        "resume_step": 40,
        "nodes": (),
        "exclude_nodes": ("trn001",),
        "launch": None,
        "token": "t",
        "scheduler": bench.scheduler,
        "mark": f"paceline:{code}.{bench.word}",
    }
    return OrderInHand(**{**given, **more})


def identity(facts: dict[str, Any]) -> dict[str, Any]:
    """What names the one thing that was started; how far a job is changes by itself."""
    return {name: value for name, value in facts.items() if name != "job_state"}


def launched(bench: Bench, facts: dict[str, Any]) -> LaunchRow:
    kept = ("directory", "boot_id", "pid_namespace", "pid", "start_ticks")
    return LaunchRow(
        id=1,
        order_id=1,
        run_id=1,
        run="dense-7b",
        practice=False,
        attempt_id=1,
        launcher=bench.setting.kind,
        state="ALIVE",
        external_id=str(facts.get("receipt", "")),
        token_id=None,
        started_at=NOW,
        ended_at=None,
        exit_status=None,
        exit_signal=None,
        last_words="",
        **{name: facts.get(name, "") for name in kept},
    )


def test_the_suite_knows_every_launcher_there_is() -> None:
    assert set(LAUNCHERS) == {LauncherKind.LOCAL, LauncherKind.WEBHOOK, LauncherKind.SLURM}


def test_a_launch_of_the_same_order_starts_it_once(bench: Bench) -> None:
    first = bench.launcher.launch(order(bench))

    again = bench.launcher.launch(order(bench, tries=2))

    assert first.done
    assert identity(again.facts) == identity(first.facts)
    assert bench.starts() <= 1


def test_what_was_launched_is_read_back(bench: Bench) -> None:
    receipt = bench.launcher.launch(order(bench))

    found = bench.launcher.read_back(order(bench))

    assert found.began is True
    assert identity(found.receipt.facts) == identity(receipt.facts)


def test_what_was_never_handed_out_is_read_back_as_not_begun(bench: Bench) -> None:
    found = bench.launcher.read_back(order(bench))

    assert found.began is False
    assert bench.starts() == 0


def test_what_can_never_be_done_is_refused(bench: Bench) -> None:
    with pytest.raises(LaunchRefused):
        bench.launcher.launch(order(bench, setting=bench.impossible))

    assert bench.starts() == 0


def test_a_stop_ends_what_was_launched_and_may_be_asked_for_again(bench: Bench) -> None:
    facts = bench.launcher.launch(order(bench)).facts
    job = int(facts["receipt"]) if bench.scheduler else None
    stop = order(bench, code="ord_2", kind="STOP", action_kind="STOP_RUN", launch=launched(bench, facts), job_id=job)

    wait_for(lambda: bench.launcher.stop(replace(stop, asked_at=NOW if job else None)).done, "the stop")

    assert bench.launcher.stop(stop).done
    wait_for(lambda: not alive(int(facts.get("pid", 0))), "the wrapper to follow its program")


def test_a_look_says_nothing_false_about_what_runs(bench: Bench) -> None:
    facts = bench.launcher.launch(order(bench)).facts

    seen = bench.launcher.look(launched(bench, facts))

    assert seen is None or seen.gone is False
