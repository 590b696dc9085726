"""REST: faults of the practice run."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import OPERATE, READ
from apps.common.api import Door, RequestFields, read_fields
from apps.common.clock import now
from apps.journal.choices import Source
from apps.rehearsal.selectors import FaultRow, PracticeRow, practice_read
from apps.rehearsal.services import fault_set, faults_clear
from apps.rehearsal.trainer.faults import KINDS, Kind


class FaultFields(RequestFields):
    """A fault to set: its kind, and where."""

    kind = serializers.CharField(max_length=80)
    rank = serializers.IntegerField(required=False, allow_null=True, default=None, min_value=0)
    node = serializers.CharField(required=False, allow_null=True, default=None, max_length=255)
    value = serializers.FloatField(required=False, allow_null=True, default=None)


def fault_answer(row: FaultRow) -> dict[str, Any]:
    """Return a fault as REST answers it."""
    return {
        "id": row.id,
        "kind": row.kind,
        "label": row.label,
        "node": row.node,
        "rank": row.rank,
        "value": row.value,
        "once": row.once,
        "set_at": row.set_at,
    }


def _kind_answer(kind: Kind) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "label": kind.label,
        "target": kind.target,
        "value": kind.value_label or None,
        "choices": list(kind.choices),
        "default": kind.default,
        "least": kind.least,
        "most": kind.most,
        "once": kind.once,
    }


def practice_answer(row: PracticeRow) -> dict[str, Any]:
    """Return the practice run as REST answers it."""
    return {
        "run": row.run.slug,
        "running": row.running,
        "attempt_key": row.attempt_key,
        "resumed_from_step": row.resumed_from_step,
        "nodes": list(row.nodes),
        "ranks": len(row.ranks),
        "faults": [fault_answer(fault) for fault in row.faults],
        "kinds": [_kind_answer(kind) for kind in KINDS.values()],
    }


class Faults(Door):
    """The faults that are set in the practice run, and which kinds there are."""

    scopes = {"GET": READ, "POST": OPERATE, "DELETE": OPERATE}

    @extend_schema(operation_id="practice_faults_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:  # noqa: ARG002
        return Response(practice_answer(practice_read(cluster_id=self.principal.cluster_id)))

    @extend_schema(operation_id="practice_faults_set", request=FaultFields, responses={201: OpenApiTypes.OBJECT})
    def post(self, request: Request) -> Response:
        practice_read(cluster_id=self.principal.cluster_id)
        fields, ignored = read_fields(FaultFields, request)
        row = fault_set(**fields, by=self.principal.name, source=Source.API, now=now())
        return Response({**fault_answer(row), "ignored": ignored}, status=201)

    @extend_schema(operation_id="practice_faults_clear", responses=OpenApiTypes.OBJECT)
    def delete(self, request: Request) -> Response:
        """Take away the fault that `?id=` names, or all."""
        practice_read(cluster_id=self.principal.cluster_id)
        fault_id = request.GET.get("id") or None
        return Response(
            {"cleared": faults_clear(fault_id=fault_id, by=self.principal.name, source=Source.API, now=now())}
        )
