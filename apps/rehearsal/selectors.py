"""Reading the practice run: who runs, and which faults are set."""

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from apps.common.errors import NotFound
from apps.rehearsal.trainer.faults import KINDS, Fault, Place, Placement, faults_read, placement_read
from apps.runs.selectors import RunRow, run_by_code

PRACTICE = "practice"
"""The slug of the practice run, and the name of its cluster."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault that is set. `rank` is the one that sits in its place now; None where it is on a whole node or on all."""

    id: str
    kind: str
    label: str
    node: str | None
    rank: int | None
    value: float
    value_words: str
    once: bool
    set_at: str


@dataclass(frozen=True, slots=True)
class PracticeRow:
    """The practice run as pages, REST and the command show it."""

    run: RunRow
    running: bool
    attempt_key: str | None
    resumed_from_step: int | None
    nodes: tuple[str, ...]
    ranks: tuple[Place, ...]
    faults: tuple[FaultRow, ...]


def practice_run() -> RunRow:
    """Return the practice run.

    Raises:
        NotFound: there is none yet.
    """
    try:
        return run_by_code(PRACTICE)
    except NotFound:
        raise NotFound("There is no practice run yet; `./manage.py practice --start` makes one.") from None


def practice_folder(run: RunRow) -> Path:
    """Return where the practice run keeps its checkpoints and faults."""
    return Path(run.launcher.get("directory") or settings.DATA_DIR / PRACTICE)


def practice_read(*, cluster_id: int | None = None) -> PracticeRow:
    """Return the practice run with its faults, oldest first, for a caller of `cluster_id` (None: of all).

    Raises:
        NotFound: there is none yet, or it is another cluster's.
    """
    run = practice_run()
    if cluster_id not in (None, run.cluster_id):
        raise NotFound("There is no practice run in this token's cluster.")
    folder = practice_folder(run)
    placement = placement_read(folder)
    faults = tuple(fault_row(fault, placement) for fault in faults_read(folder) if fault_stands(fault, placement))
    return PracticeRow(
        run=run,
        running=placement is not None,
        attempt_key=placement.attempt if placement else None,
        resumed_from_step=placement.resumed_from_step if placement else None,
        nodes=placement.nodes if placement else (),
        ranks=placement.ranks if placement else (),
        faults=faults,
    )


def fault_row(fault: Fault, placement: Placement | None) -> FaultRow:
    """Return a fault as it is shown."""
    kind = KINDS[fault.kind]
    places = placement.ranks if placement else ()
    found = [place.rank for place in places if (place.node, place.local_rank) == (fault.node, fault.local_rank)]
    return FaultRow(
        id=fault.id,
        kind=fault.kind,
        label=kind.label,
        node=fault.node,
        rank=found[0] if found else None,
        value=fault.value,
        value_words=kind.words(fault.value),
        once=kind.once,
        set_at=fault.set_at,
    )


def fault_stands(fault: Fault, placement: Placement | None) -> bool:
    """Return whether a fault can still do something: one of an attempt that is over can't."""
    return fault.attempt is None or (placement is not None and fault.attempt == placement.attempt)
