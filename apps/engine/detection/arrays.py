"""The parts of a window that are arrays over an attempt's ranks.

Times are seconds since 1970 UTC on the receiver's clock, float64, NaN = never; they may be compared with `now`.
A sender's own clock is never used here: phases carry durations instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from apps.engine.detection.words import Phase
from apps.engine.errors import EngineError

Floats = NDArray[np.float32]
Times = NDArray[np.float64]
Ints = NDArray[np.int32]
Steps = NDArray[np.int64]
Flags = NDArray[np.bool_]


class WindowMalformed(EngineError):
    """The parts of a window disagree about how many ranks, columns or nodes there are."""

    code = "window_malformed"


def _times(n: int = 0) -> Times:
    return np.full(n, np.nan, np.float64)


@dataclass(frozen=True, eq=False, slots=True)
class Columns:
    """Newly settled columns of one attempt, each seen once, in order of step.

    steps: int64 [c], the step of each column, rising.
    values: metric name → float32 [ranks, c] in the metric's unit; NaN = this rank did not report this step.
    skip: bool [c], True for columns that are neither baseline nor evidence (see `skip_columns`).
    received_at: float64 [c], receive time of the column's first value; NaN = not known.
    """

    steps: Steps
    values: Mapping[str, Floats]
    skip: Flags
    received_at: Times

    def __post_init__(self) -> None:
        c = len(self.steps)
        if len(self.skip) != c or len(self.received_at) != c or any(v.shape[1:] != (c,) for v in self.values.values()):
            raise WindowMalformed("Every part of the columns must be as long as the list of steps.", columns=c)
        if c > 1 and not (np.diff(self.steps) > 0).all():
            raise WindowMalformed("Columns must come in order of step.", first=int(self.steps[0]))

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, first: int, last: int) -> "Columns":
        """Return the columns at positions first..last-1."""
        cut = slice(first, last)
        values = {name: array[:, cut] for name, array in self.values.items()}
        return Columns(self.steps[cut], values, self.skip[cut], self.received_at[cut])

    @classmethod
    def none(cls) -> "Columns":
        """Return no columns: what a clock-driven detector gets."""
        return cls(np.zeros(0, np.int64), {}, np.zeros(0, np.bool_), _times())


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """Where each rank of the attempt runs.

    node: int32 [ranks], index into `nodes`; -1 = this rank has not said yet.
    nodes: the nodes' names.
    stage: int32 [ranks], the rank's pipeline coordinate (0 without pipeline): ranks of one stage do the same work.
    local_rank: int32 [ranks], -1 = not known.
    gpus: the GPU of each rank (its UUID or PCI id), "" = not known; empty when none is known.
    """

    node: Ints
    nodes: Sequence[str]
    stage: Ints
    local_rank: Ints
    gpus: Sequence[str] = ()

    def __post_init__(self) -> None:
        n = len(self.node)
        if len(self.stage) != n or len(self.local_rank) != n or len(self.gpus) not in (0, n):
            raise WindowMalformed("Every part of the placement must be as long as the world.", ranks=n)
        if n and int(self.node.max()) >= len(self.nodes):
            raise WindowMalformed("A rank is placed on a node that the placement does not name.", nodes=len(self.nodes))

    def __len__(self) -> int:
        return len(self.node)

    def node_name(self, rank: int) -> str | None:
        """Return the name of the rank's node, None if the rank has not said."""
        index = int(self.node[rank])
        return self.nodes[index] if index >= 0 else None

    def gpu(self, rank: int) -> str | None:
        """Return the rank's GPU, None if not known."""
        return (self.gpus[rank] or None) if self.gpus else None

    def ranks_on(self, index: int) -> Ints:
        """Return the ranks on node `index`, ascending."""
        return np.flatnonzero(self.node == index).astype(np.int32)


@dataclass(frozen=True, eq=False, slots=True)
class Beats:
    """The newest beat of each rank and the newest word from each sender.

    step: int64 [ranks], the step the rank was in; -1 = never heard.
    phase: int8 [ranks], a `Phase`.
    phase_age_s: float32 [ranks], how long the rank had been in it when the beat left (the sender's own duration).
    heard_at: float64 [ranks], when the beat was received; NaN = never.
    senders: the senders' names; sender_node: int32 [senders], index into the placement's nodes, -1 = not known.
    sender_heard_at: float64 [senders], when anything was last received from it.
    """

    step: Steps
    phase: NDArray[np.int8]
    phase_age_s: Floats
    heard_at: Times
    senders: Sequence[str] = ()
    sender_node: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    sender_heard_at: Times = field(default_factory=_times)

    def __post_init__(self) -> None:
        n, s = len(self.step), len(self.senders)
        if not len(self.phase) == len(self.phase_age_s) == len(self.heard_at) == n:
            raise WindowMalformed("Every part of the beats must be as long as the world.", ranks=n)
        if not len(self.sender_node) == len(self.sender_heard_at) == s:
            raise WindowMalformed("Every part of the senders must be equally long.", senders=s)

    @classmethod
    def latest(
        cls,
        world_size: int,
        *,
        rank: Ints,
        step: Steps,
        phase: NDArray[np.int8],
        phase_age_s: Floats,
        heard_at: Times,
        senders: Sequence[str] = (),
        sender_node: Ints | None = None,
        sender_heard_at: Times | None = None,
    ) -> "Beats":
        """Return one beat per rank from beats in any order, repeats allowed.

        All arrays are [b]. The newest `heard_at` wins, among equals the larger step; ranks outside the world are
        dropped.
        Cost: O(b log b + world_size).

        >>> b = Beats.latest(2, rank=np.array([1, 1], np.int32), step=np.array([7, 8]), phase=np.array([4, 5], np.int8),
        ...                  phase_age_s=np.zeros(2, np.float32), heard_at=np.array([10.0, 12.0]))
        >>> b.step.tolist(), b.heard_at.tolist()
        ([-1, 8], [nan, 12.0])
        """
        inside = (rank >= 0) & (rank < world_size)
        order = np.lexsort((step, heard_at))
        order = order[inside[order]]
        out = cls.none(world_size, senders, sender_node, sender_heard_at)
        out.step[rank[order]], out.phase[rank[order]] = step[order], phase[order]
        out.phase_age_s[rank[order]], out.heard_at[rank[order]] = phase_age_s[order], heard_at[order]
        return out

    @classmethod
    def none(
        cls,
        world_size: int,
        senders: Sequence[str] = (),
        sender_node: Ints | None = None,
        sender_heard_at: Times | None = None,
    ) -> "Beats":
        """Return the beats of a world that was never heard."""
        return cls(
            np.full(world_size, -1, np.int64),
            np.full(world_size, Phase.UNKNOWN, np.int8),
            np.zeros(world_size, np.float32),
            _times(world_size),
            senders,
            np.zeros(0, np.int32) if sender_node is None else sender_node,
            _times() if sender_heard_at is None else sender_heard_at,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Nonfinite:
    """Values of the window's columns that were produced but are not finite; their cells are NaN in the columns.

    metrics: the metric of each entry. step: int64 [k]. rank: int32 [k]. kind: int8 [k], a `NonfiniteKind`.
    Entries are bounded: past the limit of a step the rest is dropped, never the first.
    """

    metrics: Sequence[str]
    step: Steps
    rank: Ints
    kind: NDArray[np.int8]

    def __post_init__(self) -> None:
        if not len(self.metrics) == len(self.step) == len(self.rank) == len(self.kind):
            raise WindowMalformed("Every part of the values that are not finite must be equally long.")

    def __len__(self) -> int:
        return len(self.step)

    @classmethod
    def none(cls) -> "Nonfinite":
        """Return no entries."""
        return cls((), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int8))
