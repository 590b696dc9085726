"""The doors for reports as Django views: what the schema describes, and what serves them where the lean ASGI door
(`apps/telemetry/door`) does not stand in front. One row, the same checks, the same answer."""

from typing import Any

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import REPORT
from apps.common.api import Door
from apps.common.clock import now
from apps.common.errors import Forbidden
from apps.common.unpack import too_large, unpacked
from apps.telemetry.choices import ScopeKind
from apps.telemetry.services.heads import head_read
from apps.telemetry.services.inbox import inbox_put
from apps.telemetry.services.targets import Target, target_of_attempt, target_of_node


class RawParser(BaseParser):
    """Leave the body as bytes: its head is read by the same code as in the lean door."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:  # noqa: ARG002
        most = settings.PACELINE_LIMITS["report_bytes"]
        raw: bytes = stream.read(most + 1)
        if len(raw) > most:
            raise too_large(most)
        if parser_context["request"].headers.get("Content-Encoding", "").lower() == "gzip":
            return unpacked(raw, most=most)
        return raw


class AttemptReports(Door):
    """A report of an attempt's ranks; answered once its row is committed."""

    scopes = {"POST": REPORT}
    parser_classes = [RawParser]

    @extend_schema(operation_id="attempts_reports", request=OpenApiTypes.OBJECT, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request, attempt: str) -> Response:
        return _take(self, request, target_of_attempt(attempt))


class NodeReports(Door):
    """Gauges of a node and its GPUs; answered once the row is committed."""

    scopes = {"POST": REPORT}
    parser_classes = [RawParser]

    @extend_schema(operation_id="nodes_reports", request=OpenApiTypes.OBJECT, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request, node: str) -> Response:
        return _take(self, request, target_of_node(node, cluster_id=self.principal.cluster_id, now=now()))


def _take(door: Door, request: Request, target: Target) -> Response:
    if door.principal.cluster_id not in (None, target.cluster_id):
        raise Forbidden("This token is for another cluster.")
    kind = ScopeKind(target.scope_kind).value
    raw: Any = request.data  # bytes, as RawParser leaves them
    head = head_read(raw or b"", scope_kind=kind, default_sender=door.principal.name)
    inbox_put(target=target, head=head, now=now())
    return Response({"accepted": True, "ignored": list(head.ignored)}, 202)
