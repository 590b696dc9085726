"""The PostgreSQL and Valkey that tests run against, as a pytest plugin (`-p tests.servers` in pyproject.toml).

One pair a session, its addresses exported before Django reads its settings: a plugin named by `-p` is imported before
pytest-django looks at them. With DATABASE_URL or REDIS_URL set, the tests use those servers instead. Workers of a
parallel session share the pair: each has a database of its own (pytest-django names it) and a prefix of its own in
Valkey. A test that flushes, kills or restarts a server takes `durable_servers`.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from apps.config.local.folder import DataFolder, folder_claim, folder_open
from apps.config.local.postgres import database_url
from apps.config.local.problems import LocalProblem
from apps.config.local.servers import RunningServers, servers_choose, servers_start
from apps.config.local.valkey import valkey_url

FOLDER_PREFIX = "paceline-tests-"

FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "shared_buffers": "128MB"}
"""A test's database need not outlive the machine. Tests of durability use `durable_servers`."""

FOLDER_VARIABLE = "PACELINE_TEST_FOLDER"
"""Set by the session that starts servers, so that its workers know which pair is theirs."""

_session = ExitStack()
_given: dict[str, str] = {}


def servers_export() -> None:
    """Set DATABASE_URL and REDIS_URL for this process and its children, where they are not given."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker:
        _given.update({name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL") if os.environ.get(name)})
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    folder = DataFolder(Path(os.environ[FOLDER_VARIABLE]))
    os.environ.setdefault("DATABASE_URL", database_url(folder.run))
    os.environ.setdefault("REDIS_URL", valkey_url(folder))
    # Never the data folder of an installation that runs from this checkout.
    os.environ["PACELINE_DATA_DIR"] = str(folder.root / "site")
    os.environ.setdefault("PACELINE_SECRET_KEY", "only-for-tests")  # else settings would make a file of their own
    os.environ["PACELINE_CHANNEL_PREFIX"] = f"test-{worker or 'main'}-{os.getpid()}"


def pytest_configure(config: pytest.Config) -> None:
    """Start the pair, in the one process of a session that owns it."""
    folder = os.environ[FOLDER_VARIABLE]
    if hasattr(config, "workerinput"):
        return
    _session.callback(shutil.rmtree, folder, ignore_errors=True)
    abandoned_remove(Path(folder))
    if config.option.collectonly or config.option.help:
        return
    _session.enter_context(folder_claim(Path(folder), address="tests"))
    running = pair_start(Path(folder), given=_given, settings=FAST)
    _session.callback(running.stop)


def pytest_unconfigure() -> None:
    """Stop what `pytest_configure` started."""
    _session.close()


def abandoned_remove(own: Path) -> None:
    """Remove folders of sessions that were killed: the kernel freed their lock, their servers died with them."""
    for folder in own.parent.glob(f"{FOLDER_PREFIX}*"):
        if folder == own or not (folder / "lock").exists() or folder.stat().st_uid != os.getuid():
            continue
        with suppress(LocalProblem), folder_claim(folder, address="tests"):
            shutil.rmtree(folder, ignore_errors=True)


def pair_start(root: Path, *, given: dict[str, str], settings: dict[str, str]) -> RunningServers:
    """Start under `root` what `given` does not name."""
    return servers_start(servers_choose(folder_open(root), environment=given, settings=settings))


@pytest.fixture
def durable_servers() -> Iterator[RunningServers]:
    """A pair for this test alone, with everything on that keeps data through a crash; may be killed and started."""
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as root:
        running = pair_start(Path(root), given={}, settings={"shared_buffers": "64MB"})
        yield running
        running.stop()


servers_export()
