"""Clockwork of remediation. `order_run` is the one task of three calls: claim, launcher, settle."""

from datetime import datetime
from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.common.sweeps import sweeping
from apps.common.tasks import queue_now
from apps.remediation import launchers, selectors, services
from apps.remediation.choices import OrderState

CLAIM_LIMIT_S = 60.0
"""Longer than any launcher's own time-outs together: whoever holds an order longer has died over it."""


@shared_task(name="remediation.order_run")
def order_run(*, order_id: int, **_later: Any) -> None:
    """Carry an order out, with no transaction open meanwhile."""
    order = services.order_claim(order_id=order_id, now=now(), holder=launchers.holder_own())
    if order is None:
        return
    outcome = launchers.order_carry_out(order)
    services.order_settle(order_id=order_id, claim=order.claim, outcome=outcome, now=now())


@shared_task(name="remediation.check_run")
def check_run(*, order_id: int, **_later: Any) -> None:
    """Begin a check, or look how far it is: an order like any other, where a slow receiver holds up no button."""
    order_run(order_id=order_id)


@shared_task(name="remediation.order_again")
def order_again(*, order_id: int, **_later: Any) -> None:
    """Hand out again what was not heard: a launcher that does not answer holds up no other's button."""
    order_run(order_id=order_id)


@shared_task(name="remediation.order_look")
def order_look(*, order_id: int, **_later: Any) -> None:
    """Read back what came of an order that is in doubt."""
    holder = launchers.holder_own()
    order = services.order_look_claim(order_id=order_id, now=now(), for_s=CLAIM_LIMIT_S, holder=holder)
    if order is None:
        return
    outcome = launchers.order_read_back(order)
    services.order_settle(order_id=order_id, claim=order.claim, outcome=outcome, now=now())


@shared_task(name="remediation.orders_sweep")
def orders_sweep(**_later: Any) -> None:
    """Find what is due: expired and waiting actions, orders to hand out or to doubt, starts to watch."""
    moment = now()
    with sweeping("some actions could not be looked after") as each:
        each(selectors.actions_overdue(now=moment), lambda n: services.action_expire(action_id=n, now=moment))
        each(selectors.proposals_overtaken(), lambda n: services.action_overtaken(action_id=n, now=moment))
        each(selectors.actions_waiting(), lambda n: services.action_advance(action_id=n, now=moment))
        stale = selectors.orders_stale(now=moment, after_s=CLAIM_LIMIT_S)
        each(stale, lambda n: services.order_doubt(order_id=n, now=moment))
        left = [row for row in selectors.orders_held() if launchers.holder_died(row.holder)]
        each(left, lambda row: _left(row, now=moment))
        each(selectors.orders_due(now=moment), lambda n: queue_now("remediation.order_run", order_id=n))
        each(selectors.orders_unheard(now=moment), lambda n: queue_now("remediation.order_again", order_id=n))
        each(selectors.orders_uncertain(now=moment), lambda n: queue_now("remediation.order_look", order_id=n))
        each(selectors.actions_watched(), lambda n: services.action_watch(action_id=n, now=moment))


def _left(row: selectors.HeldOrder, *, now: datetime) -> None:
    """Take an order out of a dead process's hand: its successor need not wait as long as a living one may take."""
    if row.state == OrderState.CLAIMED:
        services.order_doubt(order_id=row.id, claim=row.claim, now=now)
    else:
        services.order_look_again(order_id=row.id, holder=row.holder, now=now)


@shared_task(name="remediation.ledger_sweep")
def ledger_sweep(**_later: Any) -> None:
    """Find exclusions whose time has come, checks to begin or to look at, and attempts that left nodes out."""
    moment = now()
    with sweeping("some lines of the ledger could not be looked after") as each:
        each(selectors.checks_due(now=moment), lambda n: queue_now("remediation.check_run", order_id=n))
        each(selectors.lines_due(now=moment), lambda row: services.exclusion_due(exclusion_id=row, now=moment))
        each(selectors.attempts_to_compare(), lambda n: services.nodes_dropped_note(attempt_id=n, now=moment))


@shared_task(name="remediation.launches_watch")
def launches_watch(**_later: Any) -> None:
    """See how what was launched fares; finds it again after a restart of Paceline."""
    launchers.launches_look(now=now())


@shared_task(name="remediation.attempts_left")
def attempts_left(**_later: Any) -> None:
    """End attempts whose ranks have all left without a word about the whole."""
    services.attempts_left_end(now=now())


@shared_task(name="remediation.attempts_silence")
def attempts_silence(**_later: Any) -> None:
    """End attempts of which nobody has heard for hours."""
    services.attempts_silent_end(now=now())


@shared_task(name="remediation.schedulers_sweep")
def schedulers_sweep(**_later: Any) -> None:
    """Find clusters whose scheduler is to be read. A slow one holds up only the worker that reads it."""
    for cluster_id in selectors.schedulers_due(now=now()):
        queue_now("remediation.scheduler_read", cluster_id=cluster_id)


@shared_task(name="remediation.scheduler_read")
def scheduler_read(*, cluster_id: int, **_later: Any) -> None:
    """Read a cluster's scheduler: nodes, and the jobs of our runs."""
    launchers.scheduler_read(cluster_id=cluster_id, now=now())


@shared_task(name="remediation.launches_trim")
def launches_trim(**_later: Any) -> None:
    """Remove the output of programs that ended long ago."""
    launchers.launches_trim(now=now())


@shared_task(name="remediation.policies_consider")
def policies_consider(**_later: Any) -> None:
    """Consider what changed among the findings, as soon as it was absorbed."""
    services.findings_consider(now=now())


@shared_task(name="remediation.policies_sweep")
def policies_sweep(**_later: Any) -> None:
    """Do the same by the clock; then look again at what may call for another answer by now."""
    moment = now()
    with sweeping("some findings could not be considered") as each:
        duties = (services.findings_consider, services.findings_reconsider)
        each(duties, lambda consider: consider(now=moment))
