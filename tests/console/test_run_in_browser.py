"""The run page in a real browser, over real reports: the picture, its keys, what its address keeps, what comes live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console.browser import Reader, chromium
from tests.console.world import FIRST, NAMES, STEPS, Shape, World

pytestmark = pytest.mark.browser

LAST = FIRST + STEPS - 1
LONG_MS = 30_000
"""Deadlines are generous: the machine may be busy; what is tested is that it happens, not how fast."""


@pytest.fixture
def world(site: Any, make_user: Callable[..., Any]) -> World:
    """The fleet of the drawings on 64 ranks, reported through the site's door."""
    made = World(datetime.now(UTC), Shape(ranks=64, per_node=8, stages=4))
    made.all()
    made.post(site)
    make_user("OPERATOR", "operator")
    return made


@pytest.fixture
def reader(site: Any, world: World) -> Iterator[Reader]:
    """A reader in front of the run page."""
    with chromium() as browser:
        made = Reader(browser, site, name="operator")
        made.page.set_default_timeout(LONG_MS)
        made.open("/runs/dense-70b")
        made.settle()
        yield made
        made.close()


def view(reader: Reader, expression: str) -> Any:
    return reader.page.evaluate(f"() => {{ const v = window.paceline.view; return {expression}; }}")


def until(reader: Reader, expression: str) -> None:
    reader.page.wait_for_function(f"() => {{ const v = window.paceline.view; return {expression}; }}")


class TestPicture:
    def test_it_opens_on_compute_against_peers_with_the_suspect_open(self, reader: Reader) -> None:
        assert view(reader, "[v.metric.name, v.state.mode, [...v.state.open]]") == ["compute_s", "peers", [NAMES[7]]]
        assert view(reader, "v.heat.rows.filter(r => r.open).length") == 8
        assert "0.7× faster" in reader.page.inner_text("#legend")

    def test_the_slow_node_is_drawn_in_the_dark_end_of_the_ramp_and_its_peers_are_not(self, reader: Reader) -> None:
        until(reader, "v.heat.owner !== null")
        colour = """(row) => { const c = v.heat.plot.getContext('2d'), r = v.heat.rows[row], d = v.heat.dpr;
          const x = Math.round((v.heat.width - 20) * d), y = Math.round((r.y + r.h / 2) * d);
          return [...c.getImageData(x, y, 1, 1).data].slice(0, 3); }"""

        hot = view(reader, f"({colour})(v.heat.rows.findIndex(r => r.suspect))")
        calm = view(reader, f"({colour})(0)")

        assert hot[0] - hot[2] > 100  # orange: far more red than blue
        assert max(calm) - min(calm) < 40  # grey

    def test_nothing_on_the_page_breaks_its_own_policy(self, reader: Reader) -> None:
        reader.page.wait_for_selector("#steptime .main-svg")
        reader.page.click("[data-theme-switch]")
        reader.page.hover("#heat", position={"x": 400, "y": 120})

        assert reader.errors == []


class TestCharts:
    def test_their_figures_are_asked_for_while_the_script_that_draws_them_loads(self, reader: Reader) -> None:
        page, held = reader.page, []
        page.route("**/assets/plotly*", lambda route: held.append(route))

        with page.expect_request("**/charts/steptime*"), page.expect_request("**/charts/step"):
            page.reload()
        page.wait_for_function("() => document.querySelector('script[src*=plotly]')")
        while not held:
            page.wait_for_timeout(20)
        held[0].continue_()

        page.wait_for_selector("[data-chart$='/step'] .main-svg")


class TestKeys:
    def test_arrows_move_and_the_card_says_what_is_there(self, reader: Reader) -> None:
        reader.page.focus("#heat")
        for key in ("ArrowDown", "ArrowLeft", "Shift+ArrowLeft"):
            reader.page.keyboard.press(key)

        assert view(reader, "v.heat.cell") == {"row": 1, "step": LAST - 11}
        reader.page.wait_for_function("() => /step 48,420/.test(document.querySelector('#said').textContent)")
        reader.page.wait_for_function("() => /peers' median/.test(document.querySelector('#card').innerText)")

    def test_space_pins_the_cell_into_the_address_and_the_address_brings_it_back(self, reader: Reader) -> None:
        reader.page.focus("#heat")
        reader.page.keyboard.press("Shift+ArrowLeft")
        reader.page.keyboard.press("Space")
        reader.page.wait_for_function("() => location.search.includes('cell=')")

        reader.page.reload()
        reader.settle()

        until(reader, "v.heat.pinned && v.heat.cell !== null")
        assert view(reader, "v.heat.cell.step") == LAST - 10

    def test_enter_closes_and_opens_a_node(self, reader: Reader) -> None:
        reader.page.focus("#heat")
        suspect = view(reader, "v.heat.rows.findIndex(r => r.suspect)")
        view(reader, f"v.heat.point({{row: {suspect}, step: {LAST}}})")

        reader.page.keyboard.press("Enter")

        until(reader, "v.state.open.size === 0")
        assert "open=" in reader.page.url

    def test_zoom_and_pan_change_the_range_and_l_comes_back_to_now(self, reader: Reader) -> None:
        reader.page.focus("#heat")
        reader.page.keyboard.press("+")
        assert view(reader, "Math.round(v.heat.view.to - v.heat.view.from)") == STEPS / 2

        reader.page.keyboard.press("[")
        reader.page.wait_for_function("() => location.search.includes('steps=')")
        assert view(reader, "v.following") is False

        reader.page.keyboard.press("l")
        assert view(reader, "v.following") is True
        reader.page.wait_for_function("() => !location.search.includes('steps=')")

    def test_m_and_r_change_metric_and_colour(self, reader: Reader) -> None:
        reader.page.focus("#heat")
        reader.page.keyboard.press("m")
        until(reader, "v.cells.head.metric === 'communication_s'")
        assert "waits less" in reader.page.inner_text("#legend")

        reader.page.keyboard.press("r")
        until(reader, "v.cells.head.relative === 'self'")
        assert "metric=communication_s" in reader.page.url

    def test_a_drag_selects_steps(self, reader: Reader) -> None:
        box = reader.page.locator("#heat").bounding_box()
        assert box

        reader.page.mouse.move(box["x"] + 300, box["y"] + 60)
        reader.page.mouse.down()
        reader.page.mouse.move(box["x"] + 360, box["y"] + 60, steps=4)
        reader.page.mouse.up()

        assert "steps, 48," in reader.page.inner_text("#selection")
        assert "Add to INC-" in reader.page.inner_text("#selection")


class TestTimeAxis:
    def test_the_axis_can_be_time_and_says_so_in_the_address(self, reader: Reader) -> None:
        reader.page.click("button[data-set=axis][value=time]")

        until(reader, "v.heat.axis.kind === 'time'")
        assert "axis=time" in reader.page.url
        assert view(reader, "v.heat.view.to - v.heat.view.from > 60000")


class TestLive:
    def test_a_new_step_appears_without_a_reload(self, reader: Reader, world: World, site: Any, elsewhere: Any) -> None:
        reader.page.evaluate("() => { window.same = true; }")

        elsewhere(world.step_more, site)

        until(reader, f"v.cells.last === {LAST + 1}")
        assert reader.page.evaluate("() => window.same") is True
        assert reader.errors == []

    def test_panned_away_the_picture_stays_and_the_button_counts(
        self, reader: Reader, world: World, site: Any, elsewhere: Any
    ) -> None:
        reader.page.focus("#heat")
        reader.page.keyboard.press("[")
        before = view(reader, "v.heat.view")

        elsewhere(world.step_more, site)

        until(reader, f"v.config.last_step === {LAST + 1}")
        assert view(reader, "v.heat.view") == before
        assert "back to now" in reader.page.inner_text("#back-live")

    def test_a_row_of_the_log_comes_into_the_timeline(
        self, reader: Reader, world: World, site: Any, elsewhere: Any
    ) -> None:
        elsewhere(world.note, "the fan is back")

        reader.page.wait_for_function("() => document.querySelector('#timeline').innerText.includes('the fan is back')")
        assert reader.page.inner_text("#timeline").count("the fan is back") == 1

    def test_a_page_whose_server_is_gone_says_that_it_is_old(self, reader: Reader, site: Any) -> None:
        site.kill("web")

        reader.page.wait_for_function(
            "() => !document.querySelector('#stale').hidden", timeout=timedelta(seconds=60).total_seconds() * 1000
        )
        assert "The live connection dropped" in reader.page.inner_text("#stale")


class TestRestart:
    def test_the_picture_goes_over_to_the_attempt_that_has_begun(
        self, reader: Reader, world: World, site: Any, elsewhere: Any
    ) -> None:
        reader.page.evaluate("() => { window.same = true; }")
        before = view(reader, "v.config.attempt")

        elsewhere(world.restart, site)

        until(reader, "v.config.attempt.number === 8 && v.cells.last === 48251")
        assert before["number"] == 7
        assert view(reader, "v.cells.attemptStarts") == [48_251]  # what led to the restart stays to its left
        assert view(reader, "v.cells.first < 48251")
        assert reader.page.evaluate("() => window.same") is True
        assert reader.errors == []

    def test_who_looks_at_the_old_attempt_is_asked_first(
        self, reader: Reader, world: World, site: Any, elsewhere: Any
    ) -> None:
        reader.page.focus("#heat")
        reader.page.keyboard.press("[")
        looked_at = view(reader, "[v.heat.view, v.config.attempt.number]")

        elsewhere(world.restart, site)

        reader.page.wait_for_function("() => document.querySelector('#back-live').innerText.includes('attempt 8')")
        assert view(reader, "[v.heat.view, v.config.attempt.number]") == looked_at
        reader.page.click("#back-live")
        until(reader, "v.config.attempt.number === 8 && v.cells.last === 48251 && v.following")
        assert view(reader, "v.cells.attemptStarts") == [48_251]
        assert "steps=" not in reader.page.url

    def test_a_node_that_is_blamed_while_one_looks_is_opened(
        self, reader: Reader, world: World, site: Any, elsewhere: Any
    ) -> None:
        elsewhere(world.blame, NAMES[2])

        until(reader, f"v.state.open.has('{NAMES[2]}')")
        assert view(reader, f"v.heat.rows.filter(r => r.suspect && r.node === '{NAMES[2]}').length") == 8
        assert "open=" not in reader.page.url


class TestWidths:
    @pytest.mark.parametrize("width", [390, 800, 1440])
    def test_nothing_is_wider_than_the_page(self, site: Any, world: World, width: int) -> None:
        with chromium() as browser:
            reader = Reader(browser, site, name="operator", width=width)
            reader.page.set_default_timeout(LONG_MS)
            for path in ("/runs", "/runs/dense-70b", f"/incidents/{world.incident.number}", "/nodes", "/settings"):
                reader.open(path)
                reader.settle()
                assert reader.page.evaluate("() => document.documentElement.scrollWidth") <= width, path
            assert reader.errors == []
            reader.close()
