"""Suspects of a run as verdict cards, with what acting would cost and what it would give back."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from apps.common.access import OPERATE, Principal
from apps.common.errors import PacelineError
from apps.common.ids import id_write
from apps.console import words
from apps.diagnosis.choices import LEVEL_TOKENS
from apps.diagnosis.selectors import DetectorRow, FindingRow, detectors_of, findings_of
from apps.fleet.selectors import nodes_by_id
from apps.incidents.losses import loss_share
from apps.incidents.selectors import IncidentRow, incidents_of
from apps.remediation.selectors import GuardRow, Preview, Price, restart_preview
from apps.runs.selectors import RunRow, placement_of, run_by_id

ESTIMATED = frozenset({"CLUSTER", "START"})
"""Downtimes that this run's own restarts did not measure."""

LEVELS = {"CRITICAL": 0, "WARNING": 1, "INFO": 2}


@dataclass(frozen=True, slots=True)
class ActButton:
    """A button that leads to a confirm page: its words, its price, and why it is off, if it is."""

    label: str
    price: str
    href: str
    primary: bool
    off: str = ""


@dataclass(frozen=True, slots=True)
class Rent:
    """What a suspect has cost so far against what acting costs: the ski-rental meter."""

    lost: float
    acting: float | None
    per_hour: float | None
    even_at: datetime | None
    over: bool


@dataclass(frozen=True, slots=True)
class SuspectCard:
    """A finding with what can be done about it."""

    finding: FindingRow
    token: str
    incident: IncidentRow | None
    cells: dict[str, Any] | None
    rent: Rent | None
    buttons: tuple[ActButton, ...]
    closed_guard: GuardRow | None
    muted: bool


@dataclass(frozen=True, slots=True)
class Suspects:
    """The rail's upper half."""

    main: SuspectCard | None
    others: tuple[SuspectCard, ...]
    undecided: tuple[DetectorRow, ...]
    undecided_total: int
    open: int

    @property
    def undecided_more(self) -> int:
        """Return how many checks lack evidence beside those that are listed."""
        return self.undecided_total - len(self.undecided)


def suspects_of(run: RunRow, *, who: Principal, now: datetime, undecided_most: int = 3) -> Suspects:
    """Return a run's open findings, the most serious first, then detectors that lack evidence."""
    findings = sorted(findings_of(run_id=run.id, state="OPEN"), key=_seriousness)
    incidents = {row.id: row for row in incidents_of(now=now, run_id=run.id)}
    placed = _nodes_of_ranks(run)
    cards = [
        _card(row, run, incidents, placed, who=who, now=now, priced=place == 0) for place, row in enumerate(findings)
    ]
    loud = [card for card in cards if not card.muted and card.finding.level != "INFO"]
    undecided = [row for row in detectors_of(run.attempt_id) if row.answer == "UNDECIDED"] if run.attempt_id else []
    main = loud[0] if loud else None
    return Suspects(
        main=main,
        others=tuple(card for card in cards if card is not main),
        undecided=tuple(undecided[:undecided_most]),
        undecided_total=len(undecided),
        open=len(loud),
    )


SLOW_CAUSES = frozenset({"compute_straggler", "thermal_throttle", "power_cap"})
"""Causes that say that a node computes slower than the others, which then wait for it."""


def suspect_nodes(run_id: int, *, causes: frozenset[str] | None = None) -> list[str]:
    """Return the nodes that open findings (of these causes) blame, the most serious first: the heatmap opens them."""
    names: list[str] = []
    for row in sorted(findings_of(run_id=run_id, state="OPEN"), key=_seriousness):
        if row.level == "INFO" or (causes is not None and row.cause not in causes):
            continue
        for name in [row.subject.get("node"), *(row.subject.get("nodes") or ())]:
            if name and name not in names:
                names.append(name)
    return names[:4]


def _seriousness(row: FindingRow) -> tuple[bool, int, bool, bool, int]:
    return (
        row.muted_for_good,
        LEVELS.get(row.level, 3),
        row.certainty != "CONFIRMED",
        row.proposal_kind == "NONE",
        row.id,
    )


def _card(
    row: FindingRow,
    run: RunRow,
    incidents: dict[int, IncidentRow],
    placed: dict[int, str],
    *,
    who: Principal,
    now: datetime,
    priced: bool,
) -> SuspectCard:
    incident = incidents.get(row.incident_id or 0)
    preview = _preview(row, run, now=now) if priced else None
    return SuspectCard(
        finding=row,
        token=LEVEL_TOKENS.get(row.level, "warn"),
        incident=incident,
        cells=_cells(row, placed),
        rent=_rent(row, run, incident, preview, now=now),
        buttons=tuple(_buttons(row, run, preview, who)) if preview else (),
        closed_guard=next((guard for guard in preview.guards if not guard.holds), None) if preview else None,
        muted=row.muted(now),
    )


def incident_next(
    incident: IncidentRow, lead: FindingRow | None, *, who: Principal, now: datetime
) -> SuspectCard | None:
    """Return what can be done about an incident now, or None if nothing is proposed any more."""
    if lead is None or incident.run_id is None or not incident.unresolved or lead.state != "OPEN":
        return None
    run = run_by_id(incident.run_id)
    return _card(lead, run, {incident.id: incident}, _nodes_of_ranks(run), who=who, now=now, priced=True)


def _preview(row: FindingRow, run: RunRow, *, now: datetime) -> Preview | None:
    if row.proposal_kind == "NONE":
        return None
    exclude = [row.proposal_node] if row.proposal_kind == "EXCLUDE_NODE" and row.proposal_node else []
    try:
        return restart_preview(run.id, exclude_nodes=exclude, now=now)
    except PacelineError:
        return None  # a launcher or a node that cannot be used: the card stays, without buttons


def _rent(
    row: FindingRow, run: RunRow, incident: IncidentRow | None, preview: Preview | None, *, now: datetime
) -> Rent | None:
    lost = incident.gpu_hours_lost if incident else None
    if lost is None:
        return None
    cheapest = _cheapest(preview) if preview else None
    acting = cheapest.gpu_hours if cheapest else None
    per_hour = _per_hour(row, run)
    even_at = None
    if acting is not None and per_hour and acting > lost:
        even_at = now + timedelta(hours=(acting - lost) / per_hour)
    return Rent(
        lost=lost, acting=acting, per_hour=per_hour, even_at=even_at, over=acting is not None and lost >= acting
    )


def _per_hour(row: FindingRow, run: RunRow) -> float | None:
    if run.world_size is None:
        return None
    share = loss_share(row, run)
    return None if share is None else share * run.world_size


def _cheapest(preview: Preview) -> Price | None:
    return cheapest(preview.prices)


def cheapest(prices: Sequence[Price]) -> Price | None:
    """Return the price that is known and least, the sooner of two alike; the first where none is known."""
    known = [price for price in prices if price.gpu_hours is not None]
    return min(known, key=lambda price: price.gpu_hours or 0.0) if known else next(iter(prices), None)


def _buttons(row: FindingRow, run: RunRow, preview: Preview, who: Principal) -> list[ActButton]:
    prices = [price for price in preview.prices if price.moment != "NEXT_CHECKPOINT"]
    prices.sort(key=lambda price: (price.gpu_hours is None, price.gpu_hours or 0.0, price.moment != "NOW"))
    off = _off(run, preview, who)
    by_hand = "" if preview.can else f"; {by_hand_words(preview.why_not)}"
    return [
        ActButton(
            label=act_label(price.moment, excludes=bool(preview.exclude)),
            price=off or price_words(price, choose=bool(preview.choose)) + by_hand,
            href=confirm_href(run, kind="RESTART_RUN", node=row.proposal_node, when=price.moment, finding=row.id),
            primary=place == 0 and not off and preview.can,
            off=off,
        )
        for place, price in enumerate(prices)
    ]


def by_hand_words(why_not: str) -> str:
    """Return why Paceline cannot do it itself, the first sentence as it goes on behind a semicolon; names keep their capitals."""
    first = why_not.partition(".")[0]
    return first[:1].lower() + first[1:]


def _off(run: RunRow, preview: Preview, who: Principal) -> str:
    if not who.may(OPERATE):
        return f"You may look at {run.cluster}, not act on it."
    guard = next((guard for guard in preview.guards if not guard.holds), None)
    return f"off: {guard.text}" if guard else ""


def act_label(moment: str, *, excludes: bool) -> str:
    """Return a button's words in the order of what happens."""
    first = "Checkpoint, " if moment in {"CHECKPOINT_FIRST", "NEXT_CHECKPOINT"} else ""
    middle = "exclude, restart" if excludes and first else "exclude and restart" if excludes else "restart"
    text = f"{first}{middle}" + (" now" if moment == "NOW" else "")
    return text[0].upper() + text[1:] + "…"


def price_words(price: Price, *, choose: bool = False) -> str:
    """Return a price as a button says it: GPU-hours, minutes, pay-back; parts that are not measured say so.

    `choose`: it depends on the checkpoint, which a person has to choose.
    """
    if choose:
        return "no checkpoint can be trusted: you choose one, the price follows"
    parts = [words.gpu_hours(price.gpu_hours) if price.gpu_hours is not None else "price not measured yet"]
    if price.downtime_from in ESTIMATED and price.gpu_hours is not None:
        parts[0] = f"about {parts[0]}"
    if price.full_pace_s is not None:
        parts.append(words.spell(price.full_pace_s))
    if price.payback_s is not None:
        parts.append(f"paid back in {words.spell(price.payback_s)}")
    elif price.gpu_hours is None and price.steps is not None:
        parts.append(f"{words.count(price.steps, 'step')} to do again")
    return ", ".join(parts)


def confirm_href(run: RunRow, *, kind: str, node: str = "", when: str = "NOW", finding: int | None = None) -> str:
    """Return the address of the confirm page for an action."""
    query = {"kind": kind, "node": node, "when": when, "finding": id_write("fin", finding) if finding else ""}
    return f"/runs/{run.slug}/actions/new?{urlencode({name: value for name, value in query.items() if value})}"


def _cells(row: FindingRow, placed: dict[int, str]) -> dict[str, Any] | None:
    if not row.cells:
        return None
    first = row.cells[0]
    steps = [int(step) for step in first.get("steps") or ()]
    if not steps:
        return None
    nodes = {placed[rank] for rank in first.get("ranks") or () if rank in placed} or {row.subject.get("node") or ""}
    return {
        "metric": first.get("metric"),
        # Seconds of a pause have no ratio to peers that do not pause.
        "mode": "none" if row.cause in {"numeric_fault", "gc_pause"} else "peers",
        "nodes": sorted(node for node in nodes if node)[:4],
        "from": min(steps),
        "to": max(steps),
    }


def _nodes_of_ranks(run: RunRow) -> dict[int, str]:
    placement = placement_of(run.attempt_id) if run.attempt_id else None
    if placement is None:
        return {}
    names = {row.id: row.name for row in nodes_by_id(placement.node_ids).values()}
    return {rank: names[node] for rank, node in enumerate(placement.nodes.tolist()) if node in names}
