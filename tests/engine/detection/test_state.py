"""A state survives the store exactly, and what is no state is refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apps.engine.detection import State, StateUnreadable
from apps.engine.detectors import registry

NUMBERS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.dictionaries(
    st.text(max_size=8), st.recursive(NUMBERS | st.text(max_size=8), st.lists, max_leaves=6), max_size=4
)
ARRAYS = hnp.arrays(
    st.sampled_from([np.uint8, np.uint32, np.float16, np.float32, np.float64, np.bool_]), hnp.array_shapes(min_side=0)
)


def packed(**changes: Any) -> dict[str, Any]:
    """A written state with its one array changed."""
    state = State("hang", 1, {}, {"bad": np.arange(4, dtype=np.uint32)}).write()
    state["arrays"]["bad"] |= changes
    return state


@given(values=VALUES, array=ARRAYS)
def test_write_and_read_give_the_same_state(values: dict[str, Any], array: np.ndarray) -> None:
    state = State("hang", 3, values, {"a": array})

    back = State.read(json.loads(json.dumps(state.write(), allow_nan=False)))

    assert (back.cause, back.version, back.values) == ("hang", 3, values)
    assert back.arrays["a"].dtype == array.dtype
    assert back.arrays["a"].shape == array.shape
    assert back.arrays["a"].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"cause": "hang"},
        packed(z="AAAA"),
        packed(z="not base64 at all!"),
        packed(shape=[5]),
        packed(shape=[2**40]),
        packed(shape=[-1]),
        packed(dtype="O"),
        packed(dtype="nonsense"),
        {"cause": "hang", "version": 1, "values": [], "arrays": 7},
    ],
)
def test_what_was_not_written_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(StateUnreadable):
        State.read(broken)


def test_a_state_of_an_older_detector_is_forgotten_and_of_another_cause_refused() -> None:
    hang = registry()["hang"]

    assert hang.state_read(None).write() == hang.state_fresh().write()
    assert hang.state_read(State("hang", 0, {"newest": 3}).write()).values == {}
    with pytest.raises(StateUnreadable):
        hang.state_read(State("rank_lost", 1).write())
