"""Writing the fleet: nodes appear when they are first heard, the ledger only grows."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from apps.common.errors import Conflict, Unprocessable
from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.choices import ExclusionOrigin, NodeState
from apps.fleet.models import Cluster, Exclusion, Gpu, Node, NodeAlias, NodeStatus
from apps.journal.choices import StreamKey
from apps.journal.services import Log, recording

DEFAULT_CLUSTER = "main"
PRACTICE_CLUSTER = "practice"
"""Its machines are made up by the practice run: nobody else's belong there unless their sender says so."""
MOST_GPUS = 64
"""GPUs of one node; more is a broken inventory (a failing device was seen to count 18446744073709551615)."""

GPU_GONE = timedelta(hours=1)
"""A device that was not seen for so long gives its room to another: swapping one takes longer."""

NAME_LENGTH = 255
CLUSTER_LENGTH = 63
NAME_RULE = "no space, nothing invisible, none of / \\ : , ? # % & and not dots alone"
"""Names stand in addresses, in lists with commas and in programs' environments, and people tell them by sight."""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """A device as a sender names it."""

    key: str
    pci: str = ""
    index: int | None = None
    model: str = ""


def name_is_usable(name: str, *, most: int = NAME_LENGTH) -> bool:
    """Return whether a node or a cluster can be called that.

    >>> [name_is_usable(name) for name in ("trn001", "gpu-7.site.example", "..", "n/1", "a b")]
    [True, True, False, False, False]
    """
    if not 0 < len(name) <= most or not name.strip("."):
        return False
    return name.isprintable() and not any(letter.isspace() or letter in "/\\:,?#%&" for letter in name)


def cluster_ensure(*, name: str, now: datetime) -> int:
    """Return the cluster's row, made at first need.

    Raises:
        Unprocessable: no cluster can be called that.
    """
    if not name_is_usable(name, most=CLUSTER_LENGTH):
        raise Unprocessable(f"cluster: a name has 1 to {CLUSTER_LENGTH} characters, {NAME_RULE}.", cluster=name[:80])
    return Cluster.objects.get_or_create(name=name, defaults={"created_at": now})[0].pk


def cluster_default(*, now: datetime) -> int:
    """Return the cluster of a run or a machine whose sender names none: a site's only one, else `main`.

    One rule for both, so that a machine is one node of the cluster that its run is in.
    """
    names = Cluster.objects.exclude(name=PRACTICE_CLUSTER).order_by("name").values_list("name", flat=True)[:2]
    return cluster_ensure(name=names[0] if len(names) == 1 else DEFAULT_CLUSTER, now=now)


def nodes_ensure(*, cluster_id: int, names: Collection[str], now: datetime) -> dict[str, int]:
    """Return each name's node, by name or alias, and make those that were never heard of.

    Raises:
        Unprocessable: no node can be called that.
    """
    wanted = sorted(set(names))
    for name in wanted:
        if not name_is_usable(name):
            raise Unprocessable(f"node: a name has 1 to {NAME_LENGTH} characters, {NAME_RULE}.", node=name[:80])
    found = _known(cluster_id, wanted)
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    with transaction.atomic():
        # The cluster's row gives out slots; its lock makes two first hearings of one node wait for each other.
        cluster = Cluster.objects.select_for_update(no_key=True).get(pk=cluster_id)
        found |= _known(cluster_id, missing)
        missing = [name for name in missing if name not in found]
        nodes = [
            Node(cluster=cluster, name=name, slot=cluster.next_slot + place, created_at=now)
            for place, name in enumerate(missing)
        ]
        Node.objects.bulk_create(nodes)
        NodeStatus.objects.bulk_create([NodeStatus(node=node) for node in nodes])
        Cluster.objects.filter(pk=cluster_id).update(next_slot=F("next_slot") + len(nodes))
    return found | {node.name: node.pk for node in nodes}


def _known(cluster_id: int, names: list[str]) -> dict[str, int]:
    aliases = dict(NodeAlias.objects.filter(cluster_id=cluster_id, name__in=names).values_list("name", "node_id"))
    return aliases | dict(Node.objects.filter(cluster_id=cluster_id, name__in=names).values_list("name", "pk"))


def gpus_ensure(*, node_id: int, seen: Iterable[GpuSeen], now: datetime) -> dict[str, int]:
    """Return each device's slot in the cluster's GPU series by its key, and keep what is new about it.

    A node that shows its full number of devices gets no more until one of them has not been seen for an hour: those that
    found no room are left out.
    """
    wanted = {gpu.key: gpu for gpu in seen}
    known = {gpu.key: gpu for gpu in Gpu.objects.filter(node_id=node_id, key__in=wanted)}
    missing = [gpu for key, gpu in wanted.items() if key not in known]
    if missing:
        with transaction.atomic():
            # The cluster's row gives out slots (see nodes_ensure).
            cluster = Cluster.objects.select_for_update(no_key=True, of=("self",)).get(node__pk=node_id)
            seen_now = Gpu.objects.filter(node_id=node_id, last_seen_at__gt=now - GPU_GONE).count()
            missing = missing[: max(0, MOST_GPUS - seen_now)]
            for place, gpu in enumerate(missing):
                known[gpu.key], _ = Gpu.objects.get_or_create(
                    node_id=node_id,
                    key=gpu.key,
                    defaults={
                        "pci": gpu.pci,
                        "index": gpu.index,
                        "model": gpu.model[:100],
                        "slot": cluster.next_gpu_slot + place,
                        "first_seen_at": now,
                        "last_seen_at": now,
                    },
                )
            Cluster.objects.filter(pk=cluster.pk).update(next_gpu_slot=F("next_gpu_slot") + len(missing))
    for key, row in known.items():
        gpu = wanted[key]
        fresh = {
            "pci": gpu.pci or row.pci,
            "index": row.index if gpu.index is None else gpu.index,
            "model": gpu.model[:100] or row.model,
        }
        stale = (now - row.last_seen_at).total_seconds() > 600
        if stale or any(getattr(row, name) != value for name, value in fresh.items()):
            Gpu.objects.filter(pk=row.pk).update(last_seen_at=now, **fresh)
    return {key: row.slot for key, row in known.items()}


def node_place(*, node_id: int, rack: str, rack_slot: str, leaf: str) -> None:
    """Set where a node stands."""
    Node.objects.filter(pk=node_id).update(rack=rack[:63], rack_slot=rack_slot[:63], leaf=leaf[:63])


def node_status_update(*, node_id: int, **fields: Any) -> None:
    """Set fields of a node's status (each has one named writer, see NodeStatus) and poke the fleet's pages."""
    NodeStatus.objects.filter(pk=node_id).update(version=F("version") + 1, **fields)
    poke_on_commit(FLEET_GROUP, {"what": "node", "id": node_id})


def nodes_heard(*, heard: Mapping[int, tuple[datetime, float | None]]) -> None:
    """Note when nodes' own gauges last arrived, and how far their clocks are ahead in s; no news, so nobody is poked."""
    # In the order of their ids, as everywhere nodes are locked.
    for node_id, (last_at, skew_s) in sorted(heard.items()):
        NodeStatus.objects.filter(pk=node_id).update(telemetry_last_at=last_at, clock_skew_s=skew_s)


def node_event(log: Log, *, node_id: int, kind: str, text: str, source: str, **more: Any) -> None:
    """Write an event in the node's stream and a link to it in the stream of each run that holds the node now."""
    log.add(StreamKey.node(node_id), kind=kind, text=text, source=source, **more)
    runs = NodeStatus.objects.filter(pk=node_id).values_list("open_runs", flat=True).first() or []
    for run_id in sorted(runs):
        linked = {**more, "payload": {**(more.get("payload") or {}), "linked": f"node:{node_id}"}}
        log.add(StreamKey.run(run_id), kind=kind, text=text, source=source, **linked)


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
) -> int:
    """Put a node out of service in our ledger; return the line. The first reason is kept: a second call changes nothing.

    Raises:
        Conflict: the node is out already (the facts name the line).
    """
    with recording(now=now) as log:
        status = _status_locked(node_id)
        if status.exclusion_id is not None:
            raise Conflict("This node is out already; its first reason is kept.", exclusion=status.exclusion_id)
        row = Exclusion.objects.create(
            node_id=node_id,
            origin=origin,
            reason=reason,
            by_name=by_name,
            action_id=action_id,
            incident_id=incident_id,
            began_at=now,
            until_at=until_at,
        )
        node_status_update(node_id=node_id, state=NodeState.EXCLUDED, exclusion_id=row.pk)
        node_event(
            log,
            node_id=node_id,
            kind="node.excluded",
            text=f"{status.node.name} excluded: {reason}",
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


def exclusion_end(*, node_id: int, reason: str, by_name: str, source: str, now: datetime) -> int | None:
    """Take a node back into service in our ledger; return the line that ended, or None if none was open."""
    with recording(now=now) as log:
        status = _status_locked(node_id)
        if status.exclusion_id is None:
            return None
        Exclusion.objects.filter(pk=status.exclusion_id, ended_at=None).update(
            ended_at=now, ended_by_name=by_name, ended_reason=reason
        )
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


def _status_locked(node_id: int) -> NodeStatus:
    # Locked so that two exclusions of one node, or an exclusion and its end, are one after the other.
    return NodeStatus.objects.select_for_update(of=("self",), no_key=True).select_related("node").get(pk=node_id)
