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

ROOT = Path(__file__).resolve().parents[1]


class LiveSite:
    """Processes of one installation; each child ends with `stop()`, whatever the test did to it."""

    def __init__(self, folder: Path) -> None:
        from django.conf import settings
        from django.db import connection

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        database = connection.settings_dict
        address = f"postgresql://{database['USER']}@/{database['NAME']}?host={database['HOST']}&port={database['PORT']}"
        self.environment = {
            **os.environ,
            "DATABASE_URL": address,
            "REDIS_URL": settings.REDIS_URL,
            "PACELINE_BIND": f"127.0.0.1:{self.port}",
            "PACELINE_PUBLIC_URL": self.url,
            "PACELINE_DATA_DIR": str(folder),
            "PACELINE_SECRET_KEY": settings.SECRET_KEY,
            "PACELINE_CHANNEL_PREFIX": os.environ.get("PACELINE_CHANNEL_PREFIX", "test") + f"-{self.port}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client" / "src")]),
        }
        self.children: dict[str, subprocess.Popen[bytes]] = {}

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
        self.wait(self._answers, "the web process to answer", 30)

    def workers(self, *, beat: bool = True) -> None:
        """Start one worker per group of queues as an installation does, and beat."""
        for name, queues in (("fold", "fold"), ("watch", "watch,slow"), ("orders", "orders")):
            self.run(
                f"worker-{name}",
                "-m",
                "celery",
                "-A",
                "apps.config.celery",
                "worker",
                "-Q",
                queues,
                "-P",
                "solo",
                "-n",
                f"{name}-{self.port}@test",
                "--without-gossip",
                "--without-mingle",
            )
        if beat:
            self.run(
                "beat", "-m", "celery", "-A", "apps.config.celery", "beat", "--schedule", str(self.folder / "beat")
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
