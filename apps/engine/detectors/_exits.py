"""The exits of an attempt's ranks, and which of them was the origin of the others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.engine.detection import Fact
from apps.engine.detectors._presence import failed, signal_of

SAME_MOMENT_S = 1.0
"""Reports of different nodes received within a second do not say who was first: transport alone takes as long."""
REVISE_S = 6.0
"""Until a report interval and a second have passed since the first exit, a better origin may still arrive."""
REAP_S = 0.05
"""A sender that looks after its processes sees their ends this late; exits so close together are not in order."""
HARD = frozenset({4, 7, 8, 9, 11})
"""SIGILL, SIGBUS, SIGFPE, SIGKILL, SIGSEGV: nobody sends them in the first second of a wave, so they are its origin."""
SIGTERM = 15
MOST_KEPT = 256
"""Exits of the first moment that are kept in full; a wave of thousands needs no more to say "one of"."""


class Exits:
    """What is remembered of exits: those of the first moment in full, of the others only who and whether asked for.

    Exits that the run survived are remembered as such, and what comes after them is a crash of its own (case 36).
    """

    def __init__(self, world_size: int, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.moment: dict[str, dict[str, Any]] = dict(values.get("moment", {}))
        self.all_asked: bool = values.get("all_asked", True)
        self.last_at: float = values.get("last_at", 0.0)
        self.survived_at: float = values.get("survived_at", 0.0)
        self.gone, self.survived = (
            arrays[name].copy() if name in arrays else np.zeros(world_size, np.bool_) for name in ("gone", "survived")
        )

    def take(self, facts: Sequence[Fact]) -> None:
        """Count failed exits; each rank once, whatever repeats. What was told of the past says nothing of who is lost now."""
        for fact in facts:
            rank = fact.rank if fact.current and failed(fact) else None
            if rank is None or not 0 <= rank < len(self.gone) or self._is_known(rank, fact.heard_at):
                continue
            self.gone[rank], self.survived[rank] = True, False
            self.last_at = max(self.last_at, fact.heard_at)
            signal = signal_of(fact)
            self.all_asked = self.all_asked and signal == SIGTERM
            self.moment[str(rank)] = {
                "code": fact.code,
                "signal": signal,
                "heard_at": fact.heard_at,
                "happened_at": fact.happened_at,
                "sender": fact.sender,
            }
        if self.moment:
            last = self.first_at() + SAME_MOMENT_S
            inside = sorted(
                (one["heard_at"], int(rank)) for rank, one in self.moment.items() if one["heard_at"] <= last
            )
            self.moment = {str(rank): self.moment[str(rank)] for _, rank in inside[:MOST_KEPT]}

    def survive(self) -> None:
        """Put what was told so far behind: the run went on after it."""
        self.moment, self.all_asked = {}, True
        self.survived, self.survived_at = self.gone.copy(), self.last_at

    def wave(self) -> NDArray[np.bool_]:
        """Return the ranks that ended in the crash that is not survived yet. bool [ranks]."""
        return self.gone & ~self.survived

    def _is_known(self, rank: int, heard_at: float) -> bool:
        return bool(self.gone[rank]) and not (self.survived[rank] and heard_at > self.survived_at)

    def first_at(self) -> float:
        """Return when the first exit was heard of, seconds on the receiver's clock; infinite without one."""
        return min((float(one["heard_at"]) for one in self.moment.values()), default=float("inf"))

    def from_outside(self) -> bool:
        """Return whether every exit is a SIGTERM of several ranks: then somebody outside stopped the job."""
        return self.all_asked and len(self.moment) > 1

    def values(self) -> dict[str, Any]:
        """Return what is not an array, as JSON can hold it."""
        return {
            "moment": self.moment,
            "all_asked": self.all_asked,
            "last_at": self.last_at,
            "survived_at": self.survived_at,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what is an array."""
        return {"gone": self.gone, "survived": self.survived}


def origins_of(moment: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Return the ranks whose exit may be the origin, ascending; several mean "one of".

    moment: the exits heard within a second of the first: rank → code, signal, heard_at (receiver's clock, s),
        happened_at (sender's clock, s, or None), sender.

    Clocks of different senders are never compared: of each sender its earliest exits count. Of those a hard signal is
    the origin, and a SIGTERM only if nobody has anything else.
    Source: cases 29 and 34 of public reports (signals that the launcher sends are consequences).

    >>> one = dict(code=1, signal=None, heard_at=10.0, happened_at=5.0, sender="a")
    >>> killed = {**one, "code": -9, "signal": 9}
    >>> origins_of({"3": one, "4": {**killed, "happened_at": 5.2}}), origins_of({"3": one, "4": killed})
    ([3], [4])
    """
    earliest: dict[str, float] = {}
    for one in moment.values():
        if one["happened_at"] is not None:
            at = float(one["happened_at"])
            earliest[one["sender"]] = min(at, earliest.get(one["sender"], at))
    first = {
        rank: one
        for rank, one in moment.items()
        if one["happened_at"] is None or float(one["happened_at"]) <= earliest[one["sender"]] + REAP_S
    }
    hard = {rank: one for rank, one in first.items() if one["signal"] in HARD}
    own = {rank: one for rank, one in first.items() if one["signal"] != SIGTERM}
    return sorted(int(rank) for rank in hard or own or first)
