"""Clockwork of incidents."""

from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.incidents import services


@shared_task(name="incidents.findings_sweep")
def findings_sweep(**_later: Any) -> None:
    """Absorb what is new among the findings."""
    services.findings_absorb(now=now())


@shared_task(name="incidents.incidents_settle")
def incidents_settle(**_later: Any) -> None:
    """Resolve what is healthy again, and ask whether Paceline itself can hear."""
    services.incidents_settle(now=now())
    services.watch_check(now=now())


@shared_task(name="incidents.notices_sweep")
def notices_sweep(**_later: Any) -> None:
    """Send the notices that are due."""
    services.notices_send(now=now())
