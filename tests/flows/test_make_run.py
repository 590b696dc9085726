"""`make run` as a person uses it: start, sign in, lose processes, stop, start again. Real processes, one data folder."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from apps.config.local.install import PYTHON, STAMP, fingerprint
from tests.marked import REPOSITORY, Marked, eventually, marking, read_until

pytestmark = pytest.mark.slow

OURS = ("DATABASE_URL", "REDIS_URL", "PACELINE_CHANNEL_PREFIX", "PACELINE_PUBLIC_URL", "DJANGO_SETTINGS_MODULE")
"""What the test session exports for itself, and an installation must not see."""

LINK = re.compile(r"Paceline is ready:\s+(http://\S+)")


def start_command() -> list[str]:
    """Return `make run` where the set-up is current, else what it becomes: a test never installs anything."""
    current = STAMP.exists() and fingerprint() in STAMP.read_text() and Path(sys.prefix) == PYTHON.parents[1]
    return ["make", "run"] if current else [sys.executable, "-m", "apps.config.local"]


class Site:
    """An installation in a folder of its own."""

    def __init__(self, marked: Marked, folder: Path) -> None:
        self.marked, self.folder = marked, folder
        self.process: subprocess.Popen[bytes] | None = None
        self.said = ""
        self.link = ""

    def environment(self) -> dict[str, str]:
        return {"PACELINE_DATA_DIR": str(self.folder), "PACELINE_BIND": "127.0.0.1:0", "PACELINE_PRACTICE": "0"}

    def start(self) -> "Site":
        """Start it and wait for its link."""
        self.process = self.marked.start(*start_command(), **self.environment())
        self.said = read_until(self.process, "Stop: Ctrl-C")
        found = LINK.search(self.said)
        assert found, self.said
        self.link = found[1]
        return self

    @property
    def address(self) -> str:
        return self.link.partition("/first/")[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it as a terminal does, by a signal to the whole group; return its exit status and its last words."""
        assert self.process is not None
        os.killpg(self.process.pid, number)
        words = read_until(self.process, "has stopped")
        return self.process.wait(60), words

    def pid(self, part: str) -> int:
        """Return the pid of the process whose command line holds `part`."""
        return next(
            (pid for pid, line in self.marked.pids().items() if part in f"{line} " and "child.py" not in line), 0
        )

    def manage(self, *words: str) -> str:
        """Run a command as from a second terminal, which knows the data folder alone."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=REPOSITORY,
            env={**self.marked.inherited(), "PACELINE_DATA_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A running installation that the test may end."""
    with marking(tmp_path, hidden=OURS) as marked:
        yield Site(marked, tmp_path / "data").start()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running installation for the tests that leave it running."""
    folder = tmp_path_factory.mktemp("lasting")
    with marking(folder, hidden=OURS) as marked:
        yield Site(marked, folder / "data").start()


def press_the_button(browser: httpx.Client, link: str) -> httpx.Response:
    """Send the form that the page behind a one-time link shows."""
    fields = {"csrfmiddlewaretoken": browser.cookies.get("csrftoken") or ""}
    return browser.post(link, data=fields, headers={"Referer": link})


def page_answers(address: str) -> bool:
    """Return whether the sign-in page is served."""
    try:
        return httpx.get(f"{address}/sign-in", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


class TestMakeRun:
    def test_the_printed_link_signs_the_first_operator_in_once(self, lasting: Site) -> None:
        with httpx.Client(follow_redirects=True) as browser, httpx.Client(follow_redirects=True) as stranger:
            page = browser.get(lasting.link)
            stranger.get(lasting.link)
            home = press_the_button(browser, lasting.link)
            again = press_the_button(stranger, lasting.link)

        assert (page.status_code, home.status_code, again.status_code) == (200, 200, 410)
        assert str(home.url) == f"{lasting.address}/"
        assert "sessionid" not in stranger.cookies

    def test_every_killed_process_comes_back(self, lasting: Site) -> None:
        names = {
            "web": "-m apps.config.local.web ",
            "fold": "--queues=fold",
            "watch": "--queues=watch",
            "orders": "--queues=orders",
            "beat": "celery.beat:Scheduler",
            "valkey": "valkey-server",
            "postgres": "/postgres -D",
        }
        assert eventually(lambda: all(lasting.pid(part) for part in names.values()))
        before = {name: lasting.pid(part) for name, part in names.items()}

        for pid in before.values():
            os.kill(pid, signal.SIGKILL)

        assert eventually(lambda: all(lasting.pid(part) not in (0, before[name]) for name, part in names.items()))
        assert eventually(lambda: page_answers(lasting.address))

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_stop_leaves_no_process_behind(self, site: Site, number: signal.Signals) -> None:
        status, words = site.stop(number)

        assert "has stopped; the data stays." in words
        assert status in (0, -number)  # `make` passes on the signal it got itself
        assert site.marked.gone(), site.marked.pids()
        assert not (site.folder / "env").exists()

    def test_nothing_outlives_a_killed_supervisor_and_the_next_start_goes_on(self, site: Site) -> None:
        secret = site.manage("token_create", "--name", "first", "--scope", "read")
        os.kill(site.pid("-m apps.config.local "), signal.SIGKILL)
        assert site.marked.gone(), site.marked.pids()

        site.start()
        answer = httpx.get(f"{site.address}/api/v1/runs", headers={"Authorization": f"Bearer {secret}"})

        assert "is up, with last time's data." in site.said
        assert answer.status_code == 200, answer.text

    def test_a_second_start_on_the_same_folder_is_refused_in_a_sentence(self, lasting: Site) -> None:
        second = lasting.marked.start(*start_command(), **lasting.environment())
        said = read_until(second, "nothing more comes")

        assert f"Paceline already runs on {lasting.folder} (pid " in said
        assert "Traceback" not in said
        assert second.wait(30) != 0
        assert page_answers(lasting.address)

    def test_a_taken_port_is_refused_in_a_sentence(self, lasting: Site, tmp_path: Path) -> None:
        taken = lasting.address.removeprefix("http://")
        second = lasting.marked.start(
            *start_command(), PACELINE_DATA_DIR=str(tmp_path / "other"), PACELINE_BIND=taken, PACELINE_PRACTICE="0"
        )
        said = read_until(second, "nothing more comes")

        assert f"Port {taken.rpartition(':')[2]} on 127.0.0.1 is taken by " in said
        assert "Traceback" not in said
        assert second.wait(30) != 0
