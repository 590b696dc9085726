"""What the map of nodes can be coloured by besides their state."""

from datetime import datetime

from apps.console.figures import gaps
from apps.console.selectors.gauges import FRESH
from apps.console.selectors.ranks import paces_by_node
from apps.fleet.selectors import NodeRow
from apps.runs.selectors import RunRow
from apps.telemetry.selectors import gauges_newest

MOST_RUNS = 20
"""Runs whose ranks are compared for one map."""


def overlay_values(
    nodes: list[NodeRow], runs: list[RunRow], *, now: datetime
) -> dict[int, dict[str, list[float | None]]]:
    """Return what the map's overlays draw for each node: GPU temperatures, and its ranks' pace against their peers."""
    found: dict[int, dict[str, list[float | None]]] = {}
    for run in runs[:MOST_RUNS]:
        for node_id, ratios in paces_by_node(run).items():
            found.setdefault(node_id, {}).setdefault("straggle", []).extend(ratios)
    fresh = [node for node in nodes if node.telemetry_state == "FRESH"]
    for node_id, heat in gauges_newest(fresh, metric="temperature_c", since=now - FRESH, until=now).items():
        found.setdefault(node_id, {})["temperature"] = gaps(heat)
    return found
