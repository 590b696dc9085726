"""Addresses that nothing answers to: a sentence, in the one shape under `/api/`, and never a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.contracts.test_access import is_error

pytestmark = pytest.mark.django_db

ZERO = [
    "runs/a%00b",
    "runs/a%00b/attempts",
    "nodes/a%00b/series",
    "events?stream=node:a%00b",
    "findings?node=%00",
    "incidents?run=%00",
    "actions?run=%00",
]


class TestOddAddresses:
    @pytest.mark.parametrize("path", ZERO)
    def test_a_zero_byte_is_400(self, api: Callable[..., Client], path: str) -> None:
        answer = api("read").get(f"/api/v1/{path}")

        assert is_error(answer, 400)
        assert answer.json()["error"]["message"] == "The address holds a zero byte."
        assert answer.json()["error"]["request_id"] == answer["X-Request-Id"]

    @pytest.mark.parametrize("path", ["/runs/a%00b", "/find?q=%00", "/nodes?state=%00", "/sign-in?next=%00"])
    def test_a_page_with_a_zero_byte_is_400(self, client_as: Callable[[Any], Client], viewer: Any, path: str) -> None:
        answer = client_as(viewer).get(path)

        assert answer.status_code == 400
        assert "<p>The address holds a zero byte.</p>" in answer.text
        assert answer["X-Request-Id"] in answer.text
        assert '<a class="btn" href="/">To the runs</a>' in answer.text
        assert "script-src" in answer["Content-Security-Policy"]

    def test_a_page_of_a_host_that_is_not_ours_says_so(self, client: Client) -> None:
        answer = client.get("/runs", headers={"Host": "elsewhere.example"})

        assert answer.status_code == 400
        assert "a host that this installation does not answer for" in answer.text

    @pytest.mark.parametrize("path", ["", "nothing", "runs/a/b", "runs/a%2fb", "runs/a/attempts/b"])
    def test_an_address_that_rest_does_not_know_is_an_error_in_the_one_shape(
        self, api: Callable[..., Client], path: str
    ) -> None:
        assert is_error(api("read").get(f"/api/v1/{path}"), 404)

    def test_a_page_that_is_none_stays_a_page(self, client_as: Callable[[Any], Client], viewer: Any) -> None:
        answer = client_as(viewer).get("/nothing")

        assert answer.status_code == 404
        assert answer["Content-Type"].startswith("text/html")

    def test_a_host_that_is_not_ours_is_told_so(self, api: Callable[..., Client]) -> None:
        answer = api("read").get("/api/v1/runs", headers={"Host": "elsewhere.example"})

        assert is_error(answer, 400)
        assert "host" in answer.json()["error"]["message"]
