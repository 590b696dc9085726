"""The practice page: what runs, and buttons that make it fail."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from apps.common.access import OPERATE, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, NotFound
from apps.console.views.kit import back_to, page, render_page, render_part
from apps.console.words import whole_of
from apps.journal.choices import Source
from apps.rehearsal.selectors import PracticeRow, practice_read
from apps.rehearsal.services import fault_set, faults_clear, practice_start, practice_stop
from apps.rehearsal.trainer.faults import KINDS


@page()
def practice(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show the practice page, or with `?part=state` or `?part=panel` that part alone.

    `running` says what the reader's panel was drawn for: where that is no longer so, it is told to draw itself anew.
    """
    row = _practice(who)
    context: dict[str, Any] = {"practice": row, "kinds": list(KINDS.values()), "may": who.may(OPERATE)}
    part = request.GET.get("part", "")
    if part not in ("state", "panel"):
        return render_page(request, "rehearsal/page.html", who=who, **context)
    answer = render_part(request, f"rehearsal/{part}.html", who=who, **context)
    if part == "state" and request.GET.get("running", "") != ("yes" if row and row.running else "no"):
        answer["HX-Trigger"] = "practice-switched"
    return answer


@page(scope=OPERATE, methods=("POST",))
def faults(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Set a fault, or take one (`clear` names it) or all (`clear` is empty) away."""
    if "clear" in request.POST:
        faults_clear(fault_id=request.POST["clear"] or None, by=who.name, source=Source.WEB, now=now())
    else:
        rank, node = _target(request.POST.get("target", ""))
        fault_set(
            kind=request.POST.get("kind", ""),
            rank=rank,
            node=node,
            value=_number(request.POST.get("value", "")),
            by=who.name,
            source=Source.WEB,
            now=now(),
        )
    return _answer(request, who)


@page(scope=OPERATE, methods=("POST",))
def switch(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Start or stop the practice run, as the pressed button says."""
    act = {"start": practice_start, "stop": practice_stop}.get(request.POST.get("act", ""))
    if act is None:
        raise BadRequest("act: must be start or stop.")
    act(principal=who, source=Source.WEB, now=now())
    return _answer(request, who)


def _answer(request: HttpRequest, who: Principal) -> HttpResponse:
    """Answer the changed part to htmx, and send a plain form back to the page."""
    if request.headers.get("HX-Request"):
        return render_part(request, "rehearsal/state.html", who=who, practice=_practice(who), may=True)
    return back_to(request, reverse("practice"))


def _practice(who: Principal) -> PracticeRow | None:
    try:
        return practice_read(cluster_id=who.cluster_id)
    except NotFound:
        return None


def _target(text: str) -> tuple[int | None, str | None]:
    """Return the rank or the node that `rank:N` or `node:NAME` names."""
    kind, _, name = text.partition(":")
    if kind == "rank" and (rank := whole_of(name)) is not None:
        return rank, None
    return None, name if kind == "node" and name else None


def _number(text: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError as error:
        raise BadRequest(f"value: “{text[:40]}” is not a number.") from error
