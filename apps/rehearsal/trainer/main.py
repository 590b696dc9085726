"""The program's parent: chooses nodes and the step to resume from, starts everything, and answers for how it ends."""

import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from fcntl import LOCK_EX, LOCK_NB, flock

import paceline

from apps.rehearsal.trainer.checkpoint import CheckpointBroken, checkpoint_choose
from apps.rehearsal.trainer.faults import (
    PLACEMENT_FILE,
    FaultWatch,
    Place,
    Placement,
    placement_write,
    start_ticks,
)
from apps.rehearsal.trainer.gauges import LoadBoard
from apps.rehearsal.trainer.node import FORK_SIGNALS, Exit, Node, exit_look
from apps.rehearsal.trainer.options import Options, OptionsRefused, options_read
from apps.rehearsal.trainer.rank import CHECKPOINTS, Seat, Trainer, say
from apps.rehearsal.trainer.ring import RingBroken
from apps.rehearsal.trainer.stopping import ANOTHER_FAILED, ASKED_TO_STOP, Stop, Stopped

REFUSED = 64
BUSY = 75
TICK_S = 0.25
STOP_S = 0.8
"""What a rank may take to leave when told to; it needs no more than a step's rest and a last report."""
LAST_WORDS_S = 0.5
"""How long a leaving rank may take to hand over its last report."""
LOCK_S = 5.0
"""An earlier attempt that is just being stopped still holds the folder for a moment."""


class Crew:
    """All processes of one attempt."""

    def __init__(self, options: Options, environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        self._board = LoadBoard(options.world_size)
        self._ring_folder = options.directory / "ring"
        self._ring_key = secrets.token_bytes(16)
        self._first_step = checkpoint_choose(options.directory / CHECKPOINTS, wanted=options.resume_step)
        self._nodes = [self._node(index, name) for index, name in enumerate(options.nodes)]
        self._exits: dict[int, Exit] = {}

    def run(self) -> int:
        """Run the attempt to its end; return the exit status of the whole program."""
        signal.pthread_sigmask(signal.SIG_BLOCK, FORK_SIGNALS)
        shutil.rmtree(self._ring_folder, ignore_errors=True)
        self._ring_folder.mkdir(parents=True)
        say(
            f"{self._options.world_size} ranks on {', '.join(self._options.nodes)}; "
            + (f"resuming from step {self._first_step}" if self._first_step else "starting afresh")
        )
        for node in self._nodes:
            node.start(self._rank_main)
        self._write_placement()
        status = 1
        try:
            status = self._watch()
        finally:
            (self._options.directory / PLACEMENT_FILE).unlink(missing_ok=True)
            self._end_all(ANOTHER_FAILED if status == 1 else signal.SIGTERM)
        return status

    def _watch(self) -> int:
        """Return once all ranks are done, one has died and the others had their grace, or somebody asks to stop."""
        deadline: float | None = None
        while True:
            now = time.monotonic()
            for node in self._nodes:
                if node.lose_if_asked():
                    say(f"node {node.name} is lost", wrong=True)
                node.gauges(now)
            failed = self._look()
            if failed and deadline is None:
                lost = any(node.lost for node in self._nodes)
                deadline = now + (self._options.lost_node_grace_s if lost else self._options.grace_s)
            if deadline is not None and now >= deadline:
                return 1
            if not failed and len(self._exits) == self._options.world_size:
                return 0
            heard = signal.sigtimedwait(FORK_SIGNALS, TICK_S)
            if heard is not None and heard.si_signo != signal.SIGCHLD:
                say("asked to stop")
                return ASKED_TO_STOP

    def _look(self) -> bool:
        """Note which ranks have ended; return whether one of them failed."""
        for node in self._nodes:
            for place in node.ranks:
                if place.rank not in self._exits and (ended := exit_look(place.pid)) is not None:
                    self._exits[place.rank] = ended
                    if ended.failed:
                        say(f"rank {place.rank} on {place.node}: {ended}", wrong=True)
        return self._failed()

    def _failed(self) -> bool:
        return any(ended.failed for ended in self._exits.values())

    def _end_all(self, number: signal.Signals) -> None:
        """Tell every rank by signal `number` to leave, and the senders too; kill who stays, and collect them all."""
        for node in self._nodes:
            node.end(number)
        pids = [pid for node in self._nodes for pid in node.pids()]
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline and any(exit_look(pid) is None for pid in pids):
            signal.sigtimedwait((signal.SIGCHLD,), 0.02)
        for node in self._nodes:
            node.signal_all(signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        shutil.rmtree(self._ring_folder, ignore_errors=True)

    def _node(self, index: int, name: str) -> Node:
        per_node = self._options.ranks_per_node
        return Node(
            name=name,
            folder=self._options.directory / "nodes" / name,
            ranks=[Place(index * per_node + local, name, local) for local in range(per_node)],
            board=self._board,
            watch=FaultWatch(self._options.directory, node=name, local_rank=None, attempt=self._options.attempt),
            environment={**self._environ, "WORLD_SIZE": str(self._options.world_size)},
        )

    def _write_placement(self) -> None:
        ranks = tuple(place for node in self._nodes for place in node.ranks)
        placement_write(
            self._options.directory,
            Placement(
                attempt=self._options.attempt,
                pid=os.getpid(),
                resumed_from_step=self._first_step,
                ranks=ranks,
                start_ticks=start_ticks(os.getpid()),
            ),
        )

    def _rank_main(self, place: Place) -> int:
        """Be one rank; return its exit status. Runs in the child."""
        stop = Stop()
        stop.listen()
        seat = Seat(
            rank=place.rank,
            node=place.node,
            local_rank=place.local_rank,
            first_step=self._first_step,
            ring_folder=self._ring_folder,
            ring_key=self._ring_key,
        )
        return rank_run(self._options, seat, stop=stop, board=self._board)


def rank_run(options: Options, seat: Seat, *, stop: Stop, board: LoadBoard) -> int:
    """Train as one rank and report; return the exit status."""
    asked = options.resume_step is not None
    pace = paceline.start(resumed_from_step=seat.first_step if asked or seat.first_step else None)
    trainer = Trainer(options, seat, pace=pace, stop=stop, note_load=lambda share: board.put(seat.rank, share))
    try:
        trainer.run()
    except Stopped:
        pace.finish(stop.reason, timeout_s=LAST_WORDS_S)
        return ASKED_TO_STOP
    except (RingBroken, CheckpointBroken) as error:
        say(f"rank {seat.rank}: {error}", wrong=True)
        pace.note(f"rank {seat.rank}: {error}", kind="log", hurry=True)
        pace.finish("CRASHED", timeout_s=LAST_WORDS_S)
        return 1
    pace.finish()
    return 0


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the program; return its exit status."""
    try:
        options = options_read(arguments, environ)
    except OptionsRefused as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    options.directory.mkdir(parents=True, exist_ok=True)
    with (options.directory / "lock").open("a") as lock:
        if not _lock_taken(lock.fileno()):
            sys.stderr.write(f"another attempt is running in {options.directory}\n")
            return BUSY
        return Crew(options, environ).run()


def _lock_taken(handle: int) -> bool:
    """Return whether this process got the folder for itself. Its ranks inherit the lock: it is free when all are gone."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            flock(handle, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True
