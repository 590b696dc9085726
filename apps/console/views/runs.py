"""The fleet of runs, and the parts of the frame."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from apps.common.access import Principal
from apps.common.clock import now
from apps.common.errors import NotFound
from apps.console.selectors.fleet_of_runs import runs_page
from apps.console.selectors.frame import frame_read
from apps.console.views.kit import page, render_page, render_part
from apps.console.words import whole_of
from apps.fleet.selectors import cluster_by_name, clusters_all, node_by_code
from apps.runs.selectors import run_by_code


@page()
def runs(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show all runs, or with `?part=1` the list alone."""
    chosen = request.GET.get("cluster", "")
    cluster = cluster_by_name(chosen) if chosen else None
    context: dict[str, Any] = {
        "page": runs_page(cluster_id=cluster.id if cluster else None, now=now()),
        "clusters": clusters_all(),
        "chosen": chosen,
        "show": "ended" if request.GET.get("show") == "ended" else "active",
    }
    if request.GET.get("part"):
        return render_part(request, "console/runs/list.html", who=who, **context)
    return render_page(request, "console/runs/page.html", who=who, active="runs", **context)


@page()
def watch(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Answer the watch state of the top bar, and the banner that stands on every page while nothing is seen."""
    frame = frame_read(now=now())
    return render_part(request, "console/parts/watch.html", who=who, watch=frame.watch, frame=frame, live=True)


@page()
def find(request: HttpRequest, *, who: Principal) -> HttpResponse:  # noqa: ARG001 - the frame is shown to whoever may read
    """Go to the run, node or incident that `?q=` names."""
    text = request.GET.get("q", "").strip()
    number = text.upper().removeprefix("INC-")
    if whole_of(number) is not None:
        return HttpResponseRedirect(reverse("incident", args=[number]))
    try:
        return HttpResponseRedirect(reverse("run", args=[run_by_code(text).slug]))
    except NotFound:
        node = node_by_code(text)
    return HttpResponseRedirect(reverse("node", args=[node.cluster, node.name]))
