"""The confirm page of an action, and the page of one that was asked for."""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from apps.accounts.services import once
from apps.common.access import OPERATE, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, PacelineError
from apps.common.ids import id_read, id_write
from apps.console.selectors.accepting import accept_form
from apps.console.selectors.actions import (
    action_title,
    action_token,
    confirm_page,
    moved_words,
    queued_words,
    stepper,
)
from apps.console.selectors.run import feed_path
from apps.console.views.kit import back_to, hours_given, page, render_page, render_part
from apps.console.words import whole_of
from apps.fleet.selectors import NodeRow, node_by_code, node_by_id
from apps.journal.choices import Source
from apps.remediation.choices import ActionKind, ActionState, Moment
from apps.remediation.selectors import ActionRow, Preview, action_by_code, action_preview, look_lines
from apps.remediation.services import (
    CheckpointMoved,
    action_accept,
    action_cancel,
    action_dismiss,
    action_request,
    action_settle,
    command_copied,
)
from apps.runs.selectors import RunRow, checkpoints_of, run_by_code, run_by_id

MOST_TICKS = 32
"""Nodes that a meter tells apart."""
KINDS = tuple(kind for kind in ActionKind if kind != ActionKind.RECORD_DONE)


@page(methods=("GET", "HEAD", "POST"))
def of_run(request: HttpRequest, slug: str, *, who: Principal) -> HttpResponse:
    """Confirm an action on a run, and on the node that `?node=` names."""
    run = run_by_code(slug)
    name = _given(request, "node")
    return _confirm(request, who, run, node_by_code(name, cluster_id=run.cluster_id) if name else None)


@page(methods=("GET", "HEAD", "POST"))
def of_node(request: HttpRequest, cluster: str, name: str, *, who: Principal) -> HttpResponse:
    """Confirm an action on a node."""
    run = _given(request, "run")
    return _confirm(request, who, run_by_code(run) if run else None, node_by_code(f"{cluster}:{name}"))


def _given(request: HttpRequest, name: str) -> str:
    return (request.POST if request.method == "POST" else request.GET).get(name, "")


def _confirm(request: HttpRequest, who: Principal, run: RunRow | None, node: NodeRow | None) -> HttpResponse:
    if request.method == "POST":
        try:
            return _ask(request, who, run, node)
        except PacelineError as error:
            return _show(request, who, run, node, error=error)
    return _show(request, who, run, node)


def _show(
    request: HttpRequest,
    who: Principal,
    run: RunRow | None,
    node: NodeRow | None,
    *,
    error: PacelineError | None = None,
) -> HttpResponse:
    moment = now()
    preview = _preview(request, run, node, moment)
    shown = confirm_page(
        preview, when=_given(request, "when"), from_step=whole_of(_given(request, "from_step")), now=moment
    )
    moved = isinstance(error, CheckpointMoved)
    context: dict[str, Any] = {
        "page": shown,
        "moved": moved_words(error.facts, page=shown, shown=_given(request, f"shown_{shown.when}")[:60])
        if error is not None and moved
        else "",
        "again": moved or bool(_given(request, "again")),
        "typed": _given(request, "confirm") if moved else "",
        "out_hours": _given(request, "out_hours"),
        "at_until": _given(request, "at_until"),
        "preview": preview,
        "queued_words": queued_words(preview.queued) if preview.queued is not None else "",
        "added": preview.blast.out_after - preview.blast.out_now if preview.blast else 0,
        "ticks": preview.blast.nodes if preview.blast and preview.blast.nodes <= MOST_TICKS else 0,
        "run": run,
        "node": node,
        "kind": preview.kind,
        "finding": _given(request, "finding"),
        "reason": _given(request, "reason"),
        "error": error,
        "request_id": getattr(request, "paceline_id", ""),
        "key": secrets.token_urlsafe(18),
        "may": who.may(OPERATE),
        "back": reverse("run", args=[run.slug])
        if run
        else reverse("node", args=[node.cluster, node.name])
        if node
        else "/",
    }
    if request.GET.get("part") == "figures":
        return render_part(request, "console/actions/figures.html", who=who, live=True, **context)
    status = error.http_status if error else 200
    return render_page(
        request, "console/actions/confirm.html", who=who, active="runs" if run else "nodes", status=status, **context
    )


def _preview(request: HttpRequest, run: RunRow | None, node: NodeRow | None, moment: datetime) -> Preview:
    kind = _given(request, "kind")
    if kind not in KINDS:
        raise BadRequest(f"kind: must be one of {', '.join(KINDS)}.")
    return action_preview(
        kind=kind,
        run=run,
        node=node,
        from_step=whole_of(_given(request, "from_step")),
        reason=_given(request, "reason"),
        moment=_given(request, "when") or "NOW",
        requeued=_given(request, "requeued"),
        now=moment,
    )


def _ask(request: HttpRequest, who: Principal, run: RunRow | None, node: NodeRow | None) -> HttpResponse:
    moment = now()
    by_hand = _given(request, "done")
    hours = hours_given(request, "out_hours")
    kind, finding, step = _given(request, "kind"), _given(request, "finding"), whole_of(_given(request, "from_step"))
    options: dict[str, Any] = {"when": _given(request, "when") or "NOW", "confirm": _given(request, "confirm").strip()}
    if step is not None:
        options["from_step"] = step
    if requeued := _given(request, "requeued"):
        options["requeued"] = requeued
    if by_hand:
        options = {"done": kind, "command": _given(request, "command")}
        if kind == ActionKind.CHECK_NODE:
            options["passed"] = by_hand == "passed"
    wish: dict[str, Any] = {
        "kind": str(ActionKind.RECORD_DONE) if by_hand else kind,
        "run_id": run.id if run else None,
        "node_id": node.id if node else None,
        "reason": _given(request, "reason"),
        "options": options,
        "expected_state": _seen(request) if run else None,
        "finding_id": id_read("fin", finding) if finding else None,
    }

    def act() -> tuple[int, dict[str, Any]]:
        if hours and not by_hand:
            wish["options"] |= {"until_at": moment + timedelta(hours=hours), "at_until": _given(request, "at_until")}
        row = _requested(wish, who, again=bool(_given(request, "again")), moment=moment)
        return 201, {"id": id_write("act", row.id)}

    _, answer = once(principal=who, key=_given(request, "key"), body=[wish, hours], now=moment, act=act)
    return back_to(request, reverse("action", args=[answer["id"]]))


def _seen(request: HttpRequest) -> dict[str, Any]:
    """Return what the form showed: the attempt, its state, and the checkpoint that was priced."""
    seen = {"attempt": whole_of(_given(request, "expected_attempt")), "state": _given(request, "expected_state")}
    return seen | _seen_save(request)


def _seen_save(request: HttpRequest) -> dict[str, Any]:
    return {"from_step": whole_of(_given(request, "shown_step"))} if "shown_step" in request.POST else {}


def _requested(wish: dict[str, Any], who: Principal, *, again: bool, moment: datetime) -> ActionRow:
    """Ask for it; who was asked `again` already because of a newer save gets what was shown, and is not asked for ever."""
    try:
        return action_request(principal=who, source=Source.WEB, now=moment, **wish)
    except CheckpointMoved:
        if not again:
            raise
    seen, options = dict(wish["expected_state"]), dict(wish["options"])
    step = seen.pop("from_step")
    at_once = step is not None and options["when"] == Moment.NOW
    if at_once and checkpoints_of(run_id=wish["run_id"], step=step, usable_only=True, limit=1):
        options["from_step"] = step
    wish = wish | {"expected_state": seen, "options": options}
    return action_request(principal=who, source=Source.WEB, now=moment, **wish)


@page(scope=OPERATE, methods=("POST",))
def copied(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Note that somebody copied commands to run them by hand."""
    run, node = request.POST.get("run", ""), request.POST.get("node", "")
    command_copied(
        principal=who,
        kind=request.POST.get("kind", "")[:40],
        commands=request.POST.get("command", ""),
        run_id=run_by_code(run).id if run else None,
        node_id=node_by_code(node).id if node and not run else None,
        source=Source.WEB,
        now=now(),
    )
    return HttpResponse(status=204)


@page()
def action(request: HttpRequest, code: str, *, who: Principal) -> HttpResponse:
    """Show an action and how far it has come."""
    row = action_by_code(code)
    context: dict[str, Any] = {
        "action": row,
        "code": id_write("act", row.id),
        "token": action_token(row),
        "steps": stepper(row),
        "title": action_title(row),
        "look": look_lines(row),
        "node": node_by_id(row.node_id) if row.node_id else None,
        "may": who.may(OPERATE),
        "form": accept_form(row, from_step=whole_of(request.GET.get("from_step", "")), now=now()),
        "reason": request.GET.get("reason", ""),
        "feed": feed_path(run_by_id(row.run_id)) if row.run_id else "/ws/fleet",
    }
    if part := request.GET.get("part"):
        template = "console/actions/cost.html" if part == "cost" else "console/actions/state.html"
        return render_part(request, template, who=who, **context)
    return render_page(
        request, "console/actions/action.html", who=who, active="runs" if row.run else "nodes", **context
    )


@page(scope=OPERATE, methods=("POST",))
def decide(request: HttpRequest, code: str, *, who: Principal) -> HttpResponse:
    """Cancel, accept, dismiss or settle an action."""
    row = action_by_code(code)
    act = DECISIONS.get(request.POST.get("act", ""))
    if act is None:
        raise BadRequest("act: none of the buttons of this page.")
    act(request, row, who)
    return back_to(request, reverse("action", args=[code]))


def _cancel(request: HttpRequest, row: ActionRow, who: Principal) -> None:
    action_cancel(principal=who, action_id=row.id, reason=request.POST.get("reason", ""), now=now())


def _accept(request: HttpRequest, row: ActionRow, who: Principal) -> None:
    options: dict[str, Any] = {"confirm": request.POST.get("confirm", "").strip()}
    step = whole_of(request.POST.get("from_step", ""))
    if step is not None:
        options["from_step"] = step
    action_accept(
        principal=who,
        action_id=row.id,
        source=Source.WEB,
        reason=request.POST.get("reason", ""),
        expected_state=_seen_save(request),
        options=options,
        now=now(),
    )


def _dismiss(request: HttpRequest, row: ActionRow, who: Principal) -> None:
    action_dismiss(principal=who, action_id=row.id, reason=request.POST.get("reason", ""), now=now())


def _settle(request: HttpRequest, row: ActionRow, who: Principal) -> None:
    outcome = request.POST.get("outcome", "")
    if outcome not in (ActionState.SUCCEEDED, ActionState.FAILED):
        raise BadRequest("outcome: say whether you saw that it was done or that it was not.")
    action_settle(principal=who, action_id=row.id, outcome=outcome, reason=request.POST.get("reason", ""), now=now())


DECISIONS: dict[str, Callable[[HttpRequest, ActionRow, Principal], None]] = {
    "cancel": _cancel,
    "accept": _accept,
    "dismiss": _dismiss,
    "settle": _settle,
}
