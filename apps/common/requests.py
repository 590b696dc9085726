"""One id per request: in every answer, every error and every log line of it."""

import secrets
from collections.abc import Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

HEADER = "X-Request-Id"


def request_id_new() -> str:
    """Return a fresh id, short enough to be read out on the phone."""
    text = secrets.token_hex(4)
    return f"{text[:4]}-{text[4:]}"


class RequestIdMiddleware:
    """Put an id on every request and its answer."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if iscoroutinefunction(self):
            return self._answer_async(request)  # type: ignore[return-value]
        request.paceline_id = request_id_new()  # type: ignore[attr-defined]
        response = self.get_response(request)
        response[HEADER] = request.paceline_id  # type: ignore[attr-defined]
        return response

    async def _answer_async(self, request: HttpRequest) -> HttpResponse:
        request.paceline_id = request_id_new()  # type: ignore[attr-defined]
        response = await self.get_response(request)  # type: ignore[misc]
        response[HEADER] = request.paceline_id  # type: ignore[attr-defined]
        return response
