"""A run's picture out of several attempts, and an attempt's lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import orjson
import pytest
from django.test import Client

from apps.common.ids import id_write
from apps.runs.services import attempt_end, attempt_progress
from tests.telemetry.values import series_write

pytestmark = pytest.mark.django_db


def read(reader: Client, path: str, **query: Any) -> Any:
    answer = reader.get(f"/api/v1/{path}", {name.rstrip("_"): value for name, value in query.items()})
    assert answer.status_code == 200, answer.content
    return orjson.loads(answer.content)


@pytest.fixture
def reader(api: Callable[..., Client]) -> Client:
    return api("read")


@pytest.fixture
def ran(make_attempt: Callable[..., Any], run: Any, now: datetime) -> Callable[..., Any]:
    """Run an attempt from one step to before another, every cell holding the attempt's number."""

    def make(number: int, first: int, end: int, *, world_size: int = 8, value: float | None = None) -> Any:
        attempt = make_attempt(run, key=f"slurm:{number}.0.0", world_size=world_size)
        cells = np.full((world_size, end - first), number if value is None else value)
        series_write(attempt.id, {"compute_s": cells}, first=first, now=now)
        attempt_progress(attempt_id=attempt.id, first_step=first, last_step=end - 1, now=now)
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="test", source="API", now=now)
        return attempt

    return make


class TestAttemptsSideBySide:
    def test_the_newest_wins_from_its_first_step_on(self, reader: Client, ran: Callable[..., Any]) -> None:
        ran(1, 1, 213)
        ran(2, 201, 301)

        seen = read(reader, "runs/dense-7b/heatmap", from_=0)

        assert (seen["steps"][0], seen["steps"][-1], len(seen["steps"])) == (1, 300, 300)
        assert seen["attempts"] == [1] * 200 + [2] * 100
        assert seen["cells"][5] == [1] * 200 + [2] * 100
        assert seen["redone"] == []

    def test_redone_shows_how_far_the_old_attempt_went(self, reader: Client, ran: Callable[..., Any]) -> None:
        ran(1, 1, 213)
        ran(2, 201, 301)

        seen = read(reader, "runs/dense-7b/heatmap", from_=195, to=220, redone="1")

        assert seen["cells"][0] == [1] * 18 + [2] * 7
        assert [seen["steps"][column] for column in seen["redone"]] == list(range(201, 213))

    def test_a_column_that_two_attempts_share_shows_the_worse_and_no_step_twice(
        self, reader: Client, ran: Callable[..., Any]
    ) -> None:
        ran(1, 0, 40, value=5)
        ran(2, 30, 64, value=2)

        seen = read(reader, "runs/dense-7b/heatmap", from_=0, columns=16)
        mean = read(reader, "runs/dense-7b/heatmap", from_=0, columns=16, pool="min")

        assert seen["steps"] == list(range(0, 64, 4))
        assert seen["cells"][0] == [5] * 8 + [2] * 8
        assert mean["cells"][0] == [5] * 7 + [2] * 9
        assert seen["attempts"] == [1] * 7 + [2] * 9

    def test_attempts_of_other_sizes_fit_into_the_newest_ones_rows(
        self, reader: Client, ran: Callable[..., Any]
    ) -> None:
        ran(1, 0, 4, world_size=12)
        ran(2, 4, 8, world_size=6)
        ran(3, 8, 12, world_size=8)

        seen = read(reader, "runs/dense-7b/heatmap")

        assert len(seen["rows"]) == 8
        assert seen["cells"][5] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
        assert seen["cells"][7] == [1, 1, 1, 1, None, None, None, None, 3, 3, 3, 3]

    def test_an_attempt_that_has_not_reported_takes_nothing_away(
        self, reader: Client, ran: Callable[..., Any], make_attempt: Callable[..., Any], run: Any
    ) -> None:
        ran(1, 0, 4)
        make_attempt(run, key="slurm:9.0.0")

        assert read(reader, "runs/dense-7b/heatmap")["cells"][0] == [1, 1, 1, 1]

    def test_a_cursor_brings_what_the_newest_attempt_added(
        self, reader: Client, ran: Callable[..., Any], now: datetime
    ) -> None:
        ran(1, 0, 10)
        newest = ran(2, 8, 12)
        before = read(reader, "runs/dense-7b/heatmap")
        series_write(newest.id, {"compute_s": np.full((8, 1), 2)}, first=12, now=now)
        attempt_progress(attempt_id=newest.id, first_step=8, last_step=12, now=now)

        after = read(reader, "runs/dense-7b/heatmap", since=before["cursor"])

        assert (after["steps"], after["attempts"]) == ([12], [2])

    def test_over_time_the_gap_between_two_attempts_has_its_real_width(
        self, reader: Client, make_attempt: Callable[..., Any], run: Any, now: datetime
    ) -> None:
        for number, first, late_s in ((1, 0, 0), (2, 20, 900)):
            attempt = make_attempt(run, key=f"slurm:{number}.0.0")
            cells = {"compute_s": np.full((8, 20), number), "step_s": np.full((8, 20), 5)}
            series_write(attempt.id, cells, first=first, now=now + timedelta(seconds=late_s))
            attempt_progress(attempt_id=attempt.id, first_step=first, last_step=first + 19, now=now)
            attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=now)

        seen = read(reader, "runs/dense-7b/heatmap", metric="compute_s", axis="time", columns=300, from_=0)

        since = [(at - now.timestamp() * 1000) / 1000 for at in seen["times"]]
        shown = dict(zip(since, seen["cells"][0], strict=True))
        assert {value for at, value in shown.items() if 4 <= at <= 92} == {1}
        assert {value for at, value in shown.items() if 104 <= at <= 992} == {None}
        assert {value for at, value in shown.items() if 1004 <= at <= 1092} == {2}

    def test_a_run_without_attempts_is_an_empty_picture(self, reader: Client, run: Any) -> None:
        seen = read(reader, "runs/dense-7b/heatmap")

        assert (seen["rows"], seen["steps"], seen["cells"]) == ([], [], [])


class TestLines:
    def test_a_column_has_mean_median_and_worst(self, reader: Client, attempt: Any, now: datetime) -> None:
        cells = np.array([[1, 1], [1, 2], [1, 3], [5, 4]], np.float32)
        cells = np.vstack([cells, np.full((4, 2), np.nan)])
        series_write(attempt.id, {"step_s": cells, "communication_s": cells}, first=7, now=now)

        line = read(reader, f"attempts/{id_write('att', attempt.id)}/series", metric="step_s")
        waits = read(reader, f"attempts/{id_write('att', attempt.id)}/series", metric="communication_s")

        assert (line["steps"], line["mean"], line["median"], line["worst"]) == ([7, 8], [2, 2.5], [1, 2.5], [5, 4])
        assert waits["worst"] == [1, 1]
        assert line["ended_at"][0] == (now.timestamp() + 40) * 1000

    def test_wide_columns_take_each_ranks_mean(self, reader: Client, attempt: Any, now: datetime) -> None:
        cells = np.tile(np.array([1, 3], np.float32), (8, 8))
        cells[0, 5] = 9
        series_write(attempt.id, {"step_s": cells}, now=now)

        line = read(reader, f"attempts/{id_write('att', attempt.id)}/series", metric="step_s", columns=4, from_=0)

        assert (line["steps_per_column"], line["median"], line["worst"]) == (4, [2, 2, 2, 2], [3, 9, 3, 3])
        assert line["mean"][1] == pytest.approx(2 + 1.5 / 8)

    def test_an_attempt_without_values_has_an_empty_line(self, reader: Client, attempt: Any) -> None:
        line = read(reader, f"attempts/{id_write('att', attempt.id)}/series")

        assert (line["steps"], line["mean"]) == ([], [])
