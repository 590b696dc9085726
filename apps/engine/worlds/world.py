"""A labelled world: a training run that never was, with faults at known places and the truth a detector must find."""

from dataclasses import dataclass
from enum import StrEnum

from apps.engine.detection import Launched, Phase, Subject


class FaultKind(StrEnum):
    """What goes wrong."""

    SLOW = "SLOW"  # the ranks compute `factor` times as long
    MOVING = "MOVING"  # each step another rank computes `factor` times as long
    PAUSES = "PAUSES"  # each of the ranks collects garbage for `pause_s` in a step with chance `chance`
    PLANNED = "PLANNED"  # all ranks collect for `pause_s` in the same step, every `every` steps
    HANG = "HANG"  # the ranks stay in `phase` for `lasts_s`
    EXIT = "EXIT"  # the ranks end with `code`; the launcher stops the others later
    SILENT = "SILENT"  # the ranks' nodes are gone, with all that could report it
    UNHEARD = "UNHEARD"  # the ranks' nodes run on, but their sender does not get through
    NONFINITE = "NONFINITE"  # the ranks' grad_norm is infinite in one step, everybody's loss NaN from the next
    UNSAVED = "UNSAVED"  # every save fails
    QUEUED = "QUEUED"  # shards wait for the store, `pause_s` in the first save and a tenth more in each next one


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `ranks` empty = all; steps from `from_step` on, before `to_step` (None = to the end)."""

    kind: FaultKind
    from_step: int
    ranks: tuple[int, ...] = ()
    to_step: int | None = None
    factor: float = 1.0
    chance: float = 0.0
    pause_s: float = 0.0
    every: int = 100
    lasts_s: float = float("inf")
    phase: Phase = Phase.DATA
    code: int = 1


@dataclass(frozen=True, slots=True)
class Truth:
    """What must be found: the cause's module name, its subject, and the step from which it can be known."""

    cause: str
    subject: Subject
    since_step: int


@dataclass(frozen=True, slots=True)
class World:
    """A run: its size, its pace in seconds, how noisy it is, its faults, and the truth about it.

    Ranks fill nodes in order, stages are blocks of ranks. `noise` is the coefficient of variation of compute time.
    A step takes data + slowest compute + communication + optimizer seconds; the save after every `save_every` steps
    blocks for `save_s`, of which up to `queue_share` waits for the store. Ordinary collections take `gc_s` a rank and
    step in the mean. `tells_gc`, `tells_queue`: whether its ranks report these. `also`: causes that may come along with
    the truths (a lost node makes the others hang). `earlier`: attempts before this one, with times before its start.
    """

    name: str
    about: str
    nodes: int = 4
    ranks_per_node: int = 4
    stages: int = 1
    steps: int = 600
    compute_s: float = 3.0
    communication_s: float = 0.6
    data_s: float = 0.2
    optimizer_s: float = 0.2
    noise: float = 0.02
    startup_s: float = 20.0
    first_step_s: float = 40.0
    save_every: int = 100
    save_s: float = 20.0
    queue_share: float = 0.3
    gc_s: float = 0.002
    tells_gc: bool = True
    tells_queue: bool = True
    report_s: float = 5.0
    faults: tuple[Fault, ...] = ()
    truths: tuple[Truth, ...] = ()
    also: tuple[str, ...] = ()
    earlier: tuple[Launched, ...] = ()

    @property
    def ranks(self) -> int:
        """How many ranks the world has."""
        return self.nodes * self.ranks_per_node

    def node_name(self, rank: int) -> str:
        """The name of the rank's node.

        >>> World("w", "").node_name(5)
        'node-01'
        """
        return f"node-{rank // self.ranks_per_node:02d}"
