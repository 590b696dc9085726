"""Reading actions, orders and launches."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db.models import F, Q, QuerySet

from apps.common.errors import NotFound
from apps.common.ids import id_read
from apps.remediation.choices import OPEN, SETTLES, ActionState, LauncherKind, LaunchState, OrderKind, OrderState
from apps.remediation.models import Action, ActionNode, Launch, Order
from apps.remediation.selectors.rows import ActionRow, HeldOrder, LaunchRow, action_row, launch_row
from apps.runs.selectors import AttemptRow, attempts_open


def actions_of(
    *,
    run_id: int | None = None,
    node_id: int | None = None,
    cluster_id: int | None = None,
    incident_id: int | None = None,
    states: Sequence[str] = (),
    before: int | None = None,
    limit: int = 100,
) -> list[ActionRow]:
    """Return actions, newest first, below row `before`; `node_id` finds every action that names the node."""
    found = Action.objects.all()
    if run_id is not None:
        found = found.filter(run_id=run_id)
    if node_id is not None:
        found = found.filter(Q(node_id=node_id) | Q(nodes__node_id=node_id)).distinct()
    if cluster_id is not None:
        found = found.filter(Q(run__cluster_id=cluster_id) | Q(run=None, node__cluster_id=cluster_id))
    if incident_id is not None:
        found = found.filter(incident_id=incident_id)
    if states:
        found = found.filter(state__in=states)
    if before is not None:
        found = found.filter(pk__lt=before)
    return _rows(found.order_by("-pk")[:limit])


def action_by_id(action_id: int) -> ActionRow:
    """Return an action.

    Raises:
        NotFound: there is none.
    """
    rows = _rows(Action.objects.filter(pk=action_id))
    if not rows:
        raise NotFound("There is no such action.")
    return rows[0]


def action_by_code(code: str) -> ActionRow:
    """Return the action that an id names.

    Raises:
        NotFound: there is none.
    """
    return action_by_id(id_read("act", code))


def orders_asked(order_ids: Collection[int]) -> dict[int, datetime]:
    """Return when somebody asked for what each of these orders does."""
    if not order_ids:
        return {}
    return dict(Order.objects.filter(pk__in=order_ids).values_list("pk", "action__requested_at"))


def action_holding(*, run_id: int | None, node_ids: Collection[int]) -> ActionRow | None:
    """Return the open action that holds this run or one of these nodes, the oldest first; None if all are free."""
    about = Q(run_id=run_id) if run_id is not None else Q(pk__in=())
    by_node = ActionNode.objects.filter(node_id__in=list(node_ids), holds=True).values("action_id")
    rows = _rows(Action.objects.filter(about | Q(pk__in=by_node), state__in=OPEN).order_by("pk")[:1])
    return rows[0] if rows else None


def actions_waiting(*, limit: int = 1000) -> list[int]:
    """Return actions that wait for a moment, oldest first."""
    waiting = Action.objects.filter(state=ActionState.REQUESTED).exclude(orders__state__in=_IN_HAND)
    return list(waiting.order_by("pk").values_list("pk", flat=True)[:limit])


def actions_watched(*, limit: int = 1000) -> list[int]:
    """Return actions whose orders are all done and that wait for what was started to report, oldest first."""
    watched = Action.objects.filter(state=ActionState.RUNNING).exclude(orders__state__in=_IN_HAND)
    return list(watched.order_by("pk").values_list("pk", flat=True)[:limit])


def actions_overdue(*, now: datetime, limit: int = 1000) -> list[int]:
    """Return actions that did not begin, or proposals that nobody took up, before they expired, oldest first."""
    late = Action.objects.filter(state__in=(ActionState.REQUESTED, ActionState.PROPOSED), expires_at__lte=now)
    return list(late.order_by("pk").values_list("pk", flat=True)[:limit])


def proposals_overtaken(*, limit: int = 1000) -> list[int]:
    """Return proposals whose run has moved on to another attempt, oldest first."""
    open_ones = Action.objects.filter(state=ActionState.PROPOSED, run__isnull=False)
    late = open_ones.exclude(expected_attempt_id=F("run__status__attempt_id"))
    return list(late.order_by("pk").values_list("pk", flat=True)[:limit])


def findings_proposed() -> list[int]:
    """Return the findings for which a proposal waits, in no order."""
    waiting = Action.objects.filter(state=ActionState.PROPOSED, finding_id__isnull=False)
    return [int(finding_id or 0) for finding_id in waiting.values_list("finding_id", flat=True)]


def runs_acted_on(*, since: datetime) -> list[int]:
    """Return the runs of which an action or a proposal has ended since a moment, by row."""
    over = Action.objects.filter(ended_at__gte=since, run_id__isnull=False)
    return [int(run_id or 0) for run_id in over.order_by("run_id").values_list("run_id", flat=True).distinct()]


def proposal_settled(*, key: str, kind: str, since: datetime) -> bool:
    """Return whether people turned a proposal of this key and kind down, or had it carried out, since a moment."""
    return Action.objects.filter(proposal_key=key, kind=kind, state__in=SETTLES, ended_at__gte=since).exists()


def proposal_in_hand(*, run_id: int, key: str) -> bool:
    """Return whether what a proposal of this key said is being done at this moment."""
    return Action.objects.filter(run_id=run_id, state__in=OPEN, proposal_key=key).exists()


def orders_due(*, now: datetime, limit: int = 1000) -> list[int]:
    """Return orders that can be handed out, longest due first; checks, and those not heard before, have tasks of their own."""
    due = Order.objects.filter(state=OrderState.WAITING, not_before__lte=now, error="").exclude(kind=OrderKind.CHECK)
    return list(due.order_by("not_before", "pk").values_list("pk", flat=True)[:limit])


def orders_unheard(*, now: datetime, limit: int = 1000) -> list[int]:
    """Return orders to hand out again whose launcher did not answer, or not well, the last time; longest due first."""
    due = Order.objects.filter(state=OrderState.WAITING, not_before__lte=now).exclude(error="")
    due = due.exclude(kind=OrderKind.CHECK).order_by("not_before", "pk")
    return list(due.values_list("pk", flat=True)[:limit])


def checks_due(*, now: datetime, limit: int = 1000) -> list[int]:
    """Return checks to begin or to look at, longest due first."""
    due = Order.objects.filter(state=OrderState.WAITING, not_before__lte=now, kind=OrderKind.CHECK)
    return list(due.order_by("not_before", "pk").values_list("pk", flat=True)[:limit])


def orders_uncertain(*, now: datetime, limit: int = 1000) -> list[int]:
    """Return orders whose outcome has to be read back, longest due first."""
    due = Order.objects.filter(state=OrderState.UNCERTAIN, not_before__lte=now)
    return list(due.order_by("not_before", "pk").values_list("pk", flat=True)[:limit])


def orders_stale(*, now: datetime, after_s: float, limit: int = 1000) -> list[int]:
    """Return orders that somebody took in hand so long ago that they must have died over it, longest first."""
    stale = Order.objects.filter(state=OrderState.CLAIMED, claimed_at__lte=now - timedelta(seconds=after_s))
    return list(stale.order_by("claimed_at", "pk").values_list("pk", flat=True)[:limit])


def orders_held(*, limit: int = 1000) -> list[HeldOrder]:
    """Return orders that some process has in hand, longest first.

    Without Slurm's: what a program of Slurm was told outlives whoever started it, and must have come to its end before
    it is looked at.
    """
    held = Order.objects.filter(state__in=(OrderState.CLAIMED, OrderState.UNCERTAIN)).exclude(holder="")
    held = held.exclude(launcher=LauncherKind.SLURM).order_by("claimed_at", "pk")
    return [HeldOrder(*row) for row in held.values_list("pk", "state", "claim", "holder")[:limit]]


def launches_alive(*, launchers: Sequence[str] = (), practice: bool | None = None) -> list[LaunchRow]:
    """Return launches not yet known to be gone, oldest first; what goes on when Paceline is stopped."""
    found = Launch.objects.filter(state=LaunchState.ALIVE).select_related("run").order_by("pk")
    if launchers:
        found = found.filter(launcher__in=launchers)
    if practice is not None:
        found = found.filter(run__practice=practice)
    return [launch_row(row) for row in found]


def attempts_on_their_own() -> list[AttemptRow]:
    """Return open attempts whose end no launcher of ours will see, oldest first; a webhook's receiver is not looked at.

    Of the others the launcher knows better how they ended, and as long as they live nothing may be started beside them.
    """
    alive = Launch.objects.filter(state=LaunchState.ALIVE).exclude(launcher=LauncherKind.WEBHOOK)
    seen = set(alive.values_list("attempt_id", flat=True))
    return [row for row in attempts_open() if row.id not in seen]


def launches_over(*, since: datetime, before: datetime) -> list[LaunchRow]:
    """Return launches that ended from `since` on and before `before`, oldest first."""
    found = Launch.objects.filter(state=LaunchState.GONE, ended_at__gte=since, ended_at__lt=before)
    return [launch_row(row) for row in found.select_related("run").order_by("pk")]


def launch_of_attempt(attempt_id: int) -> LaunchRow | None:
    """Return what Paceline launched as this attempt, None if somebody else started it."""
    row = Launch.objects.filter(attempt_id=attempt_id).select_related("run").first()
    return None if row is None else launch_row(row)


_IN_HAND = (OrderState.WAITING, OrderState.CLAIMED, OrderState.UNCERTAIN)


def _rows(found: QuerySet[Action]) -> list[ActionRow]:
    rows = list(found.select_related("run", "node"))
    ids = [row.pk for row in rows]
    orders: dict[int, list[Order]] = {}
    for order in Order.objects.filter(action_id__in=ids).order_by("pk"):
        orders.setdefault(order.action_id, []).append(order)
    nodes: dict[int, list[tuple[int, str]]] = {}
    for named in ActionNode.objects.filter(action_id__in=ids).select_related("node").order_by("pk"):
        nodes.setdefault(named.action_id, []).append((named.node_id, named.node.name))
    return [action_row(row, orders=orders.get(row.pk, ()), nodes=nodes.get(row.pk, ())) for row in rows]
