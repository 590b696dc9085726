"""The ledger's page, differences with the scheduler, and names in doubt."""

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from apps.console.selectors.nodes import LedgerLine, ledger_lines
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.selectors import (
    ClusterRow,
    Doubt,
    ExclusionRow,
    LedgerFilter,
    doubts_of,
    exclusions_of,
    ledger_count,
    ledger_rows,
    nodes_by_id,
)
from apps.remediation.choices import DECISIONS, Decision, DriftKind
from apps.remediation.selectors.jobs import DriftRow, drifts_open

AT_ONCE = 100
MOST_DOUBTS = 50
STATES = (("", "all"), ("OPEN", "open"), ("ENDED", "ended"))
ORIGINS = (("", "anybody's"), (ExclusionOrigin.OURS, "ours"), (ExclusionOrigin.OBSERVED, "others'"))
LABELS: dict[str, str] = {
    Decision.END: "End our exclusion",
    Decision.DRAIN: "Drain again",
    Decision.TAKE: "Take over as observed",
    Decision.LIFT: "Bring it back there too",
    Decision.EXCLUDE: "Exclude it ourselves",
    Decision.KEEP: "Keep as is",
}


@dataclass(frozen=True, slots=True)
class DriftLine:
    """A difference with what we say, what the scheduler says, and the buttons; keeping it as is has a time of its own."""

    row: DriftRow
    label: str
    ours: ExclusionRow | None
    buttons: tuple[tuple[str, str], ...]
    is_kept: bool


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """One page of a cluster's ledger as it was narrowed down."""

    cluster: ClusterRow
    lines: tuple[LedgerLine, ...]
    count: int
    newer: str
    older: str
    query: str
    state: str
    origin: str
    text: str
    states: tuple[tuple[str, str], ...] = STATES
    origins: tuple[tuple[str, str], ...] = ORIGINS


def drift_lines(cluster_id: int, *, now: datetime) -> list[DriftLine]:
    """Return a cluster's differences: those that want a decision first, each oldest first."""
    rows = drifts_open(cluster_id=cluster_id)
    known = {line.id: line for line in exclusions_of(cluster_id=cluster_id, open_only=True, limit=1000)} if rows else {}
    lines = [
        DriftLine(
            row=row,
            label=DriftKind(row.kind).label,
            ours=known.get(row.exclusion_id or 0),
            buttons=tuple((str(one), LABELS[one]) for one in DECISIONS[row.kind] if one != Decision.KEEP),
            is_kept=row.is_kept(now),
        )
        for row in rows
    ]
    return sorted(lines, key=lambda line: line.is_kept)


def names_in_doubt(cluster_id: int) -> tuple[list[Doubt], bool]:
    """Return names that nobody has placed, by name, and whether there are more."""
    rows = doubts_of(cluster_id, limit=MOST_DOUBTS + 1)
    return rows[:MOST_DOUBTS], len(rows) > MOST_DOUBTS


def ledger_page(cluster: ClusterRow, *, state: str, origin: str, text: str, before: int | None) -> LedgerPage:
    """Return one page of a cluster's ledger, newest line first, below row `before`."""
    state = state if state in dict(STATES) else ""
    origin = origin if origin in dict(ORIGINS) else ""
    wanted = ledger_filter(cluster.id, state=state, origin=origin, text=text)
    rows = ledger_rows(wanted, before=before, limit=AT_ONCE + 1)
    given = {"cluster": cluster.name, "state": state, "origin": origin, "q": text}
    query = urlencode({name: value for name, value in given.items() if value})
    return LedgerPage(
        cluster=cluster,
        lines=tuple(_lines(rows[:AT_ONCE])),
        count=ledger_count(wanted),
        newer=query if before is not None else "",
        older=f"{query}&before={rows[AT_ONCE - 1].id}" if len(rows) > AT_ONCE else "",
        query=query,
        state=state,
        origin=origin,
        text=text,
    )


def ledger_filter(cluster_id: int, *, state: str, origin: str, text: str) -> LedgerFilter:
    """Return what a page's form narrows the ledger to."""
    return LedgerFilter(
        cluster_id=cluster_id,
        is_open=None if state not in ("OPEN", "ENDED") else state == "OPEN",
        origin=origin if origin in ExclusionOrigin.values else "",
        text=text[:200],
    )


def _lines(rows: list[ExclusionRow]) -> list[LedgerLine]:
    return ledger_lines(rows, list(nodes_by_id({row.node_id for row in rows}).values()))
