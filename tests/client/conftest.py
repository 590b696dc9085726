"""A recording server, and nodes of rank processes that report to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.server import RecordingServer, eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """A server that accepts everything."""
    running = RecordingServer()
    yield running
    running.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: sockets' paths are limited."""
    path = Path(tempfile.mkdtemp(prefix="pc-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Node:
    """Rank processes that believe to be one machine."""

    def __init__(self, folder: Path, url: str, *, name: str = "node-1", world_size: int = 4, **environ: str) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.name = name
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'client' / 'src'}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PACELINE_URL": url,
            "PACELINE_TOKEN": "a-token",
            "PACELINE_RUN": "a-run",
            "PACELINE_NODE": name,
            "PACELINE_ATTEMPT_KEY": "launch-1",
            "PACELINE_INTERVAL_S": "0.4",
            "PACELINE_SPOOL_DIR": str(self.spool),
            "PACELINE_LOCAL_DIR": str(folder / "local"),
            "WORLD_SIZE": str(world_size),
            **environ,
        }

    def start(
        self, rank: int, *arguments: str, local_rank: int | None = None, **environ: str
    ) -> subprocess.Popen[bytes]:
        self.ranks[rank] = subprocess.Popen(
            [sys.executable, "-m", "tests.client.rank", str(self.folder), *arguments],
            env={
                **self.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank if local_rank is None else local_rank),
                **environ,
            },
            cwd=ROOT,
            stderr=(self.folder / f"{rank}.stderr").open("wb"),
        )
        return self.ranks[rank]

    def start_all(self, n: int, *arguments: str) -> None:
        for rank in range(n):
            self.start(rank, *arguments)

    def sender(self) -> int:
        """Return the one rank that has become the sender so far."""
        found = eventually(lambda: list(self.folder.glob("*.sender")), because="nobody became the sender")
        return int(found[0].stem)

    def step(self, rank: int) -> int:
        try:
            return int((self.folder / f"{rank}.step").read_text() or -1)
        except FileNotFoundError:
            return -1

    def stderr(self, rank: int) -> str:
        return (self.folder / f"{rank}.stderr").read_text()

    def end(self) -> None:
        """Tell all ranks to end and wait until they have."""
        (self.folder / "end").touch()
        self.wait()

    def wait(self) -> None:
        """Wait until all ranks have ended by themselves."""
        for process in self.ranks.values():
            process.wait(30)

    def kill(self) -> None:
        for process in self.ranks.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture
def make_node(folder: Path) -> Iterator[Callable[..., Node]]:
    """Make a node: `make_node(server.url)`; its processes are gone when the test ends."""
    nodes: list[Node] = []

    def make(url: str, **more: object) -> Node:
        below = folder / f"n{len(nodes)}"
        below.mkdir()
        nodes.append(Node(below, url, **more))  # type: ignore[arg-type]
        return nodes[-1]

    yield make
    for node in nodes:
        node.kill()
