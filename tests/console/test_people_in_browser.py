"""What people do, in a real browser: write into a timeline that others look at, and confirm an action on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.browser import Reader, chromium

pytestmark = pytest.mark.browser

LONG_MS = 30_000
REASON = "Throttles on heat since noon, all GPUs"


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def come(browser: Any, site: Any, name: str, path: str) -> Reader:
    reader = Reader(browser, site, name=name)
    reader.page.set_default_timeout(LONG_MS)
    reader.open(path)
    reader.settle()
    return reader


class TestTimeline:
    def test_a_note_appears_at_the_others_screen_and_does_not_disturb_what_they_write(
        self, browser: Any, site: Any, incident: Any, operator: Any, make_user: Any
    ) -> None:
        make_user("OPERATOR", "second")
        path = f"/incidents/{incident.number}"
        one, other = come(browser, site, "operator", path), come(browser, site, "second", path)
        other.page.fill("#note-text", "half a sen")

        one.page.fill("#note-text", "All at once, so it is air")
        one.page.click("#write button[type=submit]")

        other.page.wait_for_function("() => document.querySelector('#tl').innerText.includes('so it is air')")
        assert other.page.input_value("#note-text") == "half a sen"
        assert one.page.input_value("#note-text") == ""
        assert one.errors + other.errors == []

    def test_readers_see_each_other(
        self, browser: Any, site: Any, incident: Any, operator: Any, make_user: Any
    ) -> None:
        make_user("VIEWER", "researcher")
        path = f"/incidents/{incident.number}"
        one = come(browser, site, "operator", path)
        other = come(browser, site, "researcher", path)

        one.page.wait_for_function("() => document.querySelector('#here').innerText.includes('researcher')")
        other.page.wait_for_function("() => document.querySelector('#here').innerText.includes('operator')")
        assert one.errors + other.errors == []

    def test_a_note_between_two_rows_gets_a_time_between_them_and_says_when_it_was_written(
        self, browser: Any, site: Any, incident: Any, operator: Any
    ) -> None:
        reader = come(browser, site, "operator", f"/incidents/{incident.number}")
        rows = reader.page.locator("#tl > li[data-at]")
        rows.nth(1).hover()
        rows.nth(1).locator("[data-insert]").click()
        reader.page.fill("#note-text", "Fan at 60 % since then")

        reader.page.click("#write button[type=submit]")

        note = reader.page.locator("#tl li.person-row", has_text="Fan at 60 %")
        note.wait_for()
        times = [row.get_attribute("data-at") for row in rows.all()]
        assert times == sorted(times)
        assert "written" in note.inner_text()

    def test_chips_hide_rows_and_the_address_keeps_it(
        self, browser: Any, site: Any, incident: Any, operator: Any
    ) -> None:
        reader = come(browser, site, "operator", f"/incidents/{incident.number}")

        reader.page.click("[data-chip=findings]")

        assert reader.page.locator("#tl > li[data-group=findings]:visible").count() == 0
        assert "hide=" in reader.page.url
        reader.page.reload()
        assert reader.page.locator("#tl > li[data-group=findings]:visible").count() == 0

    def test_times_are_the_readers_with_utc_under_the_pointer(
        self, browser: Any, site: Any, incident: Any, operator: Any
    ) -> None:
        reader = come(browser, site, "operator", f"/incidents/{incident.number}")
        shown = reader.page.locator("#tl time").first

        assert shown.get_attribute("title").endswith("UTC")
        local = shown.inner_text()
        reader.page.click("[data-zone=utc]")
        assert shown.inner_text() != local


class TestConfirm:
    PATH = "/runs/dense-7b/actions/new?kind=STOP_RUN"

    @pytest.fixture
    def large(self, attempt: Any, pace: Any) -> None:
        """A run whose name must be typed, with a launcher of its own."""
        from apps.fleet.selectors import cluster_by_name
        from apps.runs.services import run_put

        fields = {
            "limits": {"confirm_above_ranks": 4},
            "launcher": {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/", "secret": "x" * 32},
        }
        run_put(
            slug="dense-7b",
            cluster_id=cluster_by_name("north").id,
            fields=fields,
            by="test",
            source="API",
            now=attempt.started_at,
        )

    def test_the_button_is_on_only_when_all_is_said(self, browser: Any, site: Any, operator: Any, large: None) -> None:
        reader = come(browser, site, "operator", self.PATH)
        page = reader.page

        assert page.is_disabled("#go")
        page.fill("#reason", "too short")
        assert "1 more character" in page.inner_text("#lack")
        page.fill("#reason", REASON)
        page.fill("#typed", "dense-7")
        assert "1 letter is missing" in page.inner_text("#lack")
        page.fill("#typed", "dense-7b")
        assert page.is_enabled("#go")
        assert reader.errors == []

    def test_enter_never_confirms_and_escape_leaves(self, browser: Any, site: Any, operator: Any, large: None) -> None:
        from apps.remediation.models import Action

        reader = come(browser, site, "operator", self.PATH)
        reader.page.fill("#reason", REASON)
        reader.page.fill("#typed", "dense-7b")

        reader.page.press("#typed", "Enter")
        reader.page.press("#typed", "Escape")

        reader.page.wait_for_url("**/runs/dense-7b")
        assert Action.objects.count() == 0

    def test_choosing_a_moment_changes_the_button(self, browser: Any, site: Any, operator: Any, large: None) -> None:
        reader = come(browser, site, "operator", "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001")

        assert reader.page.inner_text("#go") == "Exclude and restart now"
        reader.page.check("input[name=when][value=CHECKPOINT_FIRST]")
        assert reader.page.inner_text("#go") == "Checkpoint, exclude, restart"

    def test_a_look_again_is_of_all_parts_and_keeps_what_was_chosen(
        self, browser: Any, site: Any, operator: Any, large: None, attempt: Any, later: Any
    ) -> None:
        from apps.runs.services import CheckpointFact, checkpoint_note, status_update

        reader = come(browser, site, "operator", "/runs/dense-7b/actions/new?kind=RESTART_RUN")
        page = reader.page
        page.check("input[name=when][value=CHECKPOINT_FIRST]")
        fact = CheckpointFact(step=135, state="SAVED", happened_at=later(5), duration_s=2.0, blocking_s=1.0)
        checkpoint_note(attempt_id=attempt.id, fact=fact, source="SENDER", actor_name="", now=later(5))
        status_update(run_id=attempt.run_id, step=140)

        page.evaluate(
            "() => window.htmx.ajax('GET', document.querySelector('#figures').getAttribute('hx-get'), {target: '#figures'})"
        )

        page.wait_for_function("() => document.querySelector('#seen-words').innerText.includes('Seen at step 140')")
        assert "back to 135" in page.inner_text("#figures")
        assert "the save it waits for, about step 180" in page.inner_text("#from-step")
        assert "from the save it waits for, about step 180" in page.inner_text("#radius")
        assert page.is_checked("input[name=when][value=CHECKPOINT_FIRST]")
        assert reader.errors == []

    def test_a_run_that_moves_on_while_one_reads_turns_the_button_off(
        self, browser: Any, site: Any, operator: Any, large: None, run: Any, make_attempt: Any, later: Any
    ) -> None:
        reader = come(browser, site, "operator", self.PATH)
        page = reader.page
        page.fill("#reason", REASON)
        page.fill("#typed", "dense-7b")
        make_attempt(run, key="slurm:2.0.0", force=True, now=later(60))

        page.evaluate("() => window.htmx.trigger('#figures', 'every') || window.htmx.ajax('GET', "
                      "document.querySelector('#figures').getAttribute('hx-get'), {target: '#figures'})")  # fmt: skip

        page.wait_for_selector("#changed:visible")
        assert page.is_disabled("#go")
        assert page.input_value("#typed") == ""
        page.click("#looked")
        page.fill("#typed", "dense-7b")
        assert page.is_enabled("#go")


class TestConfirmOverThePage:
    def test_it_opens_over_the_run_and_escape_gives_the_focus_back(
        self, browser: Any, site: Any, operator: Any, incident: Any, pace: Any
    ) -> None:
        reader = come(browser, site, "operator", "/runs/dense-7b")
        page = reader.page
        button = "#suspects a.act"
        page.wait_for_selector(button)
        page.evaluate("() => { window.same = true; }")

        page.focus(button)
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog.over #confirm")

        assert page.evaluate("() => document.querySelector('dialog.over').contains(document.activeElement)")
        page.fill("dialog.over #reason", REASON)
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog.over", state="detached")
        assert page.evaluate("() => document.activeElement.matches('a.act')")
        assert page.evaluate("() => window.same")
        assert page.url.endswith("/runs/dense-7b")
        assert reader.errors == []

    def test_back_closes_it_and_the_page_stays(
        self, browser: Any, site: Any, operator: Any, incident: Any, pace: Any
    ) -> None:
        reader = come(browser, site, "operator", "/runs/dense-7b")
        page = reader.page
        page.evaluate("() => { window.same = true; }")
        page.click("#suspects a.act")
        page.wait_for_selector("dialog.over #confirm")

        page.evaluate("() => history.back()")

        page.wait_for_selector("dialog.over", state="detached")
        assert page.evaluate("() => window.same")

    def test_what_is_refused_is_said_in_it(
        self, browser: Any, site: Any, operator: Any, incident: Any, pace: Any
    ) -> None:
        reader = come(browser, site, "operator", "/nodes/north/trn002")
        page = reader.page
        page.click("a.act[href*='actions/new']")
        page.wait_for_selector("dialog.over #confirm")
        page.fill("#reason", REASON)
        page.evaluate("() => { document.querySelector('#confirm').elements.expected_state.value = 'HUNG'; }")

        page.evaluate("() => document.querySelector('#confirm').requestSubmit()")

        page.wait_for_selector("dialog.over .dlg-banner, #action-state")
        assert page.evaluate("() => Boolean(document.querySelector('dialog.over .dlg-banner'))")
        assert page.input_value("#reason") == REASON


class TestNarrow:
    def test_a_traceback_keeps_its_lines_and_never_widens_an_incident(
        self, site: Any, operator: Any, find: Any
    ) -> None:
        from apps.incidents.selectors import incidents_of

        path = "/very/long/" + "folder-without-a-break/" * 6 + "train.py"
        row = find(
            verdict="Rank 3 crashed.", why=f'Traceback:\n  File "{path}", line 4, in step\n    raise RuntimeError'
        )
        number = next(one.number for one in incidents_of(now=row.found_at))
        with chromium() as narrow:
            reader = Reader(narrow, site, name="operator", width=390)
            for page in (f"/incidents/{number}", "/runs/dense-7b"):
                reader.open(page)
                reader.settle()
                assert reader.page.evaluate("() => document.documentElement.scrollWidth") <= 390, page
                assert "Traceback:\n" in reader.page.inner_text("main")
            reader.close()


class TestFrame:
    def test_a_theme_is_remembered(self, browser: Any, site: Any, viewer: Any) -> None:
        reader = come(browser, site, "viewer", "/runs")

        reader.page.keyboard.press("t")
        reader.page.reload()

        assert reader.page.evaluate("() => document.documentElement.dataset.theme") == "dark"

    def test_question_mark_shows_the_keys_and_g_n_goes_to_the_nodes(self, browser: Any, site: Any, viewer: Any) -> None:
        reader = come(browser, site, "viewer", "/runs")

        reader.page.keyboard.press("?")
        assert reader.page.is_visible("#keys")
        reader.page.keyboard.press("Escape")
        reader.page.keyboard.press("g")
        reader.page.keyboard.press("n")

        reader.page.wait_for_url("**/nodes")
        assert reader.errors == []

    def test_a_page_works_without_javascript(self, browser: Any, site: Any, operator: Any, incident: Any) -> None:
        context = browser.new_context(java_script_enabled=False)
        reader = Reader(browser, site, name="operator")
        context.add_cookies(reader.context.cookies())
        page = context.new_page()

        page.goto(f"{site.url}/incidents/{incident.number}")
        page.fill("#note-text", "written without a script")
        page.click("#write button[type=submit]")

        assert "written without a script" in page.inner_text("#tl")


class TestRuns:
    def test_rows_stay_where_they_are_until_one_asks_for_the_new_order(
        self, browser: Any, site: Any, viewer: Any, make_run: Any, make_attempt: Any, elsewhere: Any, now: Any
    ) -> None:
        from apps.runs.services import status_update

        rows = [make_run(slug) for slug in ("alpha", "beta")]
        for row in rows:
            make_attempt(row)
            status_update(run_id=row.id, step=5, step_s=1.0, last_report_at=now)
        reader = come(browser, site, "viewer", "/runs")
        order = "() => [...document.querySelectorAll('table.runs tbody tr')].map(r => r.innerText.split(/\\s/)[0])"
        assert reader.page.evaluate(order) == ["alpha", "beta"]

        elsewhere(status_update, run_id=rows[1].id, hang="CONFIRMED")

        reader.page.wait_for_selector(".order-changed")
        assert reader.page.evaluate(order) == ["alpha", "beta"]
        assert "Hung" in reader.page.inner_text("#runs-list")
        reader.page.click(".order-changed")
        reader.page.wait_for_function(f"() => ({order})()[0] === 'beta'")
        assert reader.errors == []


class TestRefused:
    def test_a_refused_edit_is_told_and_the_timeline_stays(
        self, browser: Any, site: Any, incident: Any, operator: Any, now: Any
    ) -> None:
        from apps.accounts.selectors import principal_of_user
        from apps.incidents.services import note_add, note_edit

        key = principal_of_user(operator).key
        names = {"author_key": key, "author_name": "operator", "source": "WEB", "now": now}
        note = note_add(incident_id=incident.id, text="one", happened_at=now, **names)
        reader = come(browser, site, "operator", f"/incidents/{incident.number}")
        reader.page.click("[data-edit]")
        reader.page.fill("#note-text", "three")
        note_edit(note_id=note, version=1, text="two", happened_at=None, **names)

        reader.page.click("#write button[type=submit]")

        reader.page.wait_for_selector("[data-refused]")
        assert "changed meanwhile" in reader.page.inner_text("[data-refused]")
        assert reader.page.locator("#tl > li").count() > 1
        assert reader.page.input_value("#note-text") == "three"
