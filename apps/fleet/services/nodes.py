"""Writing nodes: they appear when they are first heard, under whatever name."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from apps.common.errors import Unprocessable
from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.models import Cluster, Gpu, Node, NodeAlias, NodeStatus, short_of
from apps.fleet.selectors.names import NameBook
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording

DEFAULT_CLUSTER = "main"
PRACTICE_CLUSTER = "practice"
"""Its machines are made up by the practice run: nobody else's belong there unless their sender says so."""
MOST_GPUS = 64
"""GPUs of one node; more is a broken inventory (a failing device was seen to count 18446744073709551615)."""

GPU_GONE = timedelta(hours=1)
"""A device that was not seen for so long gives its room to another: swapping one takes longer."""

BY_RULE = "rule"
"""Source of an alias that follows from the rule of names alone."""

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

    A name that certainly means a known node (in other letters, short for its full name or the other way round) becomes
    an alias of it; one that may mean several becomes a node of its own, for people to place (`selectors/names.py`).

    Raises:
        Unprocessable: no node can be called that.
    """
    wanted = sorted(set(names))
    for name in wanted:
        if not name_is_usable(name):
            raise Unprocessable(f"node: a name has 1 to {NAME_LENGTH} characters, {NAME_RULE}.", node=name[:80])
    found = nodes_known(cluster_id, wanted)
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    with recording(now=now) as log:
        # The cluster's row gives out slots; its lock makes two first hearings of one node wait for each other.
        Cluster.objects.select_for_update(no_key=True).get(pk=cluster_id)
        found |= nodes_known(cluster_id, missing)
        missing = [name for name in missing if name not in found]
        book = NameBook.of(cluster_id, {short_of(name) for name in missing})
        new: list[str] = []
        aliases: dict[str, int] = {}
        # Full names first: whether a short one is ambiguous shows only when they are known.
        for name in sorted(missing, key=lambda name: (-name.count("."), name)):
            meant = book.meant(name)
            if len(meant) == 1:
                aliases[name] = next(iter(meant))
            else:
                new.append(name)
            book.add(aliases.get(name, -len(new)), name)  # what is new has its row's number only later
        found |= nodes_make(cluster_id=cluster_id, names=new, now=now)
        for name, node_id in aliases.items():
            found[name] = node_id if node_id > 0 else found[new[-node_id - 1]]
            _alias(log, cluster_id, found[name], name, now=now)
    return found


def nodes_make(
    *, cluster_id: int, names: Collection[str], now: datetime, apart_at: datetime | None = None
) -> dict[str, int]:
    """Make nodes; the caller holds the lock of the cluster's row, which gives out slots."""
    cluster = Cluster.objects.get(pk=cluster_id)
    nodes = [
        Node(
            cluster=cluster,
            name=name,
            short=short_of(name),
            slot=cluster.next_slot + place,
            created_at=now,
            apart_at=apart_at,
        )
        for place, name in enumerate(names)
    ]
    Node.objects.bulk_create(nodes)
    NodeStatus.objects.bulk_create([NodeStatus(node=node) for node in nodes])
    Cluster.objects.filter(pk=cluster_id).update(next_slot=F("next_slot") + len(nodes))
    return {node.name: node.pk for node in nodes}


def _alias(log: Log, cluster_id: int, node_id: int, name: str, *, now: datetime) -> None:
    node = Node.objects.get(pk=node_id)
    NodeAlias.objects.create(cluster_id=cluster_id, node=node, name=name, source=BY_RULE, created_at=now)
    text = f"{name} is taken for another name of {node.name}"
    node_event(log, node_id=node_id, kind="node.aliased", text=text, source=Source.SYSTEM, payload={"alias": name})


def nodes_known(cluster_id: int, names: Collection[str]) -> dict[str, int]:
    """Return the node of each name that is one's name or another name of one; others are left out."""
    aliases = dict(NodeAlias.objects.filter(cluster_id=cluster_id, name__in=names).values_list("name", "node_id"))
    nodes = Node.objects.filter(cluster_id=cluster_id, name__in=names, merged_into=None)
    return aliases | dict(nodes.values_list("name", "pk"))


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
