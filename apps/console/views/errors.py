"""Answers for what nobody foresaw: pages for people, the one shape of errors under `/api/`. They need no database."""

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from apps.common.rest import error_body

API = "/api/"


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:  # noqa: ARG001
    """Answer 404."""
    if request.path.startswith(API):
        return _said(request, "not_found", "There is nothing here.", 404)
    return render(request, "404.html", status=404)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:  # noqa: ARG001
    """Answer 403."""
    return render(request, "403.html", status=403)


def failed(request: HttpRequest) -> HttpResponse:
    """Answer 500 with the id to quote."""
    if request.path.startswith(API):
        return _said(request, "internal", "Something failed on our side.", 500)
    return render(request, "500.html", status=500)


def refused(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 400: an address that cannot be one, a host that is not ours, or a form past every bound."""
    sentence = "The request cannot be read, or is for a host that this installation does not answer for."
    if isinstance(exception, BadRequest):
        sentence = str(exception)
    if request.path.startswith(API):
        return _said(request, "bad_request", sentence, 400)
    return render(request, "400.html", {"sentence": sentence}, status=400)


def _said(request: HttpRequest, code: str, message: str, status: int) -> HttpResponse:
    request_id = getattr(request, "paceline_id", "")
    return JsonResponse(error_body(code=code, message=message, facts={}, request_id=request_id), status=status)
