"""Whoever writes an attempt, its run's status and nodes in one transaction takes the run's turn first (DESIGN, Laws)."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.remediation.models import Action, Launch, Order
from apps.remediation.selectors.rows import LaunchFact
from apps.remediation.services.watching import launch_noted
from apps.telemetry.models import DoorBeat
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db

RUN, STATUS, NODE, LAUNCH = "runs_run", "runs_runstatus", "fleet_nodestatus", "remediation_launch"

_LOCKED = re.compile(r"""UPDATE "(\w+)" SET|FROM "(\w+)".*FOR NO KEY UPDATE""", re.DOTALL)


@contextmanager
def locking() -> Iterator[list[str]]:
    """Give the tables whose rows are locked within the block, in the order of their first lock."""
    found: list[str] = []
    with CaptureQueriesContext(
        connection,
    ) as queries:
        yield found
    for query in queries.captured_queries:
        if (match := _LOCKED.search(query["sql"])) and (table := match[1] or match[2]) not in found:
            found.append(table)


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    DoorBeat.objects.create(instance="test", accepting_since=now - timedelta(hours=1), last_beat_at=now)
    return Site(attempt.id, now)


def places(*nodes: str) -> list[dict[str, Any]]:
    return [{"rank": rank, "node": node, "local_rank": 0} for rank, node in enumerate(nodes)]


def launch_put(run_id: int, attempt_id: int, now: datetime) -> Launch:
    action = Action.objects.create(
        kind="RESTART_RUN", state="RUNNING", run_id=run_id, source="WEB", requested_at=now, expires_at=now
    )
    order = Order.objects.create(action=action, kind="LAUNCH", launcher="LOCAL", state="DONE", not_before=now)
    return Launch.objects.create(order=order, run_id=run_id, attempt_id=attempt_id, launcher="LOCAL", started_at=now)


class TestLockOrder:
    def test_a_fold_that_is_told_places_locks_the_run_before_its_status_and_nodes(self, site: Site) -> None:
        site.put(placement=places("trn007", "trn008"))

        with locking() as tables:
            site.fold()

        assert sorted((RUN, STATUS, NODE), key=tables.index) == [RUN, STATUS, NODE]

    def test_a_fold_that_is_told_saves_locks_the_run_before_its_status(self, site: Site) -> None:
        site.put(checkpoints=[{"step": 10, "state": "SAVED", "kind": "save", "duration_s": 1.0}])

        with locking() as tables:
            site.fold()

        assert sorted((RUN, STATUS), key=tables.index) == [RUN, STATUS]

    def test_who_notes_the_end_of_a_launch_locks_the_run_before_it(
        self, run: Any, attempt: Any, now: datetime, later: Callable[[float], datetime]
    ) -> None:
        launch = launch_put(run.id, attempt.id, now)

        with locking() as tables:
            launch_noted(launch_id=launch.pk, fact=LaunchFact(gone=True, status=1), now=later(5))

        assert sorted((RUN, LAUNCH, STATUS), key=tables.index) == [RUN, LAUNCH, STATUS]
