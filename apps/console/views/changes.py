"""The forms of the settings page. Each takes a request and a caller, calls one service, and says what to show next.

A string is the place on the page to go back to; a mapping is shown at once, for what is shown only once.
"""

import json
import secrets
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.urls import reverse

from apps.accounts.selectors import people_all
from apps.accounts.services import role_set, sign_in_link_create, token_create, token_revoke, user_create
from apps.common.access import Principal
from apps.common.clock import now
from apps.common.errors import BadRequest
from apps.console.words import whole_of
from apps.fleet.selectors import cluster_by_name
from apps.incidents.services import notice_target_enable, notice_target_put
from apps.journal.choices import Source
from apps.remediation.services import SchedulerFields, check_set, check_unset, guard_set, scheduler_set
from apps.runs.choices import Mode
from apps.runs.launcher import launcher_checked
from apps.runs.selectors import RunRow, run_by_code
from apps.runs.services import run_put

Next = str | dict[str, Any]


def token_make(request: HttpRequest, who: Principal) -> Next:
    """Make a token; its secret is shown once."""
    name, cluster = request.POST.get("name", ""), request.POST.get("cluster", "")
    _, secret = token_create(
        name=name,
        scopes=request.POST.getlist("scopes"),
        cluster_id=cluster_by_name(cluster).id if cluster else None,
        by=who.name,
        source=Source.WEB,
        now=now(),
    )
    return {"secret": secret, "secret_name": f"Token “{name}”"}


def token_end(request: HttpRequest, who: Principal) -> Next:
    """Revoke a token."""
    token_revoke(token_id=number(request, "token"), by=who.name, source=Source.WEB, now=now())
    messages.success(request, "The token is revoked. Senders that use it are refused within five seconds.")
    return "tokens"


def person_make(request: HttpRequest, who: Principal) -> Next:
    """Add a person and show their one-time link."""
    user_id = user_create(
        name=request.POST.get("name", ""),
        role=request.POST.get("role", ""),
        email=request.POST.get("email", ""),
        by=who.name,
        source=Source.WEB,
        now=now(),
    )
    return _link(request, user_id)


def person_role(request: HttpRequest, who: Principal) -> Next:
    """Give a person another role."""
    role = request.POST.get("role", "")
    role_set(user_id=number(request, "person"), role=role, by=who.name, source=Source.WEB, now=now())
    messages.success(request, "The role is changed; it counts from their next click.")
    return "people"


def person_link(request: HttpRequest, who: Principal) -> Next:  # noqa: ARG001 - the one signature of FORMS
    """Make a one-time link for a person."""
    return _link(request, number(request, "person"))


def _link(request: HttpRequest, user_id: int) -> Next:
    secret = sign_in_link_create(user_id=user_id, now=now())
    name = next((person.name for person in people_all() if person.id == user_id), "")
    return {"link": request.build_absolute_uri(reverse("first-sign-in", args=[secret])), "link_name": name}


def run_launcher(request: HttpRequest, who: Principal) -> Next:
    """Set how a run is started and stopped; an empty text takes the launcher away."""
    run, text = run_by_code(request.POST.get("run", "")), request.POST.get("launcher", "").strip()
    try:
        given = json.loads(text) if text else {}
    except ValueError as error:
        raise BadRequest(f"launcher: this is not JSON: {error}.") from error
    if not isinstance(given, dict):
        raise BadRequest(
            'launcher: must be a JSON object, such as {"kind": "LOCAL", "command": ["python", "train.py"]}.'
        )
    stored, ignored = launcher_checked(given, before=run.launcher)
    _put(run, {"launcher": stored}, who)
    more = f" Not understood and left out: {', '.join(ignored)}." if ignored else ""
    messages.success(request, f"The launcher of {run.slug} is {'set' if stored else 'taken away'}.{more}")
    return "launchers"


def run_mode(request: HttpRequest, who: Principal) -> Next:
    """Set how far Paceline may go by itself with a run."""
    run, mode = run_by_code(request.POST.get("run", "")), request.POST.get("mode", "")
    if mode not in Mode.values:
        raise BadRequest(f"mode: must be one of {', '.join(Mode.values)}.")
    _put(run, {"mode": mode}, who)
    messages.success(request, f"{run.slug}: {Mode(mode).label}.")
    return "modes"


def _put(run: RunRow, fields: dict[str, Any], who: Principal) -> None:
    run_put(slug=run.slug, cluster_id=run.cluster_id, fields=fields, by=who.name, source=Source.WEB, now=now())


def target_make(request: HttpRequest, who: Principal) -> Next:
    """Add a webhook that is told of incidents; the secret it checks signatures with is shown once."""
    name, secret = request.POST.get("name", ""), secrets.token_urlsafe(32)
    notice_target_put(
        name=name, url=request.POST.get("url", ""), secret=secret, by=who.name, source=Source.WEB, now=now()
    )
    return {"secret": secret, "secret_name": f"Webhook “{name}”, secret of its signatures"}


def target_switch(request: HttpRequest, who: Principal) -> Next:
    """Switch a webhook on or off."""
    enabled = request.POST.get("enabled") == "1"
    notice_target_enable(
        target_id=number(request, "target"), enabled=enabled, by=who.name, source=Source.WEB, now=now()
    )
    return "notices"


def guards(request: HttpRequest, who: Principal) -> Next:
    """Set a cluster's limits on exclusions."""
    share = request.POST.get("share_percent", "")
    try:
        share_of_run = float(share) / 100
    except ValueError as error:
        raise BadRequest(f"share_percent: “{share[:20]}” is not a number.") from error
    guard_set(
        principal=who,
        cluster_id=number(request, "cluster"),
        window_s=number(request, "window_h") * 3600,
        exclusions_per_window=number(request, "exclusions"),
        share_of_run=share_of_run,
        source=Source.WEB,
        now=now(),
    )
    messages.success(request, "The guards are changed; it is written down.")
    return "guards"


def scheduler(request: HttpRequest, who: Principal) -> Next:
    """Say which scheduler runs a cluster, or that none does any more."""
    poll = request.POST.get("poll_s", "")
    try:
        poll_s = float(poll)
    except ValueError as error:
        raise BadRequest(f"poll_s: “{poll[:20]}” is not a number.") from error
    fields = SchedulerFields(
        conf=request.POST.get("conf", "").strip(),
        programs=request.POST.get("programs", "").strip(),
        zone=request.POST.get("zone", "").strip() or "UTC",
        poll_s=poll_s,
        drains=request.POST.get("drains") == "1",
    )
    gone = request.POST.get("remove") == "1"
    scheduler_set(
        principal=who,
        cluster_id=number(request, "cluster"),
        fields=None if gone else fields,
        source=Source.WEB,
        now=now(),
    )
    messages.success(request, "No scheduler is set any more." if gone else "The scheduler is set; it is read at once.")
    return "schedulers"


def check(request: HttpRequest, who: Principal) -> Next:
    """Say how a cluster's nodes are checked, or that they are not any more."""
    cluster_id = number(request, "cluster")
    if request.POST.get("remove") == "1":
        check_unset(principal=who, cluster_id=cluster_id, source=Source.WEB, now=now())
        messages.success(request, "No check is set any more, and none is asked for.")
        return "checks"
    text = request.POST.get("timeout_s", "")
    try:
        timeout_s = float(text)
    except ValueError as error:
        raise BadRequest(f"timeout_s: “{text[:20]}” is not a number.") from error
    check_set(
        principal=who,
        cluster_id=cluster_id,
        kind=request.POST.get("kind", ""),
        command=[word for word in request.POST.get("command", "").replace("\r", "").split("\n") if word],
        url=request.POST.get("url", "").strip(),
        secret=request.POST.get("secret") or None,
        timeout_s=timeout_s,
        valid_s=number(request, "valid_h") * 3600,
        required=request.POST.get("required") == "1",
        source=Source.WEB,
        now=now(),
    )
    messages.success(request, "The check is set; it counts from the next press.")
    return "checks"


def number(request: HttpRequest, name: str) -> int:
    """Return a whole number of a form.

    Raises:
        BadRequest: it is none.
    """
    found = whole_of(request.POST.get(name))
    if found is None:
        raise BadRequest(f"{name}: not a whole number.")
    return found


FORMS: dict[str, Callable[[HttpRequest, Principal], Next]] = {
    "token": token_make,
    "revoke": token_end,
    "person": person_make,
    "role": person_role,
    "link": person_link,
    "launcher": run_launcher,
    "mode": run_mode,
    "target": target_make,
    "target_switch": target_switch,
    "guard": guards,
    "scheduler": scheduler,
    "check": check,
}
OPERATORS = frozenset({"mode"})
"""Forms that an operator may send; all others are an admin's."""
