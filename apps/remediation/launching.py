"""What a launcher is: it answers a receipt, or says which of three things went wrong.

The difference decides what happens next, so it is in the type: refused is permanent, unavailable means that nothing
happened and asking again is safe, uncertain means that nobody knows, and it is never asked again by itself.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from apps.common.errors import PacelineError
from apps.remediation.selectors.rows import LaunchFact, LaunchRow, OrderInHand


@dataclass(frozen=True, slots=True)
class Receipt:
    """A launcher's answer. `done` is False while it has taken the order but is not through with it: look again."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    done: bool = True


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What a launcher finds when asked what came of an order.

    `began` None: it cannot tell. `began` False is said only if the order never began and never will.
    """

    began: bool | None
    receipt: Receipt


class LaunchRefused(PacelineError):
    """The launcher will never do this; asking again is no use."""

    code = "launch_refused"
    http_status = 422


class LaunchUnavailable(PacelineError):
    """The launcher could not be reached; nothing happened, asking again is safe."""

    code = "launch_unavailable"
    http_status = 503
    retryable = True


class LaunchUncertain(PacelineError):
    """It may or may not have been carried out. Never asked again by itself: it is read back, or a person says so."""

    code = "launch_uncertain"
    http_status = 502


class Launcher(Protocol):
    """Starts and stops a run's processes. Every method may take seconds; no transaction is open meanwhile.

    A launch of an order that was launched already finds the first one. A stop may be asked for again and again.
    """

    def launch(self, order: OrderInHand) -> Receipt:
        """Start what the order says. Raises: LaunchRefused, LaunchUnavailable, LaunchUncertain."""
        ...

    def stop(self, order: OrderInHand) -> Receipt:
        """Stop what the order says, or look whether it is gone. Raises: as `launch`."""
        ...

    def read_back(self, order: OrderInHand) -> ReadBack:
        """Say what came of an order that somebody handed out and did not come back from. Raises: LaunchUnavailable."""
        ...

    def look(self, launch: LaunchRow) -> LaunchFact | None:
        """Say whether what was launched is gone; None where this launcher cannot see it."""
        ...
