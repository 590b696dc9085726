"""Bounds that hold over time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.db import connection

from apps.telemetry.models import Fact, Folded, NonFinite
from apps.telemetry.selectors.senders import senders_of
from apps.telemetry.services import trim
from apps.telemetry.services.trim import series_trim
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    return Site(attempt.id, now)


def ranges() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM telemetry_folded f, unnest(f.seqs)")
        return int(cursor.fetchone()[0])


def test_a_sender_that_skips_numbers_does_not_grow_for_ever(
    site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trim, "MOST_RANGES", 20)
    monkeypatch.setattr(trim, "KEEP_RANGES", 10)
    for seq in range(0, 100, 2):
        site.put(seq=seq, beats=[])
    site.fold()
    before = ranges()

    series_trim(now=now)

    assert (before, ranges()) == (50, 10)
    site.put(seq=98, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})
    site.put(seq=97, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[2]]}})
    done = site.fold()
    assert (done.reports, done.repeats) == (1, 1)
    assert site.value("step_s", [1])[0, 0] == 2


def test_a_well_behaved_sender_is_left_alone(site: Site, now: datetime) -> None:
    for seq in (1, 2, 3, 9):
        site.put(seq=seq, beats=[])
    site.fold()

    series_trim(now=now)

    assert ranges() == 2
    assert senders_of(site.attempt_id)[0].missing == 5


def test_a_report_known_by_its_content_is_forgotten_after_a_day(site: Site, later: Any) -> None:
    site.put_raw(b'{"steps": {"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}}}')
    site.put(sender="numbered", beats=[])
    site.fold()

    series_trim(now=later(3600))
    within = Folded.objects.count()
    series_trim(now=later(90_000))

    assert (within, [row.sender for row in Folded.objects.all()]) == (2, ["numbered"])


def test_values_that_are_not_finite_keep_their_newest_and_first(
    site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trim, "NONFINITE_KEPT", 100)
    words = [["nan"] * 300] * 8
    site.put(steps={"ranks": list(range(8)), "steps": list(range(300)), "metrics": {"loss": words}})
    site.fold()

    series_trim(now=now)

    steps = sorted(set(NonFinite.objects.values_list("step", flat=True)))
    assert NonFinite.objects.count() == 1100
    assert (steps[0], steps[-1]) == (0, 299)


def test_facts_keep_their_newest_and_every_exit(site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "FACTS_KEPT", 5)
    events = [{"kind": "exit", "rank": 1, "code": 1}, *({"kind": "log", "text": f"line {n}"} for n in range(20))]
    site.put(events=events)
    site.fold()

    series_trim(now=now)

    assert Fact.objects.filter(kind="LOG").count() == 5
    assert Fact.objects.filter(kind="EXIT").count() == 1
    assert Fact.objects.filter(text="line 19").exists()


def test_facts_of_a_node_beside_attempts_are_bounded_too(
    site: Site, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trim, "FACTS_KEPT", 5)
    times = dict.fromkeys(("happened_at", "received_at", "last_at", "until_at"), now)
    for node_id in (1, 2):
        Fact.objects.bulk_create(
            Fact(node_id=node_id, kind="LOG", fingerprint=b"x", text=f"line {n}", current=True, **times)
            for n in range(4 * node_id)
        )

    series_trim(now=now)

    kept = Fact.objects.order_by("id").values_list("node_id", "text")
    assert [text for node_id, text in kept if node_id == 1] == [f"line {n}" for n in range(4)]
    assert [text for node_id, text in kept if node_id == 2] == [f"line {n}" for n in range(3, 8)]
