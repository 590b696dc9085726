"""Faults on request: a small file in the run's folder that every rank looks at before each step.

A fault is bound to a machine, not to a rank's number: after an exclusion another machine has the number, and the fault
stays where it was. What happens once (a crash, a hang, a lost node) is bound to the attempt it was set in as well.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAULTS_FILE = "faults.json"
PLACEMENT_FILE = "placement.json"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: what it does, what it is set on, what its value means and may be, whether it happens once."""

    name: str
    label: str
    target: str
    value_label: str
    default: float
    least: float
    most: float
    once: bool
    choices: tuple[str, ...] = ()

    @property
    def usual(self) -> str:
        """Return the value that is taken where none is given, as one would type it."""
        return f"{self.default:g}"

    def words(self, value: float) -> str:
        """Return what `value` means, empty where this kind has none."""
        if self.choices:
            return self.choices[int(value)]
        if self.name == "crash":
            return f"exit status {value:g}" if value else "killed by a signal"
        return f"{value:g} {self.value_label}" if self.value_label else ""


RANK, NODE, ANY = "rank", "node", "any"

KINDS = {
    kind.name: kind
    for kind in (
        Kind("slow_rank", "A rank is slow in compute", RANK, "times its usual compute time", 1.5, 1.01, 20, False),
        Kind(
            "hang", "A rank hangs", RANK, "where: 0 or 1", 0, 0, 1, True, ("inside the collective", "on its way there")
        ),
        Kind("crash", "A rank crashes", RANK, "exit status, 0: killed by a signal", 0, 0, 255, True),
        Kind("nan", "NaN in a rank's gradient", RANK, "", 0, 0, 0, False),
        Kind(
            "slow_checkpoint",
            "Checkpoints queue at a slow store",
            ANY,
            "seconds each shard takes",
            0.3,
            0.01,
            30,
            False,
        ),
        Kind("gc_pauses", "Garbage collection pauses", ANY, "milliseconds a pause lasts", 150, 1, 5000, False),
        Kind("lose_node", "A node is lost", NODE, "", 0, 0, 0, True),
    )
}


class FaultRefused(Exception):
    """This fault cannot be set; the message says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that is set. `node` and `local_rank` None: everywhere; `attempt` None: in every attempt."""

    id: str
    kind: str
    value: float
    node: str | None = None
    local_rank: int | None = None
    attempt: str | None = None
    set_at: str = ""

    def concerns(self, *, node: str, local_rank: int | None, attempt: str) -> bool:
        """Return whether the fault is for this rank, or for the node itself where `local_rank` is None."""
        return self.node in (None, node) and self.local_rank in (None, local_rank) and self.attempt in (None, attempt)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank of the running attempt lives."""

    rank: int
    node: str
    local_rank: int
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Who runs at present, as the program wrote it down: its attempt's key, its own pid, its ranks by number.

    A pid alone is soon another's, in a container above all; with the moment of its start it is nobody else's.
    """

    attempt: str
    pid: int
    resumed_from_step: int
    ranks: tuple[Place, ...]
    start_ticks: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes' names in order of their ranks, each once."""
        return tuple(dict.fromkeys(place.node for place in self.ranks))


def placement_write(folder: Path, placement: Placement) -> None:
    """Write down who runs."""
    _replace(folder / PLACEMENT_FILE, asdict(placement))


def start_ticks(pid: int) -> int:
    """Return when process `pid` began, in the kernel's ticks.

    Raises: OSError where there is no such process.
    """
    # The name in parentheses may hold spaces and parentheses itself: read behind the last one.
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19])


def placement_read(folder: Path) -> Placement | None:
    """Return who runs in `folder`, or None when nobody does."""
    try:
        found = json.loads((folder / PLACEMENT_FILE).read_bytes())
        ranks = tuple(Place(**place) for place in found.pop("ranks"))
        placement = Placement(**found, ranks=ranks)
        return placement if start_ticks(placement.pid) == placement.start_ticks else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def faults_read(folder: Path) -> tuple[Fault, ...]:
    """Return the faults that are set in `folder`, oldest first; an absent or broken file sets none."""
    try:
        found = json.loads((folder / FAULTS_FILE).read_bytes())["faults"]
        return tuple(Fault(**fault) for fault in found if fault.get("kind") in KINDS)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ()


def faults_write(folder: Path, faults: tuple[Fault, ...]) -> None:
    """Make `faults` the ones that are set."""
    _replace(folder / FAULTS_FILE, {"faults": [asdict(fault) for fault in faults]})


def fault_make(
    placement: Placement, *, kind: str, rank: int | None, node: str | None, value: float | None, set_at: str = ""
) -> Fault:
    """Return the fault of `kind` on `rank` or `node` of what runs at present.

    Raises: FaultRefused when the kind is unknown, its target is missing or elsewhere, or the value is out of bounds.
    """
    known = KINDS.get(kind)
    if known is None:
        raise FaultRefused(f"there is no fault “{kind}”; there are {', '.join(KINDS)}")
    place = _target(placement, known, rank=rank, node=node)
    amount = known.default if value is None else float(value)
    if not known.least <= amount <= known.most:
        raise FaultRefused(f"the value of {kind} must be from {known.least:g} to {known.most:g}")
    return Fault(
        id=secrets.token_hex(4),
        kind=kind,
        value=amount,
        node=place[0],
        local_rank=place[1],
        attempt=placement.attempt if known.once else None,
        set_at=set_at,
    )


def _target(placement: Placement, kind: Kind, *, rank: int | None, node: str | None) -> tuple[str | None, int | None]:
    if rank is not None:
        if kind.target == NODE:
            raise FaultRefused(f"{kind.name} is set on a node, not on a rank")
        if not 0 <= rank < len(placement.ranks):
            raise FaultRefused(f"there is no rank {rank}; the run has {len(placement.ranks)}")
        place = placement.ranks[rank]
        return place.node, place.local_rank
    if node is not None:
        if node not in placement.nodes:
            raise FaultRefused(f"the run has no node “{node}”; it has {', '.join(placement.nodes)}")
        return node, None
    if kind.target == ANY:
        return None, None
    raise FaultRefused(f"{kind.name} needs a {kind.target}")


class FaultWatch:
    """The faults that concern one rank (or one node), kept up to date with one `stat` a look."""

    def __init__(self, folder: Path, *, node: str, local_rank: int | None, attempt: str) -> None:
        self._path = folder / FAULTS_FILE
        self._folder = folder
        self._who: dict[str, Any] = {"node": node, "local_rank": local_rank, "attempt": attempt}
        self._seen: tuple[int, int] | None = None
        self._mine: dict[str, Fault] = {}

    def look(self) -> dict[str, Fault]:
        """Return the present faults by kind; of two of one kind the later counts."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
        except OSError:
            seen = None
        if seen != self._seen:
            self._seen = seen
            self._mine = {fault.kind: fault for fault in faults_read(self._folder) if fault.concerns(**self._who)}
        return self._mine


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Write JSON so that a reader sees the old or the new, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}.new")
    written.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(written, path)
