"""Which attempt a process belongs to: found in its surroundings, alike on all ranks, new for each launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from paceline.settings import Refusal, Settings, settings_read

from tests.client.conftest import Node
from tests.client.server import RecordingServer, eventually

BASE = {"PACELINE_URL": "http://localhost:1/", "PACELINE_RUN": "a-run", "PACELINE_NODE": "n1"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "job7"}
SLURM = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "5"}


def read(**environ: str) -> Settings:
    found = settings_read({**BASE, **environ})
    assert isinstance(found, Settings)
    return found


class TestSurroundings:
    def test_torchrun_says_rank_and_job(self) -> None:
        found = read(**TORCHRUN)

        assert (found.rank, found.world_size, found.local_rank) == (3, 8, 1)
        assert (found.base_key, found.torchrun, found.external_id) == ("torchrun:job7", True, "torchrun:job7")

    def test_slurm_says_rank_job_restart_and_step(self) -> None:
        found = read(**SLURM, SLURM_RESTART_COUNT="2", SLURMD_NODENAME="gpu-17", PACELINE_NODE="")

        assert (found.rank, found.world_size, found.local_rank) == (5, 16, 5)
        assert (found.base_key, found.external_id, found.node) == ("slurm:41.2.0", "slurm:41", "gpu-17")
        assert not found.torchrun

    def test_torchrun_inside_slurm_keeps_its_ranks_and_the_job_s_key(self) -> None:
        found = read(**SLURM, **TORCHRUN)

        assert (found.rank, found.base_key, found.torchrun) == (3, "slurm:41.0.0", True)

    def test_a_given_key_wins(self) -> None:
        assert read(**TORCHRUN, **SLURM, PACELINE_ATTEMPT_KEY="order:9").base_key == "order:9"

    @pytest.mark.parametrize("run_id", ["none", "", "NONE"])
    def test_torchrun_s_default_id_is_no_key(self, run_id: str) -> None:
        found = settings_read({**BASE, **TORCHRUN, "TORCHELASTIC_RUN_ID": run_id})

        assert isinstance(found, Refusal)
        assert found.sentence is not None
        assert "PACELINE_ATTEMPT_KEY" in found.sentence

    def test_several_ranks_without_any_key_are_refused(self) -> None:
        assert isinstance(settings_read({**BASE, "RANK": "0", "WORLD_SIZE": "2"}), Refusal)

    def test_a_process_alone_gets_a_new_key_each_time(self) -> None:
        first, second = read(), read()

        assert (first.rank, first.world_size) == (0, 1)
        assert first.base_key.startswith("plain:n1/")
        assert first.base_key != second.base_key

    def test_scripts_of_one_allocation_are_told_apart(self) -> None:
        first, second = read(SLURM_JOB_ID="41"), read(SLURM_JOB_ID="41")

        assert first.base_key.startswith("slurm:41.0.batch/")
        assert first.base_key != second.base_key

    def test_without_a_run_one_sentence_says_so(self) -> None:
        found = settings_read({"PACELINE_URL": "http://localhost:1"})

        assert isinstance(found, Refusal)
        assert found.sentence is not None
        assert "PACELINE_RUN" in found.sentence

    def test_without_an_address_nothing_is_said(self) -> None:
        assert settings_read({"PACELINE_RUN": "a-run"}) == Refusal(None)

    def test_numbers_that_are_none_give_way_to_defaults(self) -> None:
        found = read(PACELINE_INTERVAL_S="often", PACELINE_RESUME_STEP="last", PACELINE_SPOOL_MIB="-1")

        assert (found.interval_s, found.resume_step, found.spool_max_bytes) == (2.0, None, 256 * 2**20)

    @pytest.mark.parametrize(
        ("visible", "local_rank", "gpu"),
        [("GPU-aa,GPU-bb", "1", "GPU-bb"), ("MIG-cc", "0", "MIG-cc"), ("0,1", "1", None), ("", "0", None)],
    )
    def test_a_gpu_is_named_only_by_its_own_identity(self, visible: str, local_rank: str, gpu: str | None) -> None:
        found = read(RANK="0", WORLD_SIZE="1", LOCAL_RANK=local_rank, CUDA_VISIBLE_DEVICES=visible)

        assert found.gpu == gpu


class TestTorchrun:
    MakeNode = Callable[..., Node]

    def launch(self, make_node: MakeNode, url: str, shared: Path, *, restart: tuple[str, str]) -> list[Node]:
        nodes = []
        for index, count in enumerate(restart):
            node = make_node(
                url,
                name=f"node-{index}",
                TORCHELASTIC_RUN_ID="job7",
                TORCHELASTIC_RESTART_COUNT=count,
                LOCAL_WORLD_SIZE="2",
                PACELINE_ATTEMPT_KEY="",
                PACELINE_SHARED_DIR=str(shared),
            )
            for local in range(2):
                node.start(2 * index + local, local_rank=local)
            nodes.append(node)
        return nodes

    def test_all_nodes_share_a_key_that_is_new_at_each_start(
        self, server: RecordingServer, make_node: MakeNode, folder: Path
    ) -> None:
        first = self.launch(make_node, server.url, folder / "shared", restart=("0", "0"))
        eventually(lambda: {beat["rank"] for beat in server.part("beats")} == {0, 1, 2, 3})
        for node in first:
            node.kill()
        before = len(server.reports())

        # Counters of different nodes may disagree: a node that only came back counts no restart.
        second = self.launch(make_node, server.url, folder / "shared", restart=("1", "0"))
        eventually(
            lambda: {beat["rank"] for one in server.reports()[before:] for beat in one.get("beats", [])} == {0, 1, 2, 3}
        )
        for node in second:
            node.end()

        assert len(server.attempts) == 2
        assert all(key.startswith("torchrun:job7/") for key in server.attempts)

    def test_the_attempt_of_two_nodes_ends_once_with_everybody_s_last_steps(
        self, server: RecordingServer, make_node: MakeNode, folder: Path
    ) -> None:
        nodes = [make_node(server.url, name=f"node-{index}", PACELINE_INTERVAL_S="5") for index in range(2)]
        for rank in range(4):
            nodes[rank // 2].start(rank, local_rank=rank % 2)
        eventually(lambda: {beat["rank"] for beat in server.part("beats")} == {0, 1, 2, 3})

        for node in nodes:
            (node.folder / "end").touch()
        for node in nodes:
            node.wait()

        last = {rank: nodes[rank // 2].step(rank) for rank in range(4)}
        assert server.ends() == [{"reason": "FINISHED"}]
        assert set(last.items()) <= set(server.cells("step_s"))

    def test_one_node_needs_no_store(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(
            server.url, world_size=2, TORCHELASTIC_RUN_ID="job7", LOCAL_WORLD_SIZE="2", PACELINE_ATTEMPT_KEY="order:9"
        )

        node.start_all(2, "--steps", "20")
        node.wait()

        assert [key.rpartition("/")[0] for key in server.attempts] == ["order:9"]
        assert {rank for rank, _ in server.cells("step_s")} == {0, 1}
