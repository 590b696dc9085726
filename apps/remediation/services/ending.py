"""Ending an action whose order came to nothing: what it had been given is taken back, what was done before is said."""

from datetime import datetime

from apps.accounts.services import token_revoke
from apps.journal.choices import Source
from apps.journal.services import Log
from apps.remediation.choices import ActionState, OrderKind, OrderState
from apps.remediation.models import Order
from apps.remediation.services.moving import OrderScene, action_move
from apps.runs.choices import AttemptState, Authority, EndReason
from apps.runs.selectors import attempt_by_id
from apps.runs.services import attempt_end, status_update

BY = "Paceline"


def give_up(log: Log, scene: OrderScene, why: str, now: datetime) -> None:
    """End an action whose order came to nothing; say what was done before."""
    action, order = scene.action, scene.order
    launch_unmade(order, by=action.requested_by, now=now)
    was_stopped = Order.objects.filter(action=action, kind=OrderKind.STOP, state=OrderState.DONE).exists()
    put_out = any(step["name"] == "excluded" for step in action.milestones)
    done = [words for words, holds in (("stopped", was_stopped), ("nodes put out", put_out)) if holds]
    text = f"{why} {'Before that: ' + ' and '.join(done) + '.' if done else 'Nothing was done.'}"
    action_move(log, action, ActionState.FAILED if done else ActionState.REFUSED, text=text, now=now)
    is_ours = scene.attempt is None or scene.attempt.pk == order.attempt_id
    if was_stopped and is_ours:  # a run that somebody else started meanwhile was not given up
        status_update(run_id=scene.run.pk, gave_up=True)


def launch_unmade(order: Order, *, by: str, now: datetime) -> None:
    """Take back what a launch that never came to be had been given: its token and its open attempt."""
    if order.kind != OrderKind.LAUNCH:
        return
    if order.token_id is not None:
        token_revoke(token_id=order.token_id, by=BY, source=Source.LAUNCHER, now=now)
    if order.attempt_id is not None and attempt_by_id(order.attempt_id).state == AttemptState.OPEN:
        attempt_end(
            attempt_id=order.attempt_id,
            reason=EndReason.CANCELLED,
            authority=Authority.ORDER,
            by=by,
            source=Source.LAUNCHER,
            now=now,
        )
