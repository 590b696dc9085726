"""One machine of the practice cluster: its ranks, its simulated GPUs, and the node sender that reports them."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from apps.rehearsal.trainer.faults import FaultWatch, Place
from apps.rehearsal.trainer.gauges import LoadBoard, SimulatedGpu, gauges_write, gpu_name, gpus_make
from apps.rehearsal.trainer.stopping import die_with_parent

GAUGES_S = 1.0
FORK_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
"""What the parent waits for instead of being interrupted; its children want to hear them again."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: a signal's number, or an exit status."""

    status: int
    signal: int = 0

    def __str__(self) -> str:
        return f"killed by {signal.Signals(self.signal).name}" if self.signal else f"exit status {self.status}"

    @property
    def failed(self) -> bool:
        """Return whether this was not a success."""
        return bool(self.signal or self.status)


@dataclass(slots=True)
class Node:
    """A machine's processes, as their parent sees them."""

    name: str
    folder: Path
    ranks: list[Place]
    board: LoadBoard
    watch: FaultWatch
    environment: Mapping[str, str]
    sender_pid: int = 0
    lost: bool = False
    gpus: list[SimulatedGpu] = field(default_factory=list)
    gauges_at: float = 0.0

    def start(self, rank_main: Callable[[Place], int]) -> None:
        """Start the node's sender, then its ranks; `rank_main` runs in each child and returns its exit status."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.gpus = gpus_make(self.name, len(self.ranks))
        self.gauges(time.monotonic())
        if self.environment.get("PACELINE_URL"):
            self.sender_pid = self._fork(self._sender)
        self.ranks = [
            Place(p.rank, p.node, p.local_rank, pid=self._fork(partial(self._rank, p, rank_main))) for p in self.ranks
        ]

    def gauges(self, now: float) -> None:
        """Write the GPUs' gauges if it is time to; a lost machine measures nothing."""
        if self.lost or now - self.gauges_at < GAUGES_S:
            return
        self.gauges_at = now
        loads = (self.board.load(place.rank, now) for place in self.ranks)
        gauges = [gpu.read(load, now) for gpu, load in zip(self.gpus, loads, strict=True)]
        gauges_write(self.folder / "gpus.json", gauges)

    def lose_if_asked(self) -> bool:
        """Kill everything of this machine at once if that fault is set; return whether it just happened."""
        if self.lost or "lose_node" not in self.watch.look():
            return False
        self.lost = True
        self.signal_all(signal.SIGKILL)
        return True

    def end(self, number: int) -> None:
        """Tell the ranks by signal `number` to leave, and the sender to send what it has and go."""
        for place in self.ranks:
            os.kill(place.pid, number)
        if self.sender_pid:
            os.kill(self.sender_pid, signal.SIGTERM)

    def signal_all(self, number: int) -> None:
        """Send a signal to the ranks and the sender. Their parent has not collected them, so their pids are theirs."""
        for pid in self.pids():
            os.kill(pid, number)

    def pids(self) -> list[int]:
        """Return the pids of all processes of this node."""
        return [place.pid for place in self.ranks if place.pid] + ([self.sender_pid] if self.sender_pid else [])

    def _fork(self, child: Callable[[], int]) -> int:
        """Run `child` in a process that can't outlive this one; return its pid."""
        parent = os.getpid()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_SIGNALS)
            status = child()
        except BaseException as error:  # a forked child must never run on into its parent's code
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _sender(self) -> int:
        """Become the node's sender, the same program that runs on any machine."""
        command = [sys.executable, "-m", "paceline.node", "--gpus-json", str(self.folder / "gpus.json")]
        os.execve(sys.executable, command, {**os.environ, **self._own_environment()})  # noqa: S606 - a list, no shell

    def _rank(self, place: Place, rank_main: Callable[[Place], int]) -> int:
        own = {
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.local_rank),
            "PACELINE_GPU": gpu_name(self.name, place.local_rank),
        }
        os.environ.update({**self._own_environment(), **own})
        return rank_main(place)

    def _own_environment(self) -> dict[str, str]:
        """Return what a machine of its own would have for itself: a name, and a disk for what can't be sent yet."""
        return {
            **self.environment,
            "PACELINE_NODE": self.name,
            "PACELINE_SPOOL_DIR": str(self.folder / "spool"),
        }


def exit_look(pid: int) -> Exit | None:
    """Return how child `pid` ended, or None while it runs; it is left uncollected, so that others can still see how."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
    return Exit(status=0, signal=found.si_status) if killed else Exit(status=found.si_status)
