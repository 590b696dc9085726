"""What a training script holds: it measures, it never raises, and where reporting is off it does nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paceline
import pytest
from paceline.floats import PRODUCED_NAN

from tests.client.conftest import ROOT
from tests.client.server import RecordingServer, Reply, eventually

Start = Callable[..., paceline.Pace]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, folder: Path, server: RecordingServer) -> Iterator[Start]:
    """Start reporting to the recording server, in this process."""
    started: list[paceline.Pace] = []
    for name in [name for name in os.environ if name.startswith(("PACELINE_", "SLURM", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    given = {
        "PACELINE_URL": server.url,
        "PACELINE_RUN": "a-run",
        "PACELINE_NODE": "node-1",
        "PACELINE_INTERVAL_S": "0.2",
        "PACELINE_SPOOL_DIR": str(folder / "spool"),
        "PACELINE_LOCAL_DIR": str(folder / "local"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def begin(**more: Any) -> paceline.Pace:
        started.append(paceline.start(**more))
        return started[-1]

    yield begin
    for pace in started:
        pace.finish(timeout_s=2.0)


class Awkward:
    """A value that raises whatever one asks of it."""

    def __float__(self) -> float:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


class OnDevice:
    """A value whose reading waits for a device, as a CUDA tensor's does."""

    is_cuda = True

    def __init__(self, ready: threading.Event, value: float) -> None:
        self.ready = ready
        self.value = value

    def detach(self) -> OnDevice:
        return self

    def __float__(self) -> float:
        self.ready.wait(20)
        return self.value


class TestMeasures:
    def test_phases_become_metrics_of_their_step(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        for step in (10, 11):
            with pace.step(step):
                with pace.phase("data"):
                    time.sleep(0.01)
                with pace.phase("forward"):
                    time.sleep(0.02)
                with pace.phase("backward"):
                    time.sleep(0.02)
                with pace.phase("augment"):
                    pass
            pace.log(loss=2.5, tokens=4096)
        pace.finish()

        forward, backward = server.values("forward_s")[0, 11], server.values("backward_s")[0, 11]
        assert set(server.values("step_s")) == {(0, 10), (0, 11)}
        assert server.values("compute_s")[0, 11] == pytest.approx(forward + backward, rel=1e-5)
        assert server.values("step_s")[0, 11] >= server.values("data_s")[0, 11] + forward + backward
        assert server.values("loss") == {(0, 10): 2.5, (0, 11): 2.5}
        assert server.values("tokens")[0, 11] == 4096
        assert (0, 10) in server.values("augment_s")

    def test_an_inner_phase_is_not_counted_to_the_outer_one(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pace.step(0), pace.phase("compute"):
            with pace.phase("communication"):
                time.sleep(0.05)
            time.sleep(0.001)
        pace.finish()

        step_s, compute_s = server.values("step_s")[0, 0], server.values("compute_s")[0, 0]
        assert server.values("communication_s")[0, 0] >= 0.05
        assert 0.001 <= compute_s <= step_s - server.values("communication_s")[0, 0]

    def test_a_nan_that_was_produced_is_told_from_no_value(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        for step, loss in ((1, 1.0), (2, float("nan")), (3, float("inf"))):
            with pace.step(step):
                pass
            pace.log(loss=loss)
        with pace.step(4):
            pass
        pace.finish()

        assert server.cells("loss") == {(0, 1): 0x3F800000, (0, 2): PRODUCED_NAN, (0, 3): 0x7F800000}
        assert len(server.cells("step_s")) == 4

    def test_a_step_left_by_an_exception_is_not_sent(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pytest.raises(ZeroDivisionError), pace.step(1), pace.phase("compute"):
            raise ZeroDivisionError
        with pace.step(2):
            pass
        pace.finish()

        assert set(server.values("step_s")) == {(0, 2)}

    def test_garbage_collection_inside_a_step_is_measured(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pace.step(1):
            gc.collect()
        with pace.step(2):
            pass
        pace.finish()

        assert 0 < server.values("gc_s")[0, 1] <= server.values("step_s")[0, 1]

    def test_a_batch_fetched_between_steps_belongs_to_the_step_that_uses_it(
        self, start: Start, server: RecordingServer
    ) -> None:
        pace = start()

        with pace.step(1):
            pass
        with pace.phase("data"):
            time.sleep(0.02)
        with pace.step(2):
            pass
        with pace.phase("evaluation"):
            time.sleep(0.02)
        pace.finish()

        assert server.values("data_s") == {(0, 2): pytest.approx(server.values("data_s")[0, 2])}
        assert server.values("step_s")[0, 2] >= server.values("data_s")[0, 2] >= 0.02
        assert set(server.values("evaluation_s")) == {(0, 2)}

    def test_a_late_value_reaches_its_step(self, start: Start, server: RecordingServer) -> None:
        pace = start()
        with pace.step(1):
            pass
        eventually(lambda: server.cells("step_s"))

        pace.log(loss=7.0)
        pace.log(grad_norm=3.0, step=1)
        pace.finish()

        assert server.values("loss") == {(0, 1): 7.0}
        assert server.values("grad_norm") == {(0, 1): 3.0}

    def test_a_value_on_a_device_is_read_without_waiting(self, start: Start, server: RecordingServer) -> None:
        pace = start()
        ready = threading.Event()

        with pace.step(1):
            pass
        pace.log(loss=OnDevice(ready, 4.0))
        with pace.step(2):
            pass
        eventually(lambda: (0, 2) in server.cells("step_s"), because="the beat of training waited for a device")
        ready.set()

        assert eventually(lambda: server.values("loss")) == {(0, 1): 4.0}

    def test_beats_name_the_first_step_and_the_phases_between(self, start: Start, server: RecordingServer) -> None:
        pace = start()
        seen: list[str] = []

        def newest() -> str:
            return str((server.part("beats") or [{"phase": ""}])[-1]["phase"])

        with pace.phase("restore"):
            seen.append(eventually(lambda: newest() == "restore" and "restore"))
        with pace.step(0), pace.phase("compute"):
            seen.append(eventually(lambda: newest() == "first_step" and "first_step"))
        with pace.step(1), pace.phase("communication"):
            seen.append(eventually(lambda: newest() == "communication" and "communication"))

        assert seen == ["restore", "first_step", "communication"]
        assert server.part("beats")[-1]["step"] == 0


class TestFacts:
    def test_a_save_is_told_from_start_to_commit(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pace.saving(7):
            time.sleep(0.01)
        pace.checkpoint(9, "restored", kind="restore", duration_s=3.0)
        pace.finish()

        told = server.part("checkpoints")
        assert [(one["step"], one["state"], one["kind"]) for one in told] == [
            (7, "STARTED", "save"),
            (7, "WRITTEN", "save"),
            (7, "SAVED", "save"),
            (9, "RESTORED", "restore"),
        ]
        assert told[1]["rank"] == 0
        assert told[1]["duration_s"] >= 0.01
        assert told[3]["duration_s"] == 3.0

    def test_a_save_that_raises_is_a_failed_one(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pytest.raises(OSError, match="disk"), pace.saving(7):
            raise OSError("the disk is full")
        pace.finish()

        assert [one["state"] for one in server.part("checkpoints")] == ["STARTED", "FAILED"]

    def test_a_shard_of_another_rank_completes_nothing(self, start: Start, server: RecordingServer) -> None:
        server.runs.add("a-run")  # by the node of rank 0
        pace = start(rank=3, world_size=1)

        with pace.saving(7):
            pass
        pace.checkpoint(7)
        pace.finish()

        assert [one["state"] for one in server.part("checkpoints")] == ["STARTED", "WRITTEN", "WRITTEN"]

    def test_a_rank_that_its_world_has_not_is_told_so_once(
        self, start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.say._said", set())
        pace = start(rank=5, world_size=1)

        pace.finish()

        assert capsys.readouterr().err.count("this is rank 5, and WORLD_SIZE says 1: ranks count from 0") == 1

    def test_what_describes_the_run_is_sent_before_the_attempt(self, start: Start, server: RecordingServer) -> None:
        pace = start(name="Dense 7B", tokens_per_step=1024, resumed_from_step=40)

        pace.finish()

        first, second = server.requests[:2]
        assert (first.method, first.path, first.body) == (
            "PUT",
            "/api/v1/runs/a-run",
            {"name": "Dense 7B", "tokens_per_step": 1024},
        )
        assert second.body["resumed_from_step"] == 40
        assert second.body["world_size"] == 1

    def test_a_phase_past_its_limit_shows_this_process_s_stacks(
        self, start: Start, server: RecordingServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PACELINE_STACK_AFTER_S", "0.3")
        pace = start()
        told = threading.Event()
        with pace.step(0):
            pass

        def deep_inside_the_data_loader() -> None:
            eventually(lambda: [one for one in server.part("events") if one["kind"] == "stack"])
            told.set()

        with pace.step(1), pace.phase("data"):
            deep_inside_the_data_loader()
        stack = next(one for one in server.part("events") if one["kind"] == "stack")

        assert told.is_set()
        assert stack["rank"] == 0
        assert stack["text"].startswith("in data for")
        assert "deep_inside_the_data_loader" in stack["text"]
        assert "paceline-reporter" not in stack["text"]


class TestNeverRaises:
    def test_without_an_address_every_call_does_nothing(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PACELINE_URL")
        threads = threading.active_count()

        pace = start()
        with pace.step(0), pace.phase("data"):
            pass
        pace.log(loss=1.0)
        pace.checkpoint(0)
        with pace.saving(0):
            pass
        pace.note("hello")
        pace.finish()

        assert not pace.active
        assert threading.active_count() == threads

    def test_nonsense_is_counted_not_raised(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pace.step(1):
            pass
        pace.log({"loss": "high"}, grad_norm=Awkward(), other=object(), none=None)
        pace.log(loss=1.0, step="seven")  # type: ignore[arg-type]
        pace.log(loss=10**400)
        pace.checkpoint(1, "LOST")
        with pace.step("two"), pace.phase(3):  # type: ignore[arg-type]
            pass
        with pace.phase([]):  # type: ignore[arg-type]
            pass
        pace.finish()

        notes = [one["text"] for one in server.part("events") if one["kind"] == "note"]
        assert any("6 values that are no numbers" in note for note in notes), notes
        assert server.reports()[-1]["drops"] == {"values that are no numbers or have no step": 6}
        assert server.part("checkpoints") == []

    def test_more_metrics_than_there_is_room_for_are_counted(self, start: Start, server: RecordingServer) -> None:
        pace = start()

        with pace.step(1):
            pace.log({f"metric_{index}": float(index) for index in range(100)})
        pace.finish()

        names = {name for report in server.reports() for name in report.get("steps", {}).get("names", [])}
        assert 40 < len(names) <= 48
        assert "step_s" in names

    def test_a_server_that_breaks_costs_training_nothing(self, start: Start, server: RecordingServer) -> None:
        stuck = threading.Event()
        server.answer = lambda request: Reply(500, hang=stuck)
        pace = start()

        for step in range(2_000):
            with pace.step(step), pace.phase("compute"):
                pass
            pace.log(loss=1.0)
        pace.finish(timeout_s=0.1)
        stuck.set()

        assert not pace.active

    def test_other_threads_disturb_no_measurement(self, start: Start, server: RecordingServer) -> None:
        pace = start()
        inside, done = threading.Event(), threading.Event()

        def evaluate() -> None:
            with pace.phase("evaluation"):
                inside.set()
                done.wait(20)
            pace.log(accuracy=0.5)

        thread = threading.Thread(target=evaluate)
        with pace.step(1), pace.phase("compute"):
            thread.start()
            inside.wait(20)
            done.set()
            thread.join()
        pace.finish()

        assert server.cells("evaluation_s") == {}
        assert (0, 1) in server.cells("compute_s")
        assert server.values("accuracy") == {(0, 1): 0.5}

    def test_a_forked_child_is_silent_and_keeps_nothing_open(self, start: Start, server: RecordingServer) -> None:
        pace = start()
        with pace.step(0):
            pass
        eventually(lambda: server.reports())

        child = os.fork()
        if child == 0:
            quiet = not pace.active
            with pace.step(1):
                pass
            pace.finish()
            os._exit(0 if quiet else 1)
        _, status = os.waitpid(child, 0)
        with pace.step(2):
            pass
        pace.finish()

        assert status == 0
        assert set(server.values("step_s")) == {(0, 0), (0, 2)}

    def test_a_second_start_is_the_same_and_one_after_the_end_is_new(
        self, start: Start, server: RecordingServer
    ) -> None:
        first = start()
        again = start()
        first.finish()
        second = start()

        assert again is first
        assert second is not first
        assert second.active


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("http://127.0.0.1:notaport", "is no address"),
            ("ftp://127.0.0.1:1", "is no address"),
            ("http://", "is no address"),
            ("http://127.0.0.1:1", "cannot be reached"),
        ],
    )
    def test_that_leads_nowhere_is_said_in_one_line_and_once(self, tmp_path: Path, url: str, word: str) -> None:
        program = """
import time, paceline
pace = paceline.start()
for step in range(30):
    with pace.step(step):
        time.sleep(0.05)
pace.finish()
"""
        said = subprocess.run(
            [sys.executable, "-c", program],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "client" / "src"), "PACELINE_URL": url,
                "PACELINE_RUN": "r", "PACELINE_ATTEMPT_KEY": "k", "PACELINE_INTERVAL_S": "0.2",
                "PACELINE_SPOOL_DIR": str(tmp_path / "spool"), "PACELINE_LOCAL_DIR": str(tmp_path / "local"),
            },
            capture_output=True, text=True, timeout=60, check=True,
        ).stderr.splitlines()  # fmt: skip

        assert len(said) == 1, said
        assert said[0].startswith("paceline: ")
        assert word in said[0]
