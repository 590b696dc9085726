"""The first ten minutes of an operator, in a real browser over `make run`: look, break, understand, act, go on.

Everything is real: the processes of an installation, a practice run of eight ranks on four nodes, Chromium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_string
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser import Reader, chromium
from tests.installation import OURS, Installation
from tests.marked import eventually, marking

pytestmark = [pytest.mark.slow, pytest.mark.browser]

LONG_MS = 120_000
"""A bound against waiting for ever; how fast things happen is measured elsewhere."""

RANK, NODE = 5, "practice-03"
OTHERS = {"practice-01", "practice-02", "practice-04"}

TOLD = ["practice.fault", "finding.opened", "incident.opened", "finding.confirmed", "notice.sent", "action.requested",
        "action.running", "node.excluded", "attempt.ended", "attempt.opened", "incident.mitigated",
        "action.succeeded"]  # fmt: skip
"""What an incident's timeline must tell, in this order."""

DRAWN = """() => {
  const heat = window.paceline.view.heat; if (!heat.owner) return 0;
  const ctx = heat.plot.getContext("2d"), colours = new Set(heat.table);
  const row = heat.rows[0], y = Math.round((row.y + row.h / 2 - heat.offset) * heat.dpr);
  const pixels = new Uint32Array(ctx.getImageData(0, y, heat.plot.width, 1).data.buffer);
  return pixels.filter(pixel => colours.has(pixel)).length;
}"""
"""How many pixels of the first row's middle have a colour of the ramp: neither empty, hatched nor pale."""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """An installation with a small practice run; all of it is gone afterwards."""
    with marking(tmp_path, hidden=OURS) as marked:
        made = Installation(marked, tmp_path / "data").start()
        made.manage("practice", "--start", "--ranks", "8", "--nodes", "4")
        yield made
        made.stop()
        assert marked.gone(), marked.pids()


@pytest.fixture
def reader(installation: Installation) -> Iterator[Reader]:
    with chromium() as browser:
        made = Reader(browser, installation, name=None)
        made.page.set_default_timeout(LONG_MS)
        yield made
        made.close()


def mails(folder: Path) -> list[EmailMessage]:
    """Return what was sent, in the order of sending."""
    texts = [path.read_text("utf-8") for path in sorted((folder / "mail").glob("*.log"))]
    parts = [part for text in texts for part in re.split(r"^-{79}$\n?", text, flags=re.MULTILINE) if part.strip()]
    found = [message_from_string(part, policy=default) for part in parts]
    return sorted(found, key=lambda mail: int(mail["X-Paceline-Notice"]))


def rest(reader: Reader, path: str) -> Any:
    """Return an answer of REST, asked for with the reader's own session."""
    answer = reader.page.request.get(f"{reader.site.url}/api/v1/{path}")
    assert answer.ok, answer.text()
    return answer.json()


def in_order(wanted: list[str], found: list[str]) -> bool:
    """Return whether all of `wanted` stand in `found` in their order, whatever stands between."""
    rest_of = iter(found)
    return all(kind in rest_of for kind in wanted)


def wait_words(reader: Reader, selector: str, *words: str) -> str:
    """Return what an element says once it says all of `words`."""
    reader.page.wait_for_function(
        "([selector, words]) => { const said = document.querySelector(selector)?.innerText || '';"
        " return words.every(word => said.includes(word)); }",
        arg=[selector, list(words)],
    )
    return reader.page.inner_text(selector)


def come_in(reader: Reader, installation: Installation) -> None:
    reader.page.goto(installation.link)
    reader.page.get_by_role("button", name="Sign in").click()
    reader.page.wait_for_url(f"{installation.address}/")
    first = reader.page.locator("table.runs tbody tr").first
    assert "practice" in first.inner_text()
    first.get_by_role("link", name="practice", exact=True).click()
    reader.page.wait_for_url("**/runs/practice")


def see_steps(reader: Reader, last: int) -> None:
    """Wait until the picture holds step `last`, and more and more of it is drawn in colours."""
    reader.page.wait_for_function(f"() => window.paceline?.view.cells.last >= {last}")
    reader.page.wait_for_function(DRAWN)
    drawn = reader.page.evaluate(DRAWN)
    reader.page.wait_for_function(f"drawn => ({DRAWN})() > drawn", arg=drawn)


def break_a_rank(reader: Reader) -> None:
    reader.page.select_option("select[form=fault-slow_rank][name=target]", f"rank:{RANK}")
    reader.page.click("#fault-slow_rank button")
    wait_words(reader, "#practice-state", f"rank {RANK}", NODE)


def exclude_and_restart(reader: Reader) -> None:
    primary = reader.page.locator("#suspects a.act.primary")
    assert {"exclude", "restart"} <= set(re.findall(r"[a-z]+", primary.inner_text().lower()))
    primary.click()
    reader.page.fill("#reason", f"{NODE} holds the others back, seen on the run page")
    reader.page.click("#go")
    reader.page.wait_for_url("**/actions/act_*")
    wait_words(reader, "#action-state", "Succeeded")


def test_from_the_link_to_the_resumed_step(reader: Reader, installation: Installation) -> None:
    come_in(reader, installation)
    see_steps(reader, last=40)

    break_a_rank(reader)
    wait_words(reader, "#suspects", "slow compute", "confirmed", f"Rank {RANK} on {NODE}")
    incident = rest(reader, "runs/practice/incidents")["results"][0]["number"]
    assert eventually(lambda: mails(installation.folder))
    saved = rest(reader, "runs/practice")["checkpoint"]["step"]
    exclude_and_restart(reader)

    reader.page.get_by_role("link", name="To practice").click()
    reader.page.wait_for_url("**/runs/practice")
    attempt = rest(reader, "runs/practice/attempts")["results"][0]
    assert (attempt["number"], attempt["world_size"], attempt["state"]) == (2, 6, "OPEN")
    assert attempt["resumed_from_step"] >= saved
    see_steps(reader, last=attempt["resumed_from_step"] + 5)
    assert {row["node"] for row in rest(reader, f"attempts/{attempt['id']}/ranks")["results"]} == OTHERS
    assert NODE not in wait_words(reader, "#now", "practice-01")

    opened = [mail["Subject"].strip() for mail in mails(installation.folder) if " opened: " in mail["Subject"]]
    assert len(opened) == 1
    assert opened[0].startswith(f"[Paceline] INC-{incident} opened: Rank {RANK} on {NODE} ")
    reader.open(f"/incidents/{incident}")
    reader.settle()
    shown = reader.page.eval_on_selector_all("#tl > li[id]", "rows => rows.map(row => row.id)")
    rows = rest(reader, f"incidents/{incident}/timeline")["results"]
    assert [row["happened_at"] for row in rows] == sorted(row["happened_at"] for row in rows)
    assert in_order(shown, [row["id"] for row in rows])
    assert in_order(TOLD, [row["kind"] for row in rows if row["id"] in shown])
    assert reader.errors == []
