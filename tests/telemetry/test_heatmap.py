"""The rank × step picture by REST: ranges, rows, references, marks, cursors, and the packed form."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pytest
from django.test import Client

from apps.common.ids import id_write
from apps.runs.services import CheckpointFact, RankPlace, attempt_progress, checkpoint_note, placement_merge
from apps.telemetry.models import NonFinite
from tests.telemetry.values import series_write

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(api: Callable[..., Client]) -> Client:
    return api("read")


@pytest.fixture
def path(attempt: Any) -> str:
    return f"/api/v1/attempts/{id_write('att', attempt.id)}/heatmap"


def read(reader: Client, path: str, **query: Any) -> Any:
    answer = reader.get(path, {name.rstrip("_"): value for name, value in query.items()})
    assert answer.status_code == 200, answer.content
    return orjson.loads(answer.content)


def ramp(ranks: int = 8, steps: int = 20) -> np.ndarray:
    """Cells that tell their own place: rank + step / 100."""
    return (np.arange(ranks)[:, None] + np.arange(steps)[None, :] / 100).astype(np.float32)


class TestWhatIsDrawn:
    def test_shows_every_value_where_it_belongs(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": ramp()}, first=100, now=now)

        seen = read(reader, path, metric="compute_s")

        assert seen["steps"] == list(range(100, 120))
        assert np.array_equal(np.array(seen["cells"], np.float32), ramp())
        assert [row["ranks"] for row in seen["rows"]] == [[rank, rank] for rank in range(8)]
        assert [row["node"] for row in seen["rows"]] == ["trn001"] * 4 + ["trn002"] * 4
        assert seen["pooled"] == {"rows": 1, "columns": 1, "how": "max"}
        assert (seen["metric"], seen["unit"], seen["steps_per_column"]) == ("compute_s", "s", 1)

    def test_an_attempt_without_a_report_is_an_empty_picture(self, reader: Client, path: str) -> None:
        seen = read(reader, path)

        assert (seen["steps"], seen["metrics"], len(seen["rows"])) == ([], [], 8)
        assert seen["cells"] == [[]] * 8

    def test_without_a_range_it_shows_the_newest_columns(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=50)}, now=now)

        seen = read(reader, path, columns=8)

        assert seen["steps"] == list(range(42, 50))

    def test_from_is_inside_and_to_is_not(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": ramp()}, now=now)

        assert read(reader, path, from_=5, to=9)["steps"] == [5, 6, 7, 8]
        assert read(reader, path, from_=15)["steps"] == [15, 16, 17, 18, 19]
        assert read(reader, path, from_=500, to=600)["steps"] == []

    def test_pooled_columns_keep_the_worst_and_stay_where_they_are(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        cells = np.ones((8, 90), np.float32)
        cells[3, 41] = 7
        series_write(attempt.id, {"compute_s": cells, "communication_s": 8 - cells}, first=10, now=now)

        seen = read(reader, path, metric="compute_s", from_=0, columns=30)
        waits = read(reader, path, metric="communication_s", from_=0, columns=30)

        assert (seen["steps_per_column"], seen["steps"][0], len(seen["steps"])) == (4, 8, 23)
        assert seen["cells"][3][seen["steps"].index(48)] == 7
        assert waits["pooled"]["how"] == "min"
        assert waits["cells"][3][waits["steps"].index(48)] == 1

    def test_one_slow_rank_of_many_survives_in_few_rows(
        self, reader: Client, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        attempt = make_attempt(make_run("wide"), world_size=1536, per_node=8)
        cells = np.ones((1536, 4), np.float32)
        cells[1201, 2] = 2
        series_write(attempt.id, {"compute_s": cells}, now=now)

        seen = read(reader, f"/api/v1/attempts/{id_write('att', attempt.id)}/heatmap", rows=100, relative="peers")

        worst = [(row["ranks"], column) for row, line in zip(seen["rows"], seen["cells"], strict=True)
                 for column, value in enumerate(line) if value > 1]  # fmt: skip
        assert seen["pooled"]["rows"] == 16
        assert worst == [([1200, 1215], 2)]

    def test_named_ranks_are_drawn_alone_and_keep_their_peers(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": np.outer([1, 1, 1, 1, 1, 1, 3, 1], [2, 2])}, now=now)

        seen = read(reader, path, ranks="6-7,1", relative="peers")

        assert [row["ranks"][0] for row in seen["rows"]] == [1, 6, 7]
        assert seen["cells"] == [[1, 1], [3, 3], [1, 1]]
        assert seen["unit"] == "×"

    def test_rows_come_in_the_order_that_is_asked_for(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": np.outer([1, 5, 1, 4, 1, 1, 9, 1], [1, 1])}, now=now)

        assert [row["ranks"][0] for row in read(reader, path, order="slowest")["rows"]][:3] == [6, 1, 3]
        assert [row["ranks"][0] for row in read(reader, path, order="node")["rows"]] == list(range(8))

    def test_stages_are_told_and_peers_are_of_the_same_stage(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        placement_merge(
            attempt_id=attempt.id,
            places=[RankPlace(rank=rank, node_id=1, coords={"pp": rank % 2}) for rank in range(8)],
        )
        series_write(attempt.id, {"compute_s": np.outer([1, 10, 1, 10, 1, 10, 2, 10], [1])}, now=now)

        seen = read(reader, path, order="stage", relative="peers")

        assert [row["stage"] for row in seen["rows"]] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert [row["ranks"][0] for row in seen["rows"]] == [0, 2, 4, 6, 1, 3, 5, 7]
        assert [line[0] for line in seen["cells"]] == [1, 1, 1, 2, 1, 1, 1, 1]

    def test_relative_to_the_step_and_to_the_ranks_own_past(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        cells = np.outer([1, 2, 2, 2, 2, 2, 2, 2], np.ones(240)).astype(np.float32)
        cells[5, 220:] = 3
        series_write(attempt.id, {"compute_s": cells}, now=now)

        own = read(reader, path, relative="self", from_=210)
        step = read(reader, path, relative="step", from_=210)

        assert [line[-1] for line in own["cells"]] == [1, 1, 1, 1, 1, 1.5, 1, 1]
        assert [line[-1] for line in step["cells"]] == [0.5, 1, 1, 1, 1, 1.5, 1, 1]


class TestWhatIsSaidAboutColumns:
    def test_values_that_are_not_finite_are_flagged_and_their_cells_absent(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        cells = ramp(steps=10)
        cells[2, 4] = np.nan
        series = series_write(attempt.id, {"loss": cells}, first=50, now=now)
        NonFinite.objects.create(series_id=series.id, step=54, metric=series.numbers["loss"], rank=2, which="NAN")

        seen = read(reader, path, metric="loss")

        assert seen["cells"][2][4] is None
        assert seen["flags"] == [[2, 4, "NAN"]]

    def test_steps_next_to_a_start_or_a_checkpoint_are_veiled(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=20)}, first=100, now=now)
        attempt_progress(attempt_id=attempt.id, first_step=100, last_step=119, now=now)
        fact = CheckpointFact(step=110, state="STARTED", happened_at=now)
        checkpoint_note(attempt_id=attempt.id, fact=fact, source="CLIENT", actor_name="trn001", now=now)

        seen = read(reader, path)

        assert [seen["steps"][column] for column in seen["veiled"]] == [100, 101, 102, 110, 111]

    def test_steps_next_to_an_evaluation_are_veiled(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        evaluating = np.full((8, 20), np.nan)
        evaluating[:, 8] = 30.0
        series_write(attempt.id, {"compute_s": ramp(), "evaluation_s": evaluating}, now=now)

        assert read(reader, path)["veiled"] == [0, 1, 2, 8, 9]

    def test_a_step_in_which_a_rank_saved_is_veiled_with_the_next(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        saving = np.full((8, 20), np.nan)
        saving[4, 12] = 1.5
        series_write(attempt.id, {"compute_s": ramp(), "checkpoint_s": saving}, now=now)

        assert read(reader, path)["veiled"] == [0, 1, 2, 12, 13]

    def test_each_column_says_when_its_last_step_ended(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=8)}, now=now, step_s=10)

        seen = read(reader, path, columns=4, from_=0)

        start = now.timestamp() * 1000
        assert seen["ended_at"] == [start + 20_000, start + 40_000, start + 60_000, start + 80_000]

    def test_it_lists_the_attempts_metrics(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": ramp(), "tokens": ramp()}, now=now)

        listed = read(reader, path)["metrics"]

        assert [(row["name"], row["unit"], row["kind"], row["compared"], row["worst"]) for row in listed] == [
            ("compute_s", "s", "ROUNDED", True, "max"),
            ("tokens", "tokens", "EXACT", False, "max"),
        ]


class TestTimeAxis:
    def test_gaps_and_stalls_have_their_real_width(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        # Ten steps of 8 s, 64 s of nothing, then one step that took 80 s.
        series_write(attempt.id, {"compute_s": np.ones((8, 10)), "step_s": np.full((8, 10), 8)}, now=now, step_s=8)
        series_write(
            attempt.id, {"compute_s": np.full((8, 1), 9), "step_s": np.full((8, 1), 80)}, first=27, now=now, step_s=8
        )

        seen = read(reader, path, metric="compute_s", axis="time", columns=60, from_=0)

        start = now.timestamp() * 1000
        widths = {later - earlier for earlier, later in zip(seen["times"], seen["times"][1:], strict=False)}
        by_time = {(at - start) / 1000: line for at, line in zip(seen["times"], seen["cells"][3], strict=True)}
        assert widths == {4000}
        assert all(by_time[at] == 1 for at in range(4, 80, 4))
        assert all(by_time[at] is None for at in range(84, 144, 4))
        assert all(by_time[at] == 9 for at in range(148, 224, 4))
        assert seen["steps"][seen["times"].index(start + 100_000)] is None
        assert seen["steps"][seen["times"].index(start + 160_000)] == 27

    def test_a_mark_stands_where_its_step_ended(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series = series_write(attempt.id, {"loss": ramp(steps=10)}, now=now, step_s=8)
        NonFinite.objects.create(series_id=series.id, step=5, metric=series.numbers["loss"], rank=2, which="NAN")

        seen = read(reader, path, axis="time", metric="loss", columns=40)

        ((row, column, which),) = seen["flags"]
        assert (row, which) == (2, "NAN")
        assert seen["times"][column] <= (now.timestamp() + 48) * 1000 <= seen["times"][column] + 8_000

    def test_nothing_over_time_is_nothing(self, reader: Client, path: str) -> None:
        seen = read(reader, path, axis="time")

        assert (seen["times"], seen["steps"]) == ([], [])


class TestOnlyWhatChanged:
    def test_a_cursor_brings_new_columns_alone(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=10)}, now=now)
        before = read(reader, path)
        series_write(attempt.id, {"compute_s": ramp(steps=2)}, first=10, now=now)

        after = read(reader, path, since=before["cursor"])

        assert after["steps"] == [10, 11]
        assert len(after["cells"]) == 8
        assert read(reader, path, since=after["cursor"])["steps"] == []

    def test_a_cursor_brings_a_column_that_was_written_again(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=10)}, now=now)
        before = read(reader, path)
        series_write(attempt.id, {"compute_s": np.full((8, 1), 9)}, first=4, now=now)

        after = read(reader, path, since=before["cursor"])

        assert (after["steps"], after["cells"][0]) == ([4], [9])

    def test_a_hot_column_that_grows_is_read_again_and_so_are_its_ratios(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        half = np.where(np.arange(8)[:, None] < 4, 2.0, np.nan)
        series_write(attempt.id, {"compute_s": half}, now=now)
        before = read(reader, path, relative="peers")["cells"]
        series_write(attempt.id, {"compute_s": np.where(np.isnan(half), 6.0, np.nan)}, now=now)

        after = read(reader, path, relative="peers")["cells"]

        assert [line[0] for line in before] == [1, 1, 1, 1, None, None, None, None]
        assert [line[0] for line in after] == [0.5] * 4 + [1.5] * 4

    def test_a_cursor_of_another_picture_brings_everything(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=10)}, now=now)
        cursor = read(reader, path)["cursor"]

        assert len(read(reader, path, since=cursor, relative="peers")["steps"]) == 10
        assert len(read(reader, path, since="what?")["steps"]) == 10

    def test_wider_columns_mean_that_everything_comes_again(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=16)}, now=now)
        before = read(reader, path, from_=0, columns=16)
        series_write(attempt.id, {"compute_s": ramp(steps=2)}, first=16, now=now)

        after = read(reader, path, from_=0, columns=16, since=before["cursor"])

        assert (after["steps_per_column"], len(after["steps"])) == (2, 9)

    def test_nothing_new_is_answered_304(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=10)}, now=now)
        first = reader.get(path)

        same = reader.get(path, headers={"If-None-Match": first["ETag"]})
        other = reader.get(path, {"relative": "peers"}, headers={"If-None-Match": first["ETag"]})
        series_write(attempt.id, {"compute_s": ramp(steps=1)}, first=10, now=now)
        changed = reader.get(path, headers={"If-None-Match": first["ETag"]})

        assert (same.status_code, same.content) == (304, b"")
        assert (other.status_code, changed.status_code) == (200, 200)


class TestTheForm:
    def test_packed_numbers_mean_the_same_as_json(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        cells = ramp(steps=7)
        cells[1, 3] = np.nan
        series_write(attempt.id, {"compute_s": cells}, now=now)

        packed = reader.get(path, headers={"Accept": "application/octet-stream"})
        plain = read(reader, path)

        (length,) = struct.unpack_from("<I", packed.content)
        head = orjson.loads(packed.content[4 : 4 + length])
        start = -(-(4 + length) // 8) * 8
        values = np.frombuffer(packed.content, "<f4", offset=start).reshape(len(head["rows"]), len(head["steps"]))
        assert packed["Content-Type"] == "application/octet-stream"
        assert np.array_equal(values, cells, equal_nan=True)
        assert {**head, "cells": plain["cells"]} == plain

    @pytest.mark.parametrize(
        "query",
        [{"from": "9", "to": "9"}, {"from": "-1"}, {"rows": "0"}, {"columns": "x"}, {"relative": "mates"}, {"pool": "sum"},
         {"order": "age"}, {"ranks": "7-3"}, {"ranks": "a"}, {"ranks": "900"}],
    )  # fmt: skip
    def test_what_cannot_be_read_is_400(
        self, reader: Client, path: str, attempt: Any, now: datetime, query: dict[str, str]
    ) -> None:
        series_write(attempt.id, {"compute_s": ramp()}, now=now)

        answer = reader.get(path, query, headers={"Accept": "application/octet-stream"})

        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "bad_request"

    def test_an_unknown_metric_is_404_and_names_those_there_are(
        self, reader: Client, path: str, attempt: Any, now: datetime
    ) -> None:
        series_write(attempt.id, {"step_s": ramp(), "loss": ramp()}, now=now)

        answer = reader.get(path, {"metric": "colour"})

        assert answer.status_code == 404
        assert answer.json()["error"]["facts"]["metrics"] == ["loss", "step_s"]

    def test_too_many_cells_are_pooled_further(self, reader: Client, path: str, attempt: Any, now: datetime) -> None:
        series_write(attempt.id, {"compute_s": ramp(steps=1)}, now=now)
        series_write(attempt.id, {"compute_s": ramp(steps=1)}, first=9_000, now=now)

        seen = read(reader, path, from_=0, rows=4096, columns=8192)

        assert seen["steps_per_column"] == 2

    def test_another_clusters_token_sees_nothing(self, api: Callable[..., Client], path: str) -> None:
        assert api("read", cluster_id=10_000_019).get(path).status_code == 403
        assert api("report").get(path).status_code == 403
