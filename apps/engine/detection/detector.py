"""What a detector declares about itself, so that the rest of Paceline needs no list of causes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.engine.detection.state import State, StateUnreadable
from apps.engine.detection.verdict import Answer
from apps.engine.detection.window import Window
from apps.engine.detection.words import Class, Trigger

Evaluate = Callable[[Window, State], tuple[State, tuple[Answer, ...]]]


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold that can be set per run: its default, why that value, and where it comes from."""

    name: str
    default: float
    unit: str
    reason: str
    source: str
    least: float = 0.0
    most: float = float("inf")

    def of(self, limits: Mapping[str, float]) -> float:
        """Return the value in force: what was set, held between least and most, else the default.

        >>> Limit("hang_factor", 5.0, "", "why", "ours", least=2.0).of({"hang_factor": 1.0})
        2.0
        """
        return min(max(limits.get(self.name, self.default), self.least), self.most)


@dataclass(frozen=True, slots=True)
class Needs:
    """What the detector looks at; a caller reads no more than this.

    metrics: without them it answers "not enough evidence". useful: read if there. nonfinite: the entries of the
    window's steps, and the columns of every metric that has one. past: verdicts of earlier attempts. chain: the run's
    attempts up to this one; such a detector looks at attempts of which no rank was ever heard, too. stacks: those that
    ranks sent of themselves, once the run is known to stand.
    """

    metrics: tuple[str, ...] = ()
    useful: tuple[str, ...] = ()
    beats: bool = False
    checkpoints: bool = False
    exits: bool = False
    nonfinite: bool = False
    past: bool = False
    chain: bool = False
    stacks: bool = False


@dataclass(frozen=True, slots=True)
class Minimum:
    """The least evidence below which the answer is "not enough evidence"."""

    ranks: int = 1
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Delay:
    """How long after its fault a finding may take: evidence columns, or seconds with default limits."""

    columns: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Detector:
    """One cause: its declaration and its pure function (window, state) → (state, answers).

    `evaluate` answers every verdict that is open after the window, every verdict that closed in it, and, when none is
    open, one Undecided or Healthy. It never changes its arguments. `false_alarm_p`: declared chance of a false alarm
    per window of a steady run (one column, or one look of the clock).
    """

    cause: str
    class_: Class
    title: str
    trigger: Trigger
    needs: Needs
    minimum: Minimum
    delay: Delay
    false_alarm_p: float
    limits: tuple[Limit, ...]
    evaluate: Evaluate
    state_version: int = 1

    def state_fresh(self) -> State:
        """Return what an attempt starts with."""
        return State.fresh(self.cause, self.state_version)

    def state_read(self, data: Mapping[str, Any] | None) -> State:
        """Return the stored state; a fresh one if there is none, or if it is of another version of the detector.

        Raises StateUnreadable if it is broken or belongs to another cause.
        """
        if not data:
            return self.state_fresh()
        state = State.read(data)
        if state.cause != self.cause:
            raise StateUnreadable("The stored state belongs to another detector.", cause=state.cause)
        return state if state.version == self.state_version else self.state_fresh()

    def limits_in_force(self, limits: Mapping[str, float]) -> Sequence[tuple[Limit, float]]:
        """Return each limit with the value in force."""
        return tuple((limit, limit.of(limits)) for limit in self.limits)


NO_TELEMETRY_S = Limit(
    "no_telemetry_s",
    15.0,
    "s",
    "Three report intervals of 5 s: one lost report is no silence, three in a row are.",
    "ours; a report each 1-5 s is the client's default",
    least=1.0,
    most=7 * 24 * 3600.0,
)
"""How long a sender may be silent; shared by every detector that asks whether someone is still there."""
