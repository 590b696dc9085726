"""Nodes by place, the ledger of exclusions, and one node's record."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.fleet.choices import NodeState
from apps.fleet.selectors import (
    ClusterRow,
    ExclusionRow,
    NodeRow,
    cluster_by_name,
    clusters_all,
    exclusions_by_node,
    exclusions_of,
    nodes_of,
)
from apps.runs.selectors import RunRow, runs_by_id

LEDGER_DAYS = 90
UNPLACED = "no place given"


@dataclass(frozen=True, slots=True)
class Tile:
    """One node as the map draws it: what it does in a word, which token, how often it was out."""

    node: NodeRow
    word: str
    token: str
    runs: tuple[RunRow, ...]
    exclusions: int


@dataclass(frozen=True, slots=True)
class NodesPage:
    """The map by racks, the counts per state, and the ledger."""

    clusters: tuple[ClusterRow, ...]
    cluster: ClusterRow | None
    racks: tuple[tuple[str, tuple[Tile, ...]], ...]
    counts: tuple[tuple[str, str, int], ...]
    ledger: tuple[ExclusionRow, ...]
    ledger_open: int
    gpus: int
    gpu_models: str


def nodes_page(*, cluster_name: str, now: datetime) -> NodesPage:
    """Return the page of one cluster: the one named, else the first."""
    clusters = clusters_all()
    cluster = cluster_by_name(cluster_name) if cluster_name else (clusters[0] if clusters else None)
    if cluster is None:
        return NodesPage((), None, (), (), (), 0, 0, "")
    nodes = nodes_of(cluster_id=cluster.id)
    tiles = _tiles(nodes, now=now)
    ledger = exclusions_of(cluster_id=cluster.id)
    models = sorted({gpu.model for node in nodes for gpu in node.gpus if gpu.model})
    return NodesPage(
        clusters=tuple(clusters),
        cluster=cluster,
        racks=_racks(tiles),
        counts=_counts(tiles),
        ledger=tuple(ledger),
        ledger_open=sum(row.ended_at is None for row in ledger),
        gpus=sum(len(node.gpus) for node in nodes),
        gpu_models=", ".join(models[:3]),
    )


def _tiles(nodes: list[NodeRow], *, now: datetime) -> list[Tile]:
    runs = runs_by_id({run_id for node in nodes for run_id in node.open_runs})
    excluded = exclusions_by_node(node_ids=[node.id for node in nodes], since=now - timedelta(days=LEDGER_DAYS))
    return [_tile(node, runs, excluded.get(node.id, 0)) for node in nodes]


def _tile(node: NodeRow, runs: dict[int, RunRow], exclusions: int) -> Tile:
    word, token = node_words(node)
    return Tile(node, word, token, tuple(runs[run_id] for run_id in node.open_runs if run_id in runs), exclusions)


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
        if letter.isdigit():
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
