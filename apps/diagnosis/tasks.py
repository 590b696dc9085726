"""Clockwork of diagnosis. The attempt's own lock makes a repeat, or two at once, harmless."""

from itertools import takewhile
from time import monotonic
from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.common.sweeps import sweeping
from apps.diagnosis import services

LOOK_S = 1.0
"""How long one task goes on looking at columns; the sweep goes on where it stopped. The clock's own look shares this
worker, and a catch-up of hours must not hold it up."""


@shared_task(name="diagnosis.windows_evaluate")
def windows_evaluate(*, attempt_id: int, **_later: Any) -> None:
    """Show newly settled columns of one attempt to the detectors."""
    _windows_look(attempt_id, until=monotonic() + LOOK_S)


@shared_task(name="diagnosis.windows_sweep")
def windows_sweep(**_later: Any) -> None:
    """Do the same for every attempt that is due; each gets one look, whoever has more to see goes on in what is left.

    Then look at attempts that are over, and of which something came late."""
    until = monotonic() + LOOK_S
    with sweeping("some attempts could not be looked at") as each:
        each(services.windows_due(now=now()), lambda attempt_id: _windows_look(attempt_id, until=until))
        late_until = monotonic() + LOOK_S
        # What is left when the time is over is found again: many attempts of a bad night may be told of at once.
        unseen = takewhile(lambda _: monotonic() < late_until, services.attempts_unseen(now=now()))
        each(unseen, lambda attempt_id: services.attempt_catch_up(attempt_id=attempt_id, now=now()))


@shared_task(name="diagnosis.clocks_sweep")
def clocks_sweep(**_later: Any) -> None:
    """Look at every attempt by the clock, then close what belongs to attempts that are over."""
    with sweeping("some attempts could not be looked at by the clock") as each:
        due = services.attempts_due(now=now())
        each(due, lambda attempt_id: services.clocks_evaluate(attempt_id=attempt_id, now=now()))
        each((services.attempts_settle,), lambda settle: settle(now=now()))


def _windows_look(attempt_id: int, *, until: float) -> None:
    while services.windows_evaluate(attempt_id=attempt_id, now=now()).more:
        if monotonic() >= until:
            return
