"""`make run` as a person uses it: start, sign in, lose processes, stop, start again. Real processes, one data folder."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from apps.config.local.binaries import valkey_program
from tests.installation import OURS, Installation, page_answers, start_command
from tests.marked import eventually, marking, read_until

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Installation]:
    """A running installation that the test may end."""
    with marking(tmp_path, hidden=OURS) as marked:
        yield Installation(marked, tmp_path / "data").start()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running installation for the tests that leave it running."""
    folder = tmp_path_factory.mktemp("lasting")
    with marking(folder, hidden=OURS) as marked:
        yield Installation(marked, folder / "data").start()


def press_the_button(browser: httpx.Client, link: str) -> httpx.Response:
    """Send the form that the page behind a one-time link shows."""
    fields = {"csrfmiddlewaretoken": browser.cookies.get("csrftoken") or ""}
    return browser.post(link, data=fields, headers={"Referer": link})


class TestMakeRun:
    def test_the_printed_link_signs_the_first_operator_in_once(self, lasting: Installation) -> None:
        with httpx.Client(follow_redirects=True) as browser, httpx.Client(follow_redirects=True) as stranger:
            page = browser.get(lasting.link)
            stranger.get(lasting.link)
            home = press_the_button(browser, lasting.link)
            again = press_the_button(stranger, lasting.link)

        assert (page.status_code, home.status_code, again.status_code) == (200, 200, 410)
        assert str(home.url) == f"{lasting.address}/"
        assert "sessionid" not in stranger.cookies

    def test_every_killed_process_comes_back(self, lasting: Installation) -> None:
        names = {
            "web": "-m apps.config.local.web ",
            "fold": "--queues=fold",
            "watch": "--queues=watch",
            "orders": "--queues=orders",
            "beat": "celery.beat:Scheduler",
            "valkey": valkey_program().name,
            "postgres": "/postgres -D",
        }
        assert eventually(lambda: all(lasting.pid(part) for part in names.values()))
        before = {name: lasting.pid(part) for name, part in names.items()}

        for pid in before.values():
            os.kill(pid, signal.SIGKILL)

        assert eventually(lambda: all(lasting.pid(part) not in (0, before[name]) for name, part in names.items()))
        assert eventually(lambda: page_answers(lasting.address))

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_stop_leaves_no_process_behind(self, site: Installation, number: signal.Signals) -> None:
        status, words = site.stop(number)

        assert "has stopped; the data stays." in words
        assert status in (0, -number)  # `make` passes on the signal it got itself
        assert site.marked.gone(), site.marked.pids()
        assert not (site.folder / "env").exists()

    def test_nothing_outlives_a_killed_supervisor_and_the_next_start_goes_on(self, site: Installation) -> None:
        secret = site.manage("token_create", "--name", "first", "--scope", "read")
        os.kill(site.pid("-m apps.config.local "), signal.SIGKILL)
        assert site.marked.gone(), site.marked.pids()

        site.start()
        answer = httpx.get(f"{site.address}/api/v1/runs", headers={"Authorization": f"Bearer {secret}"})

        assert "is up, with last time's data." in site.said
        assert answer.status_code == 200, answer.text

    def test_a_second_start_on_the_same_folder_is_refused_in_a_sentence(self, lasting: Installation) -> None:
        second = lasting.marked.start(*start_command(), **lasting.environment())
        said = read_until(second, "nothing more comes")

        assert f"Paceline already runs on {lasting.folder} (pid " in said
        assert "Traceback" not in said
        assert second.wait(30) != 0
        assert page_answers(lasting.address)

    def test_a_taken_port_is_refused_in_a_sentence(self, lasting: Installation, tmp_path: Path) -> None:
        taken = lasting.address.removeprefix("http://")
        second = lasting.marked.start(
            *start_command(), PACELINE_DATA_DIR=str(tmp_path / "other"), PACELINE_BIND=taken, PACELINE_PRACTICE="0"
        )
        said = read_until(second, "nothing more comes")

        assert f"Port {taken.rpartition(':')[2]} on 127.0.0.1 is taken by " in said
        assert "Traceback" not in said
        assert second.wait(30) != 0
