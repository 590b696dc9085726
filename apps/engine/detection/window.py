"""What a detector is given: everything known about one attempt at one moment.

`now` and every `_at` are seconds since 1970 UTC on the receiver's clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apps.engine.detection.arrays import Beats, Columns, Floats, Nonfinite, Placement, Times, WindowMalformed


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt the window is about, and what its run was set to.

    `started_at`: when it was opened. `stopping`: an order to stop or restart it is under way, so that exits are wanted.
    `ended`: it is over, so that nothing in it moves any more.
    `steps_planned`, `checkpoint_interval_*` are the run's settings; `checkpoint_advised_s` is measured advice.
    """

    number: int
    world_size: int
    started_at: float
    resumed_from_step: int | None = None
    stopping: bool = False
    ended: bool = False
    steps_planned: int | None = None
    checkpoint_interval_s: float | None = None
    checkpoint_interval_steps: int | None = None
    checkpoint_advised_s: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One word about a checkpoint.

    `state`: STARTED | QUEUED | WRITTEN | SAVED | FAILED | DELETED | RESTORED. `kind`: save | restore.
    `duration_s` and `queue_s` are the slowest shard's, `fastest_s` is what the fastest shard took; `shards`: how many
    ranks wrote one, 0 = not told. `attempt`: the number of the attempt that made it, None = not told.
    """

    step: int
    state: str
    heard_at: float
    kind: str = "save"
    duration_s: float | None = None
    queue_s: float | None = None
    blocking_s: float | None = None
    fastest_s: float | None = None
    shards: int = 0
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One event of the attempt (`kind` exit | log | xid | note | phase | stack), with the sender's time beside ours.

    `happened_at` is on the sender's clock: it orders facts of one sender and nothing else.
    `current`: it is about now. What a spool told hours later is not: it is known, but no reason to act.
    `signal` is positive (9, 15); a negative exit code means the same.
    """

    kind: str
    heard_at: float
    sender: str = ""
    happened_at: float | None = None
    rank: int | None = None
    node: str | None = None
    code: int | None = None
    signal: int | None = None
    text: str = ""
    current: bool = True


@dataclass(frozen=True, slots=True)
class Stack:
    """The newest Python stacks that a rank sent of itself, as it wrote them; its first line says of which step."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class PastFault:
    """A verdict about the same run that was reached before, for causes that come again."""

    attempt: int
    cause: str
    node: str | None
    rank: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class Launched:
    """One attempt of the run, this one or an earlier one, for causes that lie in trying again.

    Times are ours. `outcome`: the word for how it ended, "" while it is open. `nodes`: as far as they were told.
    `message`: what several of its ranks, or its program (`said_by`), said before it could start, "" without. `blamed`: the
    node that is said to have stopped it, "" without.
    """

    number: int
    started_at: float
    first_step_at: float | None = None
    ended_at: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    resumed_from_step: int | None = None
    outcome: str = ""
    nodes: tuple[str, ...] = ()
    message: str = ""
    said_by: str = "several ranks"
    blamed: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class NodeSeries:
    """One gauge over nodes (or GPU slots) × 15 s.

    at: float64 [t], the start of each column. values: float32 [entities, t], NaN = no reading. node: index of each
    entity's node in the placement. labels: the entities' names (a GPU's id, or the node's name).
    """

    at: Times
    values: Floats
    node: Sequence[int]
    labels: Sequence[str]


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """Everything a detector may look at.

    `columns` holds the columns settled since the detector's last evaluation, each exactly once (none for CLOCK and
    FACTS). `facts` and `checkpoints` may repeat what earlier windows held; detectors count by identity, never by
    arrival. `watch_began_at`: since when Paceline could hear; clocks count from there at the earliest, and start anew
    after a blind period. `attempts`: verdicts of the run's earlier attempts that people let stand; `dismissed`: those of this
    attempt that they did not. `chain`: the run's newest attempts up to this one, oldest first. `stacks`: one a rank at
    most. `limits`: what was set for the run; what is missing has the detector's default.
    """

    now: float
    watch_began_at: float
    attempt: Attempt
    placement: Placement
    columns: Columns = field(default_factory=Columns.none)
    beats: Beats = field(default_factory=lambda: Beats.none(0))
    checkpoints: Sequence[Checkpoint] = ()
    facts: Sequence[Fact] = ()
    node_series: Mapping[str, NodeSeries] = field(default_factory=dict)
    nonfinite: Nonfinite = field(default_factory=Nonfinite.none)
    attempts: Sequence[PastFault] = ()
    dismissed: Sequence[PastFault] = ()
    chain: Sequence[Launched] = ()
    stacks: Sequence[Stack] = ()
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = self.attempt.world_size
        if len(self.placement) != ranks:
            raise WindowMalformed("The placement must hold every rank of the world.", ranks=ranks)
        if len(self.beats.step) not in (0, ranks) or any(v.shape[0] != ranks for v in self.columns.values.values()):
            raise WindowMalformed("Beats and columns must hold every rank of the world.", ranks=ranks)
