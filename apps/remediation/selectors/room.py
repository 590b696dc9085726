"""Whether a cluster's Slurm has the nodes that a restart's job asks for, without those that are out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.engine.readers.slurm import (
    HostlistMalformed,
    HostlistTooLarge,
    SlurmNode,
    hostlist_expand,
    node_state,
)
from apps.remediation.choices import ActionKind, LauncherKind
from apps.remediation.selectors.asked import Asked, asked_of
from apps.remediation.selectors.commands import names_short
from apps.remediation.selectors.jobs import put_by_us
from apps.remediation.selectors.pool import PoolNode, of_partitions
from apps.remediation.selectors.schedulers import JobRow
from apps.remediation.selectors.slurm import QueuedJob, job_seen, submits
from apps.runs.choices import AttemptState
from apps.runs.launcher import LauncherSetting
from apps.runs.selectors import RunRow

NAMED = 6
"""Nodes that a sentence names; of more it says how many."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many nodes a job asks for and how many Slurm has for it; `busy` of them work for others now.

    `without` are those that are kept out, by name; `runs` says that something runs that would be stopped for the start.
    """

    asks: int
    has: int
    busy: int
    without: tuple[str, ...]
    runs: bool

    @property
    def happens(self) -> tuple[str, str]:
        """Return what Slurm will do, with its small print."""
        if self.short:
            return "Wait in Slurm's queue", self.short
        but = " without those that are out" if self.without else ""
        small = (
            f"{self.busy} of them work{'s' if self.busy == 1 else ''} for others now, so it may wait in the queue"
            if self.has - self.busy < self.asks
            else ""
        )
        return f"Slurm has {_count(self.has)} for it{but}; it asks for {self.asks:,}", small

    @property
    def short(self) -> str:
        """Return what becomes of a job for which there are too few, empty where there are enough."""
        lack = self.asks - self.has
        if lack <= 0:
            return ""
        out = (
            f"the {_count(len(self.without))} that are out" if len(self.without) > NAMED else names_short(self.without)
        )
        but = f" without {out}" if self.without else ""
        back = "one comes back" if lack == 1 else f"{lack:,} come back"
        return (
            f"the job asks for {_count(self.asks)} and Slurm has {self.has or 'none'} for it{but}: "
            f"it would wait in the queue until {back}"
        )


def start_of(
    kind: str,
    run: RunRow | None,
    setting: LauncherSetting | None,
    pool: Sequence[PoolNode],
    *,
    adding: Collection[int],
    queued: QueuedJob | None,
    now: datetime,
) -> tuple[Asked, Room | None]:
    """Return what a run's next start asks Slurm for, and the room that a restart would have for it, None where nobody knows.

    adding: the nodes that are to be put out.
    """
    if run is None or setting is None or setting.kind != LauncherKind.SLURM:
        return Asked(), None
    job = job_seen(run)
    asked = asked_of(setting, job, queued)
    if kind != ActionKind.RESTART_RUN:
        return asked, None
    goes_on = not submits(setting) or (queued is not None and queued.releases)
    avoided = _avoided(run, job) if job is not None and goes_on else frozenset[str]()
    return asked, _room(run, asked, job, pool, adding=adding, avoided=avoided, now=now)


def _room(
    run: RunRow,
    asked: Asked,
    job: JobRow | None,
    pool: Sequence[PoolNode],
    *,
    adding: Collection[int],
    avoided: frozenset[str],
    now: datetime,
) -> Room | None:
    """Return the room for a job, None where Slurm told of no nodes of late, or nobody of a number.

    What else a job may ask for (features, memory, a reservation) is not looked at: there may be fewer, never more.
    """
    told = [node for node in of_partitions(pool, asked.partitions) if node.is_told(now)]
    if asked.nodes is None or not told:
        return None
    seen = [(node, SlurmNode(node.name, *state)) for node in told if (state := node_state(node.scheduler_state))]
    kept = {node.id for node, _ in seen if node.is_out or node.id in adding or node.names & avoided}
    kept |= {node.id for node, slurm in seen if slurm.is_out}
    has = [(node, slurm) for node, slurm in seen if node.id not in kept and not slurm.is_down]
    own = _names(job.nodes) if job is not None and not job.is_over and run.attempt_state == AttemptState.OPEN else set()
    busy = [node for node, slurm in has if slurm.is_busy and run.id not in node.open_runs and not node.names & own]
    without = tuple(node.name for node, _ in seen if node.id in kept)
    runs = run.attempt_state == AttemptState.OPEN and not (job is not None and job.waits)
    return Room(asks=asked.nodes, has=len(has), busy=len(busy), without=without, runs=runs)


def _avoided(run: RunRow, job: JobRow) -> frozenset[str]:
    """Return the nodes on a job's ExcNodeList that stay there: what Paceline put on it leaves it with the ledger's line."""
    return frozenset(_names(job.exc_nodes) - put_by_us(run.id, job.job_id))


def _names(hostlist: str) -> set[str]:
    try:
        return set(hostlist_expand(hostlist))
    except (HostlistMalformed, HostlistTooLarge):
        return set()


def _count(number: int) -> str:
    return "1 node" if number == 1 else f"{number:,} nodes"
