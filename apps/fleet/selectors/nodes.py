"""Reading clusters and nodes."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, QuerySet

from apps.common.errors import Conflict, NotFound
from apps.common.ids import id_read
from apps.fleet.models import Cluster, Gpu, Node, NodeAlias
from apps.fleet.selectors.names import NameBook, name_key


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
    merged_into: int | None
    version: int
    gpus: tuple[GpuRow, ...]


def clusters_all() -> list[ClusterRow]:
    """Return all clusters, by name."""
    rows = Cluster.objects.annotate(
        nodes=Count("node", filter=Q(node__merged_into=None)),
        out=Count("node", filter=Q(node__merged_into=None, node__status__exclusion_id__isnull=False)),
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

    A name goes before an alias, both before an id, so that a site may well call its nodes `node_1`, and all before a
    name that is spelled otherwise: in other letters, short for a full name or the other way round.

    Raises:
        NotFound: there is none.
        Ambiguous: several clusters know the name, or it is short for several machines.
    """
    found = Node.objects.all() if cluster_id is None else Node.objects.filter(cluster_id=cluster_id)
    cluster, sign, name = code.partition(":")
    named = (found.filter(cluster__name=cluster) if sign else found).filter(merged_into=None)
    name = name if sign else code
    by_alias = NodeAlias.objects.filter(name=name).values("node_id")
    rows = _nodes(named.filter(name=name), limit=2) or _nodes(named.filter(pk__in=by_alias), limit=2)
    if not rows and (number := _number("node", code)) is not None:
        rows = _nodes(found.filter(pk=number))
    rows = rows or _nodes(named.filter(pk__in=_spelled_otherwise(named, name)))
    if not rows:
        raise NotFound(f"There is no node “{code[:120]}”.", node=code[:120])
    if len(rows) > 1:
        names = [f"{row.cluster}:{row.name}" for row in rows]
        several = "clusters have a" if len({row.cluster for row in rows}) > 1 else "machines could be the"
        raise Ambiguous(f"Several {several} node “{code[:120]}”; say which: {', '.join(names)}.", nodes=names)
    return rows[0]


def _spelled_otherwise(named: QuerySet[Node], name: str) -> set[int]:
    """Return the nodes that a name of nobody may mean; several where it may mean several."""
    short = name_key(name)[0]
    rows = named.filter(Q(short=short) | Q(pk__in=NodeAlias.objects.filter(short=short).values("node_id")))
    meant: set[int] = set()
    for cluster_id in rows.values_list("cluster_id", flat=True).distinct():
        meant |= NameBook.of(cluster_id, [short]).meant(name)
    return meant


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
    found = Node.objects.filter(merged_into=None)
    if cluster_id is not None:
        found = found.filter(cluster_id=cluster_id)
    if states:
        found = found.filter(status__state__in=states)
    if after is not None:
        found = found.filter(Q(cluster__name__gt=after[0]) | Q(cluster__name=after[0], name__gt=after[1]))
    return _nodes(found, limit=limit)


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
        merged_into=node.merged_into_id,
        version=status.version,
        gpus=gpus,
    )
