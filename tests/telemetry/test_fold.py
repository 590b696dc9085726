"""The fold: from inbox rows to values, with every repeat harmless."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import orjson
import pytest

from apps.fleet.selectors import nodes_by_id, nodes_of
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_after
from apps.runs.selectors import checkpoints_of, placement_of
from apps.telemetry.models import Column, Folded, HotBlock, Inbox, NonFinite, Refusal, Series
from apps.telemetry.selectors import ranks_now
from apps.telemetry.selectors.columns import columns_settled
from apps.telemetry.selectors.facts import facts_of
from apps.telemetry.services.fold import inbox_fold
from apps.telemetry.services.fold.isolating import NothingFolds
from tests.telemetry.reports import Site, packed

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    return Site(attempt.id, now)


class TestValues:
    def test_a_report_is_readable_by_rank_and_step(self, site: Site) -> None:
        site.put(
            steps={
                "ranks": [0, 1],
                "steps": [5, 6],
                "metrics": {"step_s": [[1, 2], [3, 4]], "loss": [[9, None], [8, 7]]},
            }
        )

        site.fold()

        np.testing.assert_array_equal(site.value("step_s", [5, 6])[:2], [[1, 2], [3, 4]])
        np.testing.assert_array_equal(site.value("loss", [5, 6])[:2], [[9, np.nan], [8, 7]])
        assert np.isnan(site.value("step_s", [5, 6])[2:]).all()

    def test_packed_and_arrays_mean_the_same(self, site: Site) -> None:
        rng = np.random.default_rng(1)
        values = rng.normal(5, 1, (2, 8, 3)).astype(np.float32)
        values[0, 2, 1] = np.nan
        site.put(seq=1, steps=packed(range(8), [1, 2, 3], {"step_s": values[0], "loss": values[1]}))
        arrays = {
            name: [[None if np.isnan(v) else float(v) for v in row] for row in values[n]]
            for n, name in enumerate(["step_s", "loss"])
        }
        site.put(seq=2, steps={"ranks": list(range(8)), "steps": [11, 12, 13], "metrics": arrays})

        site.fold()

        for name in ("step_s", "loss"):
            np.testing.assert_array_equal(site.value(name, [1, 2, 3]), site.value(name, [11, 12, 13]))

    def test_values_that_are_not_finite_leave_a_mark_and_cost_nothing_else(self, site: Site) -> None:
        bits = packed([0], [1, 2, 3, 4], {"loss": np.array([[1.5, np.inf, -np.inf, 4]], np.float32)})
        site.put(
            seq=1,
            steps={"ranks": [0, 1], "steps": [5], "metrics": {"loss": [["nan"], ["Infinity"]], "step_s": [[1], [2]]}},
        )
        site.put(seq=2, steps=bits)

        site.fold()

        found = set(NonFinite.objects.values_list("step", "rank", "which"))
        assert found == {(5, 0, "NAN"), (5, 1, "+INF"), (2, 0, "+INF"), (3, 0, "-INF")}
        np.testing.assert_array_equal(site.value("step_s", [5])[:2], [[1], [2]])
        np.testing.assert_array_equal(site.value("loss", [1, 2, 3, 4])[0], [1.5, np.nan, np.nan, 4])

    def test_a_wide_world_spans_blocks(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        attempt = make_attempt(make_run("wide"), world_size=1500, per_node=100)
        site = Site(attempt.id, now)
        site.put(steps={"ranks": [0, 1023, 1024, 1499], "steps": [7], "metrics": {"step_s": [[1], [2], [3], [4]]}})

        site.fold()

        assert site.value("step_s", [7])[[0, 1023, 1024, 1499], 0].tolist() == [1, 2, 3, 4]
        assert sorted(HotBlock.objects.values_list("block", "width", "present")) == [(0, 1024, 2), (1, 476, 2)]


class TestIdentity:
    def test_a_repeat_changes_nothing(self, site: Site) -> None:
        for _ in range(3):
            site.put(seq=1, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})
        site.fold()
        version = Series.objects.get().version
        site.put(seq=1, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[99]]}})

        done = site.fold()

        assert (done.reports, done.repeats) == (0, 1)
        assert site.value("step_s", [1])[0, 0] == 1
        assert Series.objects.get().version == version
        assert not Inbox.objects.exists()

    def test_the_newer_number_wins_whatever_order_they_come_in(self, site: Site) -> None:
        for seq in (2, 3, 1):
            site.put(seq=seq, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[seq]]}})

        site.fold()

        assert site.value("step_s", [1])[0, 0] == 3

    def test_a_late_report_only_fills_empty_cells(self, site: Site) -> None:
        site.put(seq=5, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[5]]}})
        site.fold()
        site.put(seq=4, steps={"ranks": [0, 1], "steps": [1], "metrics": {"step_s": [[4], [4]], "loss": [[4], [4]]}})

        site.fold()

        assert site.value("step_s", [1])[:2, 0].tolist() == [5, 4]
        assert site.value("loss", [1])[:2, 0].tolist() == [4, 4]

    def test_a_report_of_an_earlier_process_only_fills(self, site: Site) -> None:
        site.put(boot="old", seq=1, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})
        site.put(boot="new", seq=1, at=5, steps={"ranks": [0], "steps": [2], "metrics": {"step_s": [[2]]}})
        site.fold()
        site.put(boot="old", seq=9, at=9, steps={"ranks": [0], "steps": [2, 3], "metrics": {"step_s": [[7, 7]]}})

        site.fold()

        assert site.value("step_s", [1, 2, 3])[0].tolist() == [1, 2, 7]

    def test_senders_past_the_bound_are_refused_together_and_the_known_ones_go_on(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("apps.telemetry.services.fold.attempt.MOST_SENDERS", 1)
        site.put(sender="a", seq=1, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})
        site.fold()
        for sender, seq in (("a", 2), ("b", 1), ("c", 1)):
            site.put(sender=sender, seq=seq, steps={"ranks": [1], "steps": [seq], "metrics": {"step_s": [[seq]]}})

        site.fold()

        refusal = Refusal.objects.get()
        assert (refusal.sender, refusal.reason, refusal.count) == ("", "SENDERS_MANY", 2)
        assert site.value("step_s", [1, 2])[1].tolist() == pytest.approx([np.nan, 2], nan_ok=True)
        assert [folded.sender for folded in Folded.objects.all()] == ["a"]
        assert not Inbox.objects.exists()

    def test_a_step_that_comes_again_overwrites_and_is_counted(self, site: Site) -> None:
        site.put(seq=1, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})
        site.fold()
        site.put(seq=2, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[2]]}})

        site.fold()

        assert site.value("step_s", [1])[0, 0] == 2
        assert Series.objects.get().rewritten == 1

    def test_gaps_are_counted_as_missing(self, site: Site) -> None:
        from apps.telemetry.selectors.senders import senders_of

        for seq in (10, 11, 15, 20):
            site.put(seq=seq, beats=[])

        site.fold()

        sender = senders_of(site.attempt_id)[0]
        assert (sender.reports, sender.missing) == (4, 7)

    def test_two_senders_keep_their_own_numbers(self, site: Site) -> None:
        site.put(sender="a", seq=1, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})
        site.put(sender="b", seq=1, steps={"ranks": [1], "steps": [1], "metrics": {"step_s": [[2]]}})

        site.fold()

        assert site.value("step_s", [1])[:2, 0].tolist() == [1, 2]
        assert Folded.objects.count() == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("steps", "reason", "count"),
        [
            ({"ranks": [0, 8], "steps": [1], "metrics": {"step_s": [[1], [1]]}}, "RANK_OUTSIDE", 1),
            ({"ranks": [0, -1], "steps": [1], "metrics": {"step_s": [[1], [1]]}}, "RANK_OUTSIDE", 1),
            ({"ranks": [0], "steps": [1, -4], "metrics": {"step_s": [[1, 1]]}}, "STEP_NEGATIVE", 1),
            ({"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]], "loss": [[1, 2]]}}, "SHAPE", 2),
            ({"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]], "loss": [["high"]]}}, "NOT_A_NUMBER", 1),
            ({"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]], "bad name": [[1]]}}, "METRIC_NAME", 1),
            ({"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]], "data_s": [[-5]]}}, "IMPOSSIBLE", 1),
            ({"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]], "loss": [[1e300]]}}, "IMPOSSIBLE", 1),
            (
                {"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}, "ended_at": ["2026-11-30T12:00:00"]},
                "TIME",
                1,
            ),
            (
                {"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}, "ended_at": ["9999-12-31T23:59:59-14:00"]},
                "TIME",
                1,
            ),
            (
                {"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}, "ended_at": ["5000-01-01T00:00:00Z"]},
                "TIME",
                1,
            ),
            (
                {"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}, "ended_at": ["10000-01-01T00:00:00Z"]},
                "TIME",
                1,
            ),
            ({"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}, "ended_at": "soon"}, "TIME", 1),
        ],
    )
    def test_one_bad_value_never_costs_the_rest(self, site: Site, steps: Any, reason: str, count: int) -> None:
        site.put(steps=steps)

        site.fold()

        row = Refusal.objects.get()
        assert (row.reason, row.count, row.sender) == (reason, count, "trn001")
        assert row.sample
        assert site.value("step_s", [1])[0, 0] == 1

    @pytest.mark.parametrize(
        "told",
        [
            "9999-12-31T23:59:59-14:00",
            "0001-01-01T00:00:00+14:00",
            "5000-01-01T00:00:00Z",
            "2026-11-30T12:00:00",
            "10000-01-01T00:00:00Z",
            "yesterday",
        ],
    )
    def test_what_has_a_time_that_cannot_be_is_kept_at_its_receipt(
        self, site: Site, run: Any, now: datetime, told: str
    ) -> None:
        site.put(
            events=[{"kind": "log", "text": "x", "happened_at": told}],
            checkpoints=[{"step": 5, "state": "SAVED", "happened_at": told}],
        )

        site.fold()

        events = events_after(StreamKey.run(run.id), after=0, limit=100)
        assert {event.happened_at for event in events if event.text == "x"} == {now}
        assert [fact.happened_at for fact in facts_of(site.attempt_id)] == [now]
        assert [save.saved_at for save in checkpoints_of(attempt_id=site.attempt_id, limit=9)] == [now]
        assert (Refusal.objects.get().reason, Refusal.objects.get().count) == ("TIME", 2)

    def test_a_place_on_a_node_that_cannot_be_called_that_is_refused_alone(self, site: Site, attempt: Any) -> None:
        site.put(placement=[{"rank": 0, "node": "n/1"}, {"rank": 1, "node": "trn009"}])

        site.fold()

        row, places = Refusal.objects.get(), placement_of(attempt.id)
        assert (row.reason, row.count) == ("NODE_NAME", 1)
        assert "none of /" in row.sample
        assert places is not None
        assert nodes_by_id({int(places.nodes[1])}).popitem()[1].name == "trn009"

    def test_a_place_of_a_rank_that_the_attempt_has_not_is_refused_and_makes_no_node(
        self, site: Site, run: Any, attempt: Any
    ) -> None:
        site.put(
            placement=[{"rank": 8, "node": "trn099"}, {"rank": 9, "node": "trn099"}, {"rank": 1, "node": "trn009"}]
        )

        site.fold()

        row, places = Refusal.objects.get(), placement_of(attempt.id)
        assert (row.reason, row.count, row.sample) == ("RANK_OUTSIDE", 2, "placement of rank 8 of 8")
        assert places is not None
        assert nodes_by_id({int(places.nodes[1])}).popitem()[1].name == "trn009"
        assert "trn099" not in {node.name for node in nodes_of(cluster_id=run.cluster_id)}

    @pytest.mark.parametrize(
        ("said", "sample"),
        [
            ({"signal": -99}, "exit of rank 3: signal -99"),
            ({"signal": 0}, "exit of rank 3: signal 0"),
            ({"signal": 200}, "exit of rank 3: signal 200"),
            ({"signal": 2**31}, "exit of rank 3: signal 2147483648"),
            ({"code": -99}, "exit of rank 3: code -99"),
            ({"code": 2**31}, "exit of rank 3: code 2147483648"),
        ],
    )
    def test_an_exit_by_a_signal_that_is_none_is_refused_and_told_of_without_it(
        self, site: Site, said: dict[str, int], sample: str
    ) -> None:
        site.put(events=[{"kind": "exit", "rank": 3, "text": "x", **said}])
        (waiting,) = facts_of(site.attempt_id)

        site.fold()

        (row,), (fact,) = Refusal.objects.all(), facts_of(site.attempt_id)
        assert (row.reason, row.count, row.sample) == ("SIGNAL", 1, sample)
        assert {(one.rank, one.code, one.signal) for one in (waiting, fact)} == {(3, None, None)}

    @pytest.mark.parametrize(
        "odd",
        [
            {"coords": {"d\x00p": 1, "tp": 2}},
            {"coords": {"pp": 2**40, "tp": 2}},
            {"local_rank": 2**40},
            {"gpu": "a\x00"},
        ],
    )
    def test_what_cannot_be_kept_of_a_place_costs_neither_the_place_nor_the_steps(
        self, site: Site, attempt: Any, odd: dict[str, Any]
    ) -> None:
        steps = {"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}}
        site.put(steps=steps, placement=[{"rank": 0, "node": "trn009", **odd}])

        site.fold()

        places = placement_of(attempt.id)
        assert site.value("step_s", [1])[0, 0] == 1
        assert (Refusal.objects.get().reason, Refusal.objects.get().count) == ("UNREADABLE", 1)
        assert places is not None
        assert nodes_by_id({int(places.nodes[0])}).popitem()[1].name == "trn009"
        assert places.coords.get("0", {}) == ({"tp": 2} if "coords" in odd else {})

    def test_a_number_that_is_none_costs_neither_its_save_nor_its_beat_nor_its_exit(
        self, site: Site, attempt: Any, now: datetime
    ) -> None:
        # As Python's own writer puts it: bare NaN and Infinity.
        parts = (
            b'"checkpoints":[{"step":5,"state":"SAVED","duration_s":NaN,"queue_s":2.5}],'
            b'"beats":[{"rank":2,"step":6,"phase":"compute","phase_age_s":NaN}],'
            b'"events":[{"kind":"exit","rank":3,"code":NaN,"signal":9}]'
        )
        site.put_raw(b'{"sender":"trn001","boot":"b","seq":1,' + parts + b"}")
        (before,), waiting = facts_of(site.attempt_id), ranks_now(site.attempt_id, now)

        site.fold()

        (save,), (fact,), folded = (
            checkpoints_of(attempt_id=attempt.id, limit=9),
            facts_of(site.attempt_id),
            ranks_now(site.attempt_id, now),
        )
        assert (save.step, save.saved_at, save.duration_s, save.queue_s) == (5, now, None, 2.5)
        assert {(one.rank, one.code, one.signal) for one in (before, fact)} == {(3, None, 9)}
        assert [(one.ranks.tolist(), one.step.tolist()) for one in (waiting, folded)] == [([2], [6])] * 2
        assert (Refusal.objects.get().reason, Refusal.objects.get().count) == ("UNREADABLE", 3)

    def test_of_whom_something_is_told_must_be_readable(self, site: Site, attempt: Any, now: datetime) -> None:
        site.put(
            checkpoints=[{"step": "nan", "state": "SAVED"}],
            beats=[{"rank": 2, "step": "nan"}],
            events=[{"kind": "exit", "rank": "nan", "code": 1}],
        )
        before = facts_of(site.attempt_id)

        site.fold()

        assert (before, facts_of(site.attempt_id), checkpoints_of(attempt_id=attempt.id, limit=9)) == ([], [], [])
        assert ranks_now(site.attempt_id, now).ranks.tolist() == []
        assert (Refusal.objects.get().reason, Refusal.objects.get().count) == ("UNREADABLE", 3)

    def test_a_clock_that_is_ahead_tells_times_that_can_be(self, site: Site, now: datetime) -> None:
        told = (now + timedelta(hours=3)).isoformat()
        site.put(sent=3 * 3600.0, events=[{"kind": "log", "text": "x", "happened_at": told}])

        site.fold()

        assert not Refusal.objects.exists()
        assert facts_of(site.attempt_id)[0].happened_at == now + timedelta(hours=3)

    def test_packed_numbers_that_do_not_fit_are_refused_and_beats_kept(self, site: Site) -> None:
        short = {"ranks": [0, 1], "steps": [1], "names": ["step_s"], "f32": base64.b64encode(b"\0" * 4).decode()}
        site.put(steps=short, beats=[{"rank": 0, "step": 3}])

        site.fold()

        assert Refusal.objects.get().reason == "SHAPE"
        assert Folded.objects.get().beats

    @pytest.mark.parametrize(
        "body", [b'{"steps": 7}', b'{"beats": {"rank": 1}}', b'{"events": [1, 2]}', b'{"placement": "x"}']
    )
    def test_a_part_of_another_form_is_refused_alone(self, site: Site, body: bytes) -> None:
        site.put_raw(body)
        site.put(seq=2, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})

        site.fold()

        assert Refusal.objects.get().reason == "UNREADABLE"
        assert site.value("step_s", [1])[0, 0] == 1

    def test_a_body_that_is_no_json_is_refused_whole(self, site: Site) -> None:
        site.put_raw(b"\xff{not json", seq=1)
        site.put(seq=2, steps={"ranks": [0], "steps": [1], "metrics": {"step_s": [[1]]}})

        site.fold()

        assert Refusal.objects.get().reason == "UNREADABLE"
        assert not Inbox.objects.exists()

    def test_a_poisoned_report_is_refused_alone_and_never_blocks(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from apps.telemetry.services.fold import attempt as fold

        whole = fold.samples_write

        def poisoned(series: Any, entries: Any, *args: Any, **more: Any) -> Any:
            if any(entry.row.sender == "poison" for entry in entries):
                raise RuntimeError("nobody foresaw this")
            return whole(series, entries, *args, **more)

        monkeypatch.setattr(fold, "samples_write", poisoned)
        for n in range(9):
            site.put(
                sender="poison" if n == 4 else f"s{n}",
                steps={"ranks": [n % 8], "steps": [n], "metrics": {"step_s": [[n + 1]]}},
            )

        done = site.fold()

        assert done.reports == 9
        assert not Inbox.objects.exists()
        assert Refusal.objects.get().sample == "RuntimeError: nobody foresaw this"
        assert [site.value("step_s", [n])[n % 8, 0] for n in range(9) if n != 4] == [n + 1 for n in range(9) if n != 4]
        assert np.isnan(site.value("step_s", [4])).all()

    def test_reports_that_all_fail_are_kept_for_a_better_fold(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from apps.telemetry.services.fold import attempt as fold

        def broken(*args: Any, **more: Any) -> Any:
            raise RuntimeError("a fault of ours")

        for n in range(5):
            site.put(sender=f"s{n}", beats=[{"rank": 1, "step": 1}])
        with monkeypatch.context() as patched:
            patched.setattr(fold, "samples_write", broken)
            with pytest.raises(NothingFolds) as told:
                site.fold()

        assert str(told.value.__cause__) == "a fault of ours"
        assert Inbox.objects.count() == 5
        assert site.fold(5).reports == 5

    def test_more_metrics_than_a_run_may_have_are_refused(self, site: Site) -> None:
        names = [f"m{n}" for n in range(70)]
        site.put(steps={"ranks": [0], "steps": [1], "metrics": {name: [[1]] for name in names}})

        site.fold()

        row = Refusal.objects.get()
        assert (row.reason, row.count) == ("METRICS_MANY", 6)
        assert site.value("m63", [1])[0, 0] == 1

    def test_a_step_too_far_ahead_is_refused_until_half_the_ranks_say_so(
        self, site: Site, later: Callable[[float], datetime]
    ) -> None:
        site.put(seq=1, steps={"ranks": list(range(8)), "steps": [100], "metrics": {"step_s": [[1]] * 8}})
        site.fold()
        for n, ranks in enumerate(([0], [0], [1, 2])):
            site.put(
                seq=2 + n, steps={"ranks": ranks, "steps": [101, 50_000], "metrics": {"step_s": [[1, 2]] * len(ranks)}}
            )
            site.fold()
        refused = Refusal.objects.get()
        assert (refused.reason, refused.count, Series.objects.get().last_step) == ("STEP_FAR", 4, 101)
        site.put(seq=9, steps={"ranks": [3], "steps": [50_000], "metrics": {"step_s": [[7]]}})

        site.fold()

        assert site.value("step_s", [50_000])[3, 0] == 7
        assert Series.objects.get().far_ranks is None


class TestSettled:
    def whole(self, site: Site, seq: int, step: int, ranks: int = 8, at: float = 0) -> None:
        site.put(
            seq=seq,
            at=at,
            steps={"ranks": list(range(ranks)), "steps": [step], "metrics": {"step_s": [[step]] * ranks}},
        )

    def test_a_column_settles_when_all_ranks_reported(self, site: Site) -> None:
        self.whole(site, 1, 5)

        assert site.fold().settled == 1
        assert columns_settled(attempt_id=site.attempt_id, after_step=None, limit=10).steps.tolist() == [5]

    def test_a_column_waits_for_its_time_and_then_for_the_inbox(self, site: Site) -> None:
        self.whole(site, 1, 5, ranks=7)
        assert site.fold(4.9).settled == 0
        assert site.fold(5.1).settled == 1

    def test_reports_received_before_the_time_was_up_are_waited_for(self, site: Site) -> None:
        self.whole(site, 1, 5, ranks=7)
        site.fold()
        site.put(seq=2, at=4, steps={"ranks": [7], "steps": [5], "metrics": {"step_s": [[5]]}})
        site.put(seq=3, at=1, body_bytes=17 * 2**20)

        first = site.fold(20, most_bytes=1000)
        second = site.fold(20)

        assert (first.settled, second.settled) == (1, 0)  # complete by the first fold: nothing is left to wait for

    def test_an_unfolded_report_received_in_time_keeps_a_column_open(self, site: Site) -> None:
        self.whole(site, 1, 5, ranks=7)
        site.fold()
        site.put(seq=2, at=4, steps={"ranks": [6], "steps": [6], "metrics": {"step_s": [[5]]}})
        site.put(seq=3, at=1, beats=[{"rank": 1, "step": 2}])

        first = site.fold(20, most_bytes=1)

        assert (first.settled, first.more) == (0, True)
        assert site.fold(20).settled == 2

    def test_columns_settle_in_order(self, site: Site) -> None:
        self.whole(site, 1, 5, ranks=7)
        self.whole(site, 2, 6)

        assert site.fold(1).settled == 0
        assert site.fold(6).settled == 2

    def test_late_values_fill_the_picture_and_not_the_past(self, site: Site) -> None:
        self.whole(site, 1, 5, ranks=7)
        site.fold(6)
        site.put(seq=2, at=7, steps={"ranks": [7], "steps": [4, 5], "metrics": {"step_s": [[4, 5]]}})

        site.fold(8)

        settled = columns_settled(attempt_id=site.attempt_id, after_step=5, limit=10)
        assert len(settled) == 0
        assert site.value("step_s", [4, 5])[7].tolist() == [4, 5]
        assert Column.objects.filter(settled_at=None).count() == 0

    def test_a_column_keeps_the_median_end(self, site: Site) -> None:
        for n, second in enumerate((1, 2, 30)):
            ended = [(site.now + timedelta(seconds=second)).isoformat()]
            site.put(
                sender=f"s{n}",
                seq=1,
                steps={"ranks": [n], "steps": [5], "ended_at": ended, "metrics": {"step_s": [[1]]}},
            )

        site.fold(6)

        settled = columns_settled(attempt_id=site.attempt_id, after_step=None, limit=10)
        assert settled.ended_at.tolist() == [(site.now + timedelta(seconds=2)).timestamp()]
        assert settled.received_at.tolist() == [site.now.timestamp()]
        assert settled.values["step_s"].shape == (8, 1)


class TestHeads:
    def test_the_run_shows_its_step_and_pace(self, site: Site, run: Any) -> None:
        from apps.runs.selectors import attempt_by_id, run_by_id

        for step in range(10, 16):
            site.put(
                seq=step,
                steps={
                    "ranks": list(range(8)),
                    "steps": [step],
                    "metrics": {"step_s": [[2.0]] * 8, "loss": [[3.5]] * 8, "tokens": [[100]] * 8},
                },
            )

        site.fold(1)

        row = run_by_id(run.id)
        assert (row.step, row.first_step, row.step_s, row.loss) == (15, 10, 2.0, 3.5)
        assert (row.ranks_reporting, row.tokens_per_s, row.last_report_at) == (8, 400.0, site.now)
        assert row.series_version == Series.objects.get().version == 1
        assert attempt_by_id(site.attempt_id).first_step_at is not None

    def test_a_fold_of_an_attempt_that_is_gone_empties_its_inbox(self, site: Site) -> None:
        site.attempt_id += 1000
        site.put(beats=[])

        inbox_fold(attempt_id=site.attempt_id, now=site.now)

        assert not Inbox.objects.exists()


def test_reports_are_json(site: Site) -> None:
    site.put(beats=[{"rank": 1, "step": 2}])

    assert orjson.loads(bytes(Inbox.objects.get().body))["beats"] == [{"rank": 1, "step": 2}]
