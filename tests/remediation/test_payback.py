"""What a restart gives back: not what the program or its store brings along."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from apps.diagnosis.services.findings import verdict_take
from apps.engine.detection import Certainty, Class, Coverage, Level, Subject, SubjectKind, Verdict
from apps.journal.services import recording
from apps.remediation import selectors
from apps.runs.selectors import run_by_id
from apps.runs.services import attempt_end, attempt_progress, status_update


@pytest.fixture
def restarted(
    make_run: Callable[..., Any], make_attempt: Callable[..., Any], later: Callable[[float], datetime]
) -> Any:
    """A run that came back once before and now steps in 4 s, a second more than at its best."""
    run = make_run("dense-7b")
    first = make_attempt(run)
    attempt_end(attempt_id=first.id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=later(100))
    second = make_attempt(run, key="slurm:2.0.0", now=later(110))
    attempt_progress(attempt_id=second.id, first_step=101, last_step=120, now=later(460))
    status_update(run_id=run.id, step=170, first_step=101, step_s=4.0, own_best_step_s=3.0, slow=True)
    return run_by_id(run.id)


def found(run: Any, cause: str, class_: Class, *, cost_s: float, now: datetime) -> None:
    """Let a detector find something that adds so much to each step."""
    said = Verdict(
        cause=cause,
        class_=class_,
        level=Level.WARNING,
        certainty=Certainty.CONFIRMED,
        subject=Subject(SubjectKind.RUN),
        score=1.0,
        score_meaning="ratio",
        verdict="It takes longer.",
        why="So it was measured.",
        next="See to it.",
        coverage=Coverage(8, 8),
        cost_s=cost_s,
    )
    with recording(now=now) as log:
        verdict_take(said, run_id=run.id, attempt_id=run.attempt_id, late=False, log=log, now=now)


@pytest.mark.parametrize(
    ("cause", "class_", "lost_share"),
    [("gc_pause", Class.COORDINATION, 1 / 4), ("checkpoint_queue", Class.RECOVERY, 1 / 5)],
)
def test_what_outlasts_a_restart_costs_and_pays_nothing_back(
    restarted: Any, later: Callable[[float], datetime], cause: str, class_: Class, lost_share: float
) -> None:
    found(restarted, cause, class_, cost_s=1.0, now=later(800))

    preview = selectors.restart_preview(restarted.id, from_step=150, now=later(900))

    # A pause is inside the step's 4 s, a save's waiting comes on top of them.
    assert preview.loss_per_hour == pytest.approx(lost_share * 8)
    assert preview.price is not None
    assert preview.price.payback_s is None


def test_what_else_slows_the_run_is_paid_back_by_its_own_cost_alone(
    restarted: Any, later: Callable[[float], datetime]
) -> None:
    found(restarted, "gc_pause", Class.COORDINATION, cost_s=2.0, now=later(800))
    found(restarted, "compute_straggler", Class.COMPUTE, cost_s=1.0, now=later(800))

    preview = selectors.restart_preview(restarted.id, from_step=150, now=later(900))

    assert preview.loss_per_hour == pytest.approx(2 / 4 * 8)
    assert preview.price is not None
    assert preview.price.payback_s == pytest.approx((20 * 4 + 360) / (1 / 4))


def test_a_save_that_waits_longer_than_the_steps_between_is_no_run_that_stands(
    restarted: Any, later: Callable[[float], datetime]
) -> None:
    found(restarted, "checkpoint_queue", Class.RECOVERY, cost_s=12.0, now=later(800))

    preview = selectors.restart_preview(restarted.id, from_step=150, now=later(900))

    assert preview.loss_per_hour == pytest.approx(12 / 16 * 8)
    assert [price.moment for price in preview.prices] != ["NOW"]


def test_what_a_person_needed_to_decide_is_no_downtime_of_the_restart(
    restarted: Any, later: Callable[[float], datetime], who: Any
) -> None:
    from apps.remediation.models import Action, Order
    from apps.remediation.selectors.prices import downtime_of
    from apps.runs.models import Attempt
    from apps.runs.selectors import attempts_of

    before = downtime_of(attempts_of(restarted.id))
    asked = {
        "requested_at": later(440),
        "expires_at": later(900),
        "requested_by": who.name,
        "requested_by_key": who.key,
    }
    action = Action.objects.create(
        kind="RESTART_RUN", state="SUCCEEDED", run_id=restarted.id, reason="crashed", source="API", **asked
    )
    order = Order.objects.create(action=action, kind="LAUNCH", launcher="WEBHOOK", state="DONE", not_before=later(440))
    Attempt.objects.filter(pk=restarted.attempt_id).update(order_id=order.pk)

    after = downtime_of(attempts_of(restarted.id))

    assert before is not None
    assert after is not None
    assert (before.median_s, after.median_s) == (360.0, 20.0)
