"""Actions that have not begun: waiting for their moment, expiring, being cancelled."""

from datetime import datetime

from apps.common.access import Principal
from apps.common.clock import rfc3339
from apps.journal.services import recording
from apps.remediation.choices import AT_A_SAVE, ActionKind, ActionState, Moment
from apps.remediation.models import Action
from apps.remediation.selectors.actions import action_by_id
from apps.remediation.selectors.preview import EXPIRY
from apps.remediation.selectors.prices import newest_save
from apps.remediation.selectors.rows import ActionRow
from apps.remediation.services.beginning import action_begin
from apps.remediation.services.moving import Scene, action_lock, action_move, action_words, scene_lock
from apps.remediation.services.wishes import may_act
from apps.runs.choices import AttemptState, EndReason
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.telemetry.selectors import door_state


def action_advance(*, action_id: int, now: datetime) -> None:
    """Begin an action whose moment has come; refuse it if the run moved on; leave it waiting otherwise."""
    with recording(now=now) as log:
        scene = scene_lock(action_id)
        action = scene.action
        if action.state != ActionState.REQUESTED or action.orders.exists():
            return
        if action.expires_at <= now:
            action_move(log, action, ActionState.EXPIRED, text=expired_text(action), now=now)
        elif why := _moved_on(scene, now=now):
            action_move(log, action, ActionState.REFUSED, text=why, now=now)
        elif _has_come(scene):
            action_begin(log, action, now=now)


def action_expire(*, action_id: int, now: datetime) -> None:
    """End an action that did not begin in time, or a proposal that nobody took up; anything else stays."""
    with recording(now=now) as log:
        action = action_lock(action_id)
        if action.state in (ActionState.REQUESTED, ActionState.PROPOSED) and action.expires_at <= now:
            action_move(log, action, ActionState.EXPIRED, text=expired_text(action), now=now)


def action_overtaken(*, action_id: int, now: datetime) -> None:
    """Take a proposal back whose run has moved on; anything else stays."""
    with recording(now=now) as log:
        action = action_lock(action_id)
        if action.state != ActionState.PROPOSED or action.run_id is None:
            return
        run = run_by_id(action.run_id)
        if run.attempt_id != action.expected_attempt_id:
            text = f"The proposal to {action_words(action)} is taken back: the run moved on to attempt {run.attempt_number}."
            action_move(log, action, ActionState.EXPIRED, text=text, now=now)


def action_cancel(*, principal: Principal, action_id: int, reason: str, now: datetime) -> ActionRow:
    """Cancel an action for good, as long as nothing of it was handed out; a repeat by anybody changes nothing.

    Raises:
        Forbidden: the caller may not act here. ActionMoved: it is too late; the sentence says how far it is.
    """
    may_act(principal, action_by_id(action_id).cluster_id)
    with recording(now=now) as log:
        action = action_lock(action_id)
        if action.state != ActionState.CANCELLED:
            why = f": {reason.strip()}" if reason.strip() else ""
            text = f"{principal.name} cancelled “{action_words(action)}”; nothing was done{why}"
            action_move(
                log, action, ActionState.CANCELLED, text=text, now=now, by=principal.name, decided_by=principal.name
            )
    return action_by_id(action_id)


def expired_text(action: Action) -> str:
    """Return the sentence with which an action that did not begin ends."""
    if action.state == ActionState.PROPOSED:
        return f"Nobody took up the proposal to {action_words(action)}."
    return f"“{action_words(action)}” did not begin in time; nothing was done."


def _moved_on(scene: Scene, *, now: datetime) -> str:
    """Return why an action can't begin any more, or nothing."""
    action = scene.action
    if action.run_id is None:
        return ""
    run = run_by_id(action.run_id)
    when = action.options.get("when", Moment.NOW)
    if action.kind == ActionKind.EXCLUDE_NODE and when == Moment.RUN_END:
        return ""  # that its attempt is over is what was waited for, whatever began since
    if run.attempt_id != action.expected_attempt_id:
        return f"The run moved on to attempt {run.attempt_number}; nothing was done."
    is_over = run.attempt_state == AttemptState.ENDED
    if is_over and when in AT_A_SAVE:
        return f"Attempt {run.attempt_number} ended before a save came; nothing was done."
    if is_over and action.kind == ActionKind.RESTART_RUN and run.attempt_ended_reason == EndReason.FINISHED:
        return f"{run.slug} finished; there is nothing to restart."
    if is_over and action.kind == ActionKind.RESTART_RUN and run.attempt_id is not None:
        ended_at, door = attempt_by_id(run.attempt_id).ended_at, door_state(now)
        unseen = door.last_beat_at is not None and ended_at is not None and ended_at < door.accepting_since
        if unseen and ended_at is not None and now - ended_at > EXPIRY:
            return (
                f"Attempt {run.attempt_number} ended at {rfc3339(ended_at)}, while Paceline did not look; the restart that "
                "waited for it is off. Look again."
            )
    return ""


def _has_come(scene: Scene) -> bool:
    action = scene.action
    when = action.options.get("when", Moment.NOW)
    if when == Moment.RUN_END and action.expected_attempt_id is not None:
        # Its own end, and not that nothing runs: a job that is requeued has its next attempt within the same moment.
        return attempt_by_id(action.expected_attempt_id).state == AttemptState.ENDED
    if when in AT_A_SAVE and action.expected_attempt_id is not None:
        return newest_save(action.expected_attempt_id) > int(action.options.get("after_step", -1))
    return True
