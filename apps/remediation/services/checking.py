"""Checking a node: an order of its own, begun once, looked at until it is over, its result in the ledger.

What is carried out goes on when a worker dies, and is found again; a second worker never begins it a second time
(`launchers/checks.py`).
"""

import secrets
from datetime import datetime, timedelta

from apps.common.access import ADMIN, Principal
from apps.common.errors import BadRequest, Forbidden
from apps.common.ids import id_write
from apps.common.tasks import queue_on_commit
from apps.fleet.choices import NoteKind
from apps.fleet.selectors import node_by_id
from apps.fleet.services import ledger_note
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.remediation.choices import ActionState, CheckKind, LauncherKind, OrderKind, OrderState
from apps.remediation.models import Action, CheckSetting, Order
from apps.remediation.selectors.checks import CheckRow, check_of, check_why_not
from apps.remediation.selectors.rows import CheckTarget, OrderInHand, Outcome
from apps.remediation.services.moving import Scene, action_log, action_move, action_words, milestone_add
from apps.runs.launcher import LauncherSetting

LONGEST_S = 3600.0
"""What takes longer is a job for the scheduler, not a check."""

LONGEST_VALID_S = 30 * 24 * 3600
MOST_WORDS = 64
MOST_TEXT = 4000
LOOK_AGAIN_S = 1.0
SLACK_S = 60.0
"""What a check may take beyond its time before nobody waits for it any more: its own time-out comes first."""

BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)


def check_set(
    *,
    principal: Principal,
    cluster_id: int,
    kind: str,
    command: list[str],
    url: str,
    secret: str | None,
    timeout_s: float,
    valid_s: int,
    required: bool,
    source: str,
    now: datetime,
) -> CheckRow:
    """Set how a cluster's nodes are checked; `secret` None keeps the one that is set. Return what holds now.

    Raises:
        Forbidden: the caller does not configure. BadRequest: something makes no sense.
    """
    _may_configure(principal, cluster_id)
    if kind not in CheckKind.values:
        raise BadRequest(f"kind: must be one of {', '.join(CheckKind.values)}.")
    if kind == CheckKind.COMMAND and not (0 < len(command) <= MOST_WORDS and command[0].startswith("/")):
        raise BadRequest(
            f"command: must be 1 to {MOST_WORDS} words, the first a path from the root; no shell reads it."
        )
    if any("\0" in word or len(word) > MOST_TEXT for word in command):
        raise BadRequest(f"command: a word has at most {MOST_TEXT:,} characters and no zero byte.")
    if kind == CheckKind.WEBHOOK and not url.startswith(("http://", "https://")):
        raise BadRequest("url: must be an address that begins with http:// or https://.")
    if not 1.0 <= timeout_s <= LONGEST_S:
        raise BadRequest(f"timeout_s: must be from 1 to {LONGEST_S:,.0f} seconds.")
    if not 60 <= valid_s <= LONGEST_VALID_S:
        raise BadRequest(f"valid_s: must be from 60 to {LONGEST_VALID_S:,} seconds.")
    kept = CheckSetting.objects.filter(pk=cluster_id).values_list("secret", flat=True).first() or ""
    fields = {
        "kind": kind,
        "command": command if kind == CheckKind.COMMAND else [],
        "url": url if kind == CheckKind.WEBHOOK else "",
        "secret": (kept if secret is None else secret) if kind == CheckKind.WEBHOOK else "",
        "timeout_s": timeout_s,
        "valid_s": valid_s,
        "required": required,
        "updated_by": principal.name[:150],
        "updated_at": now,
    }
    with recording(now=now) as log:
        CheckSetting.objects.update_or_create(cluster_id=cluster_id, defaults=fields)
        asked = "; taking a node back asks for it" if required else ""
        text = (
            f"Check of nodes set: {CheckKind(kind).label}, at most {timeout_s:g} s, counts {valid_s / 3600:g} h{asked}"
        )
        log.add(StreamKey.cluster(cluster_id), kind="check.set", text=text, source=source, actor_name=principal.name)
    found = check_of(cluster_id)
    assert found is not None
    return found


def check_unset(*, principal: Principal, cluster_id: int, source: str, now: datetime) -> None:
    """Check a cluster's nodes no more, and ask for no check; a repeat changes nothing.

    Raises:
        Forbidden: the caller does not configure.
    """
    _may_configure(principal, cluster_id)
    with recording(now=now) as log:
        if CheckSetting.objects.filter(pk=cluster_id).delete()[0]:
            text = "No check of nodes is set any more"
            log.add(
                StreamKey.cluster(cluster_id), kind="check.set", text=text, source=source, actor_name=principal.name
            )


def check_order_create(action: Action, how: CheckRow, *, now: datetime) -> None:
    """Make the order of a check; a worker takes it in hand as soon as this transaction is committed."""
    launcher = LauncherKind.LOCAL if how.kind == CheckKind.COMMAND else LauncherKind.WEBHOOK
    order = Order.objects.create(action=action, kind=OrderKind.CHECK, launcher=launcher, not_before=now)
    queue_on_commit("remediation.check_run", order_id=order.pk)


def check_order_claim(log: Log, scene: Scene, order: Order, *, now: datetime) -> bool:
    """Take a check in hand; return whether there is something to be done. What is under way is only looked at."""
    action = scene.action
    if order.state != OrderState.WAITING or order.not_before > now:
        return False
    if action.state not in (ActionState.REQUESTED, ActionState.RUNNING):
        return False
    if order.asked_at is None:
        if action.state == ActionState.REQUESTED and action.expires_at <= now:
            text = f"“{action_words(action)}” did not begin in time; nothing was done."
            action_move(log, action, ActionState.EXPIRED, text=text, now=now)
            return False
        if why := _why_not(action, order):
            to = ActionState.REFUSED if action.state == ActionState.REQUESTED else ActionState.FAILED
            action_move(log, action, to, text=why, now=now)
            return False
        if action.state == ActionState.REQUESTED:
            action_move(log, action, ActionState.RUNNING, text="the check begins", now=now, began_at=now)
        order.tries += 1
        text = f"Order check handed to {LauncherKind(order.launcher).label}"
        action_log(log, action, kind="order.claimed", text=text, order=order.pk, tries=order.tries)
    order.state, order.claim, order.claimed_at, order.error = OrderState.CLAIMED, secrets.token_hex(8), now, ""
    order.save()
    return True


def check_in_hand(order: Order) -> OrderInHand:
    """Return what a check needs to be carried out or looked at."""
    action = order.action
    assert action.node_id is not None
    node = node_by_id(action.node_id)
    how = check_of(node.cluster_id)
    target = CheckTarget(
        node=node.name,
        cluster=node.cluster,
        names=(node.name, *node.aliases),
        kind=how.kind if how is not None else "",
        command=how.command if how is not None else (),
        url=how.url if how is not None else "",
        secret=how.secret if how is not None else "",
        timeout_s=how.timeout_s if how is not None else 0.0,
    )
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
        run="",
        setting=LauncherSetting(kind=order.launcher),
        attempt_key="",
        resume_step=None,
        nodes=(),
        exclude_nodes=(),
        launch=None,
        check=target,
    )


def check_order_settle(log: Log, scene: Scene, order: Order, outcome: Outcome, *, now: datetime) -> None:
    """Take in what came of looking at a check: it goes on, it is over with its result, or it could not be carried out."""
    action = scene.action
    if outcome.kind == "DONE" and "passed" in outcome.facts:
        _over(log, action, order, outcome, now=now)
    elif outcome.kind in ("GOING_ON", "DONE"):
        _goes_on(log, action, order, outcome, now=now)
    elif outcome.kind == "REFUSED" or (order.asked_at is None and order.tries > len(BACKOFF_S)) or _late(order, now):
        _given_up(log, action, order, outcome.text, now=now)
    else:
        # Nobody heard it, or nobody knows: it is told again under the same name, and looked for first.
        order.state, order.error = OrderState.WAITING, outcome.text
        order.not_before = now + timedelta(seconds=BACKOFF_S[min(order.tries, len(BACKOFF_S)) - 1])
        order.save()


def check_note(action: Action, *, passed: bool, text: str, by: str, source: str, now: datetime) -> None:
    """Write a check's result into the ledger, with the time until which it counts if it passed."""
    assert action.node is not None
    how = check_of(action.node.cluster_id)
    counts = timedelta(seconds=how.valid_s if how is not None else 24 * 3600)
    ledger_note(
        node_id=action.node.pk,
        kind=NoteKind.PASSED if passed else NoteKind.NOT_PASSED,
        text=text[:MOST_TEXT],
        by_name=by,
        source=source,
        now=now,
        until_at=now + counts if passed else None,
        action_id=action.pk,
    )


def _why_not(action: Action, order: Order) -> str:
    assert action.node_id is not None
    node = node_by_id(action.node_id)
    how = check_of(node.cluster_id)
    if why := check_why_not(node, how):
        return f"{why} Nothing was done."
    assert how is not None
    if (how.kind == CheckKind.COMMAND) != (order.launcher == LauncherKind.LOCAL):
        return "How nodes are checked here was changed meanwhile; nothing was done."
    return ""


def _goes_on(log: Log, action: Action, order: Order, outcome: Outcome, *, now: datetime) -> None:
    if _late(order, now):
        _given_up(log, action, order, f"no result came in time: {outcome.text}", now=now)
        return
    if order.asked_at is None:
        milestone_add(action, "checking", text=outcome.text, now=now)
        order.asked_at = now
    order.state, order.receipt, order.error = OrderState.WAITING, {"text": outcome.text, **outcome.facts}, ""
    order.not_before = now + timedelta(seconds=LOOK_AGAIN_S)
    order.save()


def _late(order: Order, now: datetime) -> bool:
    if order.asked_at is None:
        return False
    assert order.action.node is not None
    how = check_of(order.action.node.cluster_id)
    limit_s = how.timeout_s if how is not None else LONGEST_S
    return now - order.asked_at > timedelta(seconds=limit_s + SLACK_S)


def _over(log: Log, action: Action, order: Order, outcome: Outcome, *, now: datetime) -> None:
    passed = outcome.facts["passed"] is True
    order.state, order.settled_at = OrderState.DONE, now
    order.receipt, order.error = {"text": outcome.text, **outcome.facts}, ""
    order.save()
    action_log(
        log,
        action,
        kind="order.settled",
        text=f"Order check done: {outcome.text}",
        order=order.pk,
        order_state=order.state,
    )
    check_note(action, passed=passed, text=outcome.text, by=action.requested_by, source=Source.LAUNCHER, now=now)
    name = action.node.name if action.node is not None else "the node"
    words = f"The check of {name} {'passed' if passed else 'did not pass'}: {outcome.text}"
    to = ActionState.SUCCEEDED if passed else ActionState.FAILED
    action_move(log, action, to, text=words, now=now, by=action.requested_by)


def _given_up(log: Log, action: Action, order: Order, text: str, *, now: datetime) -> None:
    order.state, order.settled_at, order.error = OrderState.FAILED, now, text
    order.save()
    action_log(
        log, action, kind="order.settled", text=f"Order check failed: {text}", order=order.pk, order_state=order.state
    )
    sentence = f"The check has no result, so it counts as none: {text}."
    action_move(log, action, ActionState.FAILED, text=sentence, now=now)


def _may_configure(principal: Principal, cluster_id: int) -> None:
    if not principal.may(ADMIN):
        raise Forbidden(f"This needs the scope “{ADMIN}”: whoever names a command lets Paceline run it.")
    if principal.cluster_id not in (None, cluster_id):
        raise Forbidden("This token belongs to another cluster.")
