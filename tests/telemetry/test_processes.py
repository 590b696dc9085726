"""From bytes to values through real processes: web, worker, and their ends."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import numpy as np
import orjson
import pytest
from django.db import connection, transaction

from apps.common.ids import id_write
from apps.telemetry.models import Folded, Inbox, Series
from apps.telemetry.selectors import door_state, ranks_now
from tests.telemetry.reports import Site

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


class Sender:
    """Posts reports to a live site over HTTP."""

    def __init__(self, live_site: Any, attempt_id: int, token: str) -> None:
        self.url = f"{live_site.url}/api/v1/attempts/{id_write('att', attempt_id)}/reports"
        self.token = token

    def post(self, seq: int, steps: list[int], *, sender: str = "trn001", ranks: range = range(4)) -> int:
        metrics = {"step_s": [[rank + step / 1000 for step in steps] for rank in ranks]}
        body = {
            "sender": sender,
            "boot": "b",
            "seq": seq,
            "steps": {"ranks": list(ranks), "steps": steps, "metrics": metrics},
            "beats": [{"rank": rank, "step": steps[-1], "phase": "compute"} for rank in ranks],
        }
        request = urllib.request.Request(
            self.url,
            orjson.dumps(body),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


def fold_worker(live_site: Any, name: str) -> None:
    live_site.run(
        name, "-m", "celery", "-A", "apps.config.celery", "worker", "-Q", "fold", "-P", "solo", "-n", f"{name}@test",
        "--without-gossip", "--without-mingle",
    )  # fmt: skip


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction that looked once sees the same for ever
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND query LIKE '%%telemetry_series%%')"
        )
        return bool(cursor.fetchone()[0])


def test_a_report_posted_over_http_is_a_value_without_anybodys_help(
    live_site: Any, attempt: Any, make_token: Any, now: Any
) -> None:
    fold_worker(live_site, "fold-1")
    sender = Sender(live_site, attempt.id, make_token("report"))

    statuses = [sender.post(n, [n]) for n in range(20)]
    live_site.wait(lambda: Series.objects.filter(last_step=19).exists() and not Inbox.objects.exists(), "the fold", 30)

    assert set(statuses) == {202}
    assert Site(attempt.id, now).value("step_s", range(20))[3].tolist() == pytest.approx(
        [3 + n / 1000 for n in range(20)]
    )
    assert door_state().last_beat_at is not None


def test_a_worker_killed_in_the_middle_of_a_fold_loses_and_doubles_nothing(
    live_site: Any, attempt: Any, make_token: Any, now: Any
) -> None:
    sender = Sender(live_site, attempt.id, make_token("report"))
    assert sender.post(0, [0]) == 202
    fold_worker(live_site, "fold-1")
    live_site.wait(lambda: Series.objects.filter(last_step=0).exists(), "the first fold", 30)

    with transaction.atomic():
        Series.objects.select_for_update().get()  # the next fold gets as far as its last write, and waits
        statuses = [sender.post(n, [n]) for n in range(1, 30)]
        live_site.wait(waits_for_a_lock, "the fold to stand in the middle of its transaction", 30)
        live_site.kill("fold-1")
    live_site.wait(lambda: not waits_for_a_lock(), "the killed fold's connection to go", 30)
    waiting = Inbox.objects.count()
    again = [sender.post(n, [n]) for n in range(10, 20)]
    fold_worker(live_site, "fold-2")
    # The dead worker may have taken the message along; the clock finds the work without it.
    live_site.run("beat", "-m", "celery", "-A", "apps.config.celery", "beat", "--schedule", str(live_site.folder / "b"))
    live_site.wait(lambda: not Inbox.objects.exists(), "the inbox to be folded", 30)

    assert set(statuses + again) == {202}
    assert waiting == 29
    assert Folded.objects.get().reports == 30
    assert Series.objects.get().filled == 30 * 4
    values = Site(attempt.id, now).value("step_s", range(30))
    np.testing.assert_allclose(values[2], [2 + n / 1000 for n in range(30)], rtol=1e-6)


def test_while_the_database_refuses_senders_are_told_to_come_again(
    live_site: Any, attempt: Any, make_token: Any, now: Any
) -> None:
    sender = Sender(live_site, attempt.id, make_token("report"))
    assert sender.post(0, [0]) == 202
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'paceline-door'"
        )

    statuses = [live_site.wait(lambda: sender.post(1, [1]), "an answer", 5)]
    live_site.wait(lambda: sender.post(2, [2]) == 202, "the door to find the database again", 20)

    assert statuses[0] in (202, 503)
    assert Inbox.objects.filter(seq=2).exists()
    assert ranks_now(attempt.id, attempt.started_at.replace(year=2100)).step.tolist() == [2, 2, 2, 2]
