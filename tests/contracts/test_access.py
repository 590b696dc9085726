"""Every REST endpoint and every page: who may not, is told so in the one shape, and nothing happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.views import APIView

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
FILLED = {
    "code": "nothing-here",
    "attempt": "att_zzzz",
    "finding": "fin_zzzz",
    "action": "act_zzzz",
    "node": "nothing-here",
    "how": "dismiss",
    "what": "acknowledge",
}


def endpoints() -> Iterator[tuple[str, type[APIView]]]:
    """Every REST address of the installation with its view."""

    def walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[tuple[str, type[APIView]]]:
        for pattern in patterns:
            path = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, path)
            elif issubclass(view := getattr(pattern.callback, "view_class", object), APIView):
                yield filled(path), view

    yield from walk(get_resolver().url_patterns, "/")


def filled(path: str) -> str:
    """An address with a value for each of its names."""
    path = re.sub(r"\(\?P<(\w+)>([^)]*)\)", lambda found: FILLED[found[1]], path)
    path = re.sub(r"<int:\w+>", "999999", path)
    path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: FILLED.get(found[1], "nothing-here"), path)
    return path.replace("^", "").replace("$", "").replace("\\", "")


def allowed(view: type[APIView]) -> dict[str, str]:
    """The scope that each method of a view needs."""
    scopes: dict[str, str] = getattr(view, "scopes", {})
    return {method: scopes[method] for method in METHODS if hasattr(view, method.lower()) and method in scopes}


def cases() -> list[tuple[str, str, str]]:
    return sorted((method, path, scope) for path, view in endpoints() for method, scope in allowed(view).items())


def is_error(answer: Any, status: int) -> bool:
    """Whether an answer is an error of that status in the one shape."""
    body = answer.json()["error"]
    named = {"code", "message", "facts", "request_id"} == set(body)
    return answer.status_code == status and named and bool(body["code"] and body["message"])


@pytest.mark.django_db
class TestEveryEndpoint:
    def test_names_the_scope_of_each_of_its_methods(self) -> None:
        missing = [
            (view.__name__, method)
            for _, view in endpoints()
            for method in METHODS
            if hasattr(view, method.lower()) and method not in getattr(view, "scopes", {})
        ]

        assert missing == []
        assert len(cases()) > 30

    @pytest.mark.parametrize(("method", "path", "scope"), cases())
    def test_knows_no_stranger(self, method: str, path: str, scope: str) -> None:
        answer = Client().generic(method, path)

        assert is_error(answer, 401), answer.content[:300]

    @pytest.mark.parametrize(("method", "path", "scope"), cases())
    def test_refuses_a_token_without_its_scope(
        self, api: Callable[..., Client], method: str, path: str, scope: str
    ) -> None:
        others = {"read", "report", "operate"} - {scope}

        answer = api(*others).generic(method, path)

        assert is_error(answer, 403), answer.content[:300]

    @pytest.mark.parametrize(("method", "path", "scope"), [case for case in cases() if case[2] != "read"])
    def test_lets_a_viewer_change_nothing(
        self, client_as: Callable[[Any], Client], viewer: Any, method: str, path: str, scope: str
    ) -> None:
        answer = client_as(viewer).generic(method, path, content_type="application/json")

        assert is_error(answer, 403), answer.content[:300]

    @pytest.mark.parametrize(("method", "path", "scope"), [case for case in cases() if case[0] != "GET"])
    def test_takes_no_write_from_a_browser_without_its_csrf_token(
        self, admin: Any, method: str, path: str, scope: str
    ) -> None:
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(admin, backend="django.contrib.auth.backends.ModelBackend")

        answer = browser.generic(method, path, content_type="application/json")

        assert is_error(answer, 403), answer.content[:300]

    @pytest.mark.parametrize(
        ("method", "path", "scope"), [c for c in cases() if "nothing-here" in c[1] or "zzzz" in c[1]]
    )
    def test_answers_what_does_not_exist_or_cannot_be_read_without_a_failure(
        self, api: Callable[..., Client], method: str, path: str, scope: str
    ) -> None:
        answer = api("read", "report", "operate", "admin").generic(method, path, headers={"Idempotency-Key": "k"})

        assert answer.status_code in {200, 201, 400, 404, 409, 422}, answer.content[:300]
        assert answer.status_code < 400 or is_error(answer, answer.status_code)

    @pytest.mark.parametrize(("method", "path", "scope"), [case for case in cases() if case[0] != "GET"])
    @pytest.mark.parametrize(
        "body", [b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 5000], ids=["cut", "list", "word", "bytes", "deep"]
    )
    def test_answers_a_broken_body_with_a_sentence(
        self, api: Callable[..., Client], method: str, path: str, scope: str, body: bytes
    ) -> None:
        answer = api("read", "report", "operate", "admin").generic(
            method, path, body, content_type="application/json", headers={"Idempotency-Key": "k"}
        )

        assert 400 <= answer.status_code < 500, answer.content[:300]
        assert is_error(answer, answer.status_code)
