"""How often the database is asked: what a site grows in (runs, nodes, rows) must not show in the number of queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from apps.common.ids import id_write
from apps.console.selectors.feed import rows_after, streams_named
from apps.diagnosis.services import clocks_evaluate
from apps.incidents.services import findings_absorb, notices_send
from apps.remediation.services import findings_consider
from apps.runs.models import Attempt
from tests.budgets.counting import asked, asked_async
from tests.budgets.crowd import LARGE, SMALL, Size, crowd
from tests.telemetry.callers import door_open
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db

PAGES = {
    "/": 90,
    "/watch": 80,
    "/nodes": 190,
    "/incidents": 85,
    "/incidents/1": 95,
    "/runs/run-000": 150,
    "/nodes/north/trn0001": 145,
    "/settings": 90,
    "/api/v1/runs": 10,
    "/api/v1/nodes": 10,
    "/api/v1/incidents": 10,
    "/api/v1/findings": 10,
    "/api/v1/actions": 10,
    "/api/v1/clusters": 8,
    "/api/v1/runs/run-000/events?after=0": 10,
}
"""Queries that an answer may take in a large site."""

MORE = 100
"""What a large site may take more than a small one. All of it is bounded: the runs whose ranks are compared for the map
(`MOST_RUNS`), and those with silent senders that are asked who has left (`MOST_ASKED`)."""

JOBS: dict[str, tuple[Callable[[datetime], Any], int]] = {
    "findings_absorb": (lambda now: findings_absorb(now=now), 8),
    "findings_consider": (lambda now: findings_consider(now=now), 4),
    "notices_send": (lambda now: notices_send(now=now), 8),
    "one attempt by the clock": (lambda now: clocks_evaluate(attempt_id=_first().pk, now=now), 55),
    "a feed's rows": (lambda now: rows_after(streams_named(["run:run-000@0"])["run:run-000"].key, after=0), 6),
}


def _first() -> Attempt:
    return Attempt.objects.order_by("pk")[0]


@pytest.fixture
def counts(
    cluster: int, client_as: Any, make_user: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Size], dict[str, int]]:
    """Count what each page and job asks in a site of a size; nothing of the site is left behind."""
    client: Client = client_as(make_user("OPERATOR"))

    def count(size: Size) -> dict[str, int]:
        now, found = datetime.now(UTC), {}
        with transaction.atomic():
            crowd(size, cluster=cluster, now=now)
            for path in PAGES:
                with asked(monkeypatch) as statements:
                    answer = client.get(path)
                assert answer.status_code == 200, path
                found[path] = len(statements)
            for name, (job, _) in JOBS.items():
                with asked(monkeypatch) as statements:
                    job(now)
                found[name] = len(statements)
            transaction.set_rollback(True)
        return found

    return count


class TestALargeSite:
    def test_asks_no_more_than_its_budget_and_hardly_more_than_a_small_one(
        self, counts: Callable[[Size], dict[str, int]]
    ) -> None:
        budgets = {**PAGES, **{name: most for name, (_, most) in JOBS.items()}}

        small, large = counts(SMALL), counts(LARGE)

        assert {name: n for name, n in large.items() if n > budgets[name]} == {}
        assert {name: (small[name], n) for name, n in large.items() if n > small[name] + MORE} == {}


class TestTheFold:
    def test_asks_as_often_for_many_reports_as_for_few(
        self, attempt: Any, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = Site(attempt.id, now)
        site.put(sender="first", steps={"ranks": [0], "steps": [0], "metrics": {"step_s": [[1]]}})
        site.fold()

        counts = []
        for reports in (2, 400):
            for n in range(reports):
                site.put(
                    sender=f"s{reports}-{n}",
                    steps={"ranks": [n % 8], "steps": [reports], "metrics": {"step_s": [[1]]}},
                    beats=[{"rank": n % 8, "step": reports}],
                    events=[{"kind": "log", "text": "NCCL WARN"}],
                )
            with asked(monkeypatch) as statements:
                site.fold()
            counts.append(len(statements))

        assert counts[1] <= counts[0] + 6
        assert counts[1] <= 90


@pytest.fixture
def token(make_token: Callable[..., str], attempt: Any) -> str:
    return make_token("report")


class TestTheDoor:
    @pytest.mark.django_db(transaction=True)
    async def test_asks_once_a_group_and_never_once_a_report(
        self, attempt: Any, token: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = f"attempts/{id_write('att', attempt.id)}/reports"
        reports = [
            {"sender": f"s{n}", "boot": "b", "seq": 1, "beats": [{"rank": n % 8, "step": 1}]} for n in range(200)
        ]

        async with door_open(token) as caller:
            with asked_async(monkeypatch) as statements:
                answers = await asyncio.gather(*(caller.post(path, report) for report in reports))

        groups = [text for text in statements if text.startswith("COPY")]
        assert {answer.status_code for answer in answers} == {202}
        assert len(statements) <= 4 * len(groups) + 12
