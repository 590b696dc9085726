"""REST door of a node's gauges."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import READ
from apps.common.api import Door, etag_of, with_etag
from apps.common.clock import NEWEST_AT, OLDEST_AT, now, rfc3339, usable
from apps.common.errors import BadRequest
from apps.fleet.selectors import NodeRow, node_by_code
from apps.telemetry.selectors.gauges import COLUMN_S, MOST_COLUMNS, gauges_known, gauges_version, node_gauges

SHOWN = timedelta(hours=1)
MOST_METRICS = 64


class NodeSeries(Door):
    """A node's gauges in columns of 15 s."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="nodes_series",
        parameters=[
            OpenApiParameter("metrics", str, description="names, comma separated; default all that the node sends"),
            OpenApiParameter("since", str, description="RFC 3339; default an hour before until"),
            OpenApiParameter("until", str, description="RFC 3339; default now"),
        ],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, node: str) -> Response:
        row = node_by_code(node, cluster_id=self.principal.cluster_id)
        until = _time(request, "until") or now()
        since = _time(request, "since") or until - SHOWN
        if not timedelta(0) <= until - since <= timedelta(seconds=COLUMN_S * MOST_COLUMNS):
            raise BadRequest("since: must be before until, by a day at most.")
        known = {gauge.metric.name: gauge for gauge in gauges_known(row.id)}
        asked = [name for name in str(request.GET.get("metrics", "")).split(",") if name] or list(known)
        names = [name for name in dict.fromkeys(asked) if name in known][:MOST_METRICS]
        first, last = int(since.timestamp() // COLUMN_S), int(until.timestamp() // COLUMN_S)
        etag = etag_of(row.id, names, first, last, gauges_version(row.id))

        def build() -> Response:
            found = node_gauges(row.id, metrics=names, since=since, until=until)
            return Response(
                {
                    "node": row.name,
                    "cluster": row.cluster,
                    "since": rfc3339(since),
                    "until": rfc3339(until),
                    "column_s": COLUMN_S,
                    "times": [first * COLUMN_S + COLUMN_S * n for n in range(last - first + 1)],
                    "gpus": _gpus(row),
                    "metrics": [
                        {
                            "name": name,
                            "label": known[name].metric.label,
                            "unit": known[name].metric.unit,
                            "of": "GPU" if known[name].of_gpus else "NODE",
                            "values": _cells(found[name][1]),
                        }
                        for name in names
                        if name in found
                    ],
                }
            )

        return with_etag(request, etag, build)


def _gpus(row: NodeRow) -> list[dict[str, Any]]:
    """The rows of gauges of GPUs, in their order."""
    return [{"gpu": gpu.key, "pci": gpu.pci, "index": gpu.index, "model": gpu.model} for gpu in row.gpus]


def _cells(values: np.ndarray) -> list[list[float | None]]:
    return [[None if value != value else value for value in line] for line in values.tolist()]


def _time(request: Request, name: str) -> datetime | None:
    text = request.GET.get(name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(str(text).replace(" ", "+"))
    except ValueError as error:
        raise BadRequest(f"{name}: “{str(text)[:40]}” is no RFC 3339 time.") from error
    if moment.tzinfo is None:
        raise BadRequest(f"{name}: needs a zone, such as Z.")
    if usable(moment) is None:
        raise BadRequest(f"{name}: must lie between {OLDEST_AT:%Y} and {NEWEST_AT:%Y}.")
    return moment
