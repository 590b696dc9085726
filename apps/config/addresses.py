"""No address with a zero byte goes any further: PostgreSQL takes none in a text, so every lookup would fail on our side."""

from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

Answer = Callable[[HttpRequest], HttpResponse]
AnswerLater = Callable[[HttpRequest], Awaitable[HttpResponse]]


@sync_and_async_middleware
def zero_byte_middleware(get_response: Answer | AnswerLater) -> Answer | AnswerLater:
    """Answer 400 to a path or query that holds a zero byte."""
    if iscoroutinefunction(get_response):
        answer_later = cast(AnswerLater, get_response)

        async def later(request: HttpRequest) -> HttpResponse:
            _check(request)
            return await answer_later(request)

        return later
    answer = cast(Answer, get_response)

    def middleware(request: HttpRequest) -> HttpResponse:
        _check(request)
        return answer(request)

    return middleware


def _check(request: HttpRequest) -> None:
    if "\0" in request.path_info or "%00" in request.META.get("QUERY_STRING", ""):
        raise BadRequest("The address holds a zero byte.")
