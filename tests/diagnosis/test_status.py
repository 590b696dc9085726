"""What open findings make of a run's state."""

from datetime import datetime
from typing import Any

import pytest

from apps.diagnosis.services.findings import verdict_take
from apps.diagnosis.services.status import run_status_refresh
from apps.engine.detection import Certainty, Class, Coverage, Level, Subject, SubjectKind, Verdict
from apps.journal.services import recording
from apps.runs.selectors import run_by_id


@pytest.mark.parametrize(
    ("cause", "class_", "level", "slow"),
    [
        ("gc_pause", Class.COORDINATION, Level.WARNING, True),
        ("checkpoint_queue", Class.RECOVERY, Level.WARNING, True),
        ("checkpoint_stale", Class.RECOVERY, Level.CRITICAL, False),
        ("numeric_fault", Class.COMPUTE, Level.WARNING, False),
        ("gc_pause", Class.COORDINATION, Level.INFO, False),
    ],
)
def test_a_run_is_slow_while_something_takes_its_time_step_after_step(
    attempt: Any, now: datetime, cause: str, class_: Class, level: Level, slow: bool
) -> None:
    said = Verdict(
        cause=cause,
        class_=class_,
        level=level,
        certainty=Certainty.CONFIRMED,
        subject=Subject(SubjectKind.RUN),
        score=1.0,
        score_meaning="ratio",
        verdict="It takes longer.",
        why="So it was measured.",
        next="See to it.",
        coverage=Coverage(8, 8),
    )
    with recording(now=now) as log:
        verdict_take(said, run_id=attempt.run_id, attempt_id=attempt.id, late=False, log=log, now=now)

        run_status_refresh(run_by_id(attempt.run_id), attempt_id=attempt.id, best_step_s=None)

    assert run_by_id(attempt.run_id).slow is slow
