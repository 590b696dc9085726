"""A cluster's nodes as actions need them: names, who is out, what runs there. Two queries, however large the cluster."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef

from apps.fleet.choices import ExclusionOrigin
from apps.fleet.models import Exclusion, Node, NodeAlias
from apps.runs.launcher import LauncherSetting


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node. `names` are its own name and its aliases; `is_ours`: it is out by a line of our own in the ledger;
    `scheduler_state` is empty where no scheduler told of it; `read_at` is when it last did."""

    id: int
    names: frozenset[str]
    name: str
    is_out: bool
    open_runs: tuple[int, ...]
    scheduler_state: str = ""
    is_ours: bool = False
    read_at: datetime | None = None
    partitions: tuple[str, ...] = ()

    def is_told(self, now: datetime) -> bool:
        """Return whether its scheduler told of it of late; what it said before that may have changed since."""
        return bool(self.scheduler_state) and self.read_at is not None and now - self.read_at <= WORD_HOLDS

    @property
    def is_free(self) -> bool:
        """Return whether nothing runs on it, it is not out, and its scheduler, where one tells of it, calls it idle and no more:
        IDLE+DRAIN, a node that does not answer (`*`) or one that is powered down (`~`) takes no job at once."""
        idle = self.scheduler_state.upper() in ("", "IDLE")
        return idle and not (self.is_out or self.open_runs)


MOST_SPARES = 100

WORD_HOLDS = timedelta(minutes=15)
"""How long a scheduler's word about a node counts: longer than the longest pause between two reads (ten minutes) and
the minute by which the time of a node that does not change may lag behind. After that its controller is down, or the
node is no longer its own; who computes there by now, nobody knows."""


def pool_of(cluster_id: int) -> list[PoolNode]:
    """Return a cluster's nodes, by name."""
    aliases: dict[int, list[str]] = {}
    for node_id, alias in NodeAlias.objects.filter(cluster_id=cluster_id).values_list("node_id", "name"):
        aliases.setdefault(node_id, []).append(alias)
    line = Exclusion.objects.filter(pk=OuterRef("status__exclusion_id"), origin=ExclusionOrigin.OURS)
    rows = Node.objects.filter(cluster_id=cluster_id).annotate(is_ours=Exists(line)).order_by("name")
    return [
        PoolNode(
            id=node_id,
            names=frozenset((name, *aliases.get(node_id, ()))),
            name=name,
            is_out=exclusion_id is not None,
            open_runs=tuple(open_runs),
            scheduler_state=said or "",
            is_ours=is_ours,
            read_at=read_at,
            partitions=tuple(partitions),
        )
        for node_id, name, exclusion_id, open_runs, said, is_ours, read_at, partitions in rows.values_list(
            "pk",
            "name",
            "status__exclusion_id",
            "status__open_runs",
            "status__scheduler_state",
            "is_ours",
            "status__scheduler_read_at",
            "status__partitions",
        )
    ]


def exclude_names(
    pool: Sequence[PoolNode], setting: LauncherSetting | None, *, adding: Iterable[int] = ()
) -> tuple[str, ...]:
    """Return the names that a new attempt must leave out, as its launcher spells them; what it could not use is left out."""
    new = set(adding)
    out = [node for node in pool if node.is_out or node.id in new]
    if setting is None or not setting.nodes:
        return tuple(node.name for node in out)
    gone = frozenset[str]().union(*(node.names for node in out))
    return tuple(name for name in setting.nodes if name in gone)


def of_partitions(pool: Sequence[PoolNode], wanted: Collection[str]) -> list[PoolNode]:
    """Return the nodes of any of some partitions, by name; all where none is named, or where nobody tells of partitions."""
    if not wanted or not any(node.partitions for node in pool):
        return list(pool)
    return [node for node in pool if not set(wanted).isdisjoint(node.partitions)]


def spare_names(
    pool: Sequence[PoolNode],
    setting: LauncherSetting | None,
    *,
    now: datetime,
    adding: Iterable[int] = (),
    partitions: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the nodes that could take a lost one's place: a launcher's own in its order, or those that its scheduler calls
    idle; at most MOST_SPARES. What a scheduler said too long ago is no reason to name a node.

    partitions: those that the run's job may run in, none where that is not known.
    """
    if setting is None:
        return ()
    taken = set(adding)
    near = [node for node in of_partitions(pool, partitions) if node.is_free and node.id not in taken]
    free = [node for node in near if not node.scheduler_state or node.is_told(now)]
    if not setting.nodes:
        return tuple(node.name for node in free if node.scheduler_state)[:MOST_SPARES]
    names = frozenset[str]().union(*(node.names for node in free))
    return tuple(name for name in setting.nodes if name in names)[:MOST_SPARES]
