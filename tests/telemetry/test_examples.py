"""The examples in the docstrings of this room are true."""

import doctest
from importlib import import_module

import pytest

MODULES = (
    "selectors.changes",
    "selectors.gauges",
    "selectors.kept",
    "selectors.parts",
    "selectors.patches",
    "services.parallel",
    "services.pyramids",
    "stores.folded",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str) -> None:
    found = doctest.testmod(import_module(f"apps.telemetry.{name}"))

    assert found.attempted > 0
    assert found.failed == 0
