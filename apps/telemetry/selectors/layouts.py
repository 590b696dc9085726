"""Where an attempt's ranks sit, in the form that drawing and pooling need: stages, nodes, the stage-node order."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.layout import StageNodeOrder, stage_node_order
from apps.fleet.selectors import nodes_by_id
from apps.runs.selectors import placement_of, placement_version

KEPT = 64
"""Layouts kept in memory: reading the names of 2,048 nodes costs more than reading a heatmap."""

_kept: "OrderedDict[tuple[int, int, int], Layout]" = OrderedDict()
_lock = Lock()


@dataclass(frozen=True, eq=False)
class Layout:
    """Stage and node of each rank. stage: int64 [rank], as far as it is told, -1 = unknown. node: int64 [rank], index in
    `names`, -1 = unknown. `version` is the placement's."""

    stage: NDArray[np.int64]
    node: NDArray[np.int64]
    names: tuple[str, ...]
    version: int

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.stage)

    @cached_property
    def order(self) -> StageNodeOrder:
        """The stage-node order; a rank of unknown stage counts to stage 0, as it does for detectors."""
        return stage_node_order(np.maximum(self.stage, 0), self.node)

    def chosen(self, ranks: NDArray[np.int64]) -> "Layout":
        """Return the layout of some ranks alone, in the order given."""
        return Layout(self.stage[ranks], self.node[ranks], self.names, self.version)

    def node_name(self, node: int) -> str | None:
        """Return a node's name, None for an unknown or no single one."""
        return self.names[node] if 0 <= node < len(self.names) else None


def layout_of(*, attempt_id: int, world: int) -> Layout:
    """Return where the first `world` ranks of an attempt sit, as far as it is known."""
    version = placement_version(attempt_id)
    key = (attempt_id, version, world)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    found = _read(attempt_id, world)
    if found.version == version:
        with _lock:
            _kept[key] = found
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
    return found


def _read(attempt_id: int, world: int) -> Layout:
    stage, node = np.full(world, -1, np.int64), np.full(world, -1, np.int64)
    placed = placement_of(attempt_id)
    if placed is None:
        return Layout(stage, node, (), 0)
    names = {row.id: row.name for row in nodes_by_id(placed.node_ids).values()}
    in_order = sorted(names, key=lambda node_id: _natural(names[node_id]))
    told = min(world, len(placed.nodes))
    stage[:told] = placed.stages[:told]
    node[:told] = _indexes(placed.nodes[:told], in_order)
    return Layout(stage, node, tuple(names[node_id] for node_id in in_order), placed.version)


def _indexes(node_ids: NDArray[np.int64], in_order: Sequence[int]) -> NDArray[np.int64]:
    if not in_order:
        return np.full(len(node_ids), -1, np.int64)
    ids = np.array(in_order, np.int64)
    by_id = np.argsort(ids)
    at = np.minimum(np.searchsorted(ids[by_id], node_ids), len(ids) - 1)
    return np.where(ids[by_id][at] == node_ids, by_id[at], -1)


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which node-2 stands before node-10."""
    parts: list[tuple[int, int, str]] = []
    digits, letters = "", ""
    for sign in name + "\0":
        if sign.isascii() and sign.isdigit():
            if letters:
                parts.append((1, 0, letters))
                letters = ""
            digits += sign
            continue
        if digits:
            parts.append((0, int(digits[:18]), digits))
            digits = ""
        letters += sign
    parts.append((1, 0, letters))
    return tuple(parts)
