"""Clockwork of incidents."""

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.common.sweeps import sweeping
from apps.incidents import services


@shared_task(name="incidents.findings_sweep")
def findings_sweep(**_later: Any) -> None:
    """Absorb what is new among the findings."""
    services.findings_absorb(now=now())


@shared_task(name="incidents.incidents_settle")
def incidents_settle(**_later: Any) -> None:
    """Ask whether Paceline itself can hear, resolve what is healthy again, put counts right that were lost on the way."""
    moment = now()
    with sweeping("incidents could not be looked after") as each:
        duties: tuple[Callable[[], object], ...] = (
            partial(services.watch_check, now=moment),
            partial(services.incidents_settle, now=moment),
            services.counts_mend,
        )
        each(duties, lambda duty: duty())


@shared_task(name="incidents.notices_sweep")
def notices_sweep(**_later: Any) -> None:
    """Send the notices that are due."""
    services.notices_send(now=now())
