"""No address with a zero byte goes any further: PostgreSQL takes none in a text, so every lookup would fail on our side."""

from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from apps.console.views.errors import refused

Answer = Callable[[HttpRequest], HttpResponse]
AnswerLater = Callable[[HttpRequest], Awaitable[HttpResponse]]


@sync_and_async_middleware
def zero_byte_middleware(get_response: Answer | AnswerLater) -> Answer | AnswerLater:
    """Answer 400 to a path or query that holds a zero byte."""
    if iscoroutinefunction(get_response):
        answer_later = cast(AnswerLater, get_response)

        async def later(request: HttpRequest) -> HttpResponse:
            return _refused(request) or await answer_later(request)

        return later
    answer = cast(Answer, get_response)

    def middleware(request: HttpRequest) -> HttpResponse:
        return _refused(request) or answer(request)

    return middleware


def _refused(request: HttpRequest) -> HttpResponse | None:
    """Answer what cannot be looked up; it is not raised, as Django would log it as a failure with where it happened."""
    if "\0" not in request.path_info and "%00" not in request.META.get("QUERY_STRING", ""):
        return None
    return refused(request, BadRequest("The address holds a zero byte."))
