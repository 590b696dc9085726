"""Every page: a stranger is sent to the sign-in, a viewer changes nothing, and no address answers with a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.views import APIView

from tests.contracts.test_access import filled

OPEN = {"/sign-in", "/sign-out", "/first/nothing-here"}
"""What a stranger may see: the ways in. Assets are the library's own code."""


def pages() -> list[str]:
    """Every address that is no REST endpoint."""

    def walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[str]:
        for pattern in patterns:
            path = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, path)
            elif not issubclass(getattr(pattern.callback, "view_class", object), APIView):
                yield filled(path)

    return sorted(
        {
            path
            for path in walk(get_resolver().url_patterns, "/")
            if path not in OPEN and not path.startswith("/assets/")
        }
    )


def is_closed(answer: Any) -> bool:
    """Whether an answer sends its reader to the sign-in, or says that there is none for them."""
    return answer.status_code in {401, 403, 405} or (
        answer.status_code in {302, 303} and "/sign-in" in answer["Location"]
    )


@pytest.mark.django_db
class TestEveryPage:
    def test_is_found_by_this_test(self) -> None:
        assert len(pages()) > 10
        assert "/runs/nothing-here" in pages()

    @pytest.mark.parametrize("path", pages())
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_shows_a_stranger_nothing(self, path: str, method: str) -> None:
        answer = Client().generic(method, path)

        assert is_closed(answer), (answer.status_code, answer.content[:200])

    @pytest.mark.parametrize("path", pages())
    def test_takes_nothing_from_a_viewer(self, client_as: Callable[[Any], Client], viewer: Any, path: str) -> None:
        answer = client_as(viewer).post(path)

        # A password is everybody's own.
        assert answer.status_code in {400, 403, 404, 405} or path == "/password", answer.status_code

    @pytest.mark.parametrize("path", pages())
    def test_answers_a_form_with_a_zero_byte_without_a_failure(
        self, client_as: Callable[[Any], Client], admin: Any, path: str
    ) -> None:
        answer = client_as(admin).post(path, {"act": "person", "name": "a\0b", "role": "VIEWER", "text": "\0"})

        # A password is checked by its own form, which says what is wrong with it.
        assert answer.status_code in {400, 403, 404, 405} or path == "/password", answer.status_code

    @pytest.mark.parametrize("path", pages())
    def test_answers_an_admin_without_a_failure(
        self, client_as: Callable[[Any], Client], admin: Any, path: str
    ) -> None:
        answer = client_as(admin).get(path)

        assert answer.status_code in {200, 204, 302, 400, 404, 405}, answer.status_code

    @pytest.mark.parametrize("path", pages())
    def test_carries_the_strict_policy(self, client_as: Callable[[Any], Client], admin: Any, path: str) -> None:
        answer = client_as(admin).get(path)

        policy = answer["Content-Security-Policy"]
        assert "script-src 'self';" in policy + ";"
        assert "unsafe-eval" not in policy
        assert "http:" not in policy
        assert "https:" not in policy
