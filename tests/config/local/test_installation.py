"""Taking an installation down leaves no process, whatever goes wrong on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apps.config.local.folder import DataFolder
from apps.config.local.installation import Installation
from apps.config.local.listener import address_read, listen
from apps.config.local.processes import REPOSITORY
from apps.config.local.programs import Program
from apps.config.local.supervisor import Supervisor
from apps.config.local.voice import Voice
from apps.config.local.watch import Watch


class TestDown:
    def test_a_folder_that_refuses_keeps_no_process_alive(self, tmp_path: Path) -> None:
        folder = DataFolder(tmp_path)
        folder.environment.mkdir()  # where a file should be: it cannot be taken away
        with Watch().installed() as watch, listen(address_read("127.0.0.1:0")) as listener:
            supervisor = Supervisor(watch=watch, voice=Voice(), logs=tmp_path)
            made = Installation(folder=folder, listener=listener, supervisor=supervisor, voice=Voice(), given={})
            child = supervisor.add(
                Program(name="tiny", command=("sleep", "1000"), log=tmp_path / "tiny.log", folder=tmp_path)
            )
            assert child.process is not None
            pid = child.process.pid

            with pytest.raises(OSError, match="env"):
                made.down()

        assert not os.path.exists(f"/proc/{pid}")


class TestInterrupted:
    @pytest.mark.parametrize("after_s", [0.0, 0.03, 0.1, 0.2])
    def test_while_it_loads_it_ends_without_a_traceback(self, tmp_path: Path, after_s: float) -> None:
        # The mask is what the set-up hands over: Ctrl-C between two programs waits for the second one. It is inherited;
        # code between fork and exec would itself be interrupted.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "apps.config.local"],
                env={**os.environ, "PACELINE_DATA_DIR": str(tmp_path / "data"), "PACELINE_BIND": "127.0.0.1:0"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        time.sleep(after_s)  # any moment will do: each is one at which people press

        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)

        assert "Traceback" not in said
        assert process.returncode in (0, -signal.SIGINT)
