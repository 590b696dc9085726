"""A whole Paceline to measure: durable servers of its own, the web process and the fold worker, all in known sessions."""

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
from types import TracebackType

from tests.benchmarks.bench_ingest import ROOT, cpu_s


class BenchSite:
    """Processes of one installation, and Django in this process over the same database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> BenchSite:
        from apps.config.local.folder import folder_open
        from apps.config.local.servers import servers_choose, servers_start

        folder = folder_open(self.folder / "servers")
        settings = {"shared_buffers": "256MB"}
        self.running = servers_start(servers_choose(folder, environment={}, settings=settings))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        os.environ.update(
            DATABASE_URL=self.running.servers.database_url,
            REDIS_URL=self.running.servers.redis_url,
            PACELINE_DATA_DIR=str(self.folder / "site"),
            PACELINE_BIND=f"127.0.0.1:{self.port}",
            PACELINE_SECRET_KEY="bench " * 10,
            DJANGO_SETTINGS_MODULE="apps.config.settings",
            OPENBLAS_NUM_THREADS="1",
        )
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        self._start("web", "-m", "uvicorn", "apps.config.asgi:application", "--port", str(self.port),
                    "--no-access-log", "--log-level=warning")  # fmt: skip
        self._start("fold", "-m", "celery", "-A", "apps.config.celery", "worker", "-Q", "fold", "-P", "solo",
                    "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING")  # fmt: skip
        self._await(self._answers, 30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        for child in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        if error is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
        self.running.stop()

    def attempt(self, *, world_size: int) -> tuple[str, str]:
        """Open an attempt; return the path of its reports and a token."""
        from apps.accounts.services import token_create
        from apps.common.clock import now
        from apps.common.ids import id_write
        from apps.fleet.services import cluster_ensure
        from apps.runs.services import attempt_open, run_put

        moment = now()
        cluster_id = cluster_ensure(name="bench", now=moment)
        run_id, _ = run_put(slug="bench", cluster_id=cluster_id, fields={}, by="bench", source="COMMAND", now=moment)
        self.row, _ = attempt_open(
            run_id=run_id, key="bench/1", world_size=world_size, by="bench", source="COMMAND", now=moment
        )
        _, secret = token_create(
            name="bench", scopes=["report"], cluster_id=None, by="bench", source="COMMAND", now=moment
        )
        return f"/api/v1/attempts/{id_write('att', self.row.id)}/reports", secret

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far of each part."""
        found = {name: cpu_s(child.pid) for name, child in self.children.items()}
        return found | self._servers()

    def drained(self) -> None:
        """Wait until the inbox is empty."""
        from django.db import connection

        def empty() -> bool:
            with connection.cursor() as cursor:
                cursor.execute("SELECT NOT EXISTS (SELECT 1 FROM telemetry_inbox)")
                return bool(cursor.fetchone()[0])

        self._await(empty, 120)

    def samples(self) -> int:
        """Values that the attempt's series holds."""
        from apps.telemetry.models import Series

        row = Series.objects.get(kind="RANK", owner_id=self.row.id)
        return row.filled

    def _servers(self) -> dict[str, float]:
        return {name: cpu_s(child.pid) for name, child in self.running.children.items()}

    def _start(self, name: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self.children[name] = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/sign-in", timeout=2)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def _await(self, holds, seconds: float) -> None:  # type: ignore[no-untyped-def]
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise SystemExit("waited too long")
            time.sleep(0.02)
