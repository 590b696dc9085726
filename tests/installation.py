"""An installation as `make run` starts it, in a data folder of its own, for tests that look at the whole."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from apps.config.local.install import PYTHON, STAMP, fingerprint
from tests.marked import REPOSITORY, Marked, read_until

OURS = ("DATABASE_URL", "REDIS_URL", "PACELINE_CHANNEL_PREFIX", "PACELINE_PUBLIC_URL", "DJANGO_SETTINGS_MODULE")
"""What the test session exports for itself, and an installation must not see."""

LINK = re.compile(r"Paceline is ready:\s+(http://\S+)")


def start_command() -> list[str]:
    """Return `make run` where the set-up is current, else what it becomes: a test never installs anything."""
    current = STAMP.exists() and fingerprint() in STAMP.read_text() and Path(sys.prefix) == PYTHON.parents[1]
    return ["make", "run"] if current else [sys.executable, "-m", "apps.config.local"]


class Installation:
    """An installation in a folder of its own."""

    def __init__(self, marked: Marked, folder: Path) -> None:
        self.marked, self.folder = marked, folder
        self.process: subprocess.Popen[bytes] | None = None
        self.said = ""
        self.link = ""

    def environment(self) -> dict[str, str]:
        return {"PACELINE_DATA_DIR": str(self.folder), "PACELINE_BIND": "127.0.0.1:0", "PACELINE_PRACTICE": "0"}

    def start(self) -> "Installation":
        """Start it and wait for its link."""
        self.process = self.marked.start(*start_command(), **self.environment())
        self.said = read_until(self.process, "Stop: Ctrl-C")
        found = LINK.search(self.said)
        assert found, self.said
        self.link = found[1]
        return self

    @property
    def address(self) -> str:
        return self.link.partition("/first/")[0]

    url = address

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it as a terminal does, by a signal to the whole group; return its exit status and its last words."""
        assert self.process is not None
        os.killpg(self.process.pid, number)
        words = read_until(self.process, "has stopped")
        return self.process.wait(60), words

    def pid(self, part: str) -> int:
        """Return the pid of the process whose command line holds `part`."""
        return next(
            (pid for pid, line in self.marked.pids().items() if part in f"{line} " and "child.py" not in line), 0
        )

    def manage(self, *words: str) -> str:
        """Run a command as from a second terminal, which knows the data folder alone."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=REPOSITORY,
            env={**self.marked.inherited(), "PACELINE_DATA_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def page_answers(address: str) -> bool:
    """Return whether the sign-in page is served."""
    try:
        return httpx.get(f"{address}/sign-in", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
