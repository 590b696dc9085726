"""The phases a rank can be in, and the metric each one's time is counted under."""

from __future__ import annotations

PHASES = (
    "unknown",
    "startup",
    "restore",
    "first_step",
    "data",
    "compute",
    "communication",
    "optimizer",
    "checkpoint",
    "evaluation",
    "shutdown",
)
"""The words of the report format; a beat carries one of them."""

HALVES_OF_COMPUTE = ("forward", "backward")
"""Parts that are also counted into `compute_s`: detectors compare forward and backward together."""

PATIENCE = {"startup": 10, "restore": 30, "first_step": 30, "checkpoint": 30, "evaluation": 30, "shutdown": 10}
"""How many times the stack limit each long phase may last: a first step compiles, a restore reads terabytes."""


def phase_word(name: str) -> str:
    """Return the word of the report format that a phase named by the user stands for."""
    if name in HALVES_OF_COMPUTE:
        return "compute"
    return name if name in PHASES else "unknown"


def phase_limit_s(word: str, *, limit_s: float, usual_step_s: float) -> float:
    """Return the seconds after which a phase is long enough for the process to show its own stacks."""
    return max(limit_s * PATIENCE.get(word, 1), 4 * usual_step_s)
