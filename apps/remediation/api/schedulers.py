"""REST doors of a cluster's scheduler: how it is set, how it was last seen."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import ADMIN, READ
from apps.common.api import Door, RequestFields, read_fields
from apps.common.clock import now, rfc3339
from apps.common.errors import NotFound
from apps.fleet.selectors import cluster_by_name
from apps.journal.choices import Source
from apps.remediation.choices import SchedulerKind
from apps.remediation.selectors import SchedulerRow, scheduler_of
from apps.remediation.services import SchedulerFields, scheduler_set


class ClusterSchedulerFields(RequestFields):
    """`PUT clusters/{cluster}/scheduler`."""

    kind = serializers.ChoiceField(choices=SchedulerKind.values, default=SchedulerKind.SLURM)
    conf = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")
    programs = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")
    zone = serializers.CharField(max_length=64, required=False, default="UTC")
    poll_s = serializers.FloatField(required=False, default=5.0)
    drains = serializers.BooleanField(required=False, default=True)


def scheduler_answer(row: SchedulerRow) -> dict[str, Any]:
    """Return how a cluster's scheduler is set and how it was last seen."""
    return {
        "cluster": row.cluster,
        "kind": row.kind,
        "conf": row.conf,
        "programs": row.programs,
        "zone": row.zone,
        "poll_s": row.poll_s,
        "drains": row.drains,
        "updated_by": row.updated_by,
        "updated_at": rfc3339(row.updated_at),
        "read_at": rfc3339(row.read_at),
        "failures": row.failures,
        "error": row.error or None,
    }


class ClusterScheduler(Door):
    """A cluster's scheduler. Whoever sets it lets Paceline run programs: an admin's."""

    scopes = {"GET": READ, "PUT": ADMIN, "DELETE": ADMIN}

    @extend_schema(operation_id="clusters_scheduler", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        row = scheduler_of(self._cluster(code))
        if row is None:
            raise NotFound(f"No scheduler is set for “{code[:80]}”.", cluster=code[:80])
        return Response(scheduler_answer(row))

    @extend_schema(operation_id="clusters_scheduler_set", request=ClusterSchedulerFields, responses=OpenApiTypes.OBJECT)
    def put(self, request: Request, code: str) -> Response:
        given, ignored = read_fields(ClusterSchedulerFields, request)
        row = scheduler_set(
            principal=self.principal,
            cluster_id=self._cluster(code),
            fields=SchedulerFields(**given),
            source=Source.API,
            now=now(),
        )
        assert row is not None
        return Response({**scheduler_answer(row), "ignored": ignored})

    @extend_schema(operation_id="clusters_scheduler_remove", responses={204: None})
    def delete(self, request: Request, code: str) -> Response:  # noqa: ARG002
        scheduler_set(
            principal=self.principal, cluster_id=self._cluster(code), fields=None, source=Source.API, now=now()
        )
        return Response(status=204)

    def _cluster(self, code: str) -> int:
        cluster_id = cluster_by_name(code).id
        self.check_cluster(cluster_id)
        return cluster_id
