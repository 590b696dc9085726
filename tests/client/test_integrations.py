"""The thin integrations, on the CPU, with the real packages where they are installed."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paceline
import pytest

from tests.client.server import RecordingServer, eventually


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch, folder: Path, server: RecordingServer) -> Iterator[paceline.Pace]:
    for name in [name for name in os.environ if name.startswith(("PACELINE_", "SLURM", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PACELINE_URL", server.url)
    monkeypatch.setenv("PACELINE_RUN", "a-run")
    monkeypatch.setenv("PACELINE_INTERVAL_S", "0.2")
    monkeypatch.setenv("PACELINE_SPOOL_DIR", str(folder / "spool"))
    monkeypatch.setenv("PACELINE_LOCAL_DIR", str(folder / "local"))
    started = paceline.start()
    yield started
    started.finish()


class Stream:
    """A device that runs behind: what was put to it has not passed until the test says so."""

    def __init__(self) -> None:
        self.queued = 0.0
        self.done = -1.0

    def mark(self) -> StreamMark:
        return StreamMark(self, self.queued)


class StreamMark:
    def __init__(self, stream: Stream, at: float) -> None:
        self.stream = stream
        self.at = at

    def passed(self) -> bool:
        return self.stream.done >= self.at

    def seconds_since(self, earlier: StreamMark) -> float:
        return self.at - earlier.at


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="torch is not installed")

    def test_the_optimizer_is_a_phase_of_its_step(
        self, torch: Any, pace: paceline.Pace, server: RecordingServer
    ) -> None:
        from paceline.torch import watch_optimizer

        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        watch_optimizer(pace, optimizer)

        for step in range(3):
            with pace.step(step):
                with pace.phase("compute"):
                    loss = (weight**2).sum()
                    loss.backward()
                optimizer.step()
            pace.log(loss=loss)
        pace.finish()

        assert set(server.values("optimizer_s")) == {(0, 0), (0, 1), (0, 2)}
        assert server.values("loss")[0, 0] == pytest.approx(3.0)
        assert server.values("loss")[0, 2] < server.values("loss")[0, 1]

    def test_device_time_arrives_when_the_device_has_passed_it(
        self, torch: Any, pace: paceline.Pace, server: RecordingServer
    ) -> None:
        from paceline.torch import DevicePhases

        stream = Stream()
        phase = DevicePhases(pace, mark=stream.mark)
        for step in (1, 2):
            with pace.step(step), phase("compute"):
                stream.queued += 2.5
        stream.done = 2.5
        phase.read()
        with pace.step(3):
            pass
        eventually(lambda: (0, 3) in server.values("step_s"))

        first = eventually(lambda: server.values("compute_s"))
        stream.done = 5.0
        phase.read()
        both = eventually(lambda: len(server.values("compute_s")) == 2 and server.values("compute_s"))

        assert first == {(0, 1): 2.5}
        assert both == {(0, 1): 2.5, (0, 2): 2.5}

    def test_on_a_cpu_device_phases_are_plain_ones(
        self, torch: Any, pace: paceline.Pace, server: RecordingServer
    ) -> None:
        from paceline.torch import DevicePhases

        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU; the plain way is for those without")
        phase = DevicePhases(pace)

        with pace.step(1), phase("compute"):
            time.sleep(0.01)
        pace.finish()

        assert server.values("compute_s")[0, 1] >= 0.01

    def test_collectives_are_the_phase_communication(self, torch: Any, server: RecordingServer, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=_collective_rank, args=(rank, server.url, str(folder))) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)

        waited = server.values("communication_s")
        assert [rank.exitcode for rank in ranks] == [0, 0]
        assert waited[0, 1] > waited[1, 1] + 0.1  # rank 1 is late, so rank 0 waits for it
        assert waited[0, 2] > 0.05  # an asynchronous one, waited for

    def test_a_torchrun_job_of_two_nodes_shares_its_key_through_the_store(
        self, torch: Any, server: RecordingServer, folder: Path
    ) -> None:
        from torch.distributed import TCPStore

        agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=_torchrun_rank, args=(rank, server.url, str(folder), agent.port))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)

        assert {rank for rank, _ in server.values("step_s")} == {0, 1}
        assert len(server.attempts) == 1
        assert next(iter(server.attempts)).startswith("torchrun:job7/")


def _collective_rank(rank: int, url: str, folder: str) -> None:
    os.environ.update(
        PACELINE_URL=url, PACELINE_RUN="a-run", PACELINE_ATTEMPT_KEY="k1", PACELINE_INTERVAL_S="0.2",
        PACELINE_SPOOL_DIR=f"{folder}/spool", PACELINE_LOCAL_DIR=f"{folder}/local",
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank),
    )  # fmt: skip
    import torch
    import torch.distributed as dist
    from paceline.torch import watch_collectives

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    pace = paceline.start()
    watch_collectives(pace)
    value = torch.ones(4)
    dist.barrier()
    with pace.step(1):
        with pace.phase("compute"):
            time.sleep(0.25 * rank)
        dist.all_reduce(value)
    with pace.step(2):
        time.sleep(0.1 * rank)
        dist.all_reduce(value, async_op=True).wait()
    pace.finish()
    dist.destroy_process_group()


def _torchrun_rank(rank: int, url: str, folder: str, port: int) -> None:
    os.environ.update(
        PACELINE_URL=url, PACELINE_RUN="a-run", PACELINE_INTERVAL_S="0.2", PACELINE_NODE=f"node-{rank}",
        PACELINE_SPOOL_DIR=f"{folder}/spool", PACELINE_LOCAL_DIR=f"{folder}/local", RANK=str(rank), WORLD_SIZE="2",
        LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", TORCHELASTIC_RUN_ID="job7", TORCHELASTIC_USE_AGENT_STORE="True",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    import torch  # noqa: F401  # a training script has it loaded, and only then its store is used

    pace = paceline.start()
    for step in range(100):
        with pace.step(step):
            time.sleep(0.02)
    pace.finish(timeout_s=20.0)


class TestTransformers:
    @pytest.fixture
    def train(self, tmp_path: Path) -> Callable[..., Any]:
        pytest.importorskip("transformers", reason="transformers is not installed")
        torch = pytest.importorskip("torch", reason="torch is not installed")
        pytest.importorskip("accelerate", reason="accelerate, which the trainer needs, is not installed")
        from transformers import Trainer, TrainingArguments

        class Tiny(torch.nn.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.line = torch.nn.Linear(2, 1)

            def forward(self, x: Any, labels: Any) -> dict[str, Any]:
                out = self.line(x).squeeze(-1)
                return {"loss": ((out - labels) ** 2).mean(), "logits": out}

        data = [{"x": torch.tensor([float(i), 1.0]), "labels": torch.tensor(float(i))} for i in range(16)]

        def run(callback: Any) -> None:
            arguments = TrainingArguments(
                output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=2, logging_steps=1,
                save_steps=2, eval_strategy="steps", eval_steps=4, report_to=[], use_cpu=True, disable_tqdm=True,
                learning_rate=1e-3,
            )  # fmt: skip
            Trainer(model=Tiny(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()

        return run

    def test_a_trainer_reports_steps_saves_and_losses(
        self, train: Callable[..., Any], pace: paceline.Pace, server: RecordingServer
    ) -> None:
        from paceline.transformers import PacelineCallback

        train(PacelineCallback(pace))

        steps = {(0, step) for step in (1, 2, 3, 4)}
        assert set(server.values("step_s")) == steps
        assert set(server.values("optimizer_s")) == steps
        assert set(server.values("data_s")) == steps
        assert set(server.values("loss")) == steps
        assert [(one["step"], one["state"]) for one in server.part("checkpoints")] == [(2, "SAVED"), (4, "SAVED")]
        assert (0, 4) in server.values("evaluation_s")
        assert server.ends() == [{"reason": "FINISHED"}]
