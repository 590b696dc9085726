"""The fold against a model of a dozen lines: whatever comes, in whatever order, folded in whatever portions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.telemetry.models import Column, Folded, Inbox, Series
from apps.telemetry.selectors.senders import senders_of
from tests.telemetry.reports import Site

pytestmark = pytest.mark.django_db

RANKS, STEPS = 4, 6

Cell = tuple[str, int, int]


class Model:
    """What the store must hold: by cell a value, by sender's process the numbers that were folded."""

    def __init__(self) -> None:
        self.cells: dict[Cell, float] = {}
        self.numbers: dict[tuple[str, str], set[int]] = {}
        self.boots: dict[str, list[str]] = {}

    def take(self, report: dict[str, Any]) -> None:
        """One report, as if it came alone."""
        sender, boot, seq = report["sender"], report["boot"], report["seq"]
        known = self.numbers.setdefault((sender, boot), set())
        boots = self.boots.setdefault(sender, [])
        if boot not in boots:
            boots.append(boot)
        if seq in known:
            return
        late = boots[-1] != boot or seq < max(known, default=-1)
        known.add(seq)
        for place, value in report["cells"].items():
            if not late or place not in self.cells:
                self.cells[place] = value


@st.composite
def reports(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Reports of two senders with two processes each, with repeats and gaps; each sender has ranks of its own."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        sender = draw(st.sampled_from(["a", "b"]))
        seq = draw(st.integers(0, 6))
        boot = draw(st.sampled_from(["one", "two"]))
        ranks = draw(st.sets(st.sampled_from([0, 1] if sender == "a" else [2, 3]), min_size=1))
        steps = draw(st.sets(st.integers(0, STEPS - 1), min_size=1, max_size=3))
        names = draw(st.sets(st.sampled_from(["step_s", "loss"]), min_size=1))
        # A number always carries the same report: what a sender sends again is what it sent.
        value = float(1 + seq + 10 * (boot == "two") + 100 * (sender == "b"))
        cells = {(name, rank, step): value for name in names for rank in ranks for step in steps}
        found.append({"sender": sender, "boot": boot, "seq": seq, "cells": cells, "shape": (names, ranks, steps)})
    known: dict[tuple[str, str, int], dict[str, Any]] = {}
    return [known.setdefault((r["sender"], r["boot"], r["seq"]), r) for r in found]


def put(site: Site, report: dict[str, Any], at: float) -> None:
    names, ranks, steps = report["shape"]
    value = next(iter(report["cells"].values()))
    metrics = {name: [[value] * len(steps)] * len(ranks) for name in sorted(names)}
    told = {"ranks": sorted(ranks), "steps": sorted(steps), "metrics": metrics}
    site.put(sender=report["sender"], boot=report["boot"], seq=report["seq"], at=at, steps=told)


def stored(site: Site) -> dict[Cell, float]:
    found = {}
    for name in ("step_s", "loss"):
        try:
            values = site.value(name, range(STEPS))
        except (KeyError, AssertionError):
            continue
        for rank, step in np.argwhere(~np.isnan(values)).tolist():
            found[name, rank, step] = float(values[rank, step])
    return found


@pytest.fixture
def small(make_run: Any, make_attempt: Any, now: datetime) -> Site:
    return Site(make_attempt(make_run("model"), world_size=RANKS, per_node=2).id, now)


def forget(site: Site) -> None:
    for model in (Inbox, Folded, Column, Series):
        model.objects.all().delete()


SEARCH = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@SEARCH
@given(given_reports=reports(), at_once=st.booleans())
def test_every_report_folded_alone_gives_what_the_model_gives(
    small: Site, given_reports: list[dict[str, Any]], at_once: bool
) -> None:
    forget(small)
    model = Model()

    for number, report in enumerate(given_reports):
        put(small, report, at=0.001 * number)
        small.fold(1 + number)
        model.take(report)

    assert stored(small) == model.cells
    assert {(f.sender, f.boot): f.reports for f in Folded.objects.all()} == {
        key: len(numbers) for key, numbers in model.numbers.items()
    }
    assert not Inbox.objects.exists()


@SEARCH
@given(given_reports=reports(), order=st.randoms(use_true_random=False))
def test_however_they_are_folded_nothing_is_lost_and_nothing_counted_twice(
    small: Site, given_reports: list[dict[str, Any]], order: Any
) -> None:
    forget(small)
    together = {cell for report in given_reports for cell in report["cells"]}
    numbers = {(report["sender"], report["boot"], report["seq"]) for report in given_reports}

    for number, report in enumerate(given_reports):
        put(small, report, at=0.001 * number)
        if order.random() < 0.3:
            small.fold(1 + number, most_bytes=order.choice([1, 300, 10**6]))
    while small.fold(100).more:
        pass

    held = stored(small)
    assert set(held) == together
    assert all(held[cell] in {r["cells"][cell] for r in given_reports if cell in r["cells"]} for cell in held)
    assert sum(f.reports for f in Folded.objects.all()) == len(numbers)
    assert sum(sender.reports for sender in senders_of(small.attempt_id)) == len(numbers)
