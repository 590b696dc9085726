"""Nodes by place, and one node's record."""

import secrets
from typing import Any

from django.http import HttpRequest, HttpResponse

from apps.common.access import OPERATE, Principal
from apps.common.clock import now
from apps.common.errors import NotFound
from apps.console.selectors.actions import actions_listed
from apps.console.selectors.gauges import CHARTS, chart_of, charts_listed
from apps.console.selectors.ledger import drift_lines, names_in_doubt
from apps.console.selectors.nodes import ledger_lines, node_card, node_to_show, nodes_page
from apps.console.selectors.plotly import plotly_tag
from apps.console.selectors.timeline import latest_first
from apps.console.views.kit import page, render_page, render_part
from apps.diagnosis.selectors import findings_of
from apps.fleet.selectors import aliases_of, exclusions_of, node_by_code
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest, stream_seq
from apps.remediation.selectors import actions_of, scheduler_silence


@page()
def nodes(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show a cluster's nodes, with the one that `?node=` names beside them."""
    moment = now()
    found = nodes_page(cluster_name=request.GET.get("cluster", ""), now=moment)
    chosen = request.GET.get("node", "") or node_to_show(found)
    context: dict[str, Any] = {"page": found, "chosen": chosen, "may": who.may(OPERATE)}
    if found.cluster:
        context["silence"] = scheduler_silence(found.cluster.id, now=moment)
    if chosen and found.cluster:
        context["card"] = node_card(node_by_code(f"{found.cluster.name}:{chosen}"), who=who, now=moment)
    if request.GET.get("part") == "ledger":
        return render_part(request, "console/nodes/newest.html", who=who, page=found)
    if request.GET.get("part"):
        return render_part(request, "console/nodes/map.html", who=who, **context)
    if found.cluster:
        doubts, more = names_in_doubt(found.cluster.id)
        drifts = drift_lines(found.cluster.id, now=moment)
        context |= {"drifts": drifts, "doubts": doubts, "more_doubts": more, "key": secrets.token_urlsafe(18)}
    return render_page(request, "console/nodes/page.html", who=who, active="nodes", **context)


@page()
def card(request: HttpRequest, cluster: str, name: str, *, who: Principal) -> HttpResponse:
    """Render what stands beside the map for one node."""
    row = node_by_code(f"{cluster}:{name}")
    return render_part(request, "console/nodes/card.html", who=who, card=node_card(row, who=who, now=now()))


@page()
def node(request: HttpRequest, cluster: str, name: str, *, who: Principal) -> HttpResponse:
    """Show one node's record."""
    row, moment = node_by_code(f"{cluster}:{name}"), now()
    stream = StreamKey.node(row.id)
    return render_page(
        request,
        "console/nodes/node.html",
        who=who,
        active="nodes",
        node=row,
        feed=f"/ws/feed?stream=node:{row.cluster}:{row.name}@{stream_seq(stream)}",
        card=node_card(row, who=who, now=moment),
        charts=charts_listed(row, now=moment),
        plotly=f"/assets/plotly-{plotly_tag()}.js",
        ledger=ledger_lines(exclusions_of(node_id=row.id), [row]),
        aliases=aliases_of(row.id),
        may=who.may(OPERATE),
        key=secrets.token_urlsafe(18),
        findings=findings_of(node=row.name, cluster_id=row.cluster_id, limit=20),
        actions=actions_listed(actions_of(node_id=row.id, limit=10)),
        rows=latest_first(events_latest(stream, limit=100)),
    )


@page()
def chart(request: HttpRequest, cluster: str, name: str, chart: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001
    """Answer one gauge of a node as a Plotly figure in JSON."""
    if chart not in CHARTS:
        raise NotFound(f"A node's page has no chart “{chart}”.")
    figure = chart_of(node_by_code(f"{cluster}:{name}"), chart, now=now())
    return HttpResponse(figure.to_json(), content_type="application/json")
