"""An imported table as its page shows it, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from tests.console.browser import Reader, chromium
from tests.telemetry.test_import import TRACES, needs_traces

pytestmark = pytest.mark.browser

SLOW = """() => { const v = window.paceline.view, row = v.heat.rows.find(r => r.ranks[0][0] === %d && r.kind === 'rank');
  return v.cells.steps.map(s => v.cells.value(row.src[0], s)).filter(x => x === x); }"""


@pytest.fixture
def reader(live_site: Any, make_user: Callable[..., Any]) -> Iterator[Reader]:
    make_user("OPERATOR", "operator")
    with chromium() as browser:
        made = Reader(browser, live_site, name="operator")
        made.page.set_default_timeout(60_000)
        yield made
        made.close()


def values_of(reader: Reader, rank: int) -> list[float]:
    """What the page's picture holds of a rank, column by column."""
    reader.page.wait_for_function("() => window.paceline && window.paceline.view.heat.owner !== null")
    found: list[float] = reader.page.evaluate(SLOW % rank)
    return found


def test_a_table_of_ones_own_shows_its_slow_rank(reader: Reader, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("step,0,1,2,3\n" + "".join(f"{step},2.0,2.0,3.0,2.0\n" for step in range(50)))
    call_command("attempt_import", str(table), "--ranks-per-node", "2", verbosity=0)

    reader.open("/runs/mine")

    assert values_of(reader, 2) == pytest.approx([1.5] * 50, rel=1e-3)
    assert values_of(reader, 0) == pytest.approx([1.0] * 50, rel=1e-3)
    assert reader.errors == []


@needs_traces
def test_rank_0_of_the_published_trace_is_2_35_times_its_stage_in_every_step(reader: Reader) -> None:
    table = TRACES / "bytedance_AR_compute_seconds_step_x_rank.csv"
    call_command("attempt_import", str(table), "--run", "ar", "--layout", "tp=4,dp=4,pp=4", verbosity=0)

    reader.open("/runs/ar?range=attempt&steps=0-2000")

    slow = values_of(reader, 0)
    assert len(slow) > 20
    assert min(slow) > 2.2
    assert max(slow) < 2.5
    assert max(values_of(reader, 4)) < 1.1
