"""One run's page and its parts."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from apps.common.access import Principal
from apps.common.clock import now
from apps.common.errors import NotFound
from apps.common.ids import id_read
from apps.console.selectors.lanes import lanes_of, placement_json
from apps.console.selectors.run import attempt_shown, feed_path, heat_config, run_head
from apps.console.selectors.timeline import run_timeline
from apps.console.views.kit import page, render_page, render_part
from apps.runs.selectors import RunRow, run_by_code

Context = dict[str, Any]
METRICS = [
    "compute_s",
    "communication_s",
    "step_s",
    "data_s",
    "optimizer_s",
    "checkpoint_s",
    "gc_s",
    "loss",
    "grad_norm",
]


def _head(run: RunRow, *, moment: datetime, who: Principal) -> Context:  # noqa: ARG001
    return {"head": run_head(run, now=moment)}


def _timeline(run: RunRow, *, moment: datetime, who: Principal) -> Context:  # noqa: ARG001
    return {"rows": run_timeline(run.id)}


PARTS: dict[str, Callable[..., Context]] = {
    "head": _head,
    "timeline": _timeline,
}


def _parts(run: RunRow, names: list[str], *, moment: datetime, who: Principal) -> Context:
    context: Context = {}
    for name in names:
        context |= PARTS[name](run, moment=moment, who=who)
    return context


def _asked_attempt(request: HttpRequest) -> int | None:
    text = request.GET.get("attempt", "")
    return id_read("att", text) if text else None


@page()
def run(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:
    """Show a run."""
    row, moment = run_by_code(slug), now()
    shown = attempt_shown(row, _asked_attempt(request))
    return render_page(
        request,
        "console/run/page.html",
        who=who,
        active="runs",
        run=row,
        shown=shown,
        feed=feed_path(row),
        config=heat_config(row, attempt=shown, metrics=METRICS, suspects=[]),
        **_parts(row, list(PARTS), moment=moment, who=who),
    )


@page()
def part(request: HttpRequest, slug: str, name: str, *, who: Principal) -> HttpResponse:
    """Render one part again, after a poke."""
    if name not in PARTS:
        raise NotFound(f"A run's page has no part “{name}”.")
    row = run_by_code(slug)
    return render_part(
        request, f"console/run/{name}.html", who=who, run=row, **_parts(row, [name], moment=now(), who=who)
    )


@page()
def lanes(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001
    """Answer the event lanes under the heatmap as JSON."""
    row = run_by_code(slug)
    return JsonResponse({"lanes": lanes_of(row, attempt=attempt_shown(row, _asked_attempt(request)), now=now())})


@page()
def placement(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001
    """Answer which rank sits where, for the card beside a cell."""
    shown = attempt_shown(run_by_code(slug), _asked_attempt(request))
    return JsonResponse({"ranks": placement_json(shown.id) if shown else {}})
