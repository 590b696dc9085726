"""What tests of telemetry need besides the common fixtures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let coroutine tests give back what they read by: a coroutine has a connection of its own, out of a small pool."""
    for item in items:
        if HERE in item.path.parents and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.obj = _giving_back(item.obj)  # type: ignore[attr-defined]


def _giving_back(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def run(*arguments: Any, **named: Any) -> None:
        try:
            await test(*arguments, **named)
        finally:
            connections.close_all()

    return run
