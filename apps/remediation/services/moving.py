"""The one way in which an action changes its state, and the locks under which that is done."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apps.common.errors import Conflict, NotFound
from apps.fleet.models import Cluster, NodeStatus
from apps.fleet.services import node_event
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log
from apps.remediation.choices import LEDGER, OPEN, TRANSITIONS, ActionKind, ActionState, Moment, OrderState
from apps.remediation.models import Action, ActionNode, Order
from apps.runs.choices import AttemptState
from apps.runs.models import Attempt, Run
from apps.runs.services import status_update


class ActionMoved(Conflict):
    """The action is in a state from which this cannot be done."""

    code = "action_state"


@dataclass(frozen=True, slots=True)
class Scene:
    """An action, locked together with what it acts on; `attempt` is the run's open one."""

    action: Action
    attempt: Attempt | None


@dataclass(frozen=True, slots=True)
class OrderScene:
    """An order with its action, locked together with what they act on; only runs have orders."""

    order: Order
    action: Action
    run: Run
    attempt: Attempt | None


def order_scene_lock(order: Order) -> OrderScene:
    """Lock an order with its action and all that they act on; read it anew."""
    scene = scene_lock(order.action_id)
    assert scene.action.run is not None
    fresh = Order.objects.select_for_update(no_key=True).get(pk=order.pk)
    return OrderScene(order=fresh, action=scene.action, run=scene.action.run, attempt=scene.attempt)


def scene_lock(action_id: int) -> Scene:
    """Lock an action and all that it acts on, in the order that holds everywhere: attempt, run, cluster, nodes, action.

    Closes these races: two workers with one order; a cancel against a late worker; a stop against a new attempt; two
    actions that each find the guards of one cluster open.

    Raises:
        NotFound: there is no such action.
    """
    known = Action.objects.filter(pk=action_id).select_related("run", "node").first()
    if known is None:
        raise NotFound("There is no such action.")
    attempt = None
    if known.run_id is not None:
        opened = Attempt.objects.filter(run_id=known.run_id, state=AttemptState.OPEN).order_by("pk")
        opened.select_for_update(no_key=True).first()
        Run.objects.select_for_update(no_key=True).get(pk=known.run_id)
        attempt = opened.first()  # read again: attempts are opened under the run's lock, which is held only now
    node_ids = list(ActionNode.objects.filter(action_id=action_id).values_list("node_id", flat=True))
    if node_ids:
        cluster_id = known.run.cluster_id if known.run is not None else known.node.cluster_id  # type: ignore[union-attr]
        Cluster.objects.select_for_update(no_key=True).get(pk=cluster_id)
        list(NodeStatus.objects.select_for_update(no_key=True).filter(pk__in=node_ids).order_by("pk"))
    return Scene(action=action_lock(action_id), attempt=attempt)


def action_lock(action_id: int) -> Action:
    """Lock an action alone: whoever decides about it is one after the other.

    Raises:
        NotFound: there is no such action.
    """
    rows = Action.objects.select_for_update(no_key=True, of=("self",)).select_related("run", "node")
    action = rows.filter(pk=action_id).first()
    if action is None:
        raise NotFound("There is no such action.")
    return action


def action_move(
    log: Log, action: Action, to: str, *, text: str, now: datetime, kind: str = "", by: str = "", **fields: Any
) -> None:
    """Bring an action into another state, with everything that follows from it, and say so in the log.

    `kind` defaults to `action.STATE`; `by` to Paceline. The caller holds the action's lock or has just made it.

    Raises:
        ActionMoved: this state does not follow from the one it is in, or somebody else was faster.
    """
    if to not in TRANSITIONS[action.state]:
        words = f"This action is {ActionState(action.state).label}; it cannot become {ActionState(to).label}."
        raise ActionMoved(words, state=action.state)
    is_over = not TRANSITIONS[to]
    fields |= {"state": to, "milestones": [*action.milestones, milestone(to.lower(), now, text)]}
    if is_over:
        fields |= {"ended_at": now, "outcome": fields.get("outcome", text)}
    if not Action.objects.filter(pk=action.pk, state=action.state).update(**fields):
        raise ActionMoved("Somebody else was faster; look again.", state=action.state)
    for name, value in fields.items():
        setattr(action, name, value)
    ActionNode.objects.filter(action=action).exclude(holds=to in OPEN).update(holds=to in OPEN)
    if is_over:
        waiting = Order.objects.filter(action=action, state__in=(OrderState.WAITING, OrderState.UNCERTAIN))
        waiting.update(state=OrderState.CANCELLED, settled_at=now)
    status_sync(action)
    action_log(log, action, kind=kind or f"action.{to.lower()}", text=text, by=by)


def milestone_add(action: Action, name: str, *, text: str, now: datetime) -> None:
    """Add a row to the stepper without a change of state."""
    action.milestones = [*action.milestones, milestone(name, now, text)]
    Action.objects.filter(pk=action.pk).update(milestones=action.milestones)


def milestone(name: str, now: datetime, text: str) -> dict[str, str]:
    """Return a stepper's row as it is kept."""
    return {"name": name, "at": now.isoformat(), "text": text}


def status_sync(action: Action) -> None:
    """Push down to the run's status which action holds it. A restart at the attempt's own end restarts nothing yet.

    What begins and ends within one transaction never held the run for anybody to see.
    """
    when = action.options.get("when", Moment.NOW)
    if action.run_id is None or (action.kind in LEDGER and when == Moment.NOW):
        return
    if action.state not in OPEN:
        status_update(run_id=action.run_id, **_held_by_none(action))
        return
    waits = action.state == ActionState.REQUESTED and when == Moment.RUN_END
    status_update(run_id=action.run_id, open_action_id=action.pk, open_action_kind="" if waits else str(action.kind))


def _held_by_none(action: Action) -> dict[str, Any]:
    held = Action.objects.filter(run=action.run, state__in=OPEN).exclude(pk=action.pk).exists()
    return {} if held else {"open_action_id": None, "open_action_kind": "", "stopping_as": ""}


def action_log(log: Log, action: Action, *, kind: str, text: str, by: str = "", **payload: Any) -> None:
    """Write an event of an action into the log of its run, or of its node where there is no run."""
    why = {"finding": action.finding_id, "about_incident": action.incident_id}
    more: dict[str, Any] = {
        "actor_name": by,
        "subject": action_subject(action),
        "payload": {
            "action": action.pk,
            "action_kind": str(action.kind),
            "state": str(action.state),
            **{name: value for name, value in why.items() if value is not None},
            **payload,
        },
    }
    source = action.source if by else Source.SYSTEM
    if action.run_id is not None:
        log.add(StreamKey.run(action.run_id), kind=kind, text=text, source=source, **more)
    elif action.node_id is not None:
        node_event(log, node_id=action.node_id, kind=kind, text=text, source=source, **more)


def action_subject(action: Action) -> dict[str, Any]:
    """Return what an action is about, as the log names subjects."""
    if action.node is not None:
        return {"kind": "NODE", "node": action.node.name}
    return {"kind": "RUN", "run": action.run.slug if action.run is not None else None}


BEFORE_THE_FIRST = frozenset({"QUEUED", "FINISHED"})
"""States of a run that is started, not started again: it never ran, or it had come to its end."""


def action_words(action: Action) -> str:
    """Return an action in a few words.

    >>> action_words(Action(kind="RESTART_RUN"))
    'restart run'
    """
    words = ActionKind(action.kind).label
    if action.kind == ActionKind.RESTART_RUN and action.expected_state in BEFORE_THE_FIRST:
        words = "start run"
    if action.kind in (ActionKind.EXCLUDE_NODE, ActionKind.READMIT_NODE, ActionKind.CHECK_NODE) and action.node:
        return f"{words.partition(' ')[0]} {action.node.name}"
    return words.replace("run", action.run.slug) if action.run is not None else words


def nodes_name(action: Action, node_ids: Collection[int], *, holds: bool) -> None:
    """Note which nodes an action names; `holds` while it is open."""
    wanted = sorted(set(node_ids))
    ActionNode.objects.bulk_create([ActionNode(action=action, node_id=node_id, holds=holds) for node_id in wanted])
