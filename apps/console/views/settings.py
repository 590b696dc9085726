"""Tokens, people, launchers, modes, guards, notices, and what was changed."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from apps.accounts.choices import Role
from apps.accounts.selectors import people_all, tokens_all
from apps.common.access import ADMIN, OPERATE, SCOPES, Principal
from apps.common.errors import BadRequest, Forbidden
from apps.console.selectors.timeline import timeline_row
from apps.console.views.changes import FORMS, OPERATORS
from apps.console.views.kit import back_to, page, render_page
from apps.fleet.selectors import clusters_all
from apps.incidents.selectors import notice_targets, notices_latest
from apps.incidents.services import mail_folder, mail_recipients
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation.selectors import check_of, guard_settings, scheduler_of
from apps.runs.choices import Mode
from apps.runs.launcher import launcher_shown
from apps.runs.selectors import runs_all


@page(methods=("GET", "HEAD", "POST"))
def settings(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show the settings, or take one change."""
    if request.method != "POST":
        return _show(request, who)
    wanted = request.POST.get("act", "")
    if wanted not in FORMS:
        raise BadRequest("act: none of the forms of this page.")
    if not who.may(OPERATE if wanted in OPERATORS else ADMIN):
        raise Forbidden("Settings are an admin's; you may look.")
    then = FORMS[wanted](request, who)
    if isinstance(then, str):
        return back_to(request, reverse("settings") + f"#{then}")
    return _show(request, who, **then)


def _show(request: HttpRequest, who: Principal, **more: Any) -> HttpResponse:
    admin, clusters = who.may(ADMIN), clusters_all()
    context: dict[str, Any] = {
        "admin": admin,
        "may": who.may(OPERATE),
        "clusters": {cluster.id: cluster.name for cluster in clusters},
        "scopes": SCOPES,
        "roles": Role.choices,
        "runs": runs_all(),
        "modes": Mode.choices,
        "guards": [(cluster, guard_settings(cluster.id)) for cluster in clusters],
        "schedulers": [(cluster, scheduler_of(cluster.id)) for cluster in clusters],
        "checks": [(cluster, check_of(cluster.id)) for cluster in clusters],
        "notices": notices_latest(limit=20),
    }
    if admin:
        tokens = tokens_all()
        context |= {
            "tokens": [token for token in tokens if token.revoked_at is None],
            "revoked": [token for token in tokens if token.revoked_at is not None],
            "people": people_all(),
            "launchers": _launchers(),
            "targets": notice_targets(),
            "recipients": mail_recipients(),
            "mail_folder": mail_folder(),
            "events": [timeline_row(event) for event in events_latest(StreamKey.system(), limit=30)],
        }
    return render_page(request, "console/settings/page.html", who=who, active="settings", **context, **more)


def _launchers() -> list[tuple[str, str]]:
    """Return each run with its launcher as JSON to edit; the signing secret stays out of the page."""
    shown = []
    for run in runs_all():
        stored = launcher_shown(run.launcher)
        shown.append((run.slug, json.dumps(stored, indent=1) if stored else ""))
    return shown
