"""What every page shares: who may see it, its frame, and how errors look."""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from apps.accounts.selectors import principal_of_user
from apps.common.access import READ, Principal
from apps.common.clock import now
from apps.common.errors import BadRequest, Forbidden, NotFound, PacelineError
from apps.console import words
from apps.console.selectors.frame import frame_read
from apps.console.selectors.suspects import Stood
from apps.remediation.services import LONGEST_OUT

View = Callable[..., HttpResponseBase]


def page(*, scope: str = READ, methods: tuple[str, ...] = ("GET", "HEAD")) -> Callable[[View], View]:
    """Let signed-in people through who hold `scope`; the view gets them as `who`, and errors become pages or parts."""

    def wrap(view: View) -> View:
        @never_cache
        @wraps(view)
        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return _to_sign_in(request)
            if request.method not in methods:
                return HttpResponse(status=405, headers={"Allow": ", ".join(methods)})
            who = principal_of_user(request.user)
            try:
                if not who.may(scope):
                    raise Forbidden(f"This needs the right to {scope}; ask an admin for another role.")
                if any("\0" in text for _, texts in request.POST.lists() for text in texts):
                    raise BadRequest("What was sent holds a zero byte, which no text here can have. Nothing was kept.")
                return view(request, *args, who=who, **kwargs)
            except PacelineError as error:
                return error_page(request, error, who=who)

        return answer

    return wrap


def _to_sign_in(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request"):
        return HttpResponse(status=401, headers={"HX-Redirect": request.headers.get("HX-Current-URL", "/")})
    return redirect_to_login(request.get_full_path())


def render_page(
    request: HttpRequest, template: str, *, who: Principal, active: str = "", status: int = 200, **context: Any
) -> HttpResponse:
    """Render a whole page inside the frame (top bar with counts and watch state)."""
    moment = now()
    frame = frame_read(now=moment)
    return render(
        request, template, {"who": who, "frame": frame, "active": active, "now": moment, **context}, status=status
    )


def render_part(
    request: HttpRequest, template: str, *, who: Principal, status: int = 200, **context: Any
) -> HttpResponse:
    """Render one part of a page, for htmx."""
    return render(request, template, {"who": who, "now": now(), **context}, status=status)


def error_page(request: HttpRequest, error: PacelineError, *, who: Principal) -> HttpResponse:
    """Say what failed, with its code and the request's id; a part gets a banner in its place."""
    context: dict[str, Any] = {
        "error": error,
        "code": error.code,
        "facts": error.facts,
        "request_id": getattr(request, "paceline_id", ""),
    }
    if request.headers.get("HX-Request"):
        return render_part(request, "console/parts/error.html", who=who, status=error.http_status, **context)
    template = "404.html" if isinstance(error, NotFound) else "console/error.html"
    return render_page(request, template, who=who, status=error.http_status, **context)


def stood_of(request: HttpRequest) -> Stood:
    """Return which button a part that is made again showed first, and whether a hand is at it (static/js/page.js)."""
    return Stood(first=request.GET.get("stood", ""), held=request.GET.get("held") == "1")


def back_to(request: HttpRequest, address: str) -> HttpResponse:
    """Send the browser to `address` after a write, whether a form or htmx sent it."""
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Redirect": address})
    return HttpResponseRedirect(address)


LONGEST_H = LONGEST_OUT // timedelta(hours=1)
"""For how long a node may be put out with an end; past that it has none."""


def hours_given(request: HttpRequest, name: str) -> int | None:
    """Return a form's whole number of hours, None where its field is empty: no end.

    Raises:
        BadRequest: something else stands in it; it never means that there is no end.
    """
    given = request.POST.get(name, "").strip()
    hours = words.whole_of(given)
    if given and (hours is None or not 0 < hours <= LONGEST_H):
        raise BadRequest(f"{name}: must be from 1 to {LONGEST_H:,}, or empty for no end.")
    return hours
