"""Asking for an action."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from apps.common.access import Principal
from apps.fleet.selectors import node_by_id
from apps.journal.services import Log, recording
from apps.remediation.choices import ActionKind, ActionState, Moment
from apps.remediation.models import Action
from apps.remediation.selectors.actions import action_by_id, action_holding
from apps.remediation.selectors.preview import Preview
from apps.remediation.selectors.rows import ActionRow
from apps.remediation.services.beginning import action_begin, ledger_by_hand
from apps.remediation.services.moving import action_log, action_words, milestone, nodes_name, status_sync
from apps.remediation.services.wishes import Wish, open_already, options_read, wish_checked, wish_fields, wish_read
from apps.runs.selectors import run_by_id


def action_request(
    *,
    principal: Principal,
    kind: str,
    reason: str,
    source: str,
    now: datetime,
    run_id: int | None = None,
    node_id: int | None = None,
    expected_state: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
    finding_id: int | None = None,
    incident_id: int | None = None,
) -> ActionRow:
    """Ask for an action and begin it where it need not wait; return it.

    What no launcher here can do becomes an action in state REFUSED that says why. `expected_state` is what the caller
    saw: `{attempt: row or None, state, from_step}`; without it, or a part of it, what is so now is taken as seen.
    `from_step` is the step that a restart would have gone on from; it counts only where `options` choose none.

    Raises:
        Forbidden: the caller may not act here. BadRequest: something is missing or makes no sense.
        StateChanged: the run moved on. ActionOpen: an open action is in the way. NodeStateDiffers: it is so already.
        CheckpointMoved: a newer save completed. GuardClosed, ConfirmationNeeded, NotOurs: it must not be done like this.
    """
    wish = wish_read(
        principal,
        Wish(
            kind=kind,
            run=run_by_id(run_id) if run_id is not None else None,
            node=node_by_id(node_id) if node_id is not None else None,
            reason=" ".join(reason.split()),
            options=options_read(options or {}),
            expected=expected_state,
            expires_at=expires_at,
            finding_id=finding_id,
            incident_id=incident_id,
        ),
        now=now,
    )
    with recording(now=now) as log:
        preview = wish_checked(wish, now=now)
        if kind == ActionKind.RECORD_DONE:
            return _recorded(log, principal, wish, preview, source=source, now=now)
        if not preview.can:
            return _refused(log, principal, wish, preview, source=source, now=now)
        action = _create(principal, wish, preview, source=source, now=now)
        action_log(log, action, kind="action.requested", text=_requested_text(action), by=principal.name)
        status_sync(action)
        if wish.options.when == Moment.NOW:
            action_begin(log, action, now=now)
        return action_by_id(action.pk)


def _create(
    principal: Principal,
    wish: Wish,
    preview: Preview,
    *,
    source: str,
    now: datetime,
    state: str = ActionState.REQUESTED,
) -> Action:
    action = Action(
        kind=wish.kind,
        state=state,
        run_id=wish.run.id if wish.run else None,
        node_id=wish.node.id if wish.node else None,
        requested_by=principal.name[:150],
        requested_by_key=principal.key,
        source=source,
        requested_at=now,
        **wish_fields(wish, preview, now=now),
    )
    action.milestones = [milestone(state.lower(), now, f"asked by {principal.name}")]
    holds = state == ActionState.REQUESTED
    node_ids = [row.id for row in preview.exclude]
    try:
        # A savepoint: the constraints decide between two who ask at once, and the loser is told who won.
        with transaction.atomic():
            action.save()
            nodes_name(action, node_ids, holds=holds)
    except IntegrityError as error:
        winner = action_holding(run_id=action.run_id, node_ids=node_ids)
        if winner is None:
            raise
        raise open_already(winner) from error
    return action


def _refused(log: Log, principal: Principal, wish: Wish, preview: Preview, *, source: str, now: datetime) -> ActionRow:
    action = _create(principal, wish, preview, source=source, now=now, state=ActionState.REFUSED)
    Action.objects.filter(pk=action.pk).update(outcome=preview.why_not, ended_at=now)
    text = f"{principal.name} asked to {action_words(action)}; refused: {preview.why_not}"
    action_log(log, action, kind="action.refused", text=text, by=principal.name, reason=wish.reason)
    return action_by_id(action.pk)


def _recorded(log: Log, principal: Principal, wish: Wish, preview: Preview, *, source: str, now: datetime) -> ActionRow:
    action = _create(principal, wish, preview, source=source, now=now, state=ActionState.SUCCEEDED)
    done = ActionKind(wish.options.done or ActionKind.RECORD_DONE)
    what = "did it by hand" if done == ActionKind.RECORD_DONE else f"did by hand: {done.label}"
    text = f"{principal.name} {what}. {wish.reason}"
    Action.objects.filter(pk=action.pk).update(outcome=text, began_at=now, ended_at=now)
    action_log(log, action, kind="action.succeeded", text=text, by=principal.name, command=wish.options.command)
    ledger_by_hand(action, done=done, by=principal.name, now=now)
    return action_by_id(action.pk)


def _requested_text(action: Action) -> str:
    when = Moment(action.options.get("when", Moment.NOW))
    moment = "" if when == Moment.NOW else f", {when.label}"
    nodes = action.options.get("exclude_nodes") or ()
    without = f" without {', '.join(nodes)}" if nodes else ""
    return f"{action.requested_by} asked to {action_words(action)}{without}{moment}: {action.reason}"
