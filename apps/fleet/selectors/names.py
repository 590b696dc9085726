"""Which names mean the same machine: short and full, in any letters; what may mean several means none.

Sources call a machine differently: the scheduler `trn001`, a rank `trn001.site.example`, an exporter `TRN001`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Count, Exists, OuterRef, Q

from apps.fleet.models import Node, NodeAlias, short_of


def name_key(name: str) -> tuple[str, str]:
    """Return a name's first label and its domain, in small letters; the domain is empty where there is none.

    >>> name_key("TRN001.Site.example"), name_key("trn001"), name_key("10.0.0.7")
    (('trn001', 'site.example'), ('trn001', ''), ('10.0.0.7', ''))
    """
    short = short_of(name)
    return short, name.casefold()[len(short) + 1 :]


@dataclass
class NameBook:
    """The names of some nodes of one cluster, by first label: `{short: {node: {whole name in small letters}}}`."""

    names: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    apart: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, cluster_id: int, shorts: Collection[str]) -> "NameBook":
        """Return the book of all names of a cluster that begin with one of these first labels."""
        book = cls()
        nodes = Node.objects.filter(cluster_id=cluster_id, short__in=shorts, merged_into=None)
        for node_id, name, apart_at in nodes.values_list("pk", "name", "apart_at"):
            book.add(node_id, name, is_apart=apart_at is not None)
        aliases = NodeAlias.objects.filter(cluster_id=cluster_id, short__in=shorts)
        for node_id, name, apart_at in aliases.values_list("node_id", "name", "node__apart_at"):
            book.add(node_id, name, is_apart=apart_at is not None)
        return book

    def add(self, node_id: int, name: str, *, is_apart: bool = False) -> None:
        """Note one name of a node."""
        self.names.setdefault(short_of(name), {}).setdefault(node_id, set()).add(name.casefold())
        if is_apart:
            self.apart.add(node_id)

    def meant(self, name: str) -> set[int]:
        """Return the nodes that a name, which is nobody's exactly, may mean: one if it is certain, several if it is not.

        One that somebody called a machine of its own is meant by its own names in any letters, and by no other.
        """
        short, domain = name_key(name)
        family = self.names.get(short, {})
        same = {node_id for node_id, names in family.items() if name.casefold() in names}
        if same:
            return same
        kin = {node_id: _domains(names) for node_id, names in family.items() if node_id not in self.apart}
        if not domain:
            return set(kin)
        if len(kin) == 1 and len(family) == 1 and not next(iter(kin.values())):
            return set(kin)
        return {node_id for node_id, domains in kin.items() if any(_same_domain(domain, known) for known in domains)}


def _domains(names: Collection[str]) -> set[str]:
    return {domain for name in names if (domain := name_key(name)[1])}


def _same_domain(one: str, other: str) -> bool:
    """Return whether two domains can be the same, one of them cut short."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@dataclass(frozen=True, slots=True)
class Doubt:
    """A name that nobody has placed: of whom it may be another name, and why it is asked about."""

    node_id: int
    node: str
    cluster: str
    why: str
    candidates: tuple[str, ...]
    heard_at: datetime | None
    created_at: datetime


def doubts_of(cluster_id: int, *, limit: int = 200) -> list[Doubt]:
    """Return names that want placing, by name: unknown to the scheduler where one tells its nodes, or short for several.

    What somebody called a machine of its own is not asked about again.
    """
    nodes = Node.objects.filter(cluster_id=cluster_id, merged_into=None)
    told = nodes.exclude(status__scheduler_state="").exists()
    shared = nodes.values("short").annotate(n=Count("pk")).filter(n__gt=1).values("short")
    bare = Node.objects.filter(
        cluster_id=cluster_id, merged_into=None, short=OuterRef("short"), name__iexact=OuterRef("short")
    )
    doubtful = Q(short__in=shared) & Q(Exists(bare))
    if told:
        doubtful = Q(
            status__scheduler_state=""
        )  # what the scheduler knows stands; what it does not know is asked about
    rows = list(nodes.filter(doubtful, apart_at=None).select_related("cluster", "status").order_by("name")[:limit])
    family: dict[str, list[str]] = {}
    for short, name in (
        nodes.filter(short__in={row.short for row in rows}).order_by("name").values_list("short", "name")
    ):
        family.setdefault(short, []).append(name)
    return [
        Doubt(
            node_id=row.pk,
            node=row.name,
            cluster=row.cluster.name,
            why=_why(row, told=told, kin=[name for name in family.get(row.short, ()) if name != row.name]),
            candidates=tuple(name for name in family.get(row.short, ()) if name != row.name),
            heard_at=row.status.telemetry_last_at,
            created_at=row.created_at,
        )
        for row in rows
    ]


def _why(row: Node, *, told: bool, kin: list[str]) -> str:
    if kin and name_key(row.name)[1] == "":
        return f"short for several: {', '.join(kin)}"
    if kin:
        return f"shares its short name with {', '.join(kin)}"
    return "the scheduler does not know this name" if told else "not placed"


@dataclass(frozen=True, slots=True)
class AliasRow:
    """Another name of a node: who said so (nobody where the rule of names did), and when."""

    name: str
    source: str
    by_name: str
    created_at: datetime | None


def aliases_of(node_id: int) -> list[AliasRow]:
    """Return a node's other names, by name."""
    rows = NodeAlias.objects.filter(node_id=node_id).order_by("name")
    return [AliasRow(row.name, row.source, row.by_name, row.created_at) for row in rows]
