"""REST doors for what a site has already: they parse, and hand down to the rooms that keep it."""

from collections.abc import Mapping
from datetime import UTC, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import REPORT
from apps.common.api import Door, RequestFields, read_fields
from apps.common.clock import now
from apps.common.errors import BadRequest, TooLarge, Unprocessable
from apps.engine.readers.slurm import objects_read
from apps.fleet.selectors import cluster_by_name
from apps.remediation.selectors import scheduler_of
from apps.remediation.services import jobs_seen, nodes_seen

MOST_OBJECTS = 100_000
AHEAD = timedelta(minutes=10)
"""A listing from further ahead is a wrong clock: taken in, it would shut out every later one until its hour comes."""


class SchedulerFields(RequestFields):
    """`POST ingest/scheduler`: the objects as the source gives them."""

    source = serializers.ChoiceField(choices=("slurm", "kubernetes"))  # type: ignore[assignment] # the contract's name
    cluster = serializers.CharField(max_length=80)
    at = serializers.DateTimeField()
    zone = serializers.CharField(max_length=64, required=False, allow_blank=True, default="")
    nodes = serializers.JSONField(required=False, allow_null=True)
    jobs = serializers.JSONField(required=False, allow_null=True)


class IngestScheduler(Door):
    """Nodes and jobs as a cluster's scheduler lists them, from a site that pushes instead of being asked."""

    scopes = {"POST": REPORT}

    @extend_schema(operation_id="ingest_scheduler", request=SchedulerFields, responses={202: OpenApiTypes.OBJECT})
    def post(self, request: Request) -> Response:
        given, ignored = read_fields(SchedulerFields, request)
        nodes, jobs = _objects(given, "nodes"), _objects(given, "jobs")
        if len(nodes) + len(jobs) > MOST_OBJECTS:
            raise TooLarge(f"At most {MOST_OBJECTS:,} nodes and jobs at once.", count=len(nodes) + len(jobs))
        cluster_id = cluster_by_name(given["cluster"]).id
        self.check_cluster(cluster_id)
        if given["source"] != "slurm":
            raise Unprocessable("Listings of Kubernetes are not read yet.", source=given["source"])
        moment, at = now(), given["at"]
        if at > moment + AHEAD:
            raise BadRequest("at: lies ahead; the sender's clock is wrong.", at=at.isoformat())
        zone = _zone(given["zone"], cluster_id)
        listing = objects_read(nodes=nodes, jobs=jobs, zone=zone)
        down = {node.name for node in listing.nodes if node.is_down}
        answer = {
            "nodes": nodes_seen(cluster_id=cluster_id, nodes=listing.nodes, at=at, now=moment),
            "jobs": jobs_seen(cluster_id=cluster_id, jobs=listing.jobs, at=at, now=moment, down=down),
            "zone": str(zone),
            "not_understood": listing.not_understood,
            "samples": [{"why": sample.why, "text": sample.text} for sample in listing.samples],
            "ignored": ignored,
        }
        return Response(answer, 202)


def _zone(name: str, cluster_id: int) -> tzinfo:
    """Return the zone of times that come without an offset: as the sender says, else as it is set for the cluster."""
    if name:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError) as error:
            raise BadRequest(f"zone: there is no time zone “{name[:40]}”.") from error
    row = scheduler_of(cluster_id)
    return row.tzinfo if row is not None else UTC


def _objects(given: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of the body. What stands in it is looked at one by one later: one bad object never costs the rest."""
    found = given.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadRequest(f"{name}: must be a list of objects.")
    return found
