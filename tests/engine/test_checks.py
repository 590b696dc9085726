"""Checks of arguments return what is right and name what is wrong."""

import numpy as np
import pytest

from apps.engine import checks
from apps.engine.errors import ArgumentInvalid, EngineError, PacelineError


class TestChecks:
    @pytest.mark.parametrize(
        ("check", "value"),
        [
            (checks.finite, float("nan")),
            (checks.finite, float("inf")),
            (checks.positive, 0.0),
            (checks.positive, float("nan")),
            (checks.not_negative, -1e-9),
            (checks.share, 1.01),
            (checks.share, -0.01),
        ],
    )
    def test_what_is_out_of_range_is_named(self, check, value):
        with pytest.raises(ArgumentInvalid) as caught:
            check("goodput", value)

        assert caught.value.facts["name"] == "goodput"

    @pytest.mark.parametrize(
        ("check", "value"),
        [(checks.finite, -3.0), (checks.positive, 1e-9), (checks.not_negative, 0.0), (checks.share, 1.0)],
    )
    def test_what_is_right_comes_back(self, check, value):
        assert check("goodput", value) == value

    def test_shapes_are_compared_where_a_length_is_given(self):
        array = np.zeros((2, 3))

        assert checks.shape("cells", array, None, 3) is array
        for expected in [(2,), (2, 4), (None, None, None)]:
            with pytest.raises(ArgumentInvalid):
                checks.shape("cells", array, *expected)

    def test_words_and_counts(self):
        assert checks.one_of("pool", "max", ("max", "min")) == "max"
        assert checks.at_least("rows", 1, 1) == 1
        with pytest.raises(ArgumentInvalid):
            checks.one_of("pool", "mode", ("max", "min"))
        with pytest.raises(ArgumentInvalid):
            checks.at_least("rows", 0, 1)


class TestErrors:
    def test_an_invalid_argument_is_the_callers_fault_and_not_worth_a_retry(self):
        error = ArgumentInvalid("rows must be at least 1.", rows=0)

        assert isinstance(error, EngineError)
        assert isinstance(error, PacelineError)
        assert (error.code, error.http_status, error.retryable) == ("argument_invalid", 422, False)
        assert (error.message, error.facts) == ("rows must be at least 1.", {"rows": 0})
