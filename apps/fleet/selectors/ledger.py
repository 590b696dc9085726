"""Reading the ledger of exclusions: all of it page by page, what is due, and what each node's later lines say."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.lookups import IsNull

from apps.common.errors import NotFound
from apps.common.ids import id_read
from apps.fleet.choices import ExclusionOrigin, NoteKind
from apps.fleet.models import Exclusion, LedgerNote

NOTED = Q(origin=ExclusionOrigin.OBSERVED, ended_at=F("began_at"))
"""Lines that were over as they began: they kept a node out of one thing alone, and count as no occurrence."""


@dataclass(frozen=True, slots=True)
class NoteRow:
    """A later line about a node. `until_at`: kept out until then, or until when a passed check counts."""

    id: int
    node_id: int
    exclusion_id: int | None
    kind: str
    at: datetime
    by_name: str
    text: str
    until_at: datetime | None
    action_id: int | None


@dataclass(frozen=True, slots=True)
class ExclusionRow:
    """One line of the ledger. `until_at` is what it began with, `out_until_at` what holds after it was kept longer.

    `occurrence` counts the node's stays outside service up to this one, `previous_id` is the one before; 0 and None
    where it kept the node out of one thing alone.
    """

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
    at_until: str
    ended_at: datetime | None
    ended_by_name: str
    ended_reason: str
    out_until_at: datetime | None = None
    asked_at: datetime | None = None
    occurrence: int = 0
    previous_id: int | None = None
    notes: tuple[NoteRow, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Which lines of the ledger are wanted; what is empty or None does not narrow."""

    cluster_id: int | None = None
    node_id: int | None = None
    is_open: bool | None = None
    origin: str = ""
    text: str = ""
    since_at: datetime | None = None
    before_at: datetime | None = None


def ledger_rows(wanted: LedgerFilter, *, before: int | None = None, limit: int = 100) -> list[ExclusionRow]:
    """Return lines of the ledger, newest first, below row `before`."""
    found = _wanted(wanted)
    if before is not None:
        found = found.filter(pk__lt=before)
    return _rows(found.order_by("-pk")[:limit])


def ledger_pages(wanted: LedgerFilter, *, size: int) -> Iterator[list[ExclusionRow]]:
    """Return all lines of the ledger page by page, newest first. A node's stays are counted once, on its first page.

    Beside a page, the numbers of all stays of the nodes seen so far are in memory: 8 bytes of a list a stay.
    """
    stays = _Stays()
    found = _wanted(wanted).order_by("-pk")
    rows = _rows(found[:size], stays)
    while rows:
        yield rows
        rows = _rows(found.filter(pk__lt=rows[-1].id)[:size], stays)


def ledger_count(wanted: LedgerFilter) -> int:
    """Return how many lines a filter leaves."""
    return _wanted(wanted).count()


def exclusion_by_code(code: str) -> ExclusionRow:
    """Return the line that an id names.

    Raises:
        NotFound: there is none.
    """
    rows = _rows(Exclusion.objects.filter(pk=id_read("exc", code)).select_related("node__cluster"))
    if not rows:
        raise NotFound("There is no such exclusion.")
    return rows[0]


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
    found = _wanted(LedgerFilter(cluster_id=cluster_id, node_id=node_id, is_open=True if open_only else None))
    if before is not None:
        found = found.filter(pk__lt=before)
    return _rows(found.order_by(IsNull(F("ended_at"), True).desc(), "-pk")[:limit])


def exclusions_by_node(*, node_ids: Collection[int], since: datetime) -> dict[int, int]:
    """Return how many exclusions each node had that began since a moment, whoever made them; nodes without are left out."""
    rows = Exclusion.objects.filter(node_id__in=list(node_ids), began_at__gte=since).values("node_id")
    return {row["node_id"]: row["n"] for row in rows.annotate(n=Count("id"))}


def nodes_excluded(*, cluster_id: int, since: datetime) -> list[int]:
    """Return the node of each exclusion of ours that began in a cluster since a moment, ended ones included."""
    found = Exclusion.objects.filter(node__cluster_id=cluster_id, began_at__gte=since, origin=ExclusionOrigin.OURS)
    return list(found.values_list("node_id", flat=True))


def exclusions_due(*, now: datetime, exclusion_id: int | None = None, limit: int = 200) -> list[ExclusionRow]:
    """Return lines of ours whose time has come and that nobody has been asked about since, the longest due first.

    The last time that was said counts, however a line began. `exclusion_id`: that line alone, if it is due.
    """
    kept, asked = (
        LedgerNote.objects.filter(exclusion=OuterRef("pk"), kind=kind).order_by("-pk")
        for kind in (NoteKind.KEPT, NoteKind.ASKED)
    )
    found = _wanted(LedgerFilter(is_open=True, origin=ExclusionOrigin.OURS))
    if exclusion_id is not None:
        found = found.filter(pk=exclusion_id)
    until_at = Case(When(Exists(kept), then=Subquery(kept.values("until_at")[:1])), default=F("until_at"))
    found = found.alias(due_at=until_at, last_asked_at=Subquery(asked.values("at")[:1])).filter(due_at__lte=now)
    found = found.filter(Q(last_asked_at=None) | Q(last_asked_at__lt=F("due_at")))
    return _rows(found.order_by("due_at", "pk")[:limit])


def notes_of_node(node_id: int, *, kinds: Sequence[str] = (), limit: int = 20) -> list[NoteRow]:
    """Return the later lines about a node, newest first."""
    found = LedgerNote.objects.filter(node_id=node_id)
    if kinds:
        found = found.filter(kind__in=kinds)
    return [_note_row(row) for row in found.order_by("-pk")[:limit]]


def _wanted(wanted: LedgerFilter) -> QuerySet[Exclusion]:
    found = Exclusion.objects.select_related("node__cluster")
    if wanted.cluster_id is not None:
        found = found.filter(node__cluster_id=wanted.cluster_id)
    if wanted.node_id is not None:
        found = found.filter(node_id=wanted.node_id)
    if wanted.is_open is not None:
        found = found.filter(ended_at__isnull=wanted.is_open)
    if wanted.origin:
        found = found.filter(origin=wanted.origin)
    if wanted.since_at is not None:
        found = found.filter(began_at__gte=wanted.since_at)
    if wanted.before_at is not None:
        found = found.filter(began_at__lt=wanted.before_at)
    for word in wanted.text.split()[:6]:
        found = found.filter(
            Q(node__name__icontains=word) | Q(reason__icontains=word) | Q(by_name__icontains=word)
            | Q(ended_by_name__icontains=word) | Q(ended_reason__icontains=word)
        )  # fmt: skip
    return found


class _Stays:
    """The stays of nodes outside service, oldest first: those of a node are read once, when it is first asked about."""

    def __init__(self) -> None:
        self._by_node: dict[int, list[int]] = {}

    def take(self, node_ids: Collection[int]) -> None:
        new = set(node_ids) - self._by_node.keys()
        if not new:
            return
        self._by_node |= {node_id: [] for node_id in new}
        lines = Exclusion.objects.filter(node_id__in=new).exclude(NOTED).order_by("pk")
        for node_id, number in lines.values_list("node_id", "pk"):
            self._by_node[node_id].append(number)

    def of(self, row: Exclusion) -> tuple[int, int | None]:
        """Return which stay of its node a line is, counted from 1, and the one before; (0, None) if it is none."""
        numbers = self._by_node.get(row.node_id, [])
        place = bisect_left(numbers, row.pk)
        if place == len(numbers) or numbers[place] != row.pk:
            return 0, None
        return place + 1, numbers[place - 1] if place else None


def _rows(found: Iterable[Exclusion], stays: _Stays | None = None) -> list[ExclusionRow]:
    rows = list(found)
    notes: dict[int, list[NoteRow]] = {}
    for note in LedgerNote.objects.filter(exclusion_id__in=[row.pk for row in rows]).order_by("pk"):
        notes.setdefault(note.exclusion_id or 0, []).append(_note_row(note))
    stays = stays or _Stays()
    stays.take({row.node_id for row in rows})
    return [_row(row, notes.get(row.pk, []), *stays.of(row)) for row in rows]


def _row(row: Exclusion, notes: list[NoteRow], occurrence: int, previous_id: int | None) -> ExclusionRow:
    kept = [note.until_at for note in notes if note.kind == NoteKind.KEPT]
    asked = [note.at for note in notes if note.kind == NoteKind.ASKED]
    return ExclusionRow(
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
        at_until=row.at_until if row.until_at is not None else "",
        ended_at=row.ended_at,
        ended_by_name=row.ended_by_name,
        ended_reason=row.ended_reason,
        out_until_at=kept[-1] if kept else row.until_at,
        asked_at=asked[-1] if asked else None,
        occurrence=occurrence,
        previous_id=previous_id,
        notes=tuple(notes),
    )


def _note_row(row: LedgerNote) -> NoteRow:
    return NoteRow(
        id=row.pk,
        node_id=row.node_id,
        exclusion_id=row.exclusion_id,
        kind=row.kind,
        at=row.at,
        by_name=row.by_name,
        text=row.text,
        until_at=row.until_at,
        action_id=row.action_id,
    )
