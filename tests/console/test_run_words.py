"""What a run's page says where it is easily misread: a first start, one node alone, a run that stands, who began what."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apps.console import figures
from apps.console.selectors import phases
from apps.console.selectors.chain import chain_page
from apps.console.selectors.run import run_head
from apps.console.templatetags.console import worst_bar
from apps.remediation.models import Action
from apps.remediation.services.moving import action_words
from apps.runs.models import Run
from apps.runs.selectors import run_by_id
from apps.runs.services import attempt_end, status_update

pytestmark = pytest.mark.django_db


class TestFirstStart:
    def test_is_no_restart(self, run: Any, make_attempt: Any) -> None:
        before = run_by_id(status_of(run, open_action_kind="RESTART_RUN"))
        make_attempt(run)
        opened = run_by_id(run.id)
        status_update(run_id=run.id, step=3)

        assert (before.state, opened.state, run_by_id(run.id).state) == ("STARTING", "STARTING", "RESTARTING")

    def test_is_called_a_start(self, run: Any) -> None:
        row = Run.objects.get(pk=run.id)

        words = [
            action_words(Action(kind="RESTART_RUN", run=row, expected_state=state)) for state in ("QUEUED", "SLOW")
        ]

        assert words == ["start dense-7b", "restart dense-7b"]

    def test_of_a_run_that_had_finished_is_counted_as_none(self, run: Any, make_attempt: Any, later: Any) -> None:
        for number, reason in enumerate(("FINISHED", "CRASHED")):
            row = make_attempt(run, key=f"slurm:{number}.0.0", now=later(number * 100))
            attempt_end(
                attempt_id=row.id, reason=reason, authority="CLIENT", by="t", source="API", now=later(number * 100 + 50)
            )
        make_attempt(run, key="slurm:7.0.0", now=later(300))

        assert run_head(run_by_id(run.id), now=later(301)).restarts == 1

    def test_a_chain_that_goes_on_has_no_share_of_success_yet(self, run: Any, make_attempt: Any, later: Any) -> None:
        for number in range(2):
            row = make_attempt(run, key=f"slurm:{number}.0.0", now=later(number * 100))
            attempt_end(
                attempt_id=row.id,
                reason="CRASHED",
                authority="CLIENT",
                by="t",
                source="API",
                now=later(number * 100 + 50),
            )

        assert chain_page(run_by_id(run.id)).success.of == 0


def status_of(run: Any, **fields: Any) -> int:
    status_update(run_id=run.id, **fields)
    return int(run.id)


class TestStands:
    def test_nobody_says_when_a_hung_run_arrives(self, pace: Any, now: datetime) -> None:
        from apps.runs.services import run_put

        fields = {"checkpoint": {"interval_steps": 45}, "steps_planned": 5000}
        run_put(slug=pace.slug, cluster_id=pace.cluster_id, fields=fields, by="t", source="API", now=now)
        moves = run_head(run_by_id(pace.id), now=now)
        status_update(run_id=pace.id, hang="CONFIRMED")
        hangs = run_head(run_by_id(pace.id), now=now)

        assert moves.eta_at is not None
        assert moves.next_checkpoint_at is not None
        assert (hangs.eta_at, hangs.eta_best_at, hangs.next_checkpoint_at) == (None, None, None)
        assert hangs.next_checkpoint_step == moves.next_checkpoint_step


class TestPhases:
    def test_of_a_run_on_one_node_are_those_of_all_ranks(
        self, pace: Any, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(phases, "node_names", lambda placement, world: ["alone"] * world)
        values = {"step_s": np.full((2, 4), 1.0, np.float32), "compute_s": np.full((2, 4), 0.8, np.float32)}
        found = SimpleNamespace(values=values, steps=np.arange(4))

        drawn = phases.phases_of(pace, found, suspects=["alone"], slow=["alone"], now=now)

        assert [bar.name for bar in drawn.bars] == ["all ranks"]
        assert drawn.what_if is None


class TestTogether:
    def test_a_head_that_says_something_new_brings_the_suspects_of_the_same_moment(
        self, client_as: Any, viewer: Any, pace: Any
    ) -> None:
        address = "/runs/dense-7b/parts/head"
        reader = client_as(viewer)
        known = run_head(run_by_id(pace.id), now=datetime.now(pace.last_report_at.tzinfo)).word_key

        same, new = (reader.get(address, {"word": word}).text for word in (known, "ok Running"))
        other = reader.get("/runs/dense-7b/parts/suspects").text

        assert 'id="suspects" hx-swap-oob' not in same
        assert 'id="suspects" hx-swap-oob' in new
        assert other.count('id="part-head" hx-swap-oob') == 1


class TestDrawn:
    def test_only_what_is_past_the_limit_is_drawn_as_a_warning(self) -> None:
        assert ["past" in worst_bar(1.0, ratio) for ratio in (1.0, 1.2)] == [False, True]

    def test_a_count_that_stays_at_nothing_has_an_axis_from_nothing_to_one(self, now: datetime) -> None:
        times = [now - timedelta(seconds=15 * at) for at in (2, 1, 0)]

        figure = figures.gauges(times=times, worst=[0, 0, 0], median=[0, 0, 0], unit="", from_zero=True, until=now)

        assert tuple(figure.layout.yaxis.range) == (0, 1)
        assert "axis cut" not in str(figure.layout.annotations)
        assert tuple(figure.layout.xaxis.range) == (times[0], now)
