"""Beginning an action: the ledger at once, anything else by a first order to the run's launcher."""

from datetime import datetime

from apps.common.errors import Conflict
from apps.common.tasks import queue_on_commit
from apps.fleet.choices import AtUntil, ExclusionOrigin
from apps.fleet.models import Exclusion, NodeStatus
from apps.fleet.selectors import node_by_id
from apps.fleet.services import exclusion_end, exclusion_open
from apps.incidents.services import incidents_mitigated_by
from apps.journal.services import Log
from apps.remediation.choices import LEDGER, ActionKind, ActionState, Decision, OrderKind
from apps.remediation.models import Action, ActionNode, Order
from apps.remediation.selectors.checks import check_guard, check_of
from apps.remediation.selectors.guards import GuardRow, guards_of_exclusion
from apps.remediation.selectors.pool import pool_of
from apps.remediation.selectors.stops import stops_first
from apps.remediation.services.checking import check_note, check_order_create
from apps.remediation.services.moving import action_move, milestone_add, scene_lock
from apps.remediation.services.node_orders import node_order_create
from apps.runs.launcher import launcher_usable
from apps.runs.selectors import run_by_id


def action_begin(log: Log, action: Action, *, now: datetime) -> None:
    """Begin an action that was asked for and whose moment has come."""
    if action.kind in LEDGER:
        _ledger(log, action, now=now)
        return
    if action.kind == ActionKind.CHECK_NODE:
        assert action.node is not None
        if (how := check_of(action.node.cluster_id)) is None:
            action_move(log, action, ActionState.REFUSED, text="No check is set here any more.", now=now)
        else:
            check_order_create(action, how, now=now)
        return
    assert action.run is not None
    run = run_by_id(action.run.pk)
    setting = launcher_usable(run.launcher)
    if setting is None:
        action_move(log, action, ActionState.REFUSED, text="The run has no launcher any more.", now=now)
        return
    stops = stops_first(action.kind, run, setting, requeued=action.options.get("requeued", ""))
    kind = OrderKind.STOP if stops else OrderKind.LAUNCH
    order_create(action, kind=kind, launcher=setting.kind, attempt_id=run.attempt_id if stops else None, now=now)


def order_create(action: Action, *, kind: str, launcher: str, attempt_id: int | None, now: datetime) -> Order:
    """Make an order; a worker takes it in hand as soon as this transaction is committed."""
    order = Order.objects.create(action=action, kind=kind, launcher=launcher, attempt_id=attempt_id, not_before=now)
    queue_on_commit("remediation.order_run", order_id=order.pk)
    return order


def guard_closed(action: Action, *, now: datetime) -> GuardRow | None:
    """Return the guard that forbids what this action would put out or take back now, None if it may."""
    if action.options.get("decision") == Decision.TAKE:
        return None  # the node stays out, as the site's
    if action.kind == ActionKind.READMIT_NODE and action.node_id is not None:
        asked = check_guard(node_by_id(action.node_id), now=now)
        return asked if asked is not None and not asked.holds else None
    if action.kind not in (ActionKind.EXCLUDE_NODE, ActionKind.RESTART_RUN):
        return None
    run = run_by_id(action.run_id) if action.run_id is not None else None
    cluster_id = run.cluster_id if run is not None else action.node.cluster_id  # type: ignore[union-attr]
    pool = pool_of(cluster_id)
    guards, _ = guards_of_exclusion(cluster_id=cluster_id, run=run, adding=_nodes(action), pool=pool, now=now)
    return next((guard for guard in guards if not guard.holds), None)


def nodes_exclude(action: Action, *, now: datetime) -> list[int]:
    """Put the nodes that an action names out of service; return those that we did not keep out before."""
    lines = Exclusion.objects.filter(node_id__in=_nodes(action), ended_at=None, origin=ExclusionOrigin.OURS)
    free = NodeStatus.objects.filter(pk__in=_nodes(action)).exclude(pk__in=lines.values("node_id")).order_by("pk")
    new = list(free.values_list("pk", flat=True))
    until = action.options.get("until_at")
    for node_id in new:
        exclusion_open(
            node_id=node_id,
            reason=action.reason,
            by_name=action.requested_by,
            origin=ExclusionOrigin.OURS,
            source=action.source,
            now=now,
            action_id=action.pk,
            incident_id=action.incident_id,
            until_at=datetime.fromisoformat(until) if until else None,
            at_until=action.options.get("at_until") or AtUntil.END,
        )
    return new


def ledger_by_hand(action: Action, *, done: str, by: str, now: datetime) -> None:
    """Follow in the ledger what somebody did by hand; what stands there already stays as it is."""
    if done == ActionKind.EXCLUDE_NODE:
        nodes_exclude(action, now=now)
    elif done == ActionKind.CHECK_NODE and action.node_id is not None:
        passed = action.options.get("passed") is True
        check_note(action, passed=passed, text=f"by hand: {action.reason}", by=by, source=action.source, now=now)
    elif done == ActionKind.READMIT_NODE and action.node_id is not None:
        exclusion_end(node_id=action.node_id, reason=action.reason, by_name=by, source=action.source, now=now)


def _nodes(action: Action) -> list[int]:
    return list(ActionNode.objects.filter(action=action).order_by("node_id").values_list("node_id", flat=True))


def _ledger(log: Log, action: Action, *, now: datetime) -> None:
    scene_lock(action.pk)
    if guard := guard_closed(action, now=now):
        action_move(log, action, ActionState.REFUSED, text=f"Not done: {guard.text}.", now=now)
        return
    text, changed = _ledger_written(action, now=now)
    by = action.requested_by
    action_move(log, action, ActionState.RUNNING, text=f"{by} has it written into the ledger", now=now, began_at=now)
    told = OrderKind.DRAIN if action.kind == ActionKind.EXCLUDE_NODE else OrderKind.RESUME
    changed = changed and action.options.get("decision") != Decision.TAKE
    if changed and node_order_create(action, kind=told, now=now):
        milestone_add(action, "ledger", text=text, now=now)  # it is over when the scheduler was told
        return
    action_move(log, action, ActionState.SUCCEEDED, text=text, now=now, by=by)


def _ledger_written(action: Action, *, now: datetime) -> tuple[str, bool]:
    """Do in the ledger what an action asks for; return how that is said, and whether anything changed."""
    nodes, by = _nodes(action), action.requested_by
    names = action.node.name if action.node is not None else ""
    decision = action.options.get("decision")
    if decision == Decision.DRAIN:
        return f"{names} is out as before, the first reason is kept; the scheduler is told again.", True
    if decision == Decision.LIFT:
        return f"{names} is in service as before; the scheduler is told again.", True
    if action.kind == ActionKind.EXCLUDE_NODE:
        changed = bool(nodes_exclude(action, now=now))
        # Before the run's status, which is written last (see run_lock).
        incidents_mitigated_by(
            run_id=action.run_id, node_ids=nodes, whole_run=False, reason=f"{names} is out", by=by, now=now
        )
        return _excluded_text(action, names, was_out=not changed), changed
    stays_out = decision == Decision.TAKE
    ended = [
        exclusion_end(
            node_id=node_id, reason=action.reason, by_name=by, source=action.source, now=now, repaired=not stays_out
        )
        for node_id in nodes
    ]
    if not any(ended):
        raise Conflict(f"{names} is in service already.")
    return f"{names} is back in service; it can be used from the next start on.", True


def _excluded_text(action: Action, names: str, *, was_out: bool) -> str:
    if was_out:
        return f"{names} was out already; the first reason is kept."
    busy = NodeStatus.objects.filter(pk__in=_nodes(action)).exclude(open_runs=[]).exists()
    tail = "what runs there goes on, it counts from the next start" if busy else "it counts from the next start"
    return f"{names} is out of service; {tail}."
