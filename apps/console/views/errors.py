"""Pages for what nobody foresaw; they need no database."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:  # noqa: ARG001
    """Answer 404."""
    return render(request, "404.html", status=404)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:  # noqa: ARG001
    """Answer 403."""
    return render(request, "403.html", status=403)


def failed(request: HttpRequest) -> HttpResponse:
    """Answer 500 with the id to quote."""
    return render(request, "500.html", status=500)
