"""Handing orders to launchers, in two transactions with the launcher's own work between them and none open meanwhile.

`order_claim` is the point of no return: what was seen is checked again, the ledger is written, and the order is in one
worker's hands. `order_settle` takes in what came of it and makes the next order.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from apps.accounts.services import token_create, token_revoke
from apps.common.access import REPORT
from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.journal.choices import Source
from apps.journal.services import Log, recording
from apps.remediation.choices import (
    OF_NODES,
    OPENED_FIRST,
    ActionKind,
    ActionState,
    LauncherKind,
    OrderKind,
    OrderState,
    Requeued,
)
from apps.remediation.models import Action, Order
from apps.remediation.selectors.actions import launch_of_attempt
from apps.remediation.selectors.jobs import put_by_us
from apps.remediation.selectors.pool import PoolNode, exclude_names, pool_of
from apps.remediation.selectors.preview import EXPIRY
from apps.remediation.selectors.prices import choice_needed, choice_words, resume_step_default
from apps.remediation.selectors.rows import OrderInHand, order_key
from apps.remediation.selectors.schedulers import job_known, job_named, scheduler_of
from apps.remediation.selectors.slurm import submits
from apps.remediation.selectors.stops import launch_beside
from apps.remediation.services.beginning import guard_closed, nodes_exclude
from apps.remediation.services.checking import check_in_hand, check_order_claim
from apps.remediation.services.ending import BY, give_up
from apps.remediation.services.moving import (
    OrderScene,
    action_log,
    action_move,
    action_words,
    milestone_add,
    order_scene_lock,
    scene_lock,
)
from apps.remediation.services.node_orders import node_order_claim, node_order_in_hand
from apps.remediation.services.proposing import just_blind
from apps.remediation.services.waiting import expired_text
from apps.runs.choices import AttemptState, EndReason
from apps.runs.launcher import LauncherSetting, launcher_usable
from apps.runs.selectors import AttemptRow, attempt_by_id, attempts_of, run_by_id
from apps.runs.services import attempt_open, status_update
from apps.telemetry.selectors import door_state

ATTEMPTS_MEANWHILE = 100
"""More than ever begin between an order and the word of what came of it."""


def order_claim(*, order_id: int, now: datetime, holder: str = "") -> OrderInHand | None:
    """Take an order in hand; return what its launcher needs, or None if there is nothing to be done (any more).

    `holder` names the caller's process, so that others see when it is gone. Of two workers with the same order one gets
    it. A cancelled, expired or overtaken action gives nothing.
    """
    known = Order.objects.filter(pk=order_id, state=OrderState.WAITING).first()
    if known is None:
        return None
    if known.kind in OF_NODES:
        return _claim_of_nodes(known, now=now, holder=holder)
    with recording(now=now) as log:
        scene = order_scene_lock(known)
        action, order = scene.action, scene.order
        if order.state != OrderState.WAITING or order.not_before > now:
            return None
        if action.state not in (ActionState.REQUESTED, ActionState.RUNNING):
            return None
        setting = launcher_usable(scene.run.launcher)
        if _waits_for_word(scene, now=now) or not _may_go_on(log, scene, setting, now=now):
            return None
        if setting is None:  # taken away since: what it has in hand is looked at all the same
            setting = LauncherSetting(kind=order.launcher)
        if action.state == ActionState.REQUESTED:
            text = f"{action_words(action)} begins"
            action_move(log, action, ActionState.RUNNING, text=text, now=now, began_at=now)
            for_now = nodes_exclude(action, now=now) if action.kind == ActionKind.RESTART_RUN else []
            if for_now:
                milestone_add(action, "excluded", text=f"out of service: {len(for_now)}", now=now)
        token = ""
        if order.kind == OrderKind.LAUNCH:
            token = _launch_prepare(scene, setting, now=now)
        if order.asked_at is None:
            order.tries += 1
        if scene.attempt is not None and (order.kind == OrderKind.STOP or order.launcher not in OPENED_FIRST):
            # What the attempt's own ranks say of their end, they say because of this order.
            status_update(run_id=scene.run.pk, stopping_as=stop_reason(action, scene.attempt.pk))
        order.state, order.claim, order.claimed_at, order.error = OrderState.CLAIMED, secrets.token_hex(8), now, ""
        order.holder = holder
        order.save()
        if order.asked_at is None:
            text = f"Order {order.kind.lower()} handed to {LauncherKind(order.launcher).label}"
            action_log(log, action, kind="order.claimed", text=text, order=order.pk, tries=order.tries)
        return order_in_hand(order_id, token=token)


def stop_reason(action: Action, attempt_id: int) -> str:
    """Return why an attempt ends that an action stops: HUNG if a hang is confirmed, else as planned."""
    assert action.run_id is not None
    run = run_by_id(action.run_id)
    hung = action.ends_as == EndReason.HUNG or (run.attempt_id == attempt_id and run.hang == "CONFIRMED")
    return EndReason.HUNG if hung else EndReason.PLANNED


def order_look_claim(*, order_id: int, now: datetime, for_s: float, holder: str = "") -> OrderInHand | None:
    """Take the reading back of an order in doubt in hand; None if it is not due, or if somebody is at it already.

    Whoever died over it is followed by the next one after `for_s` seconds.
    """
    due = Order.objects.filter(pk=order_id, state=OrderState.UNCERTAIN, not_before__lte=now)
    # Compare-and-set: a receiver that takes its time is not asked again by everyone who finds the order due meanwhile.
    if not due.update(not_before=now + timedelta(seconds=for_s), holder=holder):
        return None
    return order_in_hand(order_id)


def order_in_hand(order_id: int, *, token: str = "") -> OrderInHand:
    """Return what a launcher needs to carry an order out, or to read back what came of it."""
    order = Order.objects.select_related("action__run", "action__node").get(pk=order_id)
    if order.kind == OrderKind.CHECK:
        return check_in_hand(order)
    if order.kind in OF_NODES:
        return node_order_in_hand(order)
    action, run = order.action, order.action.run
    assert run is not None
    setting = launcher_usable(run.launcher)
    if setting is None or setting.kind != order.launcher:
        setting = LauncherSetting(kind=order.launcher)  # changed since: what was handed out can still be read back
    pool = pool_of(run.cluster_id)
    out = exclude_names(pool, setting)
    old = order.attempt_id if order.kind == OrderKind.STOP else None
    return OrderInHand(
        id=order.pk,
        code=id_write("ord", order.pk),
        kind=order.kind,
        tries=order.tries,
        claim=order.claim,
        claimed_at=order.claimed_at or order.not_before,
        asked_at=order.asked_at,
        action=id_write("act", action.pk),
        action_kind=action.kind,
        run=run.slug,
        setting=setting,
        attempt_key=order_key(order.pk) if old is None else attempt_by_id(old).key,
        resume_step=action.resume_step,
        nodes=tuple(name for name in setting.nodes if name not in out),
        exclude_nodes=out,
        launch=launch_of_attempt(old) if old is not None else None,
        token=token,
        **(_scheduler_facts(order, pool) if setting.kind == LauncherKind.SLURM else {}),
    )


def _claim_of_nodes(known: Order, *, now: datetime, holder: str) -> OrderInHand | None:
    with recording(now=now) as log:
        scene = scene_lock(known.action_id)
        order = Order.objects.select_for_update(no_key=True).get(pk=known.pk)
        claim = check_order_claim if order.kind == OrderKind.CHECK else node_order_claim
        if not claim(log, scene, order, now=now):
            return None
        Order.objects.filter(pk=order.pk).update(holder=holder)
        return order_in_hand(order.pk)


def order_mark(order: Order) -> str:
    """Return what names an order in a scheduler: its code, and a word that only this installation's order has."""
    code = id_write("ord", order.pk)
    about = f"{code}:{order.action.requested_at.isoformat()}"
    word = hmac.new(settings.SECRET_KEY.encode(), about.encode(), hashlib.sha256).hexdigest()
    return f"paceline:{code}.{word[:12]}"


def _scheduler_facts(order: Order, pool: Sequence[PoolNode]) -> dict[str, Any]:
    """Return what an order for a scheduler has beyond the others."""
    action, run = order.action, order.action.run
    assert run is not None
    # Asked for by what was seen, not by what is newest: a start opens an attempt of its own before it is carried out.
    about = order.attempt_id if order.kind == OrderKind.STOP else action.expected_attempt_id
    attempt = attempt_by_id(about) if about is not None else None
    job = job_named(attempt.key, attempt.external_id) if attempt is not None else None
    name, told = job_known(run.cluster_id, job[0], run_id=run.pk) if job is not None else ("", None)
    before = put_by_us(run.pk, job[0], but=order.pk) if job is not None else set()
    return {
        "scheduler": scheduler_of(run.cluster_id),
        "mark": order_mark(order),
        "job_id": job[0] if job is not None else None,
        "job_name": name,
        "restarts": job[1] if job is not None and job[1] is not None else told,
        "releases": releases(action),
        "exclude_known": tuple(node.names for node in pool if node.is_out),
        "excluded_before": tuple(sorted(before)),
    }


def _may_go_on(log: Log, scene: OrderScene, setting: LauncherSetting | None, *, now: datetime) -> bool:
    """Check again what was seen; where it is so no more, end the action with the sentence that says why."""
    action, order = scene.action, scene.order
    is_first = action.state == ActionState.REQUESTED
    if is_first and action.expires_at <= now:
        action_move(log, action, ActionState.EXPIRED, text=expired_text(action), now=now)
        return False
    if order.asked_at is not None and order.kind == OrderKind.STOP:
        return True  # the launcher has it already; now it is only looked at
    why = _why_not(scene, setting, is_first=is_first, now=now)
    if why and is_first:
        action_move(log, action, ActionState.REFUSED, text=f"{why} Nothing was done.", now=now)
    elif why:
        give_up(log, scene, why, now)
    return not why


def _why_not(scene: OrderScene, setting: LauncherSetting | None, *, is_first: bool, now: datetime) -> str:
    action, order = scene.action, scene.order
    run = run_by_id(scene.run.pk)
    is_open = scene.attempt is not None
    if setting is None or setting.kind != order.launcher:
        return "The run's launcher was changed meanwhile."
    if not is_first and now - order.not_before > EXPIRY:
        return (
            f"It was to go on at {rfc3339(order.not_before)}, and nobody was at work until now: look at the run again."
        )
    if order.kind == OrderKind.STOP:
        # An attempt that ended by itself meanwhile is what a stop wants; another one that runs is not ours to stop.
        if order.attempt_id != (scene.attempt.pk if scene.attempt is not None else run.attempt_id):
            return "The run moved on since it was looked at."
    elif is_open and run.attempt_id not in (order.attempt_id, action.expected_attempt_id):
        return f"Attempt {run.attempt_number} was started meanwhile; nothing was started beside it."
    elif is_open and order.launcher in OPENED_FIRST and run.attempt_id != order.attempt_id:
        return f"Attempt {run.attempt_number} is open; nothing was started beside it."
    elif _starts_anew(setting, action) and (beside := launch_beside(run.id, order_id=order.pk)) is not None:
        number = attempt_by_id(beside).number
        return f"What was started as attempt {number} still lives; nothing was started beside it. Stop it, then look again."
    if is_first:
        if run.attempt_id != action.expected_attempt_id:
            return f"The run moved on to attempt {run.attempt_number}."
        if guard := guard_closed(action, now=now):
            return f"{guard.text}."
        if action.kind == ActionKind.RESTART_RUN and (suspects := choice_needed(run, action.options.get("from_step"))):
            return choice_words(run, suspects)
    return ""


def _waits_for_word(scene: OrderScene, *, now: datetime) -> bool:
    """Return whether a start that is left from before a pause waits until it is heard what happened meanwhile.

    Somebody may have started the run by hand, and its reports still be on their way.
    """
    action, order = scene.action, scene.order
    if order.kind != OrderKind.LAUNCH or action.state == ActionState.REQUESTED:
        return False
    return order.not_before < door_state(now).accepting_since and just_blind(run_by_id(scene.run.pk), now=now)


def _starts_anew(setting: LauncherSetting, action: Action) -> bool:
    """Return whether a start makes processes of its own, and is neither a receiver's nor somebody's job that goes on."""
    if setting.kind == LauncherKind.SLURM:
        return submits(setting) and not releases(action)
    return setting.kind == LauncherKind.LOCAL


def releases(action: Action) -> bool:
    """Return whether a restart lets a job go on that its scheduler put back by itself."""
    return bool(action.options.get("requeued") == Requeued.RELEASE)


def _launch_prepare(scene: OrderScene, setting: LauncherSetting, *, now: datetime) -> str:
    """Settle from which step, open the attempt where it is ours alone to open, and give it a token of its own."""
    action, order, run = scene.action, scene.order, scene.run
    if action.kind == ActionKind.RESTART_RUN and order.tries == 0:
        chosen = action.options.get("from_step")
        action.resume_step = chosen if chosen is not None else resume_step_default(run_by_id(run.pk))
        action.save(update_fields=["resume_step"])
    if setting.kind not in OPENED_FIRST:
        return ""
    if order.attempt_id is None:
        attempt_of_order(scene, now=now)
    if setting.kind == LauncherKind.SLURM and not _starts_anew(setting, action):
        return ""  # a job that goes on has a token of its own
    if order.token_id is not None:
        token_revoke(token_id=order.token_id, by=BY, source=Source.LAUNCHER, now=now)
    order.token_id, secret = token_create(
        name=f"launch {id_write('ord', order.pk)} of {run.slug}",
        scopes=[REPORT],
        cluster_id=run.cluster_id,
        by=action.requested_by,
        source=Source.LAUNCHER,
        now=now,
    )
    return secret


def attempt_of_order(scene: OrderScene, *, now: datetime) -> None:
    """Open the attempt that an order starts, in the name of whoever asked for it; or find it, if it reported already."""
    action, order, run = scene.action, scene.order, scene.run
    attempt = _attempt_begun(scene)
    if attempt is None:
        attempt, _ = attempt_open(
            run_id=run.pk,
            key=order_key(order.pk),
            world_size=None,
            by=action.requested_by,
            source=Source.LAUNCHER,
            now=now,
            resumed_from_step=action.resume_step,
            order_id=order.pk,
        )
    order.attempt_id, action.attempt_id = attempt.id, attempt.id
    order.save(update_fields=["attempt_id"])
    action.save(update_fields=["attempt_id"])


def _attempt_begun(scene: OrderScene) -> AttemptRow | None:
    """Return the attempt as which a program reported before it was known that its order was carried out, None if none did.

    It has the order's key. A receiver whose programs have keys of their own is the only one who starts any meanwhile.
    """
    order, key = scene.order, order_key(scene.order.pk)
    for row in attempts_of(scene.run.pk, limit=ATTEMPTS_MEANWHILE):
        if row.key == key or row.key.startswith(f"{key}/"):
            return row
        since = order.claimed_at is not None and row.started_at >= order.claimed_at
        if since and row.state == AttemptState.OPEN and row.id != scene.action.expected_attempt_id:
            return row
    return None
