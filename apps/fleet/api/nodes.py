"""REST doors of clusters and nodes."""

from datetime import datetime, timedelta
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import READ
from apps.common.api import Door, choice_read, cursor_int, cursor_pair, limit_read, page_answer
from apps.common.clock import now, rfc3339
from apps.common.ids import id_write
from apps.fleet.answers import exclusion_answer
from apps.fleet.choices import NodeState
from apps.fleet.selectors import (
    ClusterRow,
    GpuRow,
    NodeRow,
    cluster_by_name,
    clusters_all,
    exclusions_by_node,
    exclusions_of,
    node_by_code,
    nodes_of,
)

LEDGER = timedelta(days=90)


def cluster_answer(row: ClusterRow) -> dict[str, Any]:
    """Return a cluster."""
    return {
        "id": id_write("cluster", row.id),
        "name": row.name,
        "zone": row.zone,
        "nodes": row.nodes,
        "nodes_out": row.nodes_out,
    }


def gpu_answer(row: GpuRow) -> dict[str, Any]:
    """Return a device."""
    return {
        "gpu": row.key,
        "pci": row.pci or None,
        "index": row.index,
        "model": row.model or None,
        "state": None,
        "last_seen_at": rfc3339(row.last_seen_at),
    }


def node_answer(row: NodeRow, *, exclusions_90d: int) -> dict[str, Any]:
    """Return a node."""
    return {
        "id": id_write("node", row.id),
        "name": row.name,
        "aliases": list(row.aliases),
        "cluster": row.cluster,
        "place": {"rack": row.rack or None, "slot": row.rack_slot or None, "leaf": row.leaf or None},
        "state": row.state,
        "scheduler_state": row.scheduler_state or None,
        "telemetry": {
            "state": row.telemetry_state,
            "last_at": rfc3339(row.telemetry_last_at),
            "gaps_24h": row.telemetry_gaps_24h,
        },
        "clock_skew_s": row.clock_skew_s,
        "gpus": [gpu_answer(gpu) for gpu in row.gpus],
        "exclusions_90d": exclusions_90d,
        "open_incidents": row.open_incidents,
        "open_runs": [id_write("run", run_id) for run_id in row.open_runs],
    }


class Clusters(Door):
    """All clusters, by name."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="clusters_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:  # noqa: ARG002
        bound = self.principal.cluster_id
        rows = [row for row in clusters_all() if bound in (None, row.id)]
        return page_answer([cluster_answer(row) for row in rows], following=None)


class Nodes(Door):
    """All nodes, by cluster and name."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="nodes_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        limit = limit_read(request)
        state = choice_read(request, "state", choices=["", *NodeState.values], default="")
        cluster_id = self.principal.cluster_id
        if name := request.GET.get("cluster"):
            cluster_id = cluster_by_name(name).id
            self.check_cluster(cluster_id)
        rows = nodes_of(
            cluster_id=cluster_id, states=[state] if state else (), after=cursor_pair(request), limit=limit + 1
        )
        following = [rows[limit - 1].cluster, rows[limit - 1].name] if len(rows) > limit else None
        return page_answer(_answers(rows[:limit], now()), following=following)


class OneNode(Door):
    """One node."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="nodes_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        return Response(_answers([node_by_code(code, cluster_id=self.principal.cluster_id)], now())[0])


class NodeExclusions(Door):
    """A node's lines in the ledger, open one first, then newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="nodes_exclusions", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:
        node = node_by_code(code, cluster_id=self.principal.cluster_id)
        limit = limit_read(request)
        rows = exclusions_of(node_id=node.id, before=cursor_int(request), limit=limit + 1)
        following = rows[limit - 1].id if len(rows) > limit else None
        return page_answer([exclusion_answer(row) for row in rows[:limit]], following=following)


def _answers(rows: list[NodeRow], moment: datetime) -> list[dict[str, Any]]:
    counted = exclusions_by_node(node_ids=[row.id for row in rows], since=moment - LEDGER)
    return [node_answer(row, exclusions_90d=counted.get(row.id, 0)) for row in rows]
