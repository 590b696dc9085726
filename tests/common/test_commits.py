"""What waits for the commit, and what waits for nothing: once each, and one failure is one failure."""

from functools import partial
from typing import Any

import pytest
from django.db import transaction

from apps.common.commits import on_commit_once
from apps.common.sweeps import sweeping


def roll_back() -> None:
    with transaction.atomic():
        on_commit_once("a", list)
        raise RuntimeError


@pytest.mark.django_db
class TestOnCommitOnce:
    def test_does_what_has_one_key_once(self, django_capture_on_commit_callbacks: Any) -> None:
        done: list[str] = []

        with django_capture_on_commit_callbacks(execute=True):
            for word in ("a", "a", "b"):
                on_commit_once(word, partial(done.append, word))

        assert done == ["a", "b"]

    def test_asks_again_for_what_was_rolled_back_with_its_savepoint(
        self, django_capture_on_commit_callbacks: Any
    ) -> None:
        done: list[str] = []

        with django_capture_on_commit_callbacks(execute=True):
            with pytest.raises(RuntimeError):
                roll_back()
            on_commit_once("a", partial(done.append, "a"))

        assert done == ["a"]


class TestSweeping:
    def test_goes_on_after_one_that_fails_and_says_so_at_the_end(self) -> None:
        done: list[float] = []

        with pytest.raises(ExceptionGroup, match="some were odd") as failed, sweeping("some were odd") as each:
            done += each([1, 0, 2], lambda number: 1 / number)

        assert done == [1.0, 0.5]
        assert [type(error) for error in failed.value.exceptions] == [ZeroDivisionError]

    def test_says_nothing_where_all_went_well(self) -> None:
        with sweeping("never") as each:
            assert each("ab", str.upper) == ["A", "B"]
