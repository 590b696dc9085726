"""Writing the ledger of exclusions: it only grows. Lines are ended, never edited, and the database itself sees to that."""

from collections.abc import Collection
from datetime import datetime

from django.db.models import F, Q

from apps.common.clock import rfc3339
from apps.common.errors import Conflict
from apps.fleet.choices import CHECKS, AtUntil, ExclusionOrigin, NodeState, NoteKind
from apps.fleet.models import Exclusion, LedgerNote, Node, NodeStatus
from apps.fleet.services.nodes import node_event, node_status_update
from apps.journal.services import recording

MOST_NOTED = 64
"""Nodes that others keep out of one thing at once; more are a part of the cluster, and no word about nodes."""


def exclusion_open(
    *,
    node_id: int,
    reason: str,
    by_name: str,
    origin: str,
    source: str,
    now: datetime,
    action_id: int | None = None,
    incident_id: int | None = None,
    until_at: datetime | None = None,
    at_until: str = AtUntil.END,
) -> int:
    """Put a node out of service in our ledger; return the line. The first reason is kept: a second call changes nothing.

    Where the time until which it was to be out is over as it begins, people are asked; it is not taken back by itself.
    A node that the site put out may be wanted out by us too: the line that was observed ends with that word, and ours
    goes on when the site gives the node back.

    Raises:
        Conflict: the node is out already (the facts name the line).
    """
    with recording(now=now) as log:
        status = _status_locked(node_id)
        if status.exclusion_id is not None and not (origin == ExclusionOrigin.OURS and _joined(status, by_name, now)):
            raise Conflict("This node is out already; its first reason is kept.", exclusion=status.exclusion_id)
        over = ""
        if until_at is not None and until_at <= now:
            at_until = AtUntil.ASK
            over = f"; it was to be out until {rfc3339(until_at)}, which is over: people are asked about it"
        row = Exclusion.objects.create(
            node_id=node_id,
            origin=origin,
            reason=reason,
            by_name=by_name,
            action_id=action_id,
            incident_id=incident_id,
            began_at=now,
            until_at=until_at,
            at_until=at_until,
        )
        node_status_update(node_id=node_id, state=NodeState.EXCLUDED, exclusion_id=row.pk)
        node_event(
            log,
            node_id=node_id,
            kind="node.excluded",
            text=f"{status.node.name} excluded: {reason}{over}",
            source=source,
            actor_name=by_name,
            subject={"kind": "NODE", "node": status.node.name},
            payload={"exclusion": row.pk, "origin": origin, "action": action_id},
        )
        return row.pk


def exclusion_noted(*, node_id: int, reason: str, by_name: str, scope: str, source: str, now: datetime) -> int:
    """Enter that others kept a node out of one thing alone, such as a job; return the line.

    It is over as it begins: the node stays in service for everything else, and there is nothing to lift.
    """
    with recording(now=now) as log:
        status = _status_locked(node_id)
        row = Exclusion.objects.create(
            node_id=node_id,
            origin=ExclusionOrigin.OBSERVED,
            reason=reason,
            by_name=by_name[:150],
            began_at=now,
            ended_at=now,
            ended_by_name=by_name[:150],
            ended_reason=f"counts for {scope} alone",
        )
        node_event(
            log,
            node_id=node_id,
            kind="node.left_out",
            text=f"{status.node.name} is kept out of {scope} by {by_name}: {reason}",
            source=source,
            subject={"kind": "NODE", "node": status.node.name},
            payload={"exclusion": row.pk, "origin": row.origin},
        )
        return row.pk


def exclusions_noted(
    *,
    node_ids: Collection[int],
    reason: str,
    by_name: str,
    scope: str,
    source: str,
    now: datetime,
    since: datetime | None = None,
) -> list[int]:
    """Enter that others kept nodes out of one thing alone, but for those that are out or down anyway; return the lines.

    since: from when on a node must have been in service. Of more than `MOST_NOTED` none is entered.
    """
    if len(node_ids) > MOST_NOTED:
        return []
    out = Q(ended_at=None) | Q(ended_at__gt=since or now, began_at__lt=F("ended_at"))
    gone = set(Exclusion.objects.filter(out, node_id__in=node_ids).values_list("node_id", flat=True))
    gone |= set(NodeStatus.objects.filter(pk__in=node_ids, state=NodeState.DOWN).values_list("pk", flat=True))
    return [
        exclusion_noted(node_id=node_id, reason=reason, by_name=by_name, scope=scope, source=source, now=now)
        for node_id in sorted(set(node_ids) - gone)
    ]


def exclusion_end(
    *, node_id: int, reason: str, by_name: str, source: str, now: datetime, repaired: bool = True
) -> int | None:
    """Take a node back into service in our ledger; return the line that ended, or None if none was open.

    repaired: what its logs hold from before is dealt with; not so of a node that is only handed over to the site.
    """
    with recording(now=now) as log:
        status = _status_locked(node_id)
        if status.exclusion_id is None:
            return None
        Exclusion.objects.filter(pk=status.exclusion_id, ended_at=None).update(
            ended_at=now, ended_by_name=by_name, ended_reason=reason
        )
        if repaired and Exclusion.objects.filter(pk=status.exclusion_id, origin=ExclusionOrigin.OURS).exists():
            # What its logs hold from before is dealt with (case 9).
            Node.objects.filter(pk=node_id).update(repaired_at=now)
        node_status_update(node_id=node_id, state=NodeState.IN_SERVICE, exclusion_id=None)
        node_event(
            log,
            node_id=node_id,
            kind="node.readmitted",
            text=f"{status.node.name} back in service: {reason}",
            source=source,
            actor_name=by_name,
            subject={"kind": "NODE", "node": status.node.name},
            payload={"exclusion": status.exclusion_id},
        )
        return status.exclusion_id


def ledger_note(
    *,
    node_id: int,
    kind: str,
    text: str,
    by_name: str,
    source: str,
    now: datetime,
    until_at: datetime | None = None,
    action_id: int | None = None,
) -> int:
    """Add a later line about a node, under its open exclusion where there is one; return it.

    Raises:
        Conflict: it can only be said of a node that is out, and this one is not.
    """
    with recording(now=now) as log:
        status = _status_locked(node_id)
        if status.exclusion_id is None and kind not in CHECKS:
            raise Conflict(f"{status.node.name} is in service already.", node=status.node.name)
        row = LedgerNote.objects.create(
            node_id=node_id,
            exclusion_id=status.exclusion_id,
            kind=kind,
            at=now,
            by_name=by_name[:150],
            text=text,
            until_at=until_at,
            action_id=action_id,
        )
        node_event(
            log,
            node_id=node_id,
            kind=f"node.ledger_{kind.lower()}",
            text=f"{status.node.name}: {NoteKind(kind).label}{f', {text}' if text else ''}",
            source=source,
            actor_name=by_name,
            subject={"kind": "NODE", "node": status.node.name},
            payload={"exclusion": status.exclusion_id, "note": row.pk, "action": action_id},
        )
        node_status_update(node_id=node_id)
        return row.pk


def _joined(status: NodeStatus, by_name: str, now: datetime) -> bool:
    """End what was observed in favour of a line of our own; return whether there was such a line."""
    assert status.exclusion_id is not None
    observed = Exclusion.objects.filter(pk=status.exclusion_id, ended_at=None, origin=ExclusionOrigin.OBSERVED)
    why = "still out there; from here on we keep it out too, see the next line"
    return bool(observed.update(ended_at=now, ended_by_name=by_name[:150], ended_reason=why))


def _status_locked(node_id: int) -> NodeStatus:
    # Locked so that two exclusions of one node, or an exclusion and its end, are one after the other.
    return NodeStatus.objects.select_for_update(of=("self",), no_key=True).select_related("node").get(pk=node_id)
