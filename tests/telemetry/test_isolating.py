"""Reports that cannot be folded: those that are poisoned go alone, a fault of ours costs little and is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.telemetry.choices import Reason
from apps.telemetry.models import FoldStop, Inbox, Refusal
from apps.telemetry.services.fold import attempt as fold
from apps.telemetry.services.fold.isolating import MOST_TRIES, PROBES, NothingFolds
from tests.telemetry.reports import Site


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    return Site(attempt.id, now)


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[Any], bool] = lambda entry: True) -> Iterator[list[int]]:
    """Let every try fail that holds a report which is bad; give the sizes of all tries."""
    whole, tries = fold.samples_write, []

    def write(series: Any, entries: Any, *args: Any, **more: Any) -> Any:
        tries.append(len(entries))
        if any(is_bad(entry) for entry in entries):
            raise RuntimeError("nobody foresaw this")
        return whole(series, entries, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(fold, "samples_write", write)
        yield tries


def backlog(site: Site, reports: int, *, senders: int = 7) -> None:
    for n in range(reports):
        site.put(sender=f"s{n % senders}", seq=n, beats=[{"rank": 1, "step": 1}])


class TestAFaultOfOurs:
    def test_costs_a_few_tries_however_long_the_backlog(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        backlog(site, 300)

        with failing(monkeypatch) as tries:
            for after in (0.0, 5.0):
                with pytest.raises(NothingFolds):
                    site.fold(after)

        assert len(tries) == 2 * (PROBES + 1)
        assert Inbox.objects.count() == 300

    def test_is_tried_again_later_and_later(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        backlog(site, 5)

        stopped = []
        with failing(monkeypatch):
            for after in (0.0, 3.0, 5.0, 12.0, 14.0, 29.0, 31.0):
                try:
                    stopped.append(site.fold(after).stopped)
                except NothingFolds:
                    stopped.append(False)

        assert stopped == [False, True, False, True, False, True, False]
        assert site.fold(100).reports == 5

    def test_is_shown_with_what_waits_until_it_is_mended(
        self, site: Site, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backlog(site, 5)
        with failing(monkeypatch):
            for after in (0.0, 5.0):
                with pytest.raises(NothingFolds):
                    site.fold(after)
        shown = Refusal.objects.get()

        site.fold(60)

        told = events_latest(StreamKey.run(run.id), limit=9, kinds=("telemetry.stuck", "telemetry.going_on"))
        assert (shown.reason, shown.count, shown.sample) == ("KEPT_WAITING", 5, "RuntimeError: nobody foresaw this")
        assert not Refusal.objects.exists()
        assert not FoldStop.objects.exists()
        assert [event.text for event in told] == [
            "The reports that waited for a fault of Paceline's own are taken in",
            f"{Reason.KEPT_WAITING.label} 5 wait: RuntimeError: nobody foresaw this",
        ]

    def test_of_a_cluster_waits_as_well(
        self, cluster: int, attempt: Any, now: datetime, later: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from apps.telemetry.services.fold import cluster as folds

        def broken(*args: Any, **more: Any) -> Any:
            raise RuntimeError("nobody foresaw this")

        for n in range(5):
            Inbox.objects.create(
                owner_kind="CLUSTER", owner_id=cluster, scope_kind="NODE", scope_id=1, sender=f"s{n}", boot="b", seq=n,
                received_at=now, body=b"{}",
            )  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setattr(folds, "_gauges_keep", broken)
            with pytest.raises(NothingFolds):
                folds.cluster_fold(cluster_id=cluster, now=now)

        assert folds.cluster_fold(cluster_id=cluster, now=later(1)).stopped
        assert folds.cluster_fold(cluster_id=cluster, now=later(5)).reports == 5


class TestPoison:
    def test_of_one_sender_in_any_number_goes_bit_by_bit_and_holds_up_nobody(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(60):
            site.put(sender="poison", seq=n, beats=[{"rank": 1, "step": 1}])

        costs, told, waiting = [], [], []
        with failing(monkeypatch, lambda entry: entry.row.sender == "poison") as tries:
            for n in range(6):
                before = len(tries)
                site.put(sender="well", seq=n, at=n, steps={"ranks": [1], "steps": [n], "metrics": {"step_s": [[1]]}})
                site.fold(n)
                costs.append(len(tries) - before)
                told.append(site.value("step_s", [n])[1, 0])
                waiting.append(Inbox.objects.count())

        assert max(costs) <= MOST_TRIES
        assert told == [1.0] * 6
        assert waiting[0] > 0
        assert waiting[-1] == 0
        assert Refusal.objects.get().count == 60
