"""One id per request: in every answer, every error and every log line of it."""

import secrets
from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

HEADER = "X-Request-Id"
Answer = Callable[[HttpRequest], HttpResponse]
AnswerLater = Callable[[HttpRequest], Awaitable[HttpResponse]]


def request_id_new() -> str:
    """Return a fresh id, short enough to be read out on the phone."""
    text = secrets.token_hex(4)
    return f"{text[:4]}-{text[4:]}"


@sync_and_async_middleware
def request_id_middleware(get_response: Answer | AnswerLater) -> Answer | AnswerLater:
    """Put an id on every request and its answer."""
    if iscoroutinefunction(get_response):
        answer_later = cast(AnswerLater, get_response)

        async def later(request: HttpRequest) -> HttpResponse:
            return _marked(request, await answer_later(_numbered(request)))

        return later
    answer = cast(Answer, get_response)

    def middleware(request: HttpRequest) -> HttpResponse:
        return _marked(request, answer(_numbered(request)))

    return middleware


def _numbered(request: HttpRequest) -> HttpRequest:
    request.paceline_id = request_id_new()  # type: ignore[attr-defined]
    return request


def _marked(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    response[HEADER] = request.paceline_id  # type: ignore[attr-defined]
    return response
