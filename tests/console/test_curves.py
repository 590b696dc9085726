"""A run's curves over its attempts: the newest wins, what was done again stays faint, what is not finite is a gap with a mark."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from apps.console import figures
from apps.console.selectors.charts import chart_of
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.runs.services import attempt_end, attempt_progress
from tests.telemetry.reports import Site
from tests.telemetry.values import series_write

pytestmark = pytest.mark.django_db


@pytest.fixture
def ran(run: Any, make_attempt: Callable[..., Any], now: datetime) -> Callable[[int, int, int], Any]:
    """Run an attempt from a step to before another; its loss is its number."""

    def make(number: int, first: int, end: int) -> Any:
        row = make_attempt(run, key=f"slurm:{number}.0.0")
        series_write(row.id, {"loss": np.full((8, end - first), number)}, first=first, now=now)
        attempt_progress(attempt_id=row.id, first_step=first, last_step=end - 1, now=now)
        attempt_end(attempt_id=row.id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=now)
        return row

    return make


class TestLoss:
    def test_of_a_resumed_run_goes_on_from_its_step_and_keeps_the_old_tail_faint(self, run: Any, ran: Any) -> None:
        ran(1, 1, 213)
        newest = ran(2, 201, 301)

        drawn = chart_of(run_by_id(run.id), "loss", query={}, attempt=attempt_by_id(newest.id))

        lines = {line.name: (min(line.x), max(line.x), line.line.color) for line in drawn.data}
        assert lines["attempt 1"][1] <= 200 < lines["attempt 2"][0]
        assert lines["attempt 2"][2] == figures.INK
        first, _, colour = lines["attempt 1, done again"]
        assert (first, colour) == (201, figures.RULE2)
        assert len(lines) == 3

    def test_that_is_not_finite_is_a_gap_with_a_mark_from_its_step(self, run: Any, attempt: Any, now: datetime) -> None:
        site = Site(attempt.id, now)
        told = {"ranks": list(range(8)), "steps": [4, 5, 6], "metrics": {"loss": [[2.5, "nan", "nan"]] * 8}}
        site.put(steps=told)
        site.fold()

        drawn = chart_of(run_by_id(run.id), "loss", query={}, attempt=attempt)

        assert dict(zip(drawn.data[0].x, drawn.data[0].y, strict=True)) == {4: 2.5, 5: None, 6: None}
        assert "NAN from step 5" in {note.text for note in drawn.layout.annotations}
