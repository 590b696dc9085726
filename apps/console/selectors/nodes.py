"""Nodes by place, the ledger of exclusions, and one node's record."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.urls import reverse

from apps.common.access import OPERATE, Principal
from apps.common.errors import PacelineError
from apps.console import words
from apps.console.selectors.gauges import gauges_now
from apps.console.selectors.overlays import overlay_values
from apps.console.selectors.suspects import ActButton, confirm_href, off_words
from apps.fleet.choices import NodeState
from apps.fleet.selectors import (
    ClusterRow,
    ExclusionRow,
    LedgerFilter,
    NodeRow,
    NoteRow,
    cluster_by_name,
    clusters_all,
    exclusions_by_node,
    exclusions_of,
    ledger_count,
    nodes_of,
)
from apps.incidents.choices import UNRESOLVED
from apps.incidents.selectors import IncidentRow, incident_numbers, incidents_of
from apps.remediation.choices import ActionKind, DriftKind
from apps.remediation.selectors import Preview, action_preview, check_of, restart_preview
from apps.remediation.selectors.checks import check_guard, check_last, check_why_not
from apps.remediation.selectors.jobs import drifts_of_nodes, drifts_open
from apps.runs.selectors import RunRow, placement_of, runs_by_id

LEDGER_DAYS = 90
LEDGER_SHOWN = 12
"""Ended lines under the map; the rest has a page of its own."""

MEASURED = ("temperature", "straggle")
"""Overlays of the map that need gauges or step times; exclusions are always known."""

UNPLACED = "no place given"
TROUBLE = ("down", "incident", "out", "draining")
"""Words of nodes that somebody should look at, the most pressing first."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One node as the map draws it: what it does in a word, which token, how often it was out."""

    node: NodeRow
    word: str
    token: str
    runs: tuple[RunRow, ...]
    exclusions: int
    short: str
    values: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A line of the ledger with its incident and what we want against what the scheduler says."""

    row: ExclusionRow
    incident_number: int | None
    wanted: str
    scheduler: str
    differs: str


@dataclass(frozen=True, slots=True)
class NodesPage:
    """The map by racks, the counts per state, and the ledger."""

    clusters: tuple[ClusterRow, ...]
    cluster: ClusterRow | None
    racks: tuple[tuple[str, tuple[Tile, ...]], ...]
    counts: tuple[tuple[str, str, int], ...]
    ledger: tuple[LedgerLine, ...]
    ledger_open: int
    ledger_count: int
    differing: int
    gpus: int
    gpu_models: str
    overlays: tuple[str, ...] = ()

    @property
    def is_placed(self) -> bool:
        """Return whether anybody has said in which rack a node stands."""
        return any(name != UNPLACED for name, _ in self.racks)


@dataclass(frozen=True, slots=True)
class NodeCard:
    """One node beside the map, and at the head of its record."""

    node: NodeRow
    word: str
    token: str
    doing: tuple[tuple[RunRow, str], ...]
    gauges: str
    incident: IncidentRow | None
    exclusions: int
    since: str
    buttons: tuple[ActButton, ...]
    line: ExclusionRow | None = None
    check: NoteRow | None = None


def nodes_page(*, cluster_name: str, now: datetime) -> NodesPage:
    """Return the page of one cluster: the one named, else the one that has most to show."""
    clusters = clusters_all()
    cluster = cluster_by_name(cluster_name) if cluster_name else _most_to_show(clusters)
    if cluster is None:
        return NodesPage((), None, (), (), (), 0, 0, 0, 0, "")
    nodes = nodes_of(cluster_id=cluster.id)
    tiles = _tiles(nodes, now=now)
    open_now = ledger_count(LedgerFilter(cluster_id=cluster.id, is_open=True))
    ledger = exclusions_of(cluster_id=cluster.id, limit=LEDGER_SHOWN + open_now)
    models = sorted({gpu.model for node in nodes for gpu in node.gpus if gpu.model})
    return NodesPage(
        clusters=tuple(clusters),
        cluster=cluster,
        racks=_racks(tiles),
        counts=_counts(tiles),
        ledger=tuple(ledger_lines(ledger, nodes)),
        ledger_open=open_now,
        ledger_count=ledger_count(LedgerFilter(cluster_id=cluster.id)),
        differing=sum(not row.is_kept(now) for row in drifts_open(cluster_id=cluster.id)),
        gpus=sum(len(node.gpus) for node in nodes),
        gpu_models=", ".join(models[:3]),
        overlays=("health", *(name for name in MEASURED if any(tile.values.get(name) for tile in tiles)), "exclusions"),
    )


def _most_to_show(clusters: list[ClusterRow]) -> ClusterRow | None:
    """Return the cluster to begin with: one with nodes in trouble, else one with a run, else the largest."""
    telling: dict[int, tuple[int, int, int]] = {}
    for row in clusters:
        nodes = nodes_of(cluster_id=row.id)
        trouble = sum(node_words(node)[0] in TROUBLE for node in nodes)
        telling[row.id] = (trouble, sum(bool(node.open_runs) for node in nodes), len(nodes))
    return max(clusters, key=lambda row: telling[row.id], default=None)


def node_to_show(page: NodesPage) -> str:
    """Return the node that stands beside the map before anybody has chosen one: the first in trouble, else the first."""
    tiles = [tile for _, rack in page.racks for tile in rack]
    found = min(
        tiles, key=lambda tile: TROUBLE.index(tile.word) if tile.word in TROUBLE else len(TROUBLE), default=None
    )
    return found.node.name if found else ""


def ledger_lines(rows: list[ExclusionRow], nodes: list[NodeRow]) -> list[LedgerLine]:
    """Return lines of the ledger, in the order given, with their incidents and the scheduler's word."""
    known = {node.id: node for node in nodes}
    open_lines = {row.node_id for row in rows if row.ended_at is None}
    drifts = {drift.node_id: DriftKind(drift.kind).label for drift in drifts_of_nodes(open_lines)}
    numbers = incident_numbers({row.incident_id for row in rows if row.incident_id})
    lines = []
    for row in rows:
        node = known.get(row.node_id)
        said = node.scheduler_state if node and row.ended_at is None else ""
        lines.append(
            LedgerLine(
                row=row,
                incident_number=numbers.get(row.incident_id or 0),
                wanted="out of service" if row.ended_at is None else "in service",
                scheduler=said,
                differs=drifts.get(row.node_id, "") if row.ended_at is None else "",
            )
        )
    return lines


def node_card(node: NodeRow, *, who: Principal, now: datetime) -> NodeCard:
    """Return what stands beside the map for one node, with what can be done and its price."""
    word, token = node_words(node)
    since = now - timedelta(days=LEDGER_DAYS)
    runs = list(runs_by_id(node.open_runs).values())
    found = incidents_of(now=now, node_id=node.id, states=UNRESOLVED, limit=1)
    return NodeCard(
        node=node,
        word=word,
        token=token,
        doing=tuple((run, _ranks_here(run, node)) for run in runs),
        gauges=gauges_now(node, now=now),
        incident=found[0] if found else None,
        exclusions=exclusions_by_node(node_ids=[node.id], since=since).get(node.id, 0),
        since=f"{LEDGER_DAYS} days",
        buttons=tuple(_buttons(node, runs, who=who, now=now)),
        line=next(iter(exclusions_of(node_id=node.id, open_only=True)), None),
        check=check_last(node.id),
    )


def _ranks_here(run: RunRow, node: NodeRow) -> str:
    placement = placement_of(run.attempt_id) if run.attempt_id else None
    if placement is None:
        return ""
    return words.ranks([rank for rank, at in enumerate(placement.nodes.tolist()) if at == node.id])


def _buttons(node: NodeRow, runs: list[RunRow], *, who: Principal, now: datetime) -> list[ActButton]:
    off = "" if who.may(OPERATE) else f"You may look at {node.cluster}, not act on it."
    here = reverse("node-action-new", args=[node.cluster, node.name])
    if node.exclusion_id is not None:
        line = exclusions_of(node_id=node.id, open_only=True)[:1]
        theirs = bool(line) and line[0].origin != "OURS"
        if theirs:
            shut = off or f"off: put out by {line[0].by_name or 'the site'}; Paceline lifts only its own"
            also = "stays out when the site gives it back; the site's own reason is not touched"
            return [
                ActButton("Keep it out too…", also, f"{here}?kind=EXCLUDE_NODE", False, off),
                ActButton("Take back into service…", "not ours to lift", f"{here}?kind=READMIT_NODE", False, shut),
                _check_button(node, here, who=who),
            ]
        asked = check_guard(node, now=now)
        shut = f"off: {asked.text}" if asked is not None and not asked.holds else ""
        back = ActButton(
            "Take back into service…",
            "it can be used from the next start on",
            f"{here}?kind=READMIT_NODE",
            False,
            off or shut,
        )
        return [back, _check_button(node, here, who=who)]
    made = [button for run in runs for button in _of_run(node, run, off=off, now=now)]
    if not runs:
        preview = action_preview(kind=ActionKind.EXCLUDE_NODE, run=None, node=node, now=now)
        shut = off or _shut(preview)
        made.append(ActButton("Exclude…", "costs nothing: nothing runs here", f"{here}?kind=EXCLUDE_NODE", False, shut))
        made.append(_check_button(node, here, who=who))
    return made


def _shut(preview: Preview) -> str:
    guard = next((guard for guard in preview.guards if not guard.holds), None)
    return off_words(guard) if guard is not None else ""


def _check_button(node: NodeRow, here: str, *, who: Principal) -> ActButton:
    off = "" if who.may(OPERATE) else f"You may look at {node.cluster}, not act on it."
    how = check_of(node.cluster_id)
    if how is None:
        return ActButton("Check…", "by hand: none is set for this cluster", f"{here}?kind=CHECK_NODE", False, off)
    why = check_why_not(node, how)
    price = f"at most {words.spell(how.timeout_s)}; the result stands in the ledger"
    return ActButton("Check…", price, f"{here}?kind=CHECK_NODE", False, off or (f"off: {why}" if why else ""))


def _of_run(node: NodeRow, run: RunRow, *, off: str, now: datetime) -> list[ActButton]:
    try:
        preview = restart_preview(run.id, exclude_nodes=[node.name], now=now)
    except PacelineError as error:
        return [ActButton(f"Exclude and restart {run.slug}…", str(error), "", False, str(error))]
    known = [price.gpu_hours for price in preview.prices if price.gpu_hours is not None]
    shut = off or _shut(preview)
    price = f"from {words.gpu_hours(min(known))}" if known else "price not measured yet"
    here = reverse("node-action-new", args=[node.cluster, node.name])
    end = f"{here}?kind=EXCLUDE_NODE&run={run.slug}&when=RUN_END"
    return [
        ActButton(
            f"Exclude and restart {run.slug}…",
            price,
            confirm_href(run, kind="RESTART_RUN", node=node.name),
            False,
            shut,
        ),
        ActButton(
            "Exclude when the run ends…", "costs nothing now; what it slows stays slow until then", end, False, shut
        ),
    ]


def _tiles(nodes: list[NodeRow], *, now: datetime) -> list[Tile]:
    runs = runs_by_id({run_id for node in nodes for run_id in node.open_runs})
    excluded = exclusions_by_node(node_ids=[node.id for node in nodes], since=now - timedelta(days=LEDGER_DAYS))
    values = overlay_values(nodes, list(runs.values()), now=now)
    prefix = _prefix([node.name for node in nodes])
    return [
        Tile(
            node,
            *node_words(node),
            tuple(runs[run_id] for run_id in node.open_runs if run_id in runs),
            excluded.get(node.id, 0),
            node.name[prefix:],
            values.get(node.id, {}),
        )
        for node in nodes
    ]


def _prefix(names: list[str]) -> int:
    """Return how many letters all names share before their digits, so that a tile shows what tells them apart."""
    if len(names) < 2 or len({len(name) for name in names}) > 1:
        return 0
    shared = next((at for at, letters in enumerate(zip(*names, strict=True)) if len(set(letters)) > 1), 0)
    return len(names[0][:shared].rstrip("0123456789"))


def node_words(node: NodeRow) -> tuple[str, str]:
    """Return a node's status word and token."""
    if node.state == NodeState.EXCLUDED:
        return "out", "none"
    if node.state == NodeState.DRAINING:
        return "draining", "busy"
    if node.state == NodeState.DOWN:
        return "down", "crit"
    if node.open_incidents:
        return "incident", "warn"
    if node.open_runs:
        return "in a run", "ok"
    return "spare", "idle"


def _racks(tiles: list[Tile]) -> tuple[tuple[str, tuple[Tile, ...]], ...]:
    racks: dict[str, list[Tile]] = {}
    for tile in tiles:
        racks.setdefault(tile.node.rack or UNPLACED, []).append(tile)
    ordered = sorted(racks.items(), key=lambda item: (item[0] == UNPLACED, _natural(item[0])))
    return tuple(
        (name, tuple(sorted(rack, key=lambda tile: (_natural(tile.node.rack_slot), tile.node.name))))
        for name, rack in ordered
    )


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    parts: list[tuple[int, str]] = []
    number = ""
    for letter in text + " ":
        if letter.isdecimal():
            number += letter
            continue
        if number:
            parts.append((int(number), ""))
            number = ""
        parts.append((-1, letter))
    return tuple(parts)


def _counts(tiles: list[Tile]) -> tuple[tuple[str, str, int], ...]:
    order = ("in a run", "incident", "spare", "draining", "down", "out")
    found = dict.fromkeys(order, 0)
    tokens: dict[str, str] = {}
    for tile in tiles:
        found[tile.word] += 1
        tokens[tile.word] = tile.token
    return tuple((word, tokens[word], found[word]) for word in order if found[word])
