"""What people decide about actions that are there: accept or dismiss a proposal, settle what is uncertain."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from apps.common.access import Principal
from apps.common.clock import rfc3339
from apps.common.errors import BadRequest, Conflict
from apps.common.ids import id_write
from apps.fleet.selectors import node_by_id
from apps.journal.services import Log, recording
from apps.remediation.choices import (
    LEDGER,
    OF_NODES,
    OPENED_FIRST,
    ActionKind,
    ActionState,
    Moment,
    OrderKind,
    OrderState,
)
from apps.remediation.models import Action, ActionNode, Order
from apps.remediation.selectors.actions import action_by_id, action_holding
from apps.remediation.selectors.commands import names_short
from apps.remediation.selectors.rows import ActionRow, Outcome, launch_is_last
from apps.remediation.services.beginning import action_begin
from apps.remediation.services.ending import launch_unmade
from apps.remediation.services.moving import (
    ActionMoved,
    OrderScene,
    Scene,
    action_lock,
    action_move,
    action_words,
    scene_lock,
)
from apps.remediation.services.proposing import just_blind
from apps.remediation.services.settling import launched, stopped
from apps.remediation.services.wishes import (
    Wish,
    check_moment,
    may_act,
    open_already,
    options_read,
    wish_checked,
    wish_fields,
)
from apps.runs.selectors import run_by_id
from apps.runs.services import StateChanged
from apps.telemetry.selectors import door_state


class NotHeardYet(Conflict):
    """Paceline has only just begun to hear again: what stood before may not be so any more."""

    code = "not_heard_yet"
    retryable = True


SETTLED = (ActionState.SUCCEEDED, ActionState.FAILED)


def action_accept(
    *,
    principal: Principal,
    action_id: int,
    source: str,
    now: datetime,
    reason: str = "",
    expected_state: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ActionRow:
    """Take up a proposal: everything is checked again, then it is an action like any other, in the accepter's name.

    Raises:
        ActionMoved: it is no proposal any more. StateChanged: it was about another attempt, whatever the caller saw.
        BadRequest: nodes are named that it is not about.
        Everything that `action_request` raises.
    """
    known = action_by_id(action_id)
    may_act(principal, known.cluster_id)
    with recording(now=now) as log:
        action = scene_lock(action_id).action
        if action.state != ActionState.PROPOSED:
            raise ActionMoved(f"This is no proposal any more; it is {action.state.lower()}.", state=action.state)
        if action.expires_at <= now:
            raise ActionMoved("This proposal expired; nothing was done. Look again.", state=ActionState.EXPIRED)
        wish = _wish_of(action, reason=reason, expected=expected_state, options=options)
        _check_about(action, wish)
        check_moment(wish, now=now)
        _check_heard(action, wish, now=now)
        preview = wish_checked(wish, now=now)
        if not preview.can:
            raise ActionMoved(preview.why_not, state=action.state)
        fields = wish_fields(wish, preview, now=now)
        text = f"{principal.name} took up the proposal to {action_words(action)}: {wish.reason}"
        try:
            # A savepoint: the constraints decide against whoever asked for something in between.
            with transaction.atomic():
                action_move(
                    log,
                    action,
                    ActionState.REQUESTED,
                    text=text,
                    now=now,
                    kind="action.accepted",
                    by=principal.name,
                    requested_by=principal.name,
                    requested_by_key=principal.key,
                    requested_at=now,
                    decided_by=principal.name,
                    source=source,
                    **fields,
                )
        except IntegrityError as error:
            winner = action_holding(run_id=known.run_id, node_ids=[node_id for node_id, _ in known.nodes])
            if winner is None:
                raise
            raise open_already(winner) from error
        if wish.options.when == Moment.NOW:
            action_begin(log, action, now=now)
    return action_by_id(action_id)


def action_dismiss(*, principal: Principal, action_id: int, reason: str, now: datetime) -> ActionRow:
    """Turn a proposal down, with the reason; a repeat changes nothing. The same is not proposed again for what was found
    until now; the finding stays open and goes on telling.

    Raises:
        BadRequest: no reason. ActionMoved: it is no proposal any more.
    """
    may_act(principal, action_by_id(action_id).cluster_id)
    if len(reason.strip()) < 3:
        raise BadRequest("reason: say why in a few words; it goes into the timeline.")
    with recording(now=now) as log:
        action = action_lock(action_id)
        if action.state != ActionState.DISMISSED:
            text = f"{principal.name} dismissed the proposal to {action_words(action)}: {reason.strip()}"
            action_move(
                log, action, ActionState.DISMISSED, text=text, now=now, by=principal.name, decided_by=principal.name
            )
    return action_by_id(action_id)


def action_settle(*, principal: Principal, action_id: int, outcome: str, reason: str, now: datetime) -> ActionRow:
    """Clear what is uncertain by what a person saw, or stop waiting for a start that says nothing (a job in a long queue).

    SUCCEEDED: the order in doubt was carried out, and what follows follows: a restart that was stopped goes on to its start,
    one whose receiver was in doubt has its new attempt and is watched until that reports. A process or a job that only a
    person saw ends the action: nobody knows which one it is, so it is not watched, and a node that it was started without
    and that the scheduler was not told of stands in the list of differences. FAILED: it was not.
    A start that was carried out is in no doubt: SUCCEEDED ends the wait for its first report, so that the run can be acted
    on again; what was started goes on.

    Raises:
        BadRequest: no such outcome, or too short a reason. ActionMoved: no order of it is in doubt, or not any more.
    """
    may_act(principal, action_by_id(action_id).cluster_id)
    if outcome not in SETTLED:
        raise BadRequest(f"outcome: must be one of {', '.join(SETTLED)}.")
    if len(reason.strip()) < 10:
        raise BadRequest("reason: say what you saw, in at least 10 characters.")
    with recording(now=now) as log:
        scene = scene_lock(action_id)
        action = scene.action
        order = Order.objects.filter(action=action, state=OrderState.UNCERTAIN).first()
        more: dict[str, Any] = {"kind": "action.settled", "by": principal.name, "decided_by": principal.name}
        orders = action.orders.order_by("pk")
        if outcome == ActionState.SUCCEEDED and action.state == ActionState.RUNNING and launch_is_last(orders):
            text = f"{principal.name} waits no longer for its first report: {reason.strip()}"
            action_move(log, action, outcome, text=text, now=now, **more)
            return action_by_id(action_id)
        if action.state != ActionState.UNCERTAIN or order is None:
            raise ActionMoved(_why_certain(action), state=action.state)
        text = f"{principal.name} says it {'was' if outcome == ActionState.SUCCEEDED else 'was not'} carried out: "
        _settle(log, scene, order, outcome, text + reason.strip(), more, by=principal.name, now=now)
    return action_by_id(action_id)


def _why_certain(action: Action) -> str:
    """Return the sentence that says why there is nothing to be settled."""
    last = Order.objects.filter(action=action).exclude(kind__in=OF_NODES).order_by("-pk").first()
    by = last.receipt.get("settled_by") if last is not None else None
    if last is not None and by:
        was = "was" if last.state == OrderState.DONE else "was not"
        state = ActionState(action.state).label
        return f"{by} has said already that it {was} carried out, and that stands; the action is {state}."
    if action.state == ActionState.RUNNING and launch_is_last(action.orders.order_by("pk")):
        return "Nothing about it is in doubt: the start was carried out, and is watched until it reports."
    return f"There is nothing uncertain about it; it is {ActionState(action.state).label}."


def _settle(
    log: Log, scene: Scene, order: Order, outcome: str, text: str, more: dict[str, Any], *, by: str, now: datetime
) -> None:
    action = scene.action
    done = outcome == ActionState.SUCCEEDED
    order.state, order.settled_at = OrderState.DONE if done else OrderState.FAILED, now
    order.receipt, order.error = {**order.receipt, "settled_by": by}, "" if done else text
    order.save()
    if not done:
        launch_unmade(order, by=by, now=now)
    opens = order.kind == OrderKind.LAUNCH and order.launcher not in OPENED_FIRST
    if done and (opens or order.kind == OrderKind.STOP):
        action_move(log, action, ActionState.RUNNING, text=text, now=now, **more)
        if opens:
            assert action.run is not None
            whole = OrderScene(order=order, action=action, run=action.run, attempt=scene.attempt)
            launched(whole, Outcome("DONE", f"started, as {by} saw"), now=now)
        else:
            stopped(log, action, order, now=now)
        return
    action_move(log, action, outcome, text=text, now=now, **more)


def _check_about(action: Action, wish: Wish) -> None:
    """Refuse what was proposed for an attempt that is not the run's newest any more: another one is another matter."""
    if wish.run is None or wish.run.attempt_id == action.expected_attempt_id:
        return
    number = wish.run.attempt_number
    raise StateChanged(
        f"The run moved on{f' to attempt {number}' if number is not None else ''} since this was proposed; "
        "nothing was done. Look again.",
        attempt=id_write("att", wish.run.attempt_id) if wish.run.attempt_id is not None else None,
        state=wish.run.state,
    )


def _check_heard(action: Action, wish: Wish, *, now: datetime) -> None:
    """Refuse what was proposed before Paceline heard nothing for a while, as long as what was missed is on its way."""
    if wish.run is None or not just_blind(wish.run, now=now):
        return
    since = door_state(now).accepting_since
    if action.requested_at < since:
        raise NotHeardYet(
            "This was proposed before Paceline heard nothing for a while; what has happened meanwhile is being taken in. "
            "Nothing was done; look again in some seconds.",
            accepting_since=rfc3339(since),
        )


def _wish_of(
    action: Action, *, reason: str, expected: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> Wish:
    words = " ".join(reason.split())
    if words and len(words) < 10:
        raise BadRequest("reason: at least 10 characters, or none to keep the proposal's own.")
    chosen = options_read({**action.options, **{k: v for k, v in (options or {}).items() if v not in (None, "", [])}})
    named = list(ActionNode.objects.filter(action=action).values_list("node__name", flat=True))
    # Of what the caller says: the proposal's own names may be older than a node's present one.
    if others := [name for name in (options or {}).get("exclude_nodes") or () if name not in named]:
        raise BadRequest(
            f"options.exclude_nodes: this proposal does not name {names_short(others)}; ask for an action of your own."
        )
    if action.kind == ActionKind.RESTART_RUN and named:
        chosen = options_read({**chosen.stored(), "confirm": chosen.confirm, "exclude_nodes": named})
    return Wish(
        kind=action.kind,
        run=run_by_id(action.run_id) if action.run_id is not None else None,
        node=node_by_id(action.node_id) if action.node_id is not None and action.kind in LEDGER else None,
        reason=words or action.reason,
        options=chosen,
        expected=expected,
        expires_at=None,
        finding_id=action.finding_id,
        incident_id=action.incident_id,
    )
