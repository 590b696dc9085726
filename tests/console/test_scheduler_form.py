"""Settings: a cluster's scheduler is shown to everybody and set by admins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from apps.remediation.selectors import scheduler_of
from apps.remediation.services.scheduling import scheduler_silent

pytestmark = pytest.mark.django_db


def form(cluster: int, **more: str) -> dict[str, str]:
    return {"act": "scheduler", "cluster": str(cluster), "poll_s": "5", "zone": "UTC", **more}


class TestSchedulerForm:
    def test_an_admin_sets_it_and_takes_it_away(
        self, client_as: Callable[[Any], Client], admin: Any, cluster: int
    ) -> None:
        browser = client_as(admin)

        browser.post("/settings", form(cluster, conf="/etc/slurm/slurm.conf", drains="1"))
        row = scheduler_of(cluster)
        browser.post("/settings", form(cluster, remove="1"))

        assert row is not None
        assert (row.conf, row.drains, row.updated_by) == ("/etc/slurm/slurm.conf", True, admin.get_username())
        assert scheduler_of(cluster) is None

    def test_an_operator_sees_how_it_is_and_cannot_set_it(
        self, client_as: Callable[[Any], Client], admin: Any, operator: Any, cluster: int
    ) -> None:
        client_as(admin).post("/settings", form(cluster))
        scheduler_silent(cluster_id=cluster, error="it does <not> answer", now=datetime.now(UTC))

        page = client_as(operator).get("/settings").content.decode()
        refused = client_as(operator).post("/settings", form(cluster, programs="/tmp/mine"))

        assert "not read, 1 time" in page
        assert "it does &lt;not&gt; answer" in page
        assert 'name="programs"' not in page
        assert refused.status_code == 403
        assert scheduler_of(cluster).programs == ""  # type: ignore[union-attr]
