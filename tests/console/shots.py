"""Screenshots of every page, light and dark, at three widths: `pytest tests/console/shots.py` writes them to $PACELINE_SHOTS.

They are for people to lay beside the drawings; whether pages work is proven by the other tests of this folder.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser import Reader, chromium
from tests.console.world import Shape, World

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FOLDER = os.environ.get("PACELINE_SHOTS", "")
WIDTHS = (1440, 800, 390)
THEMES = ("light", "dark")


@pytest.fixture
def fleet(live_site: Any, make_user: Any) -> tuple[Any, Any]:
    """The fleet of the drawings on a live site."""
    world = World(datetime.now(UTC), _shape(int(os.environ.get("PACELINE_SHOTS_RANKS", "512"))))
    made = world.all()
    world.post(live_site)
    world.gauges(live_site)
    make_user("OPERATOR", "operator")
    return live_site, made


def _shape(ranks: int) -> Shape:
    return Shape(ranks=ranks) if ranks >= 64 else Shape(ranks=ranks, per_node=2, stages=1)


@pytest.mark.skipif(not FOLDER, reason="set PACELINE_SHOTS to a folder")
def test_pages_are_drawn(fleet: tuple[Any, Any]) -> None:
    site, made = fleet
    folder = Path(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    node = made.incident.node
    pages = {
        "runs": "/runs",
        "run": "/runs/dense-70b",
        "incident": f"/incidents/{made.incident.number}",
        "incidents": "/incidents",
        "nodes": f"/nodes?cluster=north&node={node}",
        "node": f"/nodes/north/{node}",
        "confirm": f"/runs/dense-70b/actions/new?kind=RESTART_RUN&node={node}&when=CHECKPOINT_FIRST",
        "settings": "/settings",
    }
    only = (
        os.environ.get("PACELINE_SHOTS_ONLY", "").split(",") if os.environ.get("PACELINE_SHOTS_ONLY") else list(pages)
    )
    widths = [int(w) for w in os.environ.get("PACELINE_SHOTS_WIDTHS", "").split(",") if w] or WIDTHS
    with chromium() as browser:
        for width in widths:
            for theme in THEMES:
                reader = Reader(browser, site, name="operator", width=width, theme=theme)
                for name in only:
                    reader.open(pages[name])
                    reader.settle()
                    reader.page.screenshot(
                        path=folder / f"{name}-{width}-{theme}.png", full_page=not os.environ.get("PACELINE_SHOTS_TOP")
                    )
                assert reader.errors == []
                reader.close()
