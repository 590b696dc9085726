"""Suspects of a run as verdict cards, with what acting would cost and what it would give back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from apps.incidents.choices import wave_of
from apps.incidents.losses import loses_all, loss_share
from apps.incidents.selectors import IncidentRow, incidents_of
from apps.remediation.selectors import GuardRow, Preview, Price, restart_preview
from apps.runs.selectors import RunRow, placement_of, run_by_id

ESTIMATED = frozenset({"CLUSTER", "START"})
"""Downtimes that this run's own restarts did not measure."""

MARGIN = 0.8
"""Another moment takes the first place from the one that stands there where it costs at most this share of it."""

WORTH_GPU_H = 0.1
"""What a change of places has to save: a small run saves often, and its buttons would change places with each save."""

FEW = 3
"""Restarts below which a downtime is said with its spread."""

TOGETHER = timedelta(seconds=60)
"""A stop may be seen by so much earlier at another place than where it began."""

LEVELS = {"CRITICAL": 0, "WARNING": 1, "INFO": 2}
EXCLUSION_LIMITS = frozenset({"exclusions_per_window", "share_of_run"})
"""Guards of which an admin sets how much they allow."""


@dataclass(frozen=True, slots=True)
class ActButton:
    """A button that leads to a confirm page: its words, its price, and why it is off, if it is."""

    label: str
    price: str
    href: str
    primary: bool
    off: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stood:
    """What stood first on a reader's card, `finding:moment`; `held`: a hand is at it, so that nothing changes places."""

    first: str = ""
    held: bool = False

    def moment_of(self, finding_id: int) -> str:
        """Return the moment that stood first for a finding, empty if another one was shown."""
        number, _, moment = self.first.partition(":")
        return moment if number == str(finding_id) else ""


FRESH = Stood()
"""Of a card that nobody saw yet."""


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
    """A finding with what can be done about it; `beneath` are those that it brought about: they are no suspects."""

    finding: FindingRow
    token: str
    incident: IncidentRow | None
    cells: dict[str, Any] | None
    rent: Rent | None
    buttons: tuple[ActButton, ...]
    closed_guard: GuardRow | None
    muted: bool
    stood: str = ""
    runs: bool = True
    beneath: tuple["SuspectCard", ...] = ()


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


def suspects_of(
    run: RunRow, *, who: Principal, now: datetime, undecided_most: int = 3, stood: Stood = FRESH
) -> Suspects:
    """Return a run's open findings, the most serious first, then detectors that lack evidence."""
    findings = sorted(findings_of(run_id=run.id, state="OPEN"), key=_seriousness)
    incidents = {row.id: row for row in incidents_of(now=now, run_id=run.id)}
    placed = _nodes_of_ranks(run)
    cards = [
        _card(row, run, incidents, placed, who=who, now=now, priced=place == 0, stood=stood)
        for place, row in enumerate(findings)
    ]
    cards = _folded(cards)
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


def _folded(cards: list[SuspectCard]) -> list[SuspectCard]:
    """Return cards, each with those beneath it that are its wave: who lost a node has one suspect, not its silence too."""
    heads: list[SuspectCard] = []
    for card in cards:
        place = next((place for place, head in enumerate(heads) if _brought_about(head, card)), None)
        if place is None:
            heads.append(card)
        else:
            heads[place] = replace(heads[place], beneath=(*heads[place].beneath, card))
    return heads


def _brought_about(head: SuspectCard, card: SuspectCard) -> bool:
    """Return whether a stop explains another finding: of its incident, or begun when it began or later. What proposes
    something about another node stays a suspect of its own."""
    one, other = head.finding, card.finding
    if head.muted or card.muted or one.attempt_id != other.attempt_id or one.cause == other.cause:
        return False
    same = one.incident_id is not None and one.incident_id == other.incident_id
    later = (other.began_at or other.found_at) >= (one.began_at or one.found_at) - TOGETHER
    quiet = other.proposal_kind == "NONE" or other.subject.get("node") == one.subject.get("node")
    return quiet and (same or later) and other.cause in wave_of(one.cause)


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


def _seriousness(row: FindingRow) -> tuple[bool, int, bool, bool, bool, int]:
    """Sort key: what stops the run comes before what slows it down."""
    return (
        row.muted_for_good,
        LEVELS.get(row.level, 3),
        row.certainty != "CONFIRMED",
        not loses_all(row),
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
    stood: Stood,
) -> SuspectCard:
    incident = incidents.get(row.incident_id or 0)
    preview = _preview(row, run, now=now) if priced else None
    buttons = _buttons(row, run, preview, who, stood) if preview else []
    return SuspectCard(
        finding=row,
        token=LEVEL_TOKENS.get(row.level, "warn"),
        incident=incident,
        cells=_cells(row, placed),
        rent=_rent(row, run, incident, preview, now=now),
        buttons=tuple(buttons),
        closed_guard=next((guard for guard in preview.guards if not guard.holds), None) if preview else None,
        muted=row.muted(now),
        stood=f"{row.id}:{buttons[0].name}" if buttons else "",
        runs=run.attempt_state == "OPEN",
    )


def incident_next(
    incident: IncidentRow, lead: FindingRow | None, *, who: Principal, now: datetime, stood: Stood = FRESH
) -> SuspectCard | None:
    """Return what can be done about an incident now, or None if nothing is proposed any more."""
    if lead is None or incident.run_id is None or not incident.unresolved or lead.state != "OPEN":
        return None
    run = run_by_id(incident.run_id)
    return _card(lead, run, {incident.id: incident}, _nodes_of_ranks(run), who=who, now=now, priced=True, stood=stood)


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


def in_order(prices: Sequence[Price], *, first: str = "", held: bool = False) -> list[Price]:
    """Return prices, the least first; the moment `first` keeps its place unless another costs clearly less.

    Two prices that are near each other would else change places under the hand that is about to press.
    """
    ordered = sorted(prices, key=lambda price: (price.gpu_hours is None, price.gpu_hours or 0.0, price.moment != "NOW"))
    stood = next((price for price in ordered if price.moment == first), None)
    if stood is None or stood is ordered[0]:
        return ordered
    least = ordered[0].gpu_hours
    if not held and least is not None and _is_clearly_less(least, stood.gpu_hours):
        return ordered
    return [stood, *(price for price in ordered if price is not stood)]


def _is_clearly_less(least: float, stood: float | None) -> bool:
    return stood is None or (least <= MARGIN * stood and stood - least >= WORTH_GPU_H)


def _buttons(row: FindingRow, run: RunRow, preview: Preview, who: Principal, stood: Stood) -> list[ActButton]:
    prices = in_order(
        [price for price in preview.prices if price.moment != "NEXT_CHECKPOINT"],
        first=stood.moment_of(row.id),
        held=stood.held,
    )
    off = _off(run, preview, who)
    if not preview.can and not off:
        return [_by_hand(row, run, preview)]
    return [
        ActButton(
            label=act_label(price.moment, excludes=bool(preview.exclude)),
            price=off or price_words(price, choose=bool(preview.choose)),
            href=confirm_href(run, kind="RESTART_RUN", node=row.proposal_node, when=price.moment, finding=row.id),
            primary=place == 0 and not off,
            off=off,
            name=price.moment,
        )
        for place, price in enumerate(prices)
    ]


def _by_hand(row: FindingRow, run: RunRow, preview: Preview) -> ActButton:
    """Return the button of a run that Paceline may not restart: what it leads to, why, and what waiting costs."""
    per_hour = _per_hour(row, run)
    costs = "" if not per_hour else f"; each minute costs {words.about_gpu_hours(per_hour / 60)}"
    return ActButton(
        label=("Exclude and restart" if preview.exclude else "Restart") + " it yourself…",
        price=f"the commands stand ready: {by_hand_words(preview.why_not)}{costs}",
        href=confirm_href(run, kind="RESTART_RUN", node=row.proposal_node, when="NOW", finding=row.id),
        primary=False,
        name="NOW",
    )


def by_hand_words(why_not: str) -> str:
    """Return why Paceline cannot do it itself, the first sentence as it goes on behind a semicolon; names keep their capitals."""
    first = why_not.partition(".")[0]
    return first[:1].lower() + first[1:]


def _off(run: RunRow, preview: Preview, who: Principal) -> str:
    if not who.may(OPERATE):
        return f"You may look at {run.cluster}, not act on it."
    guard = next((guard for guard in preview.guards if not guard.holds), None)
    return off_words(guard) if guard else ""


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
    parts = [words.about_gpu_hours(price.gpu_hours) if price.gpu_hours is not None else "price not measured yet"]
    if price.downtime_from in ESTIMATED and price.gpu_hours is not None:
        parts[0] = f"about {parts[0]}"
    if price.full_pace_s is not None:
        parts.append(f"back in {_back_in(price, price.full_pace_s)}")
    if price.payback_s is not None:
        parts.append(f"paid back in {words.about(price.payback_s)}")
    elif price.gpu_hours is None and price.steps is not None:
        parts.append(f"{words.count(price.steps, 'step')} to do again")
    return ", ".join(parts)


def _back_in(price: Price, full_pace_s: float) -> str:
    """Return how long until the run is back at its step: from the least to the most where few restarts were measured."""
    low, high = price.downtime_low_s, price.downtime_high_s
    if price.downtime_s is None or low is None or high is None or price.downtime_n >= FEW:
        return words.about(full_pace_s)
    least, most = (words.about(full_pace_s - price.downtime_s + edge) for edge in (low, high))
    return f"about {least}" if least == most else f"{least} to {most}"


def confirm_href(
    run: RunRow, *, kind: str, node: str = "", when: str = "NOW", finding: int | None = None, requeued: str = ""
) -> str:
    """Return the address of the confirm page for an action."""
    query = {
        "kind": kind,
        "node": node,
        "when": when,
        "finding": id_write("fin", finding) if finding else "",
        "requeued": requeued,
    }
    return f"/runs/{run.slug}/actions/new?{urlencode({name: value for name, value in query.items() if value})}"


def relative_of(cause: str) -> str:
    """Return against what a cause's cells are drawn: seconds of a pause have no ratio to peers that do not pause."""
    return "none" if cause in {"numeric_fault", "gc_pause"} else "peers"


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
        "mode": relative_of(row.cause),
        "nodes": sorted(node for node in nodes if node)[:4],
        "from": min(steps),
        "to": max(steps),
    }


def off_words(guard: GuardRow) -> str:
    """Return why a button is off, and the way on where a limit on exclusions is what keeps it so."""
    way = (
        ": take a node back, raise the limit under Settings, or stop the run" if guard.name in EXCLUSION_LIMITS else ""
    )
    return f"off: {guard.text}{way}"


def _nodes_of_ranks(run: RunRow) -> dict[int, str]:
    placement = placement_of(run.attempt_id) if run.attempt_id else None
    if placement is None:
        return {}
    names = {row.id: row.name for row in nodes_by_id(placement.node_ids).values()}
    return {rank: names[node] for rank, node in enumerate(placement.nodes.tolist()) if node in names}
