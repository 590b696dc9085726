"""What a scheduler's listing says about one node and one job, whichever version and form it came in."""

from dataclasses import dataclass, field

from apps.engine.readers.slurm.times import NOTHING, SlurmTime

USABLE_BASES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
OUT_FLAGS = frozenset({"DRAIN", "FAIL"})
"""What a person (or a health check in their name) sets to keep work away."""
AWAY_FLAGS = frozenset(
    {"NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED", "INVALID_REG"}
)
"""The machine itself does not take part at present."""
SAVING_FLAGS = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"})
"""The scheduler itself switches it off and on."""
RESERVED_FLAGS = frozenset({"MAINTENANCE", "PLANNED", "RESERVED", "BLOCKED"})
"""Up, but promised to something else."""

ENDED = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "REVOKED",
    }
)
"""States out of which a job does not come by itself."""
HELD = frozenset({"JobHeldUser", "JobHeldAdmin", "held_state", "JobHoldMaxRequeue"})


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as the scheduler sees it: one base state and any number of flags, both upper-case, no suffixes."""

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_by: str = ""
    reason_at: SlurmTime = NOTHING
    partitions: tuple[str, ...] = ()
    version: str = ""

    @property
    def is_out(self) -> bool:
        """Return whether somebody keeps work away from it (drained, draining, failing)."""
        return bool(self.flags & OUT_FLAGS)

    @property
    def is_busy(self) -> bool:
        """Return whether work runs on it, however it stands otherwise."""
        return self.base in ("MIXED", "ALLOCATED") or "COMPLETING" in self.flags

    @property
    def is_down(self) -> bool:
        """Return whether the machine does not take part: down, not answering, off, or unknown to the scheduler."""
        return self.base not in USABLE_BASES or bool(self.flags & AWAY_FLAGS)

    @property
    def is_failed(self) -> bool:
        """Return whether it is down, and not only switched off to save power.

        One that is not back within ResumeTimeout is called DOWN and POWERED_DOWN: that is no saving.
        """
        return self.base not in USABLE_BASES or (self.is_down and not self.flags & SAVING_FLAGS)

    @property
    def is_usable(self) -> bool:
        """Return whether it can be given work now or when its present work is done."""
        return not (self.is_out or self.is_down or self.flags & RESERVED_FLAGS)

    @property
    def state(self) -> str:
        """Return base and flags as Slurm itself joins them."""
        return "+".join((self.base, *sorted(self.flags)))


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as the scheduler sees it. `nodes`, `exc_nodes` are hostlists as they stood, not expanded.

    `nodes_asked` is the least number of nodes with which it would begin; of a job that runs, where the version does not
    tell that, the number it has. `partitions` are those it may run in, the one it is in alone once it runs.
    """

    id: int
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    name: str = ""
    user: str = ""
    comment: str = ""
    array_id: int | None = None
    array_task: str = ""
    restarts: int | None = None
    requeue: bool | None = None
    priority: int | None = None
    nodes: str = ""
    exc_nodes: str = ""
    failed_node: str = ""
    nodes_asked: int | None = None
    partitions: tuple[str, ...] = ()
    submitted_at: SlurmTime = NOTHING
    eligible_at: SlurmTime = NOTHING
    started_at: SlurmTime = NOTHING
    ended_at: SlurmTime = NOTHING
    exit_status: int | None = None
    exit_signal: int | None = None
    step: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended and is not on its way back into the queue."""
        return self.state in ENDED and not self.flags & {"COMPLETING", "REQUEUED", "SPECIAL_EXIT"}

    @property
    def is_held(self) -> bool:
        """Return whether it waits until somebody releases it."""
        return self.state == "PENDING" and (self.reason in HELD or self.priority == 0)

    @property
    def runs(self) -> bool:
        """Return whether it has nodes and its processes may be at work."""
        return self.state in ("RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")


@dataclass(frozen=True, slots=True)
class Unread:
    """A part that was not understood: why, and its beginning."""

    why: str
    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What was understood of a listing, in its order, and how much was not. `samples` are the first of what was not.

    `repaired` counts records in which bytes that are not UTF-8 were replaced.
    """

    nodes: tuple[SlurmNode, ...] = ()
    jobs: tuple[SlurmJob, ...] = ()
    not_understood: int = 0
    samples: tuple[Unread, ...] = field(default=())
    repaired: int = 0
