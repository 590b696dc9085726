"""How much one fold takes: bounded in time and bytes, whatever waits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from apps.telemetry.stores.inbox import WaitingRow, bodies

FOLD_S = 0.2
FOLD_BYTES = 16 * 2**20
"""Bounds of one fold (DESIGN §1): long enough to be worth its transaction, short enough to share a worker."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold did. `more`: reports still wait. `busy`: another fold of this owner is at work.
    `stopped`: none of its reports could be folded, and the next try has to wait."""

    reports: int = 0
    repeats: int = 0
    settled: int = 0
    more: bool = False
    busy: bool = False
    stopped: bool = False


def rows_take(
    rows: Sequence[WaitingRow], *, began: float, clock: Callable[[], float], most_bytes: int
) -> tuple[list[WaitingRow], dict[int, bytes]]:
    """Return the rows that fit into this fold, and their bodies; at least some, however slow the machine is."""
    chosen: list[WaitingRow] = []
    size = 0
    for row in rows:
        size += row.size
        if chosen and size > most_bytes:
            break
        chosen.append(row)
    taken: list[WaitingRow] = []
    found: dict[int, bytes] = {}
    for part in bodies([row.id for row in chosen]):
        found |= part
        taken = chosen[: len(found)]
        if clock() - began > FOLD_S / 2:
            break
    return taken, found
