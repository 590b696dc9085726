"""What people decide about actions that are there: accept or dismiss a proposal, settle what is uncertain."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from apps.common.access import Principal
from apps.common.errors import BadRequest
from apps.fleet.selectors import node_by_id
from apps.journal.services import Log, recording
from apps.remediation.choices import LEDGER, ActionKind, ActionState, Moment, OrderKind, OrderState
from apps.remediation.models import Action, ActionNode, Order
from apps.remediation.selectors.actions import action_by_id, action_holding
from apps.remediation.selectors.rows import ActionRow
from apps.remediation.services.beginning import action_begin
from apps.remediation.services.ending import launch_unmade
from apps.remediation.services.moving import ActionMoved, Scene, action_lock, action_move, action_words, scene_lock
from apps.remediation.services.settling import stopped
from apps.remediation.services.watching import launch_is_last
from apps.remediation.services.wishes import Wish, may_act, open_already, options_read, wish_checked, wish_fields
from apps.runs.selectors import run_by_id

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
        ActionMoved: it is no proposal any more. Everything that `action_request` raises.
    """
    known = action_by_id(action_id)
    may_act(principal, known.cluster_id)
    with recording(now=now) as log:
        action = scene_lock(action_id).action
        if action.state != ActionState.PROPOSED:
            raise ActionMoved(f"This is no proposal any more; it is {action.state.lower()}.", state=action.state)
        wish = _wish_of(action, reason=reason, expected=expected_state, options=options)
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
        if wish.options.when == Moment.NOW or action.kind in LEDGER:
            action_begin(log, action, now=now)
    return action_by_id(action_id)


def action_dismiss(*, principal: Principal, action_id: int, reason: str, now: datetime) -> ActionRow:
    """Turn a proposal down, with the reason; a repeat changes nothing.

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
    """Clear what is uncertain by what a person saw, or stop watching a start that says nothing.

    SUCCEEDED: the order in doubt was carried out (a restart that was stopped goes on to its start). FAILED: it was not.

    Raises:
        BadRequest: no such outcome, or too short a reason. ActionMoved: there is nothing to be settled.
    """
    may_act(principal, action_by_id(action_id).cluster_id)
    if outcome not in SETTLED:
        raise BadRequest(f"outcome: must be one of {', '.join(SETTLED)}.")
    if len(reason.strip()) < 10:
        raise BadRequest("reason: say what you saw, in at least 10 characters.")
    with recording(now=now) as log:
        scene = scene_lock(action_id)
        action = scene.action
        watched = action.state == ActionState.RUNNING and launch_is_last(action)
        if action.state != ActionState.UNCERTAIN and not watched:
            raise ActionMoved(f"There is nothing uncertain about it; it is {action.state.lower()}.", state=action.state)
        text = f"{principal.name} says it {'was' if outcome == ActionState.SUCCEEDED else 'was not'} carried out: "
        _settle(log, scene, outcome, text + reason.strip(), principal=principal, now=now)
    return action_by_id(action_id)


def _settle(log: Log, scene: Scene, outcome: str, text: str, *, principal: Principal, now: datetime) -> None:
    action = scene.action
    more: dict[str, Any] = {"kind": "action.settled", "by": principal.name, "decided_by": principal.name}
    order = Order.objects.filter(action=action, state=OrderState.UNCERTAIN).first()
    if order is None:
        action_move(log, action, outcome, text=text, now=now, **more)
        return
    done = outcome == ActionState.SUCCEEDED
    order.state, order.settled_at = OrderState.DONE if done else OrderState.FAILED, now
    order.receipt, order.error = {**order.receipt, "settled_by": principal.name}, "" if done else text
    order.save()
    if not done:
        launch_unmade(order, by=principal.name, now=now)
    if done and order.kind == OrderKind.STOP:
        action_move(log, action, ActionState.RUNNING, text=text, now=now, **more)
        stopped(log, action, order, now=now)
        return
    action_move(log, action, outcome, text=text, now=now, **more)


def _wish_of(
    action: Action, *, reason: str, expected: Mapping[str, Any] | None, options: Mapping[str, Any] | None
) -> Wish:
    words = " ".join(reason.split())
    if words and len(words) < 10:
        raise BadRequest("reason: at least 10 characters, or none to keep the proposal's own.")
    chosen = options_read({**action.options, **{k: v for k, v in (options or {}).items() if v not in (None, "", [])}})
    named = list(ActionNode.objects.filter(action=action).values_list("node__name", flat=True))
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
