"""A cluster's nodes as actions need them: names, who is out, what runs there. Two queries, however large the cluster."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from apps.fleet.models import Node, NodeAlias
from apps.runs.launcher import LauncherSetting


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node. `names` are its own name and its aliases."""

    id: int
    names: frozenset[str]
    name: str
    is_out: bool
    open_runs: tuple[int, ...]


def pool_of(cluster_id: int) -> list[PoolNode]:
    """Return a cluster's nodes, by name."""
    aliases: dict[int, list[str]] = {}
    for node_id, alias in NodeAlias.objects.filter(cluster_id=cluster_id).values_list("node_id", "name"):
        aliases.setdefault(node_id, []).append(alias)
    rows = Node.objects.filter(cluster_id=cluster_id).order_by("name")
    return [
        PoolNode(
            id=node_id,
            names=frozenset((name, *aliases.get(node_id, ()))),
            name=name,
            is_out=exclusion_id is not None,
            open_runs=tuple(open_runs),
        )
        for node_id, name, exclusion_id, open_runs in rows.values_list(
            "pk", "name", "status__exclusion_id", "status__open_runs"
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


def spare_names(
    pool: Sequence[PoolNode], setting: LauncherSetting | None, *, adding: Iterable[int] = ()
) -> tuple[str, ...]:
    """Return the nodes of a launcher on which nothing runs and that are not out, in its order."""
    if setting is None:
        return ()
    taken = set(adding)
    free = [node.names for node in pool if not (node.is_out or node.open_runs or node.id in taken)]
    names = frozenset[str]().union(*free)
    return tuple(name for name in setting.nodes if name in names)
