"""A table of steps and ranks is read in bounded pieces; what is not understood is counted."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.engine.readers import step_csv
from apps.engine.readers.step_csv import StepCsvMalformed, step_csv_blocks, step_csv_read

TRACES = Path(__file__).parents[3].parent / "shared" / "samples" / "straggler-traces"


class TestWhole:
    @pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of real traces is not there")
    @pytest.mark.parametrize(("name", "ranks", "steps"), [("AR", 16, 44), ("ST", 8, 32), ("SE", 64, 43)])
    def test_real_traces_are_read_without_rest(self, name: str, ranks: int, steps: int) -> None:
        with (TRACES / f"bytedance_{name}_compute_seconds_step_x_rank.csv").open() as lines:
            table = step_csv_read(lines)

        assert table.values.shape == (ranks, steps)
        assert table.values.dtype == np.float32
        assert np.isfinite(table.values).all()
        assert (table.not_understood, table.repeated) == (0, 0)

    @pytest.mark.parametrize("absent", ["", " ", "nan", "NaN", "null", "None", "N/A", "-", "inf", "-Infinity"])
    def test_what_is_no_finite_number_is_absent(self, absent: str) -> None:
        table = step_csv_read(["step,0,1", f"5,{absent},2.5"])

        assert np.isnan(table.values[0, 0])
        assert table.values[1, 0] == 2.5
        assert table.not_understood == 0

    def test_lines_not_understood_are_counted_and_shown_with_number_and_reason(self) -> None:
        lines = ["step,0,1", "1,2,3", "hello", "2,3", "x,1,2", "4,five,6", "-3,1,2", "6,1,2"]

        table = step_csv_read(lines)

        assert table.steps.tolist() == [1, 6]
        assert table.not_understood == 5
        assert [sample.line for sample in table.samples] == [3, 4, 5, 6, 7]
        assert "1 values where the header has 2 ranks" in table.samples[1].why
        assert "“five” is no number" in table.samples[3].why

    def test_steps_and_ranks_come_in_order_and_the_last_word_on_a_step_counts(self) -> None:
        table = step_csv_read(["step,8,0", "3,1,2", "1,3,4", "3,5,6"])

        assert table.ranks.tolist() == [0, 8]
        assert table.steps.tolist() == [1, 3]
        assert table.values.tolist() == [[4, 6], [3, 5]]
        assert table.repeated == 1

    @pytest.mark.parametrize(
        "text",
        [
            "\ufeffstep,0,1\r\n7,1,2\r\n",
            "Step;0;1\n7;1;2",
            "iteration\trank0\trank_1\n\n# a remark\n7\t1\t2\n",
            'step,"0","1"\n7,"1","2"',
        ],
    )
    def test_the_usual_dialects_are_read(self, text: str) -> None:
        table = step_csv_read(text.splitlines(keepends=True))

        assert (table.ranks.tolist(), table.steps.tolist(), table.values.tolist()) == ([0, 1], [7], [[1], [2]])


class TestRefused:
    @pytest.mark.parametrize(
        ("lines", "line"),
        [
            ([], 0),
            (["", "# only a remark"], 0),
            (["time,0,1"], 1),
            (["step"], 1),
            (["step,0,0"], 1),
            (["step,0,one"], 1),
            (["step,-1"], 1),
            (["step,99999999999"], 1),
            (["step," + 5000 * "9"], 1),
            (["step,²"], 1),
            (["", "step,0,1.5"], 2),
        ],
    )
    def test_what_is_no_table_is_refused_with_the_line(self, lines: list[str], line: int) -> None:
        with pytest.raises(StepCsvMalformed) as refused:
            step_csv_read(lines)

        assert refused.value.facts["line"] == line

    def test_a_table_in_which_no_line_is_a_step_is_refused_with_a_sample(self) -> None:
        with pytest.raises(StepCsvMalformed) as refused:
            step_csv_read(["step,0", "what is this"])

        assert refused.value.facts["sample"] == "what is this"

    def test_a_table_larger_than_asked_for_is_refused_before_it_is_held(self) -> None:
        def endless() -> Iterator[str]:
            yield "step,0,1"
            for step in range(10**12):
                yield f"{step},1,2"

        with pytest.raises(StepCsvMalformed):
            step_csv_read(endless(), most_cells=2_500)

    def test_a_line_without_end_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_csv, "MOST_LINE", 1000)

        with pytest.raises(StepCsvMalformed) as refused:
            step_csv_read(["step,0", "1," + "9" * 2000])

        assert refused.value.facts["line"] == 2


class TestStreaming:
    def test_blocks_are_bounded_and_together_the_whole(self) -> None:
        lines = ["step,0,1,2", *(f"{s},{s},{s + 1},{s + 2}" for s in range(100)), "rest"]

        blocks = list(step_csv_blocks(lines, block_cells=30))

        assert max(block.values.size for block in blocks) == 30
        assert np.concatenate([block.steps for block in blocks]).tolist() == list(range(100))
        assert (np.concatenate([block.values for block in blocks], axis=1) == step_csv_read(lines).values).all()
        assert (blocks[-1].lines, blocks[-1].not_understood) == (102, 1)

    @given(st.lists(st.text(max_size=30), max_size=20))
    def test_no_text_breaks_it_otherwise(self, lines: list[str]) -> None:
        table = step_csv_read(["step,0", "1,2.5", *lines])

        assert table.values.shape == (1, len(table.steps))
        assert table.lines <= len(lines) + 2
