"""Clockwork of remediation. `order_run` is the one task of three calls: claim, launcher, settle."""

from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.common.tasks import queue_now
from apps.remediation import launchers, selectors, services

CLAIM_LIMIT_S = 60.0
"""Longer than any launcher's own time-outs together: whoever holds an order longer has died over it."""


@shared_task(name="remediation.order_run")
def order_run(*, order_id: int, **_later: Any) -> None:
    """Carry an order out, with no transaction open meanwhile."""
    order = services.order_claim(order_id=order_id, now=now())
    if order is None:
        return
    outcome = launchers.order_carry_out(order)
    services.order_settle(order_id=order_id, claim=order.claim, outcome=outcome, now=now())


@shared_task(name="remediation.order_look")
def order_look(*, order_id: int, **_later: Any) -> None:
    """Read back what came of an order that is in doubt."""
    order = services.order_in_hand(order_id)
    outcome = launchers.order_read_back(order)
    services.order_settle(order_id=order_id, claim=order.claim, outcome=outcome, now=now())


@shared_task(name="remediation.orders_sweep")
def orders_sweep(**_later: Any) -> None:
    """Find what is due: expired and waiting actions, orders to hand out or to doubt, starts to watch."""
    moment = now()
    for action_id in selectors.actions_overdue(now=moment):
        services.action_expire(action_id=action_id, now=moment)
    for action_id in selectors.actions_waiting():
        services.action_advance(action_id=action_id, now=moment)
    for order_id in selectors.orders_stale(now=moment, after_s=CLAIM_LIMIT_S):
        services.order_doubt(order_id=order_id, now=moment)
    for order_id in selectors.orders_due(now=moment):
        queue_now("remediation.order_run", order_id=order_id)
    for order_id in selectors.orders_uncertain(now=moment):
        queue_now("remediation.order_look", order_id=order_id)
    for action_id in selectors.actions_watched():
        services.action_watch(action_id=action_id, now=moment)


@shared_task(name="remediation.launches_watch")
def launches_watch(**_later: Any) -> None:
    """See how what was launched fares; finds it again after a restart of Paceline."""
    launchers.launches_look(now=now())


@shared_task(name="remediation.policies_sweep")
def policies_sweep(**_later: Any) -> None:
    """Consider what changed among the findings."""
    services.findings_consider(now=now())
