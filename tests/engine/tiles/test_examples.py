"""The examples in the docstrings say the truth, and turning arrays over loses nothing."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import apps.engine.tiles
from apps.engine.tiles.turning import roomy, turned

MODULES = ["apps.engine.checks", "apps.engine.errors"] + [
    f"apps.engine.tiles.{module.name}" for module in pkgutil.iter_modules(apps.engine.tiles.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_every_example_gives_what_it_says(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (64, 1024), (1024, 64), (3, 512), (64, 1000)])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int32])
def test_an_array_turned_over_is_its_transpose(shape, dtype):
    array = (np.arange(np.prod(shape)) % 7).astype(dtype).reshape(shape)

    for given in (array, np.asfortranarray(array), array[:, ::2]):
        found = turned(given)
        np.testing.assert_array_equal(found, given.T)
        assert found.flags.c_contiguous


def test_room_behind_lines_is_not_part_of_the_array():
    lines = roomy(3, 1024, np.float32(7))

    assert lines.shape == (3, 1024)
    assert lines.strides == (4 * 1024 + 64, 4)
    assert (lines == 7).all()
