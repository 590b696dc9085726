"""REST doors of the log."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import READ, Principal
from apps.common.api import BIGGEST, Door, cursor_int, int_read, limit_read, page_answer
from apps.common.clock import rfc3339
from apps.common.errors import BadRequest, Forbidden
from apps.fleet.selectors import cluster_by_name, node_by_code
from apps.journal.choices import StreamKey, StreamKind
from apps.journal.selectors import EventRow, events_after
from apps.runs.selectors import run_by_code


def event_answer(row: EventRow, *, who: Principal) -> dict[str, Any]:
    """Return an event, as far as the caller may read it."""
    return {
        "id": f"{row.stream_kind.lower()}-{row.stream_id}-{row.seq}",
        "seq": row.seq,
        "happened_at": rfc3339(row.happened_at),
        "recorded_at": rfc3339(row.recorded_at),
        "uncertainty_s": row.uncertainty_s,
        "kind": row.kind,
        "source": row.source,
        "actor_name": row.actor_name,
        "text": row.text,
        "subject": row.subject,
        "payload": who.shown(row.payload),
    }


def stream_read(text: str, *, cluster_id: int | None) -> StreamKey:
    """Return the stream that `run:SLUG`, `node:NAME`, `cluster:NAME` or `system` names.

    Raises:
        BadRequest: no such form. NotFound: no such thing. Forbidden: it is of another cluster than `cluster_id`.
    """
    kind, _, code = text.partition(":")
    if kind == "run" and code:
        run = run_by_code(code)
        owner, key = run.cluster_id, StreamKey.run(run.id)
    elif kind == "node" and code:
        node = node_by_code(code, cluster_id=cluster_id)
        owner, key = node.cluster_id, StreamKey.node(node.id)
    elif kind == "cluster" and code:
        cluster = cluster_by_name(code)
        owner, key = cluster.id, StreamKey.cluster(cluster.id)
    elif text == "system":
        if cluster_id is not None:
            raise Forbidden("A token of one cluster does not read the installation's own log.")
        return StreamKey(StreamKind.SYSTEM, 0)
    else:
        raise BadRequest("stream: must be run:SLUG, node:NAME, cluster:NAME or system.")
    if cluster_id not in (None, owner):
        raise Forbidden("This token belongs to another cluster.")
    return key


class Events(Door):
    """Any stream of the log, by number."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="events_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        stream = stream_read(request.GET.get("stream", ""), cluster_id=self.principal.cluster_id)
        return _page(request, stream, who=self.principal)


class RunEvents(Door):
    """A run's log, by number."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="runs_events", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:
        return _page(request, stream_read(f"run:{code}", cluster_id=self.principal.cluster_id), who=self.principal)


def _page(request: Request, stream: StreamKey, *, who: Principal) -> Response:
    limit = limit_read(request)
    cursor = cursor_int(request)
    after = int_read(request, "after", default=0, least=0, most=BIGGEST) if cursor is None else cursor
    rows = events_after(stream, after=after, limit=limit + 1)
    following = rows[limit - 1].seq if len(rows) > limit else None
    return page_answer([event_answer(row, who=who) for row in rows[:limit]], following=following)
