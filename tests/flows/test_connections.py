"""However many pages are open, a web process holds no more database connections than it may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.db import connection
from django.test import Client

from tests.site import APPLICATION, LiveSite

pytestmark = pytest.mark.slow

REQUESTS, AT_ONCE = 80, 16


def held() -> int:
    """Return how many connections the site's web process has open to this database, the report door's aside."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            [APPLICATION],
        )
        return int(cursor.fetchone()[0])


def test_many_requests_at_once_share_the_connections_of_the_pool(
    live_site: LiveSite, run: Any, client_as: Any, viewer: Any
) -> None:
    client: Client = client_as(viewer)
    cookies = {"sessionid": client.cookies["sessionid"].value}
    with (
        httpx.Client(base_url=live_site.url, cookies=cookies, timeout=60.0) as browser,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        answers = list(pool.map(lambda _: browser.get(f"/runs/{run.slug}").status_code, range(REQUESTS)))

    assert answers == [200] * REQUESTS
    assert 0 < held() <= settings.DATABASE_POOL["max_size"]
