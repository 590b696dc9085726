"""The thresholds of a run: what each detector declares, and what people set for this run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from apps.common.errors import BadRequest
from apps.engine.detection import NO_TELEMETRY_S, Limit
from apps.engine.detectors import registry

SETTLE_S = Limit(
    "settle_s",
    5.0,
    "s",
    "A step's column waits this long after its first value for the other ranks, then it is judged as it is.",
    "ours; one report interval",
    least=0.5,
    most=600.0,
)
CONFIRM_ABOVE_RANKS = Limit(
    "confirm_above_ranks",
    256.0,
    "ranks",
    "Stopping a run of more ranks needs its name typed.",
    "ours; the size above which one slip costs a working day of GPUs",
    most=131_072.0,
)
SILENCE_ENDS_S = Limit(
    "silence_ends_s",
    6 * 3600.0,
    "s",
    "An attempt that says nothing for so long is over, and nobody saw how: it ends as UNKNOWN.",
    "ours; longer than a network or a report server is away in a bad night",
    least=60.0,
    most=30 * 24 * 3600.0,
)
OWN = (SETTLE_S, CONFIRM_ABOVE_RANKS, SILENCE_ENDS_S)


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A threshold in force: its value, its unit, its default with the reason, and who set it (`default` or `run`)."""

    name: str
    value: float
    unit: str
    default: float
    reason: str
    origin: str
    set_by: str


@cache
def limits_known() -> dict[str, Limit]:
    """Return every threshold that can be set, by name."""
    known = {NO_TELEMETRY_S.name: NO_TELEMETRY_S} | {limit.name: limit for limit in OWN}
    for detector in registry().values():
        known |= {limit.name: limit for limit in detector.limits}
    return dict(sorted(known.items()))


def limit_value(limits: Mapping[str, float], name: str) -> float:
    """Return the value in force of one threshold.

    Raises:
        KeyError: no detector declares it.
    """
    return limits_known()[name].of(limits)


def limits_in_force(limits: Mapping[str, float]) -> dict[str, LimitRow]:
    """Return every threshold with its value in force, by name."""
    return {
        name: LimitRow(
            name=name,
            value=limit.of(limits),
            unit=limit.unit,
            default=limit.default,
            reason=limit.reason,
            origin=limit.source,
            set_by="run" if name in limits else "default",
        )
        for name, limit in limits_known().items()
    }


def modes_checked(given: Mapping[str, str]) -> dict[str, str]:
    """Return modes by cause as they may be stored.

    Raises:
        BadRequest: no detector finds such a cause; a mistyped one would be obeyed by nobody.
    """
    for cause in given:
        if cause not in registry():
            raise BadRequest(f"modes: there is no cause “{str(cause)[:60]}”.", known=sorted(registry()))
    return dict(given)


def limits_checked(given: Mapping[str, object]) -> dict[str, float]:
    """Return thresholds as they may be stored; None takes a name back to its default.

    Raises:
        BadRequest: an unknown name, no number, or out of its bounds.
    """
    checked: dict[str, float] = {}
    for name, value in given.items():
        limit = limits_known().get(name)
        if limit is None:
            raise BadRequest(f"limits: there is no threshold “{str(name)[:60]}”.", known=list(limits_known()))
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not limit.least <= value <= limit.most:
            raise BadRequest(f"limits.{name}: must be a number from {limit.least:g} to {limit.most:g} {limit.unit}.")
        checked[name] = float(value)
    return checked
