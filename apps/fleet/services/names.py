"""Names of nodes that people place: one more name of a known node, or a machine of its own. Both can be taken back."""

from datetime import datetime

from apps.common.errors import Conflict, NotFound, Unprocessable
from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.models import Cluster, Exclusion, Node, NodeAlias, NodeStatus
from apps.fleet.services.ledger import exclusion_end
from apps.fleet.services.nodes import NAME_LENGTH, NAME_RULE, name_is_usable, node_event, nodes_make
from apps.journal.services import recording

BY_HAND = "person"


def alias_add(*, node_id: int, name: str, by: str, source: str, now: datetime) -> None:
    """Give a node one more name; a repeat changes nothing.

    A node that had come to be under that name keeps its record, and what comes under it goes to this node from now on.

    Raises:
        Unprocessable: no node can be called that.
        Conflict: the name is another node's, or what goes by it is in use or out of service; the sentence says which.
    """
    if not name_is_usable(name):
        raise Unprocessable(f"name: a name has 1 to {NAME_LENGTH} characters, {NAME_RULE}.", name=name[:80])
    with recording(now=now) as log:
        node = _locked(node_id)
        if name == node.name or NodeAlias.objects.filter(node=node, name=name).exists():
            return
        if other := NodeAlias.objects.filter(cluster=node.cluster_id, name=name).select_related("node").first():
            raise Conflict(
                f"“{name}” is a name of {other.node.name} already; take it away there first.", node=other.node.name
            )
        known = Node.objects.filter(cluster=node.cluster_id, name=name).first()
        if known is not None:
            _take_in(known, node, by=by, source=source, now=now)
        NodeAlias.objects.create(
            cluster_id=node.cluster_id, node=node, name=name, source=BY_HAND, by_name=by[:150], created_at=now
        )
        node_event(
            log,
            node_id=node.pk,
            kind="node.aliased",
            text=f"{name} is another name of {node.name}",
            source=source,
            actor_name=by,
            subject={"kind": "NODE", "node": node.name},
            payload={"alias": name},
        )
        poke_on_commit(FLEET_GROUP, {"what": "node", "id": node.pk})


def alias_remove(*, node_id: int, name: str, by: str, source: str, now: datetime) -> None:
    """Take a name away from a node: what goes by it is a machine of its own from now on, and is not merged again by itself.

    Raises:
        NotFound: the node has no such other name.
    """
    with recording(now=now) as log:
        node = _locked(node_id)
        if not NodeAlias.objects.filter(node=node, name=name).delete()[0]:
            raise NotFound(f"{node.name} has no other name “{name[:120]}”.", name=name[:120])
        own = Node.objects.filter(cluster=node.cluster_id, name=name)
        if not own.update(merged_into=None, apart_at=now):
            nodes_make(cluster_id=node.cluster_id, names=[name], now=now, apart_at=now)
        node_event(
            log,
            node_id=node.pk,
            kind="node.alias_removed",
            text=f"{name} is no name of {node.name} any more; it is a machine of its own",
            source=source,
            actor_name=by,
            subject={"kind": "NODE", "node": node.name},
            payload={"alias": name},
        )
        poke_on_commit(FLEET_GROUP, {"what": "node", "id": node.pk})


def node_apart(*, node_id: int, by: str, source: str, now: datetime) -> None:
    """Say that a node whose name was in doubt is a machine of its own; a repeat changes nothing."""
    with recording(now=now) as log:
        node = _locked(node_id)
        if node.apart_at is not None:
            return
        Node.objects.filter(pk=node.pk).update(apart_at=now)
        node_event(
            log,
            node_id=node.pk,
            kind="node.apart",
            text=f"{node.name} is a machine of its own",
            source=source,
            actor_name=by,
            subject={"kind": "NODE", "node": node.name},
        )
        poke_on_commit(FLEET_GROUP, {"what": "node", "id": node.pk})


def _locked(node_id: int) -> Node:
    """Return a node; its cluster's row is held, so that names are given out one after the other (see nodes_ensure)."""
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise NotFound("There is no such node.")
    Cluster.objects.select_for_update(no_key=True).get(pk=node.cluster_id)
    node = Node.objects.get(pk=node_id)
    if node.merged_into_id is not None:
        raise Conflict(f"{node.name} is another name of a node by now; look again.", node=node.name)
    return node


def _take_in(known: Node, node: Node, *, by: str, source: str, now: datetime) -> None:
    """Let a node's record stand as that of another name."""
    # Locked in the order of their ids, as everywhere: nobody puts the node out, or a run on it, between look and deed.
    both = NodeStatus.objects.select_for_update(no_key=True).filter(pk__in=(known.pk, node.pk)).order_by("pk")
    status = {row.pk: row for row in both}[known.pk]
    if status.open_runs:
        raise Conflict(
            f"A run is on {known.name} now; say that it is {node.name} when the attempt is over.", node=known.name
        )
    line = Exclusion.objects.filter(node=known, ended_at=None).first()
    if line is not None and line.origin == ExclusionOrigin.OURS:
        raise Conflict(f"{known.name} is out of service; take it back first, then say that it is {node.name}.")
    if line is not None:
        exclusion_end(node_id=known.pk, reason=f"it is {node.name}", by_name=by, source=source, now=now)
    NodeAlias.objects.filter(node=known).update(node=node)
    Node.objects.filter(pk=known.pk).update(merged_into=node, apart_at=None)
