"""A reader in a real browser: opens pages, and keeps what the browser complained about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PASSWORD = "a long password"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give a headless Chromium."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def _session_of(name: str) -> str:
    """Return a session of a person, as signing in would make it."""
    from django.test import Client

    from apps.accounts.models import User

    client = Client()
    client.force_login(User.objects.get(username=name), backend="django.contrib.auth.backends.ModelBackend")
    return client.cookies["sessionid"].value


class Reader:
    """One person at one screen, signed in at once where a name is given.

    `errors` are script errors and whatever the page's policy forbade.
    """

    def __init__(
        self,
        browser: Browser,
        site: Any,
        *,
        name: str | None,
        width: int = 1440,
        height: int = 900,
        theme: Literal["light", "dark"] = "light",
    ) -> None:
        self.site = site
        self.errors: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, timezone_id="Europe/Paris", locale="en-GB"
        )
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        self.page.on("console", self._heard)
        if name is not None:
            self.context.add_cookies([{"name": "sessionid", "value": _session_of(name), "url": site.url}])

    def sign_in(self, name: str) -> None:
        """Come in by name and password, to the first page."""
        self.open("/sign-in")
        self.page.fill("input[name=username]", name)
        self.page.fill("input[name=password]", PASSWORD)
        self.page.click("button[type=submit]")
        self.page.wait_for_url("**/")

    def _heard(self, message: Any) -> None:
        if message.type == "error" and "favicon" not in message.text:
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def open(self, path: str) -> None:
        """Go to a page of the site."""
        self.page.goto(self.site.url + path)

    def settle(self) -> None:
        """Wait until the page has read what it reads by itself."""
        self.page.wait_for_load_state("load")
        self.page.wait_for_function("() => !document.body.dataset.page || document.body.dataset.ready")
        self.page.wait_for_function("() => !document.querySelector('.htmx-request')")
        if self.errors:
            raise AssertionError(self.errors)
        if self.page.query_selector("#heat"):
            self.page.wait_for_function(
                "() => window.paceline && (window.paceline.view.heat.owner || !document.querySelector('#heat-error').hidden"
                " || !window.paceline.view.cells.steps.length)"
            )
        if self.page.query_selector("[data-chart], #steptime"):
            drawn = "() => [...document.querySelectorAll('[data-chart], #steptime')].every(e => e.hidden || e.querySelector('.main-svg'))"
            self.page.wait_for_function(drawn)

    def text(self) -> str:
        """Return what the page says."""
        return self.page.inner_text("body")

    def close(self) -> None:
        """Leave."""
        self.context.close()
