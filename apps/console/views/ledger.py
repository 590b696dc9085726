"""The ledger's page and its export, and what people decide about differences, names and how long a node stays out."""

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse

from apps.accounts.services import once
from apps.common.access import OPERATE, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest
from apps.common.ids import id_write
from apps.common.streams import stream_answer
from apps.console.selectors.ledger import ledger_filter, ledger_page
from apps.console.views.kit import back_to, hours_given, page, render_page
from apps.console.words import whole_of
from apps.fleet.export import FORMATS
from apps.fleet.selectors import ClusterRow, cluster_by_name, clusters_all, node_by_code, node_by_id
from apps.fleet.services import alias_add, alias_remove, node_apart
from apps.journal.choices import Source
from apps.remediation.services import drift_decide, exclusion_keep


@page()
def ledger(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show a cluster's ledger, narrowed down and page by page."""
    cluster = _cluster(request)
    found = ledger_page(
        cluster,
        state=request.GET.get("state", ""),
        origin=request.GET.get("origin", ""),
        text=request.GET.get("q", "").strip(),
        before=whole_of(request.GET.get("before")),
    )
    return render_page(
        request, "console/nodes/ledger_page.html", who=who, active="nodes", page=found, clusters=clusters_all()
    )


@page()
def export(request: HttpRequest, *, who: Principal) -> StreamingHttpResponse:  # noqa: ARG001
    """Send a cluster's ledger as a file, while it is read."""
    form = request.GET.get("format", "csv")
    if form not in FORMATS:
        raise BadRequest(f"format: must be one of {', '.join(FORMATS)}.")
    cluster = _cluster(request)
    wanted = ledger_filter(
        cluster.id,
        state=request.GET.get("state", ""),
        origin=request.GET.get("origin", ""),
        text=request.GET.get("q", "").strip(),
    )
    write, content_type = FORMATS[form]
    return stream_answer(write(wanted), content_type=content_type, filename=f"exclusions.{form}")


@page(scope=OPERATE, methods=("POST",))
def drift(request: HttpRequest, number: int, *, who: Principal) -> HttpResponse:
    """Decide about a difference with the scheduler."""
    decision, reason, hours = (
        request.POST.get("decision", ""),
        request.POST.get("reason", ""),
        hours_given(request, "hours"),
    )
    body: dict[str, Any] = {"drift": str(number), "decision": decision, "reason": reason, "hours": hours}
    moment = now()

    def act() -> tuple[int, dict[str, Any]]:
        row = drift_decide(
            principal=who,
            drift_id=number,
            decision=decision,
            reason=reason,
            until_at=_until(hours, moment) if decision == "KEEP" else None,
            source=Source.WEB,
            now=moment,
        )
        return 201, {"id": id_write("act", row.id)}

    _, answer = once(principal=who, key=request.POST.get("key", ""), body=body, now=moment, act=act)
    return back_to(request, reverse("action", args=[answer["id"]]))


@page(scope=OPERATE, methods=("POST",))
def name(request: HttpRequest, number: int, *, who: Principal) -> HttpResponse:
    """Place a name: whose it is, or that it is a machine of its own; or take a name away from a node."""
    row, act, moment = node_by_id(number), request.POST.get("act", ""), now()
    if act == "apart":
        node_apart(node_id=row.id, by=who.name, source=Source.WEB, now=moment)
        messages.success(request, f"{row.name} is a machine of its own.")
        return back_to(request, reverse("nodes") + f"?cluster={row.cluster}#names")
    if act == "is":
        owner = node_by_code(request.POST.get("of", "").strip(), cluster_id=row.cluster_id)
        alias_add(node_id=owner.id, name=row.name, by=who.name, source=Source.WEB, now=moment)
        messages.success(request, f"{row.name} is another name of {owner.name}.")
        return back_to(request, reverse("nodes") + f"?cluster={row.cluster}#names")
    given = request.POST.get("name", "").strip()
    if act == "add":
        alias_add(node_id=row.id, name=given, by=who.name, source=Source.WEB, now=moment)
    elif act == "remove":
        alias_remove(node_id=row.id, name=given, by=who.name, source=Source.WEB, now=moment)
    else:
        raise BadRequest("act: none of the buttons of this page.")
    return back_to(request, reverse("node", args=[row.cluster, row.name]) + "#names")


@page(scope=OPERATE, methods=("POST",))
def keep(request: HttpRequest, number: int, *, who: Principal) -> HttpResponse:
    """Keep a node out longer."""
    row, moment = node_by_id(number), now()
    hours = hours_given(request, "hours")
    body = {"node": number, "hours": hours, "reason": request.POST.get("reason", "")}

    def act() -> tuple[int, dict[str, Any]]:
        exclusion_keep(
            principal=who,
            node_id=row.id,
            until_at=_until(hours, moment),
            reason=request.POST.get("reason", ""),
            source=Source.WEB,
            now=moment,
        )
        return 200, {}

    once(principal=who, key=request.POST.get("key", ""), body=body, now=moment, act=act)
    return back_to(request, reverse("node", args=[row.cluster, row.name]) + "#exclusions")


def _until(hours: int | None, moment: datetime) -> datetime | None:
    return None if hours is None else moment + timedelta(hours=hours)


def _cluster(request: HttpRequest) -> ClusterRow:
    named = request.GET.get("cluster", "")
    rows = clusters_all()
    if named or not rows:
        return cluster_by_name(named)
    return max(rows, key=lambda row: row.nodes)
