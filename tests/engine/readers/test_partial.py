"""Of an object whose parts are partly wrong the right ones are read, and the wrong ones named."""

import doctest

import msgspec
import pytest

from apps.engine.readers import partial


class Told(msgspec.Struct):
    rank: int
    took_s: float | None = None
    text: str = ""


def read(raw: bytes) -> tuple[Told | None, dict[str, bytes]]:
    return partial.partly_read(raw, Told, about=frozenset({"rank", "text"}))


class TestPartlyRead:
    def test_every_wrong_part_is_named_and_what_nobody_asked_for_is_no_part(self) -> None:
        found, wrong = read(b'{"rank": 3, "took_s": [1], "more": {"a": 1}, "text": "x"}')

        assert found == Told(3, None, "x")
        assert wrong == {"took_s": b"[1]"}

    @pytest.mark.parametrize(
        "raw",
        [b'{"took_s": 1}', b'{"rank": "3"}', b'{"rank": 3, "text": 5}', b"[3]", b"{", b"", b"null", b"[" * 100_000],
    )
    def test_without_what_it_is_about_there_is_none(self, raw: bytes) -> None:
        assert read(raw) == (None, {})

    def test_its_example_is_true(self) -> None:
        assert doctest.testmod(partial).failed == 0
