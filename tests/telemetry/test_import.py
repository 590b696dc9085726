"""Taking in tables: the command, what the page then shows, and bulk arrays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.common.ids import id_write
from apps.runs.selectors import attempts_of, placement_of, run_by_code
from apps.telemetry.models import HotBlock, Tile
from apps.telemetry.selectors.columns import columns_settled, settled_watermark
from apps.telemetry.services.importing import AlreadyKnown, series_import
from apps.telemetry.services.parallel import coords_of, layout_parse, order_parse, stages_by_rule

pytestmark = pytest.mark.django_db

TRACES = Path(__file__).parents[2].parent / "shared" / "samples" / "straggler-traces"
needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="needs ../shared/samples/straggler-traces, which is not here"
)


def take(*words: str) -> str:
    out = StringIO()
    call_command("attempt_import", *words, stdout=out)
    return out.getvalue()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two stages of two ranks, rank 1 half as slow again; steps with a gap, one cell empty."""
    path = tmp_path / "Small Trace.csv"
    path.write_text("step,0,1,2,3\n10,2,3,8,8\n11,2,3,8,\n40,2,3,8,8\n")
    return path


def picture(api: Callable[..., Client], run: str, **query: Any) -> Any:
    attempt = attempts_of(run_by_code(run).id)[0]
    answer = api("read").get(f"/api/v1/attempts/{id_write('att', attempt.id)}/heatmap", query)
    assert answer.status_code == 200, answer.content
    return orjson.loads(answer.content)


class TestTheCommand:
    def test_makes_an_ended_attempt_with_settled_columns(self, table: Path) -> None:
        told = take(str(table), "--layout", "dp=2,pp=2", "--ranks-per-node", "2")

        run = run_by_code("small-trace")
        (attempt,) = attempts_of(run.id)
        settled = columns_settled(attempt_id=attempt.id, after_step=None, limit=100)
        placed = placement_of(attempt.id)
        assert (run.state, attempt.state, attempt.reason, attempt.world_size) == ("FINISHED", "ENDED", "FINISHED", 4)
        assert (attempt.first_step, attempt.last_step, settled_watermark(attempt.id)) == (10, 40, 40)
        assert settled.steps.tolist() == [10, 11, 40]
        assert settled.values["compute_s"][1].tolist() == [3, 3, 3]
        assert np.isnan(settled.values["compute_s"][3, 1])
        assert placed is not None
        assert placed.stages.tolist() == [0, 0, 1, 1]
        assert len(placed.node_ids) == 2
        assert attempt.ended_at is not None
        assert attempt.started_at < attempt.ended_at
        assert "3 steps × 4 ranks, 11 values" in told
        assert "rows/s" in told
        assert HotBlock.objects.count() == 0

    def test_what_the_page_shows_is_the_table(self, table: Path, api: Callable[..., Client]) -> None:
        take(str(table), "--layout", "dp=2,pp=2")

        seen = picture(api, "small-trace", relative="peers")

        columns = [seen["steps"].index(step) for step in (10, 11, 40)]
        assert [seen["cells"][1][column] for column in columns] == pytest.approx([1.2] * 3, rel=1e-3)
        assert all(seen["cells"][2][column] == 1 for column in columns)
        assert seen["cells"][0][columns[0] + 5] is None
        assert [row["node"] for row in seen["rows"]] == ["small-trace-n001"] * 4

    def test_the_same_file_is_taken_once_unless_it_shall_be_again(self, table: Path) -> None:
        take(str(table))
        with pytest.raises(CommandError, match="is over"):
            take(str(table))

        take(str(table), "--again", "--reason", "CRASHED")

        assert [row.reason for row in attempts_of(run_by_code("small-trace").id)] == ["CRASHED", "FINISHED"]

    def test_a_run_that_is_going_on_is_left_alone(self, table: Path, attempt: Any) -> None:
        with pytest.raises(CommandError, match="has an open attempt"):
            take(str(table), "--run", "dense-7b", "--cluster", "north")

    def test_stages_can_come_from_a_file_or_from_a_rule(self, table: Path, tmp_path: Path) -> None:
        stages = tmp_path / "stages.csv"
        stages.write_text("rank,stage\n0,1\n1,1\n2,0\n3,3\n")
        take(str(table), "--run", "by-file", "--stages", str(stages))
        take(str(table), "--run", "by-rule", "--stages", "rank // 2 + 1")

        found = [placement_of(attempts_of(run_by_code(run).id)[0].id) for run in ("by-file", "by-rule")]
        assert [row.stages.tolist() for row in found if row] == [[1, 1, 0, 3], [1, 1, 2, 2]]

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--layout", "tp=2"], "it has 2 ranks"),
            (["--layout", "gpus=2"], "is none of tp="),
            (["--stages", "__import__('os')"], "is no rule"),
            (["--stages", "rank // 0"], "is no rule"),
            (["--world-size", "2"], "the file has rank 3"),
            (["--ranks-per-node", "0"], "at least 1"),
            (["--order", "pp-pp"], "each once"),
            (["--metric", "no colour"], "metric"),
        ],
    )
    def test_what_cannot_be_is_said_in_a_sentence(self, table: Path, words: list[str], sentence: str) -> None:
        with pytest.raises(CommandError, match=sentence):
            take(str(table), *words)

    def test_a_file_that_is_none_is_said_in_a_sentence(self, tmp_path: Path) -> None:
        broken = tmp_path / "x.csv"
        broken.write_text("hello\n")

        with pytest.raises(CommandError, match="header"):
            take(str(broken))
        with pytest.raises(CommandError, match="No such file"):
            take(str(tmp_path / "nowhere.csv"))

    def test_lines_and_values_that_cannot_be_are_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "odd.csv"
        path.write_text("step,0,1\n1,2,2\n1,3,3\nwhat,2\n2,-5,2\n")

        told = take(str(path))

        assert "1 lines came again" in told
        assert "1 lines were not understood (line 4" in told
        assert "1 values cannot be" in told


@needs_traces
class TestPublishedTraces:
    def test_rank_0_of_ar_is_2_35_times_its_stages_median_in_every_step(self, api: Callable[..., Client]) -> None:
        take(str(TRACES / "bytedance_AR_compute_seconds_step_x_rank.csv"), "--run", "ar", "--layout", "tp=4,dp=4,pp=4")

        seen = picture(api, "ar", relative="peers", columns="4000", order="slowest")

        rows = {
            row["ranks"][0]: [v for v in line if v is not None]
            for row, line in zip(seen["rows"], seen["cells"], strict=True)
        }
        slow = np.array(rows.pop(0))
        others = np.concatenate([values for values in rows.values() if values])
        assert seen["rows"][0]["ranks"] == [0, 0]
        assert sorted({row["stage"] for row in seen["rows"]}) == [0, 1, 2, 3]
        assert {row["node"] for row in seen["rows"]} == {f"ar-n{node:03d}" for node in range(1, 9)}
        assert len(slow) == 44
        assert np.median(slow) == pytest.approx(2.35, abs=0.02)
        assert slow.min() > 2.2
        assert others.max() < 1.1

    def test_as_a_sample_it_has_no_holes(self, api: Callable[..., Client]) -> None:
        table = str(TRACES / "bytedance_AR_compute_seconds_step_x_rank.csv")
        take(table, "--run", "ar", "--layout", "tp=4,dp=4,pp=4", "--sampled")

        seen = picture(api, "ar", relative="peers", order="stage")

        cells = np.array(seen["cells"], float)
        assert cells.shape == (16, 44)
        assert not np.isnan(cells).any()
        assert [row["stage"] for row in seen["rows"]] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
        assert [row["node"] for row in seen["rows"]][:5] == ["ar-n001", "ar-n001", "ar-n002", "ar-n002", "ar-n003"]
        assert cells[0].min() > 2.2
        assert cells[1:].max() < 1.1

    def test_stage_3_of_st_is_slow_as_a_whole_and_no_rank_in_it(self, api: Callable[..., Client]) -> None:
        take(str(TRACES / "bytedance_ST_compute_seconds_step_x_rank.csv"), "--run", "st", "--layout", "dp=2,pp=4")

        cells = np.array(picture(api, "st", relative="peers", columns="1000")["cells"], float)
        plain = np.array(picture(api, "st", columns="1000")["cells"], float)

        assert np.nanmax(np.nanmedian(cells, axis=1)) < 1.01
        assert np.nanmedian(plain[6:]) / np.nanmedian(plain[:6]) == pytest.approx(1.62, abs=0.03)

    def test_the_worst_rank_of_se_moves(self, api: Callable[..., Client]) -> None:
        take(str(TRACES / "bytedance_SE_compute_seconds_step_x_rank.csv"), "--run", "se", "--layout", "cp=2,dp=32,pp=2")

        cells = np.array(picture(api, "se", relative="peers", columns="1000")["cells"], float)

        drawn = cells[:, ~np.isnan(cells).all(axis=0)]
        worst = np.nanargmax(np.where(np.isnan(drawn), 0, drawn), axis=0)
        assert drawn.shape[1] == 43
        assert np.unique(worst, return_counts=True)[1].max() <= 6


class TestLayouts:
    def test_give_ranks_their_coordinates_in_any_order(self) -> None:
        ranks = np.array([0, 4, 17])

        usual = coords_of(ranks, layout_parse("tp=4,dp=4,pp=4"))
        other = coords_of(ranks, layout_parse("tp=4,dp=4,pp=4"), order_parse("tp-pp-dp"))

        assert [where["pp"] for where in usual] == [0, 0, 1]
        assert [where["pp"] for where in other] == [0, 1, 0]
        assert stages_by_rule("(rank // 4) % 4", ranks).tolist() == [0, 1, 0]


class TestBulkArrays:
    def test_become_tiles_that_read_as_they_were(
        self, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        attempt = make_attempt(make_run("bulk"), world_size=1100, per_node=8)
        rng = np.random.default_rng(5)
        cells = (3 + rng.random((1100, 1100))).astype(np.float32)
        steps = np.arange(200, 1300)

        series_import(
            attempt_id=attempt.id,
            steps=steps,
            metrics={"compute_s": cells},
            ended_s=now.timestamp() + steps * 3.0,
            now=now,
        )

        settled = columns_settled(attempt_id=attempt.id, after_step=None, limit=2000)
        levels = set(Tile.objects.values_list("level_columns", "level_entities", flat=False))
        assert np.allclose(settled.values["compute_s"], cells, rtol=2**-11)
        assert levels == {(column, entity) for column in (0, 1) for entity in (0, 1, 2)}

    def test_are_for_attempts_without_values(self, attempt: Any, now: datetime) -> None:
        given = {
            "steps": np.arange(3),
            "metrics": {"compute_s": np.ones((8, 3), np.float32)},
            "ended_s": np.arange(3.0),
        }
        series_import(attempt_id=attempt.id, now=now, **given)

        with pytest.raises(AlreadyKnown):
            series_import(attempt_id=attempt.id, now=now, **given)
