"""Reading the fleet."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Q, QuerySet
from django.db.models.lookups import IsNull

from apps.common.errors import Conflict, NotFound
from apps.common.ids import id_read
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.models import Cluster, Exclusion, Gpu, Node, NodeAlias


class Ambiguous(Conflict):
    """A name that several clusters know."""

    code = "AMBIGUOUS"


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster and how many nodes it has and has out."""

    id: int
    name: str
    zone: str
    nodes: int
    nodes_out: int


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A device of a node."""

    id: int
    key: str
    pci: str
    index: int | None
    model: str
    slot: int
    last_seen_at: datetime


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with its status."""

    id: int
    cluster_id: int
    cluster: str
    name: str
    slot: int
    rack: str
    rack_slot: str
    leaf: str
    aliases: tuple[str, ...]
    state: str
    exclusion_id: int | None
    scheduler_state: str
    open_runs: tuple[int, ...]
    telemetry_state: str
    telemetry_last_at: datetime | None
    telemetry_gaps_24h: int
    clock_skew_s: float | None
    open_incidents: int
    repaired_at: datetime | None
    version: int
    gpus: tuple[GpuRow, ...]


@dataclass(frozen=True, slots=True)
class ExclusionRow:
    """One line of the ledger."""

    id: int
    node_id: int
    node: str
    cluster: str
    origin: str
    reason: str
    by_name: str
    action_id: int | None
    incident_id: int | None
    began_at: datetime
    until_at: datetime | None
    ended_at: datetime | None
    ended_by_name: str
    ended_reason: str


def clusters_all() -> list[ClusterRow]:
    """Return all clusters, by name."""
    rows = Cluster.objects.annotate(
        nodes=Count("node"), out=Count("node", filter=Q(node__status__exclusion_id__isnull=False))
    ).order_by("name")
    return [ClusterRow(id=row.pk, name=row.name, zone=row.zone, nodes=row.nodes, nodes_out=row.out) for row in rows]


def cluster_by_name(name: str) -> ClusterRow:
    """Return the cluster that a name or an id names; a name goes first, whatever it looks like.

    Raises:
        NotFound: there is none.
    """
    rows = clusters_all()
    number = _number("cluster", name)
    named = [row for row in rows if row.name == name] or [row for row in rows if row.id == number]
    if named:
        return named[0]
    raise NotFound(f"There is no cluster “{name[:80]}”.", cluster=name[:80])


def node_by_code(code: str, *, cluster_id: int | None = None) -> NodeRow:
    """Return the node that `CLUSTER:NAME`, NAME, an alias or an id names; `cluster_id` narrows it to one cluster.

    A name goes before an alias and both before an id, so that a site may well call its nodes `node_1`.

    Raises:
        NotFound: there is none.
        Ambiguous: several clusters know the name.
    """
    found = Node.objects.all() if cluster_id is None else Node.objects.filter(cluster_id=cluster_id)
    cluster, sign, name = code.partition(":")
    named = found.filter(cluster__name=cluster) if sign else found
    name = name if sign else code
    by_alias = NodeAlias.objects.filter(name=name).values("node_id")
    rows = _nodes(named.filter(name=name), limit=2) or _nodes(named.filter(pk__in=by_alias), limit=2)
    if not rows and (number := _number("node", code)) is not None:
        rows = _nodes(found.filter(pk=number))
    if not rows:
        raise NotFound(f"There is no node “{code[:120]}”.", node=code[:120])
    if len(rows) > 1:
        names = [f"{row.cluster}:{row.name}" for row in rows]
        raise Ambiguous(f"Several clusters have a node “{code[:120]}”; say which: {', '.join(names)}.", nodes=names)
    return rows[0]


def _number(prefix: str, code: str) -> int | None:
    """Return the row that `code` names if it is an id."""
    with suppress(NotFound):
        return id_read(prefix, code)
    return None


def node_by_id(node_id: int) -> NodeRow:
    """Return a node.

    Raises:
        NotFound: there is none.
    """
    rows = _nodes(Node.objects.filter(pk=node_id))
    if not rows:
        raise NotFound("There is no such node.")
    return rows[0]


def nodes_by_id(node_ids: Collection[int]) -> dict[int, NodeRow]:
    """Return nodes by their numbers; unknown numbers are left out."""
    return {row.id: row for row in _nodes(Node.objects.filter(pk__in=list(node_ids)))}


def nodes_of(
    *,
    cluster_id: int | None = None,
    states: Sequence[str] = (),
    after: tuple[str, str] | None = None,
    limit: int = 100_000,
) -> list[NodeRow]:
    """Return nodes by cluster name then node name, after the pair `after`, at most `limit`."""
    found = Node.objects.all()
    if cluster_id is not None:
        found = found.filter(cluster_id=cluster_id)
    if states:
        found = found.filter(status__state__in=states)
    if after is not None:
        found = found.filter(Q(cluster__name__gt=after[0]) | Q(cluster__name=after[0], name__gt=after[1]))
    return _nodes(found, limit=limit)


def exclusions_of(
    *,
    node_id: int | None = None,
    cluster_id: int | None = None,
    open_only: bool = False,
    before: int | None = None,
    limit: int = 200,
) -> list[ExclusionRow]:
    """Return ledger lines, open ones first, then newest first; below row `before`, which is one of a single node's.

    A node's open line is its newest, so that its lines are in the order of their rows.
    """
    found = Exclusion.objects.select_related("node__cluster")
    if node_id is not None:
        found = found.filter(node_id=node_id)
    if cluster_id is not None:
        found = found.filter(node__cluster_id=cluster_id)
    if open_only:
        found = found.filter(ended_at=None)
    if before is not None:
        found = found.filter(pk__lt=before)
    rows = found.order_by(IsNull(F("ended_at"), True).desc(), "-pk")[:limit]
    return [
        ExclusionRow(
            id=row.pk,
            node_id=row.node_id,
            node=row.node.name,
            cluster=row.node.cluster.name,
            origin=row.origin,
            reason=row.reason,
            by_name=row.by_name,
            action_id=row.action_id,
            incident_id=row.incident_id,
            began_at=row.began_at,
            until_at=row.until_at,
            ended_at=row.ended_at,
            ended_by_name=row.ended_by_name,
            ended_reason=row.ended_reason,
        )
        for row in rows
    ]


def exclusions_by_node(*, node_ids: Collection[int], since: datetime) -> dict[int, int]:
    """Return how many exclusions each node had that began since a moment, whoever made them; nodes without are left out."""
    rows = Exclusion.objects.filter(node_id__in=list(node_ids), began_at__gte=since).values("node_id")
    return {row["node_id"]: row["n"] for row in rows.annotate(n=Count("id"))}


def exclusions_counted(*, cluster_id: int, since: datetime) -> int:
    """Return how many exclusions of ours began in a cluster since a moment, ended ones included."""
    return Exclusion.objects.filter(
        node__cluster_id=cluster_id, began_at__gte=since, origin=ExclusionOrigin.OURS
    ).count()


def _nodes(found: QuerySet[Node], *, limit: int = 100_000) -> list[NodeRow]:
    nodes = list(found.select_related("cluster", "status").order_by("cluster__name", "name")[:limit])
    ids = [node.pk for node in nodes]
    aliases: dict[int, list[str]] = {}
    for alias in NodeAlias.objects.filter(node_id__in=ids).order_by("name"):
        aliases.setdefault(alias.node_id, []).append(alias.name)
    gpus: dict[int, list[GpuRow]] = {}
    for gpu in Gpu.objects.filter(node_id__in=ids).order_by("index", "slot"):
        gpus.setdefault(gpu.node_id, []).append(
            GpuRow(
                id=gpu.pk,
                key=gpu.key,
                pci=gpu.pci,
                index=gpu.index,
                model=gpu.model,
                slot=gpu.slot,
                last_seen_at=gpu.last_seen_at,
            )
        )
    return [_node_row(node, tuple(aliases.get(node.pk, ())), tuple(gpus.get(node.pk, ()))) for node in nodes]


def _node_row(node: Node, aliases: tuple[str, ...], gpus: tuple[GpuRow, ...]) -> NodeRow:
    status = node.status
    return NodeRow(
        id=node.pk,
        cluster_id=node.cluster_id,
        cluster=node.cluster.name,
        name=node.name,
        slot=node.slot,
        rack=node.rack,
        rack_slot=node.rack_slot,
        leaf=node.leaf,
        aliases=aliases,
        state=status.state,
        exclusion_id=status.exclusion_id,
        scheduler_state=status.scheduler_state,
        open_runs=tuple(status.open_runs),
        telemetry_state=status.telemetry_state,
        telemetry_last_at=status.telemetry_last_at,
        telemetry_gaps_24h=status.telemetry_gaps_24h,
        clock_skew_s=status.clock_skew_s,
        open_incidents=status.open_incidents,
        repaired_at=node.repaired_at,
        version=status.version,
        gpus=gpus,
    )
