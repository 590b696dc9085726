"""REST doors of the ledger of exclusions."""

from datetime import datetime

from django.http import StreamingHttpResponse
from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import READ
from apps.common.api import Door, choice_read, cursor_int, limit_read, page_answer
from apps.common.clock import usable
from apps.common.errors import BadRequest
from apps.common.streams import stream_answer
from apps.fleet.answers import exclusion_answer
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.export import FORMATS
from apps.fleet.selectors import LedgerFilter, cluster_by_name, ledger_rows, node_by_code

STATES = ("", "OPEN", "ENDED")
FILTERS = [
    OpenApiParameter("state", str, enum=list(STATES[1:])),
    OpenApiParameter("origin", str, enum=list(ExclusionOrigin.values)),
    OpenApiParameter("node", str),
    OpenApiParameter("q", str, description="words that node, reason or names must hold"),
    OpenApiParameter("since", OpenApiTypes.DATETIME),
    OpenApiParameter("before", OpenApiTypes.DATETIME),
]


class LedgerDoor(Door):
    """What the doors of a cluster's ledger share."""

    def wanted(self, request: Request, code: str) -> LedgerFilter:
        """Return what a request narrows the ledger to."""
        cluster = cluster_by_name(code)
        self.check_cluster(cluster.id)
        state = choice_read(request, "state", choices=STATES, default="")
        node = request.GET.get("node")
        return LedgerFilter(
            cluster_id=cluster.id,
            node_id=node_by_code(node, cluster_id=cluster.id).id if node else None,
            is_open=None if not state else state == "OPEN",
            origin=choice_read(request, "origin", choices=["", *ExclusionOrigin.values], default=""),
            text=request.GET.get("q", "")[:200],
            since_at=_moment(request, "since"),
            before_at=_moment(request, "before"),
        )


class ClusterExclusions(LedgerDoor):
    """A cluster's ledger, newest line first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="clusters_exclusions", parameters=FILTERS, responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:
        limit = limit_read(request)
        rows = ledger_rows(self.wanted(request, code), before=cursor_int(request), limit=limit + 1)
        following = rows[limit - 1].id if len(rows) > limit else None
        return page_answer([exclusion_answer(row) for row in rows[:limit]], following=following)


class ClusterExclusionsExport(LedgerDoor):
    """A cluster's ledger as a file, `?format=csv` or `json`, sent while it is read."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="clusters_exclusions_export",
        parameters=[OpenApiParameter("format", str, enum=list(FORMATS)), *FILTERS],
        responses=OpenApiTypes.BINARY,
    )
    def get(self, request: Request, code: str) -> StreamingHttpResponse:
        wanted = self.wanted(request, code)
        form = choice_read(request, "format", choices=list(FORMATS), default="csv")
        write, content_type = FORMATS[form]
        return stream_answer(write(wanted), content_type=content_type, filename=f"exclusions.{form}")


def _moment(request: Request, name: str) -> datetime | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    try:
        moment = usable(parse_datetime(text))
    except ValueError:
        moment = None
    if moment is None:
        raise BadRequest(f"{name}: must be a time such as 2026-11-30T12:00:00Z.")
    return moment
