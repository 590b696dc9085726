"""The time of a timeline's row has its room: it never touches the dot, with a date and a year too, at any width."""

from __future__ import annotations

from pathlib import Path

import pytest

from .browser import chromium

pytestmark = pytest.mark.browser

CSS = "".join(Path("static/css", name).read_text() for name in ("paceline.css", "console.css"))
TIMES = ("23:58:04", "30\u00a0Nov 23:58", "30\u00a0Nov 2025 23:58")
ROWS = "".join(
    f'<li>{time}<span class="dot warn"></span><div class="machine"><span>It was found</span></div></li>'
    for text in TIMES
    for time in (f"<time>{text}</time>", f'<div class="when"><time>{text}</time></div>')
)
GAPS = """() => [...document.querySelectorAll('.tl > li')].map(row => {
  const words = document.createRange();
  words.selectNodeContents(row.querySelector('time'));
  return row.querySelector('.dot').getBoundingClientRect().left - words.getBoundingClientRect().right;
})"""


def test_leaves_a_gap_between_time_and_dot_at_every_width_and_theme() -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.set_content(f'<style>{CSS}</style><main><ol class="tl">{ROWS}</ol></main>')
        gaps = {}
        for width in (390, 800, 1440):
            page.set_viewport_size({"width": width, "height": 600})
            for theme in ("light", "dark"):
                page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
                gaps[width, theme] = min(page.evaluate(GAPS))

    assert all(gap >= 8 for gap in gaps.values()), gaps
