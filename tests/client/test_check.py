"""`python -m paceline check`: says whether reports arrive, and if not, where they stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.conftest import ROOT
from tests.client.server import RecordingServer, Reply, cells_of, refusal


def check(folder: Path, url: str, **environ: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "check"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "client" / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PACELINE_URL": url,
            "PACELINE_TOKEN": "s3cret",
            "PACELINE_NODE": "gpu-17",
            "PACELINE_SPOOL_DIR": str(folder / "spool"),
            "PACELINE_LOCAL_DIR": str(folder / "local"),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


class TestCheck:
    def test_proves_a_node_s_and_a_rank_s_report_and_leaves_nothing(
        self, folder: Path, server: RecordingServer
    ) -> None:
        status, text = check(folder, server.url, PACELINE_RUN="my-run")

        assert status == 0, text
        assert text.splitlines()[-1] == "reports arrive"
        assert "FAILED" not in text
        assert "s3cret" not in text
        of_node, of_ranks = ([asked for asked in server.checks() if name in asked] for name in ("node", "run"))
        assert [asked["node"] for asked in of_node] == ["gpu-17"]
        assert {asked["run"] for asked in of_ranks} == {"my-run"}
        assert {cell for asked in of_ranks for cell in cells_of(asked["report"], "step_s")} == {(0, 0), (0, 1), (0, 2)}
        assert {request.path for request in server.accepted} == {"/api/v1/schema", "/api/v1/check"}

    def test_asks_for_the_cluster_that_training_would_report_to(self, folder: Path, server: RecordingServer) -> None:
        check(folder, server.url, PACELINE_RUN="my-run", PACELINE_CLUSTER="north")

        assert [asked["node"] for asked in server.checks() if "node" in asked] == ["north:gpu-17"]
        assert {asked["cluster"] for asked in server.checks() if "run" in asked} == {"north"}

    def test_says_which_values_could_not_be_used(self, folder: Path, server: RecordingServer) -> None:
        refused = [{"reason": "SHAPE", "count": 3, "sample": "x"}]
        server.answer = lambda request: (
            Reply(200, {"cluster": "main", "refused": refused}) if "run" in request.body else None
        )

        status, text = check(folder, server.url, PACELINE_RUN="my-run")

        assert status == 1
        assert "FAILED rank report" in text
        assert "SHAPE" in text

    @pytest.mark.parametrize(
        ("environ", "words"),
        [
            ({}, "a process alone here: a new one at each start."),
            ({}, 'export PACELINE_ATTEMPT_KEY="my-run-$(date +%s)"'),
            (
                {"PACELINE_ATTEMPT_KEY": "launch-7", "RANK": "3", "WORLD_SIZE": "8"},
                "launch-7, from PACELINE_ATTEMPT_KEY",
            ),
            ({"PACELINE_ATTEMPT_KEY": "launch-7", "RANK": "3", "WORLD_SIZE": "8"}, "this is rank 3 of 8"),
            (
                {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
                "slurm:41.0.0, from Slurm",
            ),
            ({"TORCHELASTIC_RUN_ID": "job7", "RANK": "0", "WORLD_SIZE": "8"}, "torchrun:job7, from torchrun"),
        ],
    )
    def test_says_which_key_a_training_here_would_have(
        self, folder: Path, server: RecordingServer, environ: dict[str, str], words: str
    ) -> None:
        status, text = check(folder, server.url, PACELINE_RUN="my-run", **environ)

        assert status == 0, text
        assert words in next(line for line in text.splitlines() if line.startswith("ok     attempt key"))

    @pytest.mark.parametrize(
        ("environ", "words"),
        [
            ({}, "several ranks were started by neither torchrun nor Slurm"),
            ({}, 'type `export PACELINE_ATTEMPT_KEY="my-run-$(date +%s)"`'),
            ({"TORCHELASTIC_RUN_ID": "none"}, "--rdzv-id=my-run-1"),
        ],
    )
    def test_says_that_a_training_here_would_not_report_and_what_to_type(
        self, folder: Path, server: RecordingServer, environ: dict[str, str], words: str
    ) -> None:
        status, text = check(folder, server.url, PACELINE_RUN="my-run", RANK="0", WORLD_SIZE="4", **environ)

        assert status == 1
        assert text.splitlines()[-1] == "reports do not arrive"
        assert words in next(line for line in text.splitlines() if line.startswith("FAILED attempt key"))

    def test_goes_on_without_the_name_of_a_run_and_says_so(self, folder: Path, server: RecordingServer) -> None:
        status, text = check(folder, server.url)

        assert status == 0
        assert "no run is named (PACELINE_RUN)" in text

    def test_says_that_nobody_answers(self, folder: Path) -> None:
        gone = RecordingServer()
        gone.stop()

        status, text = check(folder, gone.url)

        assert status == 1
        assert "FAILED server" in text
        assert text.splitlines()[-1] == "reports do not arrive"

    def test_says_that_the_token_is_refused(self, folder: Path, server: RecordingServer) -> None:
        server.answer = lambda request: refusal(403, "forbidden") if request.method != "GET" else None

        status, text = check(folder, server.url)

        assert status == 1
        assert "FAILED node report: the server said 403" in text
        assert "scope `report`" in text

    def test_says_that_the_spool_cannot_be_written(self, folder: Path, server: RecordingServer) -> None:
        (folder / "spool").write_text("no folder")

        status, text = check(folder, server.url)

        assert status == 1
        assert "FAILED spool" in text

    def test_says_what_is_missing(self, folder: Path) -> None:
        status, text = check(folder, "")

        assert status == 1
        assert "PACELINE_URL is not set" in text
