"""What tests of pages start from: a run in trouble, made through the services that make one in real life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from apps.engine.detection import (
    Cells,
    Certainty,
    Class,
    Coverage,
    Evidence,
    Level,
    Proposal,
    ProposalKind,
    Subject,
    SubjectKind,
    Verdict,
)

HOT = Verdict(
    cause="thermal_throttle",
    class_=Class.COMPUTE,
    level=Level.WARNING,
    certainty=Certainty.CONFIRMED,
    subject=Subject(SubjectKind.NODE, node="trn001"),
    score=1.25,
    score_meaning="times its peers",
    verdict="trn001 runs hot and holds 4 other GPUs back: every step takes 1.77 s longer.",
    why="Its 4 ranks compute 8.82 s a step, 4 peers take 7.05 s. All 4 GPUs report HW thermal slowdown.",
    next="Save a checkpoint, then exclude trn001 and restart.",
    coverage=Coverage(4, 4),
    since_step=100,
    found_step=110,
    victims=(4, 5, 6, 7),
    evidence=(Evidence("compute", 8.82, "s", 7.05), Evidence("arrived last", 0.97, "share", 0.0)),
    proposal=Proposal(ProposalKind.EXCLUDE_NODE, "trn001"),
    cells=(Cells("compute_s", (0, 1, 2, 3), tuple(range(100, 111))),),
    cost_s=1.77,
)
"""One node throttles on heat: the mock's trouble, on eight ranks."""


@pytest.fixture
def find(attempt: Any, now: datetime) -> Callable[..., Any]:
    """Let a detector find something: `find(level=Level.CRITICAL)` gives the finding, absorbed into its incident."""
    from apps.diagnosis.services.findings import verdict_take
    from apps.incidents.services import findings_absorb
    from apps.journal.services import recording

    def make(said: Verdict = HOT, *, at: datetime | None = None, **more: Any) -> Any:
        moment = at or now
        said = replace(said, **({"began_at": moment.timestamp() - 67} | more))
        with recording(now=moment) as log:
            row = verdict_take(said, run_id=attempt.run_id, attempt_id=attempt.id, late=False, log=log, now=moment)
        findings_absorb(now=moment)
        return row

    return make


@pytest.fixture
def incident(find: Callable[..., Any], now: datetime) -> Any:
    """The incident of a node that throttles: its row."""
    from apps.incidents.selectors import incidents_of

    find()
    return incidents_of(now=now)[0]


@pytest.fixture
def pace(attempt: Any, now: datetime) -> Any:
    """The run goes at 11.19 s a step, its own best is 9.42 s, a checkpoint stands at step 90 of 120."""
    from datetime import timedelta

    from apps.runs.selectors import run_by_id
    from apps.runs.services import CheckpointFact, checkpoint_note, status_update

    status_update(
        run_id=attempt.run_id,
        step=120,
        first_step=0,
        step_s=11.19,
        own_best_step_s=9.42,
        slow=True,
        slow_since_at=now - timedelta(minutes=18),
        last_report_at=now,
        ranks_reporting=8,
    )
    for state, at in (("STARTED", -340), ("SAVED", -192)):
        fact = CheckpointFact(
            step=90,
            state=state,
            happened_at=now + timedelta(seconds=at),
            duration_s=148.0,
            queue_s=132.0,
            blocking_s=12.0,
        )
        checkpoint_note(attempt_id=attempt.id, fact=fact, source="SENDER", actor_name="", now=now)
    return run_by_id(attempt.run_id)


@pytest.fixture
def site(live_site: Any, settings: Any) -> Iterator[Any]:
    """A live site that hears the pokes of what this test writes: both use one prefix of the channel layer."""
    from channels.layers import channel_layers

    layers = settings.CHANNEL_LAYERS
    config = {**layers["default"]["CONFIG"], "prefix": live_site.environment["PACELINE_CHANNEL_PREFIX"]}
    settings.CHANNEL_LAYERS = {"default": {**layers["default"], "CONFIG": config}}
    channel_layers.backends.clear()
    yield live_site
    channel_layers.backends.clear()


@pytest.fixture
def elsewhere(site: Any) -> Iterator[Callable[..., Any]]:
    """Do something in another thread, as a worker would: this thread holds the browser driver's event loop."""
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connections

    def there(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return act(*arguments, **named)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as pool:
        yield lambda act, *arguments, **named: pool.submit(there, act, *arguments, **named).result(timeout=60)
