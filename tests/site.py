"""A whole Paceline for one test: web, workers and beat as real processes over the test's own database and Valkey."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from apps.config.local.servers import Servers

ROOT = Path(__file__).resolve().parents[1]

APPLICATION = "paceline-site"
"""What the processes of a site call themselves at the database, so that the test's own connections are told apart."""

QUEUES = {"fold": "fold", "watch": "watch,slow", "orders": "orders"}
"""Which queues each worker serves: as in an installation, but for a process less."""


def _test_database() -> str:
    from django.db import connection

    found = connection.settings_dict
    return (
        f"postgresql://{found['USER']}@/{found['NAME']}?host={found['HOST']}&port={found['PORT']}"
        f"&application_name={APPLICATION}"
    )


class LiveSite:
    """Processes of one installation; each child ends with `stop()`, whatever the test did to it.

    With `servers` it stands on a pair of its own, which the test may flush, kill and restart.
    """

    def __init__(self, folder: Path, servers: Servers | None = None) -> None:
        from django.conf import settings

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.environment = {
            **os.environ,
            "DATABASE_URL": servers.database_url if servers else _test_database(),
            "REDIS_URL": servers.redis_url if servers else settings.REDIS_URL,
            "PACELINE_BIND": f"127.0.0.1:{self.port}",
            "PACELINE_PUBLIC_URL": self.url,
            "PACELINE_DATA_DIR": str(folder),
            "PACELINE_SECRET_KEY": settings.SECRET_KEY,
            "PACELINE_CHANNEL_PREFIX": os.environ.get("PACELINE_CHANNEL_PREFIX", "test") + f"-{self.port}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client" / "src")]),
        }
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def manage(self, *words: str) -> str:
        """Run a command of the installation to its end; return what it said."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words], cwd=ROOT, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        """Start the web process and wait until it answers."""
        self.run(
            "web",
            "-m",
            "uvicorn",
            "apps.config.asgi:application",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--ws-ping-interval",
            "5",
        )
        self.wait(self._answers, "the web process to answer", 120)

    def workers(self, *, beat: bool = True) -> None:
        """Start one worker per group of queues as an installation does, and beat."""
        for name in QUEUES:
            self.worker(name)
        if beat:
            self.run(
                "beat", "-m", "celery", "-A", "apps.config.celery", "beat", "--schedule", str(self.folder / "beat")
            )

    def worker(self, name: str) -> None:
        """Start the worker `fold`, `watch` or `orders`."""
        self.run(
            f"worker-{name}",
            "-m",
            "celery",
            "-A",
            "apps.config.celery",
            "worker",
            "-Q",
            QUEUES[name],
            "-P",
            "solo",
            "-n",
            f"{name}-{self.port}@test",
            "--without-gossip",
            "--without-mingle",
        )

    def run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python child in its own process group, its output in a file of the folder."""
        output = (self.folder / f"{name}.log").open("ab")
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self.children[name] = child
        return child

    def kill(self, name: str) -> None:
        """Kill a child's whole group at once, as a crash would."""
        child = self.children.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)

    def stop(self) -> None:
        """End every child."""
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        for child in self.children.values():
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait(10)
        self.children.clear()

    def wait(self, holds, what: str, seconds: float = 15.0):  # type: ignore[no-untyped-def]
        """Return what `holds()` gives once it is true; fail with `what` after `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := holds():
                return found
            time.sleep(0.05)
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.log"))
        )
        raise AssertionError(f"waited {seconds:.0f} s for {what}\n{logs}")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/sign-in", timeout=2) as answer:
            return bool(answer.status == 200)
        return False
