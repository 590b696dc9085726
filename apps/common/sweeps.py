"""Going through many things, each of which may fail without holding up the others."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Each(Protocol):
    """Do something with each of several things; return what came of those with which it went well."""

    def __call__(self, things: Iterable[T], do: Callable[[T], R]) -> list[R]:
        """Return the results of `do`, in the order of the things."""
        ...


@contextmanager
def sweeping(failed: str) -> Iterator[Each]:
    """Give a loop in which one thing that raises holds up none of the others.

    Raises:
        ExceptionGroup: with `failed` as its words, at the very end, if any of them raised.
    """
    errors: list[Exception] = []

    def each(things: Iterable[T], do: Callable[[T], R]) -> list[R]:
        done = []
        for thing in things:
            try:
                done.append(do(thing))
            except Exception as error:
                errors.append(error)
        return done

    yield each
    if errors:
        raise ExceptionGroup(failed, errors)
