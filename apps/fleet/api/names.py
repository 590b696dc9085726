"""REST doors of names: what nobody has placed, and placing it."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import OPERATE, READ
from apps.common.api import Door, RequestFields, page_answer, read_fields
from apps.common.clock import now, rfc3339
from apps.fleet.answers import doubt_answer
from apps.fleet.selectors import NodeRow, aliases_of, cluster_by_name, doubts_of, node_by_code, node_by_id
from apps.fleet.services import alias_add, alias_remove, node_apart
from apps.journal.choices import Source


class AliasFields(RequestFields):
    """`POST nodes/{node}/aliases`."""

    name = serializers.CharField(max_length=255)


class NameDoor(Door):
    """What the doors of a node's names share."""

    def node(self, code: str) -> NodeRow:
        """Return the node that is meant, in the caller's cluster."""
        return node_by_code(code, cluster_id=self.principal.cluster_id)

    def names(self, node_id: int, **more: object) -> Response:
        """Answer a node's names."""
        row = node_by_id(node_id)
        listed = [
            {"name": one.name, "source": one.source, "by": one.by_name or None, "created_at": rfc3339(one.created_at)}
            for one in aliases_of(node_id)
        ]
        return Response({"node": row.name, "cluster": row.cluster, "aliases": listed, **more})


class ClusterNames(Door):
    """Names of a cluster that nobody has placed, by name: unknown to its scheduler, or short for several machines."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="clusters_names", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        cluster_id = cluster_by_name(code).id
        self.check_cluster(cluster_id)
        return page_answer([doubt_answer(row) for row in doubts_of(cluster_id)], following=None)


class NodeAliases(NameDoor):
    """A node's other names; giving it one more. A repeat changes nothing."""

    scopes = {"GET": READ, "POST": OPERATE}

    @extend_schema(operation_id="nodes_aliases", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        return self.names(self.node(code).id)

    @extend_schema(operation_id="nodes_aliases_add", request=AliasFields, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, code: str) -> Response:
        given, ignored = read_fields(AliasFields, request)
        node = self.node(code)
        alias_add(node_id=node.id, name=given["name"], by=self.principal.name, source=Source.API, now=now())
        return self.names(node.id, ignored=ignored)


class NodeAlias(NameDoor):
    """Taking a name away from a node: what goes by it is a machine of its own again."""

    scopes = {"DELETE": OPERATE}

    @extend_schema(operation_id="nodes_aliases_remove", responses=OpenApiTypes.OBJECT)
    def delete(self, request: Request, code: str, name: str) -> Response:  # noqa: ARG002
        node = self.node(code)
        alias_remove(node_id=node.id, name=name, by=self.principal.name, source=Source.API, now=now())
        return self.names(node.id)


class NodeApart(NameDoor):
    """Saying that a node whose name was in doubt is a machine of its own. A repeat changes nothing."""

    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="nodes_apart", request=None, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, code: str) -> Response:  # noqa: ARG002
        node = self.node(code)
        node_apart(node_id=node.id, by=self.principal.name, source=Source.API, now=now())
        return self.names(node.id)
