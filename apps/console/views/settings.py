"""Tokens, people and their roles, the launcher of a run."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from apps.accounts.choices import Role
from apps.accounts.selectors import people_all, tokens_all
from apps.accounts.services import role_set, sign_in_link_create, token_create, token_revoke, user_create
from apps.common.access import ADMIN, SCOPES, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, Forbidden
from apps.console.views.kit import back_to, page, render_page
from apps.fleet.selectors import cluster_by_name, clusters_all
from apps.journal.choices import Source


@page(methods=("GET", "HEAD", "POST"))
def settings(request: HttpRequest, *, who: Principal) -> HttpResponse:
    """Show the settings, or take one change."""
    if request.method == "POST":
        return _change(request, who)
    return _show(request, who)


def _show(request: HttpRequest, who: Principal, **more: object) -> HttpResponse:
    admin = who.may(ADMIN)
    return render_page(
        request,
        "console/settings/page.html",
        who=who,
        active="settings",
        admin=admin,
        tokens=tokens_all() if admin else [],
        people=people_all() if admin else [],
        clusters={cluster.id: cluster.name for cluster in clusters_all()},
        scopes=SCOPES,
        roles=Role.choices,
        **more,
    )


def _change(request: HttpRequest, who: Principal) -> HttpResponse:
    if not who.may(ADMIN):
        raise Forbidden("Settings are an admin's; you may look.")
    act = {
        "token": _token_make,
        "revoke": _token_revoke,
        "person": _person_make,
        "role": _role_set,
        "link": _link_make,
    }.get(request.POST.get("act", ""))
    if act is None:
        raise BadRequest("act: none of the forms of this page.")
    return act(request, who)


def _token_make(request: HttpRequest, who: Principal) -> HttpResponse:
    name = request.POST.get("cluster", "")
    _, secret = token_create(
        name=request.POST.get("name", ""),
        scopes=request.POST.getlist("scopes"),
        cluster_id=cluster_by_name(name).id if name else None,
        by=who.name,
        source=Source.WEB,
        now=now(),
    )
    return _show(request, who, secret=secret, secret_name=request.POST.get("name", ""))


def _token_revoke(request: HttpRequest, who: Principal) -> HttpResponse:
    token_revoke(token_id=_number(request, "token"), by=who.name, source=Source.WEB, now=now())
    messages.success(request, "The token is revoked. Senders that use it are refused within five seconds.")
    return back_to(request, reverse("settings") + "#tokens")


def _person_make(request: HttpRequest, who: Principal) -> HttpResponse:
    moment = now()
    user_id = user_create(
        name=request.POST.get("name", ""),
        role=request.POST.get("role", ""),
        email=request.POST.get("email", ""),
        by=who.name,
        source=Source.WEB,
        now=moment,
    )
    return _link_shown(request, who, user_id)


def _role_set(request: HttpRequest, who: Principal) -> HttpResponse:
    role = request.POST.get("role", "")
    role_set(user_id=_number(request, "person"), role=role, by=who.name, source=Source.WEB, now=now())
    messages.success(request, "The role is changed; it counts from their next click.")
    return back_to(request, reverse("settings") + "#people")


def _link_make(request: HttpRequest, who: Principal) -> HttpResponse:
    return _link_shown(request, who, _number(request, "person"))


def _link_shown(request: HttpRequest, who: Principal, user_id: int) -> HttpResponse:
    secret = sign_in_link_create(user_id=user_id, now=now())
    link = request.build_absolute_uri(reverse("first-sign-in", args=[secret]))
    name = next((person.name for person in people_all() if person.id == user_id), "")
    return _show(request, who, link=link, link_name=name)


def _number(request: HttpRequest, name: str) -> int:
    text = request.POST.get(name, "")
    if not text.isdigit():
        raise BadRequest(f"{name}: not a number.")
    return int(text)
