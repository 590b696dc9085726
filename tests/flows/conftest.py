"""What flows start from: a live site with an incident to look at, as pages have it, and one whose servers may die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.config.local.servers import RunningServers
from tests.console.conftest import elsewhere, find, incident, site
from tests.flows.standing import Standing
from tests.site import LiveSite

__all__ = ["elsewhere", "find", "incident", "site", "standing"]


@pytest.fixture
def standing(durable_servers: RunningServers, tmp_path: Path) -> Iterator[Standing]:
    """An installation with everything that runs in one."""
    site = LiveSite(tmp_path, durable_servers.servers)
    found = Standing(site, durable_servers)
    try:
        site.manage("migrate", "--verbosity", "0")
        scopes = [word for scope in ("admin", "operate", "read", "report") for word in ("--scope", scope)]
        found.token = site.manage("token_create", "--name", "test", *scopes)
        site.start()
        site.workers()
        yield found
    finally:
        site.stop()
