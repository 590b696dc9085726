"""One run's page and its parts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from apps.common.access import OPERATE, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, NotFound
from apps.common.ids import id_read
from apps.console.selectors.allowed import allowed_of
from apps.console.selectors.chain import chain_page
from apps.console.selectors.charts import CHARTS, chart_of, charts_listed
from apps.console.selectors.lanes import lanes_of, placement_json
from apps.console.selectors.phases import phases_of
from apps.console.selectors.ranks import last_steps, ranks_now_page, worst_ranks
from apps.console.selectors.run import attempt_shown, feed_path, heat_config, run_head
from apps.console.selectors.senders import arrivals_of
from apps.console.selectors.suspects import FRESH, SLOW_CAUSES, Stood, suspect_nodes, suspects_of
from apps.console.selectors.timeline import SHOWN, run_timeline
from apps.console.views.kit import back_to, page, render_page, render_part, stood_of
from apps.console.words import whole_of
from apps.diagnosis.services import finding_mute
from apps.journal.choices import Source
from apps.remediation.selectors import scheduler_silence
from apps.runs.selectors import RunRow, run_by_code

Context = dict[str, Any]

MOST_QUIET_MIN = 366 * 24 * 60
MOST_ROWS = 640
"""Rows of a timeline on a run's page; the incidents' pages and REST have the rest."""

MODULES = tuple(
    f"js/{name}.js"
    for name in (
        *("page", "settings", "times", "keys", "feed", "strips", "forms", "ramp", "run", "heatstate", "heatview"),
        *("cells", "heatmap", "heatinput", "axis", "heatrows", "card", "lanes", "svg", "charts", "moved"),
    )
)
"""The page's scripts, named in its head so that a browser asks for all at once and not level by level."""


def _head(run: RunRow, *, moment: datetime, who: Principal) -> Context:  # noqa: ARG001 - the one signature of PARTS
    return {"head": run_head(run, now=moment), "silence": scheduler_silence(run.cluster_id, now=moment)}


def _suspects(run: RunRow, *, moment: datetime, who: Principal, stood: Stood = FRESH) -> Context:
    return {
        "suspects": suspects_of(run, who=who, now=moment, stood=stood),
        "may": who.may(OPERATE),
        "silent": run.silent,
    }


def _ranks(run: RunRow, *, moment: datetime, who: Principal) -> Context:  # noqa: ARG001
    found = last_steps(run.attempt_id)
    suspects = suspect_nodes(run.id)
    return {
        "ranks": worst_ranks(run, found, now=moment),
        "phases": phases_of(run, found, suspects=suspects, slow=suspect_nodes(run.id, causes=SLOW_CAUSES), now=moment),
    }


def _now(run: RunRow, *, moment: datetime, who: Principal) -> Context:  # noqa: ARG001
    return {"ranks_now": ranks_now_page(run, now=moment), "arrivals": arrivals_of(run)}


def _may(run: RunRow, *, moment: datetime, who: Principal) -> Context:
    return {"allowed": allowed_of(run, who=who, now=moment)}


def _timeline(run: RunRow, *, moment: datetime, who: Principal, rows: int = SHOWN) -> Context:  # noqa: ARG001
    shown, older = run_timeline(run.id, limit=rows)
    return {"rows": shown, "asked": rows, "older": older}


def _chain(run: RunRow, *, moment: datetime, who: Principal) -> Context:  # noqa: ARG001
    return {"chain": chain_page(run)}


PARTS: dict[str, Callable[..., Context]] = {
    "head": _head,
    "suspects": _suspects,
    "ranks": _ranks,
    "now": _now,
    "phases": _ranks,
    "may": _may,
    "chain": _chain,
    "timeline": _timeline,
}


def _parts(
    run: RunRow, names: list[str], *, moment: datetime, who: Principal, request: HttpRequest | None = None
) -> Context:
    context: Context = {}
    for build in dict.fromkeys(PARTS[name] for name in names):
        asked: Context = {}
        if request is not None and build is _timeline:
            asked = {"rows": _asked_rows(request)}
        elif request is not None and build is _suspects:
            asked = {"stood": stood_of(request)}
        context |= build(run, moment=moment, who=who, **asked)
    return context


def _asked_rows(request: HttpRequest) -> int:
    return min(max(whole_of(request.GET.get("rows")) or SHOWN, SHOWN), MOST_ROWS)


def calm_s(world_size: int | None) -> int:
    """Return how long a part that looks at every rank stands before it is made again: 3 s, 30 s at 16,384 ranks."""
    return max(3, min(30, (world_size or 0) // 500))


def _asked_attempt(request: HttpRequest) -> int | None:
    text = request.GET.get("attempt", "")
    return id_read("att", text) if text else None


@page()
def run(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:
    """Show a run."""
    row, moment = run_by_code(slug), now()
    shown = attempt_shown(row, _asked_attempt(request))
    feed = feed_path(row)  # before anything is read: what is written meanwhile comes by the feed
    return render_page(
        request,
        "console/run/page.html",
        who=who,
        active="runs",
        run=row,
        shown=shown,
        feed=feed,
        charts=charts_listed(row),
        modules=MODULES,
        calm_s=calm_s(row.world_size),
        config=heat_config(row, attempt=shown, suspects=suspect_nodes(row.id), now=moment),
        **_parts(row, list(PARTS), moment=moment, who=who, request=request),
    )


@page()
def part(request: HttpRequest, slug: str, name: str, *, who: Principal) -> HttpResponse:
    """Render one part again, after a poke."""
    if name not in PARTS:
        raise NotFound(f"A run's page has no part “{name}”.")
    row, moment = run_by_code(slug), now()
    context = _parts(row, [name], moment=moment, who=who, request=request)
    # The head and the suspects say one thing: either that says something new brings the other along, of the same moment.
    if name == "head" and request.GET.get("word", "") not in ("", context["head"].word_key):
        context |= _parts(row, ["suspects"], moment=moment, who=who, request=request) | {"with_head": True}
    elif name == "suspects":
        context |= _parts(row, ["head"], moment=moment, who=who)
    return render_part(request, f"console/run/{name}.html", who=who, run=row, live=True, **context)


@page()
def heat(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001 - whoever may read may see it
    """Answer what the heatmap must know again once another attempt or another suspect stands: see `heat_config`."""
    row = run_by_code(slug)
    shown = attempt_shown(row, _asked_attempt(request))
    return JsonResponse(heat_config(row, attempt=shown, suspects=suspect_nodes(row.id), now=now()))


@page()
def lanes(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001 - whoever may read may see it
    """Answer the event lanes under the heatmap as JSON."""
    return JsonResponse({"lanes": lanes_of(run_by_code(slug), now=now())})


@page()
def placement(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001
    """Answer which rank sits where, for the card beside a cell."""
    shown = attempt_shown(run_by_code(slug), _asked_attempt(request))
    return JsonResponse({"ranks": placement_json(shown.id) if shown else {}})


@page()
def chart(request: HttpRequest, slug: str, name: str, *, who: Principal) -> HttpResponse:  # noqa: ARG001
    """Answer one chart as a Plotly figure in JSON."""
    if name not in CHARTS:
        raise NotFound(f"A run's page has no chart “{name}”.")
    row = run_by_code(slug)
    figure = chart_of(row, name, query=request.GET, attempt=attempt_shown(row, _asked_attempt(request)))
    return HttpResponse(figure.to_json(), content_type="application/json")


@page(scope=OPERATE, methods=("POST",))
def mute(request: HttpRequest, slug: str, number: int, *, who: Principal) -> HttpResponse:
    """Keep quiet about a finding, for a time or for good."""
    moment, minutes = now(), whole_of(request.POST.get("for"))
    if minutes is not None and minutes > MOST_QUIET_MIN:
        raise BadRequest("for: more than a year; keep quiet for good instead.")
    finding_mute(
        finding_id=number,
        reason=request.POST.get("reason", ""),
        until_at=None if minutes is None else moment + timedelta(minutes=minutes),
        by=who.name,
        source=Source.WEB,
        now=moment,
    )
    messages.success(request, "It stays open and in the log, quietly.")
    return back_to(request, reverse("run", args=[slug]))
