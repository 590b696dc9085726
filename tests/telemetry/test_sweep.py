"""What the clock finds where nothing is asked for: columns whose time is up, whoever else fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from apps.telemetry.models import Column
from apps.telemetry.selectors import settled_watermark
from apps.telemetry.services.sweep import inbox_sweep
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db

STEPS = {"ranks": [0, 1], "steps": [5], "metrics": {"step_s": [[1], [2]]}}


@pytest.fixture
def site(attempt: Any, now: datetime) -> Site:
    return Site(attempt.id, now)


def test_a_column_settles_by_the_clock_though_no_report_comes_any_more(site: Site, later: Any) -> None:
    site.put(steps=STEPS)
    site.fold()

    early = inbox_sweep(now=later(1)), settled_watermark(site.attempt_id)
    late = inbox_sweep(now=later(3600)), settled_watermark(site.attempt_id)

    assert (early, late) == ((0, None), (0, 5))


def test_an_attempt_that_cannot_be_folded_holds_up_no_other(
    site: Site, make_run: Callable[..., Any], make_attempt: Callable[..., Any], now: datetime, later: Any
) -> None:
    other = Site(make_attempt(make_run("other"), key="k9").id, now)
    for one in (site, other):
        one.put(steps=STEPS)
        one.fold()
    Column.objects.filter(series__owner_id=site.attempt_id).update(ended=b"cut")

    with pytest.raises(ExceptionGroup) as failed:
        inbox_sweep(now=later(3600))

    assert failed.group_contains(ValueError, match="buffer size")
    assert (settled_watermark(site.attempt_id), settled_watermark(other.attempt_id)) == (None, 5)
