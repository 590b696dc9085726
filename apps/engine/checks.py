"""Checks of arguments that the engine's public functions share. Each returns its value or raises `ArgumentInvalid`."""

import math
from typing import Any

from numpy.typing import NDArray

from apps.engine.errors import ArgumentInvalid


def finite(name: str, value: float) -> float:
    """Return `value` if it is a finite number.

    >>> finite("step_s", 4.5)
    4.5
    """
    if not math.isfinite(value):
        raise ArgumentInvalid(f"{name} must be a finite number.", name=name, value=value)
    return value


def positive(name: str, value: float) -> float:
    """Return `value` if it is finite and greater than zero.

    >>> positive("interval_s", 0.0)
    Traceback (most recent call last):
    apps.engine.errors.ArgumentInvalid: interval_s must be greater than 0. (name=interval_s, value=0.0)
    """
    if finite(name, value) <= 0:
        raise ArgumentInvalid(f"{name} must be greater than 0.", name=name, value=value)
    return value


def not_negative(name: str, value: float) -> float:
    """Return `value` if it is finite and at least zero.

    >>> not_negative("age_s", 0.0)
    0.0
    """
    if finite(name, value) < 0:
        raise ArgumentInvalid(f"{name} must not be negative.", name=name, value=value)
    return value


def share(name: str, value: float) -> float:
    """Return `value` if it lies within 0..1.

    >>> share("goodput", 0.9)
    0.9
    """
    if not 0 <= finite(name, value) <= 1:
        raise ArgumentInvalid(f"{name} must lie between 0 and 1.", name=name, value=value)
    return value


def at_least(name: str, value: int, least: int) -> int:
    """Return `value` if it is an integer not below `least`.

    >>> at_least("rows", 3, 1)
    3
    """
    if value < least:
        raise ArgumentInvalid(f"{name} must be at least {least}.", name=name, value=value)
    return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return `value` if it is one of the words in `known`.

    >>> one_of("pool", "max", ("max", "min"))
    'max'
    """
    if value not in known:
        raise ArgumentInvalid(f"{name} must be one of {', '.join(known)}.", name=name, value=value)
    return value


def shape(name: str, array: NDArray[Any], *expected: int | None) -> NDArray[Any]:
    """Return `array` if its shape is `expected`; None stands for any length.

    >>> import numpy as np
    >>> shape("cells", np.zeros((2, 3)), None, 3).shape
    (2, 3)
    """
    fits = array.ndim == len(expected) and all(
        want is None or have == want for have, want in zip(array.shape, expected, strict=True)
    )
    if not fits:
        raise ArgumentInvalid(f"{name} has another shape than expected.", shape=array.shape, expected=expected)
    return array
