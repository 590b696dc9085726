"""Public ids name a row, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.common.errors import NotFound
from apps.common.ids import id_read, id_write


class TestIds:
    @given(st.integers(min_value=0, max_value=2**63 - 1))
    def test_name_the_row_they_were_made_from(self, number: int) -> None:
        assert id_read("run", id_write("run", number)) == number

    @pytest.mark.parametrize(
        "text", ["", "run", "run_", "att_1", "run_!", "run_i", "run_" + "z" * 13, "run_" + "1" * 400, "RUN_1"]
    )
    def test_say_that_nothing_is_named_by_what_is_no_id(self, text: str) -> None:
        with pytest.raises(NotFound):
            id_read("run", text)
