"""`python -m paceline check`: says whether reports arrive, and if not, where they stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.client.conftest import ROOT
from tests.client.server import RecordingServer, refusal


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
    def test_proves_a_node_s_and_a_rank_s_report(self, folder: Path, server: RecordingServer) -> None:
        status, text = check(folder, server.url)

        assert status == 0, text
        assert text.splitlines()[-1] == "reports arrive"
        assert "FAILED" not in text
        assert "s3cret" not in text
        assert set(server.values("step_s")) == {(0, 0), (0, 1), (0, 2)}
        assert [request.path for request in server.accepted if "/nodes/" in request.path] == [
            "/api/v1/nodes/gpu-17/reports"
        ]
        assert server.runs == {"paceline-check"}
        assert server.ends() == [{"reason": "FINISHED"}]

    def test_touches_no_run_of_the_environment(self, folder: Path, server: RecordingServer) -> None:
        check(folder, server.url, PACELINE_RUN="dense-7b", RANK="3", WORLD_SIZE="8", TORCHELASTIC_RUN_ID="job7")

        assert server.runs == {"paceline-check"}

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
