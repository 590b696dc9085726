"""The folded rows of an incident in a real browser: opened in place, open while others write, nothing jumps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.journal.choices import Source, StreamKey
from apps.journal.services import recording

from .test_people_in_browser import browser, come

__all__ = ["browser"]
pytestmark = [pytest.mark.browser]


def test_what_somebody_opened_stays_open_and_in_place_over_live_rows(
    browser: Any, site: Any, operator: Any, attempt: Any, incident: Any, elsewhere: Any, now: Any
) -> None:
    run = StreamKey.run(attempt.run_id)

    def write(text: str, minutes: float) -> None:
        with recording(now=now) as log:
            at = incident.began_at - timedelta(minutes=minutes)
            log.add(run, kind="rank.warned", text=text, source=Source.SENDER, happened_at=at)

    for number in range(4):
        elsewhere(write, f"earlier words {number}", 10 - number)
    reader = come(browser, site, "operator", f"/incidents/{incident.number}")
    earlier = "() => [...document.querySelectorAll('#tl > li[data-earlier]:not(.hidden-row)')].length"
    assert reader.page.evaluate(earlier) == 0
    assert "4 earlier rows" in reader.page.inner_text("#earlier")

    reader.page.click("#earlier")
    assert reader.page.evaluate(earlier) == 4
    reader.page.evaluate("() => document.querySelector('#tl > li:last-child').scrollIntoView()")
    place = reader.page.evaluate("() => scrollY")
    elsewhere(write, "a live row", -0.1)

    reader.page.wait_for_function("() => document.querySelector('#tl').innerText.includes('a live row')")
    reader.page.wait_for_function("() => !document.querySelector('.htmx-settling, .htmx-request')")
    assert reader.page.evaluate(earlier) == 4
    assert reader.page.evaluate("() => scrollY") == place
    assert "earlier=1" in reader.page.url
    assert reader.errors == []
