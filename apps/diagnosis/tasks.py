"""Clockwork of diagnosis. The attempt's own lock makes a repeat, or two at once, harmless."""

from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.diagnosis import services


@shared_task(name="diagnosis.windows_evaluate")
def windows_evaluate(*, attempt_id: int, **_later: Any) -> None:
    """Show newly settled columns of one attempt to the detectors."""
    services.windows_evaluate(attempt_id=attempt_id, now=now())


@shared_task(name="diagnosis.windows_sweep")
def windows_sweep(**_later: Any) -> None:
    """Do the same for every attempt that is due."""
    for attempt_id in services.attempts_due(now=now()):
        services.windows_evaluate(attempt_id=attempt_id, now=now())


@shared_task(name="diagnosis.clocks_sweep")
def clocks_sweep(**_later: Any) -> None:
    """Look at every attempt by the clock, then close what belongs to attempts that are over."""
    for attempt_id in services.attempts_due(now=now()):
        services.clocks_evaluate(attempt_id=attempt_id, now=now())
    services.attempts_settle(now=now())
