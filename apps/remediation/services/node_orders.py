"""Orders about nodes: telling a cluster's scheduler what our ledger says, and taking in what came of it.

They come after the ledger and never undo it: where the scheduler cannot be told, the ledger stands and the list of
differences shows it.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.conf import settings

from apps.common.errors import PacelineError
from apps.common.ids import id_read, id_write
from apps.common.tasks import queue_on_commit
from apps.engine.readers.slurm import SlurmNode
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.models import Exclusion
from apps.journal.services import Log
from apps.remediation.choices import OPEN, ActionKind, ActionState, LauncherKind, OrderKind, OrderState
from apps.remediation.models import Action, ActionNode, NodeDrain, Order
from apps.remediation.selectors.commands import reason_words
from apps.remediation.selectors.pool import pool_of
from apps.remediation.selectors.rows import NodeTarget, OrderInHand, Outcome
from apps.remediation.selectors.schedulers import scheduler_of
from apps.remediation.services.moving import Scene, action_log, action_move, milestone_add
from apps.runs.launcher import LauncherSetting

LINES_BACK = 50
"""Of so many lines of ours about a node a drain is known again."""

_MARK = re.compile(r"paceline:(exc_\w{1,40})\.")

BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Pauses before a scheduler that does not answer is told again; each telling looks first, so that it may be repeated."""


def node_order_create(action: Action, *, kind: str, now: datetime) -> bool:
    """Make the order that follows the ledger, where the cluster's scheduler is to be told; return whether it is."""
    cluster_id = _cluster_of(action)
    where = scheduler_of(cluster_id)
    if where is None or not where.drains or not _targets(action, kind):
        return False
    order = Order.objects.create(action=action, kind=kind, launcher=LauncherKind.SLURM, not_before=now)
    queue_on_commit("remediation.order_run", order_id=order.pk)
    return True


def node_order_claim(log: Log, scene: Scene, order: Order, *, now: datetime) -> bool:
    """Take an order about nodes in hand; return whether there is something to be done."""
    if order.state != OrderState.WAITING or order.not_before > now or scene.action.state != ActionState.RUNNING:
        return False
    order.tries += 1
    order.state, order.claim, order.claimed_at, order.error = OrderState.CLAIMED, secrets.token_hex(8), now, ""
    order.save()
    text = f"Order {order.kind.lower()} handed to {LauncherKind(order.launcher).label}"
    action_log(log, scene.action, kind="order.claimed", text=text, order=order.pk, tries=order.tries)
    return True


def node_order_in_hand(order: Order) -> OrderInHand:
    """Return what an order about nodes needs to be carried out."""
    action = order.action
    return OrderInHand(
        id=order.pk,
        code=id_write("ord", order.pk),
        kind=order.kind,
        tries=order.tries,
        claim=order.claim,
        claimed_at=order.claimed_at or order.not_before,
        asked_at=None,
        action=id_write("act", action.pk),
        action_kind=action.kind,
        run=action.run.slug if action.run is not None else "",
        setting=LauncherSetting(kind=order.launcher),
        attempt_key="",
        resume_step=None,
        nodes=(),
        exclude_nodes=(),
        launch=None,
        scheduler=scheduler_of(_cluster_of(action)),
        targets=tuple(_targets(action, order.kind)),
    )


def node_order_settle(log: Log, scene: Scene, order: Order, outcome: Outcome, *, now: datetime) -> None:
    """Take in what came of an order about nodes; whatever it was, what waits for it goes on."""
    # Of an action that is over by now nobody would take the order in hand again.
    again = outcome.kind in ("UNAVAILABLE", "UNCERTAIN", "NOT_DONE", "GOING_ON") and scene.action.state in OPEN
    if again and order.tries <= len(BACKOFF_S):
        order.state, order.error = OrderState.WAITING, outcome.text
        order.not_before = now + timedelta(seconds=BACKOFF_S[order.tries - 1])
        order.save()
        return
    done = outcome.kind == "DONE"
    order.state = OrderState.DONE if done else OrderState.REFUSED if outcome.kind == "REFUSED" else OrderState.FAILED
    order.settled_at, order.receipt = now, {"text": outcome.text, **outcome.facts} if done else order.receipt
    order.error = "" if done else outcome.text
    order.save()
    text = f"Order {order.kind.lower()} {OrderState(order.state).label}: {outcome.text}"
    action_log(log, scene.action, kind="order.settled", text=text, order=order.pk, order_state=order.state)
    if done:
        _note_drains(order, outcome, now=now)
    if scene.action.state in OPEN:
        _go_on(log, scene.action, order, outcome.text, done=done, now=now)


def drain_mark(exclusion: Exclusion) -> str:
    """Return what a drain's reason begins with: the line of our ledger, and a word that only this installation's has."""
    code = id_write("exc", exclusion.pk)
    about = f"{code}:{exclusion.began_at.isoformat()}"
    return f"paceline:{code}.{hmac.new(settings.SECRET_KEY.encode(), about.encode(), hashlib.sha256).hexdigest()[:8]}"


def drained_by_us(nodes: Mapping[int, SlurmNode]) -> set[int]:
    """Return those of these nodes, by row, whose drain carries the mark of a line of ours about them, ended or not.

    Another installation writes such marks too; those cannot be made by ours.
    """
    said = {pk: found[1] for pk, node in nodes.items() if node.is_out and (found := _MARK.match(node.reason))}
    codes = {code: number for code in set(said.values()) if (number := _number_of(code)) is not None}
    rows = {row.pk: row for row in Exclusion.objects.filter(pk__in=codes.values(), origin=ExclusionOrigin.OURS)}
    return {
        pk
        for pk, code in said.items()
        if (row := rows.get(codes.get(code, 0))) is not None
        and row.node_id == pk
        and nodes[pk].reason.startswith(drain_mark(row))
    }


def _number_of(code: str) -> int | None:
    try:
        return id_read("exc", code)
    except PacelineError:
        return None


def drain_reason(exclusion: Exclusion) -> str:
    """Return a drain's whole reason: the mark, who, why; one line, without what breaks listings, of bounded length."""
    return f"{drain_mark(exclusion)} {reason_words(f'{exclusion.by_name}: {exclusion.reason}')}"


def _go_on(log: Log, action: Action, order: Order, text: str, *, done: bool, now: datetime) -> None:
    words = f"{text[:1].upper()}{text[1:]}"
    if action.kind == ActionKind.RESTART_RUN:
        milestone_add(action, order.kind.lower(), text=text if done else f"not told: {text}", now=now)
        return
    ledger = next((step["text"] for step in reversed(action.milestones) if step["name"] == "ledger"), "")
    to = ActionState.SUCCEEDED if done else ActionState.FAILED
    tail = f"{words}." if done else f"The ledger stands, but Slurm could not be told: {text}."
    action_move(log, action, to, text=f"{ledger} {tail}".strip(), now=now, by=action.requested_by)


def _note_drains(order: Order, outcome: Outcome, *, now: datetime) -> None:
    for exclusion in Exclusion.objects.filter(pk__in=outcome.facts.get("exclusions", ())):
        if order.kind == OrderKind.DRAIN:
            NodeDrain.objects.get_or_create(
                exclusion_id=exclusion.pk,
                defaults={"node_id": exclusion.node_id, "mark": drain_mark(exclusion), "drained_at": now},
            )
        else:
            NodeDrain.objects.filter(exclusion_id=exclusion.pk).update(lifted_at=now)


def _cluster_of(action: Action) -> int:
    return action.run.cluster_id if action.run is not None else action.node.cluster_id  # type: ignore[union-attr]


def _targets(action: Action, kind: str) -> Sequence[NodeTarget]:
    """Return the nodes to be told about: those whose open line is ours, or whose last line of ours has just ended."""
    names = {node.id: node for node in pool_of(_cluster_of(action))}
    targets = []
    for node_id in ActionNode.objects.filter(action=action).order_by("node_id").values_list("node_id", flat=True):
        lines = list(
            Exclusion.objects.filter(node_id=node_id, origin=ExclusionOrigin.OURS).order_by("-pk")[:LINES_BACK]
        )
        line = next((row for row in lines if (row.ended_at is None) == (kind == OrderKind.DRAIN)), None)
        if line is None or node_id not in names:
            continue
        node, marks = names[node_id], tuple(map(drain_mark, lines))
        targets.append(NodeTarget(node.name, node.names, line.pk, drain_mark(line), drain_reason(line), marks))
    return targets
