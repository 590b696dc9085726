"""The description of the REST interface as a page: under the same policy as every other page, and it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.console.browser import Reader, chromium


class TestPolicy:
    def test_it_is_the_policy_of_every_page(self, client_as: Callable[..., Client], make_user: Any) -> None:
        client = client_as(make_user("VIEWER"))

        docs = client.get("/api/v1/docs")["Content-Security-Policy"]

        assert docs == client.get("/")["Content-Security-Policy"]
        assert "script-src 'self';" in docs + ";"

    def test_nothing_stands_in_the_page_itself(self, client_as: Callable[..., Client], make_user: Any) -> None:
        text = client_as(make_user("VIEWER")).get("/api/v1/docs").content.decode()

        assert "<style" not in text
        assert text.count("<script") == text.count("<script src=") > 0


@pytest.mark.browser
class TestInABrowser:
    def test_it_shows_every_room_and_breaks_no_policy(self, live_site: Any, make_user: Callable[..., Any]) -> None:
        make_user("VIEWER", "viewer")

        with chromium() as browser:
            reader = Reader(browser, live_site, name="viewer")
            reader.page.set_default_timeout(30_000)
            reader.open("/api/v1/docs")
            reader.page.wait_for_selector(".opblock-tag-section")
            said, errors = reader.text(), reader.errors
            reader.close()

        assert "/api/v1/runs" in said
        assert errors == []
