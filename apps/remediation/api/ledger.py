"""REST doors around the ledger: how nodes are checked, deciding about differences, keeping a node out longer."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import ADMIN, OPERATE, READ
from apps.common.api import Door, RequestFields, page_answer, read_fields
from apps.common.clock import now, rfc3339
from apps.common.errors import NotFound
from apps.common.ids import id_read, id_write
from apps.fleet.answers import exclusion_answer
from apps.fleet.selectors import cluster_by_name, exclusions_of, node_by_code
from apps.journal.choices import Source
from apps.remediation.api.actions import DRY_RUN, KEY, ActionDoor
from apps.remediation.api.answers import action_answer
from apps.remediation.choices import DECISIONS, CheckKind, Decision
from apps.remediation.selectors import CheckRow, check_of
from apps.remediation.selectors.jobs import DriftRow, drift_by_id, drifts_open
from apps.remediation.services import check_set, check_unset, drift_decide, exclusion_keep


class CheckFields(RequestFields):
    """`PUT clusters/{cluster}/check`."""

    kind = serializers.ChoiceField(choices=CheckKind.values)
    command = serializers.ListField(child=serializers.CharField(max_length=4000), required=False, default=list)
    url = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")
    secret = serializers.CharField(max_length=200, required=False, allow_blank=True, allow_null=True, default=None)
    timeout_s = serializers.FloatField(required=False, default=600.0)
    valid_s = serializers.IntegerField(required=False, default=24 * 3600)
    required = serializers.BooleanField(required=False, default=False)  # type: ignore[assignment]


class DecideFields(RequestFields):
    """`POST clusters/{cluster}/drift/{drift}/decide`."""

    decision = serializers.ChoiceField(choices=Decision.values)
    reason = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")
    until_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class KeepFields(RequestFields):
    """`POST nodes/{node}/keep`."""

    reason = serializers.CharField(max_length=2000)
    until_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


def check_answer(row: CheckRow, cluster: str) -> dict[str, Any]:
    """Return how a cluster's nodes are checked; the secret of its signatures is only ever written."""
    return {
        "cluster": cluster,
        "kind": row.kind,
        "command": list(row.command),
        "url": row.url,
        "timeout_s": row.timeout_s,
        "valid_s": row.valid_s,
        "required": row.required,
        "updated_by": row.updated_by,
        "updated_at": rfc3339(row.updated_at),
    }


def drift_answer(row: DriftRow) -> dict[str, Any]:
    """Return a node about which our ledger and the scheduler disagree, and what can be decided."""
    return {
        "id": id_write("drf", row.id),
        "node": row.node,
        "cluster": row.cluster,
        "kind": row.kind,
        "exclusion": id_write("exc", row.exclusion_id) if row.exclusion_id is not None else None,
        "scheduler_state": row.scheduler_state,
        "reason": row.reason or None,
        "by": row.by_name or None,
        "began_at": rfc3339(row.began_at),
        "seen_at": rfc3339(row.seen_at),
        "kept_by": row.kept_by_name or None,
        "kept_until_at": rfc3339(row.kept_until_at),
        "decisions": [str(one) for one in DECISIONS[row.kind]],
    }


class ClusterCheck(Door):
    """How a cluster's nodes are checked. Whoever sets it lets Paceline run programs: an admin's, the reading too."""

    scopes = {"GET": ADMIN, "PUT": ADMIN, "DELETE": ADMIN}

    @extend_schema(operation_id="clusters_check", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        row = check_of(self._cluster(code))
        if row is None:
            raise NotFound(f"No check is set for “{code[:80]}”.", cluster=code[:80])
        return Response(check_answer(row, cluster_by_name(code).name))

    @extend_schema(operation_id="clusters_check_set", request=CheckFields, responses=OpenApiTypes.OBJECT)
    def put(self, request: Request, code: str) -> Response:
        given, ignored = read_fields(CheckFields, request)
        row = check_set(principal=self.principal, cluster_id=self._cluster(code), source=Source.API, now=now(), **given)
        return Response({**check_answer(row, cluster_by_name(code).name), "ignored": ignored})

    @extend_schema(operation_id="clusters_check_remove", responses={204: None})
    def delete(self, request: Request, code: str) -> Response:  # noqa: ARG002
        check_unset(principal=self.principal, cluster_id=self._cluster(code), source=Source.API, now=now())
        return Response(status=204)

    def _cluster(self, code: str) -> int:
        cluster_id = cluster_by_name(code).id
        self.check_cluster(cluster_id)
        return cluster_id


class ClusterDrift(Door):
    """Nodes about which our ledger and the cluster's scheduler disagree, oldest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="clusters_drift", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        cluster_id = cluster_by_name(code).id
        self.check_cluster(cluster_id)
        return page_answer([drift_answer(row) for row in drifts_open(cluster_id=cluster_id)], following=None)


class Decide(ActionDoor):
    """Deciding about a difference: the answer is the action that carries it out."""

    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="clusters_drift_decide",
        request=DecideFields,
        parameters=[KEY, DRY_RUN],
        responses=OpenApiTypes.OBJECT,
    )
    def post(self, request: Request, code: str, drift: str) -> Response:
        given, ignored = read_fields(DecideFields, request)
        cluster_id = cluster_by_name(code).id
        self.check_cluster(cluster_id)
        drift_id = id_read("drf", drift)

        def do() -> tuple[int, dict[str, Any]]:
            if drift_by_id(drift_id).cluster_id != cluster_id:
                raise NotFound("There is no such difference in this cluster.")
            row = drift_decide(principal=self.principal, drift_id=drift_id, source=Source.API, now=now(), **given)
            return 201, {**action_answer(row, who=self.principal), "ignored": ignored}

        return self.act(request, do)


class NodeKeep(ActionDoor):
    """Keeping a node out longer than was said, or without an end: a line under the first, which stays as it is."""

    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="nodes_keep", request=KeepFields, parameters=[KEY, DRY_RUN], responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request, code: str) -> Response:
        given, ignored = read_fields(KeepFields, request)
        node = node_by_code(code, cluster_id=self.principal.cluster_id)

        def do() -> tuple[int, dict[str, Any]]:
            exclusion_keep(principal=self.principal, node_id=node.id, source=Source.API, now=now(), **given)
            return 200, {**exclusion_answer(exclusions_of(node_id=node.id, open_only=True)[0]), "ignored": ignored}

        return self.act(request, do)
