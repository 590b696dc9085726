"""Two people look at one incident: they see the same timeline, whatever happens to their connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser
from websockets.exceptions import InvalidStatus

from apps.common.clock import now as clock_now
from apps.incidents.services import note_add
from tests.console.browser import Reader, chromium
from tests.flows.sockets import SIGNED_OUT, WAIT_S, Caller, rows_until_closed
from tests.site import LiveSite

pytestmark = [pytest.mark.slow, pytest.mark.browser]

LONG_MS = 120_000
"""A bound against waiting for ever; how fast things happen is measured elsewhere."""

EAR = """() => {
  const Plain = window.WebSocket; window.sockets = []; window.seqs = [];
  window.WebSocket = class extends Plain {
    constructor(...given) {
      super(...given); window.sockets.push(this);
      this.addEventListener("message", event => {
        const message = JSON.parse(event.data);
        if (message.type === "rows" && !this.deaf) window.seqs.push(...message.rows.map(row => row.seq));
      });
    }
    set onmessage(act) { super.onmessage = event => this.deaf || act(event); }
  };
}"""
"""Keeps a page's sockets, and the number of each log row that any of them brought.

A socket made `deaf` brings nothing more, and its end is not told either: so a connection dies when a network changes.
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def open_page(browser: Browser, site: LiveSite, incident: Any, make_user: Callable[..., Any]) -> Iterator[Any]:
    """Let one more person open the incident: `open_page("ada")`."""
    readers: list[Reader] = []

    def opened(name: str, *, role: str = "OPERATOR", before: Callable[[Reader], None] = lambda _: None) -> Reader:
        make_user(role, name)
        reader = Reader(browser, site, name=name)
        readers.append(reader)
        reader.page.set_default_timeout(LONG_MS)
        reader.page.add_init_script(f"({EAR})()")
        before(reader)
        reader.open(f"/incidents/{incident.number}")
        reader.page.wait_for_function("() => window.sockets.at(-1)?.readyState === 1")
        reader.page.evaluate("() => { window.same = true; }")
        return reader

    yield opened
    for reader in readers:
        reader.close()


def write(reader: Reader, text: str) -> None:
    """Write a note as a person does."""
    reader.page.fill("#note-text", text)
    reader.page.get_by_role("button", name="Add note").click()


def shows(reader: Reader, text: str, selector: str = "#tl") -> None:
    """Wait until the page says it, on the page that was opened first: no reload brought it."""
    reader.page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)", arg=[selector, text]
    )
    assert reader.page.evaluate("() => window.same") is True


def lines(reader: Reader) -> list[str]:
    """Return the timeline's rows by their ids, top to bottom."""
    found: list[str] = reader.page.eval_on_selector_all("#tl > li[id]", "rows => rows.map(row => row.id)")
    return found


def notes(reader: Reader) -> list[str]:
    """Return what people wrote, top to bottom."""
    found: list[str] = reader.page.eval_on_selector_all("#tl .note-text", "rows => rows.map(row => row.innerText)")
    return found


def heard(reader: Reader) -> list[int]:
    """Return the number of every log row that the page was told, in the order of arrival."""
    found: list[int] = reader.page.evaluate("() => window.seqs")
    return found


def is_dense(seqs: list[int]) -> bool:
    """Return whether no row is missing and none came twice."""
    return seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def note_elsewhere(elsewhere: Callable[..., Any], incident: Any, text: str) -> None:
    """Write a note as somebody without a browser."""
    author = {"author_key": "user:0", "author_name": "eve", "source": "API"}
    elsewhere(note_add, incident_id=incident.id, text=text, happened_at=None, now=clock_now(), **author)


class TestOneTimeline:
    def test_a_note_of_one_appears_in_front_of_the_other_once(self, open_page: Any) -> None:
        ada, ben = open_page("ada"), open_page("ben")

        write(ada, "fans of rack 7 are slow")
        shows(ben, "fans of rack 7 are slow")
        write(ben, "on my way")
        shows(ada, "on my way")
        shows(ben, "on my way")

        assert notes(ada) == notes(ben) == ["fans of rack 7 are slow", "on my way"]
        assert lines(ada) == lines(ben)
        assert is_dense(heard(ada))
        assert is_dense(heard(ben))
        assert ada.errors == ben.errors == []

    def test_who_takes_it_stands_in_front_of_both(self, open_page: Any) -> None:
        ada, ben = open_page("ada"), open_page("ben")

        ada.page.click("#acknowledge")

        shows(ben, "Acknowledged", "#incident-head")
        shows(ben, "ada", "#incident-head")
        assert ben.page.locator("#acknowledge").count() == 0

    def test_a_viewer_sees_it_live_and_cannot_write(self, open_page: Any) -> None:
        ada, vic = open_page("ada"), open_page("vic", role="VIEWER")

        write(ada, "fans of rack 7 are slow")

        shows(vic, "fans of rack 7 are slow")
        assert vic.page.locator("#write").count() == 0


class TestCut:
    def test_a_closed_socket_comes_back_and_brings_what_it_missed_once(self, open_page: Any) -> None:
        ada, ben = open_page("ada"), open_page("ben")
        write(ada, "before")
        shows(ben, "before")

        ben.page.evaluate("() => window.sockets.at(-1).close()")
        write(ada, "meanwhile")

        shows(ben, "meanwhile")
        ben.page.wait_for_function("() => window.sockets.length > 1 && window.sockets.at(-1).readyState === 1")
        write(ada, "after")
        shows(ben, "after")
        assert notes(ben) == ["before", "meanwhile", "after"]
        assert is_dense(heard(ben))

    def test_a_killed_server_costs_no_row_and_doubles_none(
        self, open_page: Any, site: LiveSite, incident: Any, elsewhere: Any
    ) -> None:
        ada, ben = open_page("ada"), open_page("ben")
        write(ada, "before")
        shows(ben, "before")

        site.kill("web")
        note_elsewhere(elsewhere, incident, "meanwhile")
        site.start()

        for reader in (ada, ben):
            shows(reader, "meanwhile")
        write(ben, "after")
        shows(ada, "after")
        shows(ben, "after")
        assert notes(ada) == notes(ben) == ["before", "meanwhile", "after"]
        assert lines(ada) == lines(ben)
        assert is_dense(heard(ada))
        assert is_dense(heard(ben))

    def test_a_socket_that_died_without_a_word_is_given_up(self, open_page: Any) -> None:
        ada, ben = open_page("ada"), open_page("ben")
        ben.page.evaluate("() => { window.sockets.at(-1).deaf = true; }")

        write(ada, "nobody told ben")

        shows(ben, "nobody told ben")
        assert ben.page.evaluate("() => window.sockets.length") > 1
        assert notes(ben) == ["nobody told ben"]
        assert is_dense(heard(ben))


@pytest.fixture
def signed_in(make_user: Callable[..., Any], client_as: Callable[[Any], Client]) -> tuple[Any, Client]:
    person = make_user("VIEWER", "vic")
    return person, client_as(person)


@pytest.fixture
def path(run: Any, incident: Any) -> str:
    return f"/ws/feed?stream=run:{run.slug}@0&page=incident:{incident.number}"


class TestStrangers:
    @pytest.mark.parametrize("key", ["", "forged0session0key0forged0session"])
    def test_without_a_session_nothing_is_told(self, site: LiveSite, path: str, key: str) -> None:
        assert Caller(site.url, key).rows_until_closed(path) == (0, SIGNED_OUT)

    def test_a_session_that_was_signed_out_is_none(self, site: LiveSite, path: str, signed_in: Any) -> None:
        _, client = signed_in
        key = client.cookies["sessionid"].value
        client.logout()

        assert Caller(site.url, key).rows_until_closed(path) == (0, SIGNED_OUT)

    @pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", None])
    def test_another_sites_page_gets_no_socket_with_its_readers_cookie(
        self, site: LiveSite, path: str, signed_in: Any, origin: str | None
    ) -> None:
        caller = Caller(site.url, signed_in[1].cookies["sessionid"].value)

        with pytest.raises(InvalidStatus) as refused, caller.connect(path, origin=origin):
            pass

        assert refused.value.response.status_code == 403

    @pytest.mark.parametrize("how", ["signs out", "is shut out", "gets another password"])
    def test_an_open_socket_ends_with_the_right_to_it(
        self, site: LiveSite, path: str, signed_in: Any, how: str
    ) -> None:
        person, client = signed_in
        caller = Caller(site.url, client.cookies["sessionid"].value)
        with caller.connect(path, origin=site.url) as socket:
            assert json.loads(socket.recv(timeout=WAIT_S))["type"] == "rows"

            END[how](person, client)

            assert rows_until_closed(socket) == (0, SIGNED_OUT)


def shut_out(person: Any, client: Client) -> None:
    person.is_active = False
    person.save()


def change_password(person: Any, client: Client) -> None:
    person.set_password("another long password")
    person.save()


END: dict[str, Callable[[Any, Client], None]] = {
    "signs out": lambda person, client: client.logout(),
    "is shut out": shut_out,
    "gets another password": change_password,
}
