"""The door that says whether a report would be taken, and keeps nothing."""

from typing import Any

import orjson
from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import REPORT
from apps.common.api import Door, RequestFields, read_fields
from apps.common.clock import now
from apps.common.errors import BadRequest
from apps.common.unpack import too_large
from apps.telemetry.services.checking import Checked, node_report_check, ranks_report_check


class CheckFields(RequestFields):
    """`POST check`: a report of a run's ranks, or one of a node."""

    run = serializers.CharField(max_length=63, required=False)
    node = serializers.CharField(max_length=320, required=False)
    cluster = serializers.CharField(max_length=63, required=False)
    world_size = serializers.IntegerField(min_value=1, max_value=131_072, required=False, default=1)
    report = serializers.DictField()


class Check(Door):
    """Whether a report of a run's ranks or of a node would be taken: it goes the whole way and is then taken back."""

    scopes = {"POST": REPORT}

    @extend_schema(operation_id="check", request=CheckFields, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request) -> Response:
        given, ignored = read_fields(CheckFields, request)
        if ("run" in given) == ("node" in given):
            raise BadRequest("run, node: name the run whose ranks the report is of, or the node, and not both.")
        raw = orjson.dumps(given["report"])
        most = settings.PACELINE_LIMITS["report_bytes"]
        if len(raw) > most:
            raise too_large(most)
        common: dict[str, Any] = {
            "report": raw, "bound_id": self.principal.cluster_id, "by": self.principal.name, "now": now(),
        }  # fmt: skip
        if "node" in given:
            return _answer(node_report_check(code=given["node"], **common), ignored)
        found = ranks_report_check(
            slug=given["run"], cluster=given.get("cluster"), world_size=given["world_size"], **common
        )
        return _answer(found, ignored)


def _answer(found: Checked, ignored: list[str]) -> Response:
    refused = [{"reason": row.reason, "count": row.count, "sample": row.sample} for row in found.refused]
    return Response(
        {"cluster": found.cluster, "refused": refused, "kept": False, "ignored": [*found.ignored, *ignored]}
    )
