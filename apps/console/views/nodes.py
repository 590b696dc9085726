"""Nodes by place, and one node's record."""

from django.http import HttpRequest, HttpResponse

from apps.common.access import Principal
from apps.common.clock import now
from apps.console.selectors.nodes import node_words, nodes_page
from apps.console.selectors.timeline import timeline_row
from apps.console.views.kit import page, render_page, render_part
from apps.fleet.selectors import exclusions_of, node_by_code
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest, stream_seq
from apps.runs.selectors import runs_by_id


@page()
def nodes(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show a cluster's nodes."""
    found = nodes_page(cluster_name=request.GET.get("cluster", ""), now=now())
    if request.GET.get("part"):
        return render_part(request, "console/nodes/map.html", who=who, page=found)
    return render_page(request, "console/nodes/page.html", who=who, active="nodes", page=found)


@page()
def node(request: HttpRequest, cluster: str, name: str, *, who: Principal) -> HttpResponse:
    """Show one node's record."""
    row = node_by_code(f"{cluster}:{name}")
    stream = StreamKey.node(row.id)
    word, token = node_words(row)
    return render_page(
        request,
        "console/nodes/node.html",
        who=who,
        active="nodes",
        node=row,
        word=word,
        token=token,
        runs=list(runs_by_id(row.open_runs).values()),
        ledger=exclusions_of(node_id=row.id),
        rows=[timeline_row(event) for event in events_latest(stream, limit=100)],
        feed=f"/ws/feed?stream=node:{row.cluster}:{row.name}@{stream_seq(stream)}",
    )
