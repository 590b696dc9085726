"""After a start: does it report, from which step did it go on, and how does it end."""

from datetime import datetime

from django.db.models import Q

from apps.accounts.services import token_revoke
from apps.engine.readers.exits import exit_words
from apps.engine.readers.start_errors import launch_error
from apps.incidents.services import incidents_mitigated_by
from apps.journal.choices import Source
from apps.journal.services import Log, recording
from apps.remediation.choices import OF_NODES, ActionState, LauncherKind, LaunchState, OrderKind, OrderState
from apps.remediation.models import Action, ActionNode, Launch, Order
from apps.remediation.selectors.rows import LaunchFact
from apps.remediation.services.moving import action_lock, action_log, action_move, milestone_add
from apps.runs.choices import AttemptState, Authority, EndReason, Trust
from apps.runs.selectors import AttemptRow, RunRow, attempt_by_id, checkpoints_of, run_by_id
from apps.runs.services import attempt_end, attempt_start_error_note, run_lock

BY = "Paceline"

FIRST_REPORT_S = 300.0
"""A program that is silent for so long after its start does not use the reporter, or hangs before it: people look."""

FIRST_STEP_S = 300.0
"""What a program that reports may take to its first step before the start counts as done without a read-back."""

QUEUE_S = 600.0
"""A job that waits in a scheduler's queue for longer was started as ordered; when it runs is the scheduler's to say."""

MAY_BE_IN_A_SAVE = frozenset({"numeric_fault"})
"""Causes that a restart from a suspect save does not leave behind."""

GOODBYE_S = 10.0
"""Between a program's last report and the word of its wrapper."""


def action_watch(*, action_id: int, now: datetime) -> None:
    """End a restart whose new attempt reports, has ended, or stays silent too long; leave it alone otherwise.

    An attempt that did all its steps between two looks was a start that went well.
    """
    known = Action.objects.filter(pk=action_id, state=ActionState.RUNNING).first()
    if known is None or known.attempt_id is None or known.run_id is None:
        return
    if known.orders.exclude(kind__in=OF_NODES).exclude(state=OrderState.DONE).exists():
        return
    attempt, run = attempt_by_id(known.attempt_id), run_by_id(known.run_id)
    # By its order: a job that its scheduler put back lives on as another attempt.
    launch = Launch.objects.filter(order__action_id=action_id).order_by("-pk").first()
    if launch is None:
        return
    with recording(now=now) as log:
        if attempt.state == AttemptState.ENDED:
            _ended_early(log, known, attempt, run, launch, now=now)
            return
        if launch.launcher == LauncherKind.SLURM and launch.running_at is None and run.last_report_at is None:
            _queued(log, known, attempt, launch, now=now)
            return
        waited_s = (now - (launch.running_at or launch.started_at)).total_seconds()
        reports = run.last_report_at is not None
        if run.step is not None or (reports and waited_s > FIRST_STEP_S):
            _succeed(log, known, attempt, run, now=now)
        elif not reports and waited_s > FIRST_REPORT_S:
            where = f" as pid {launch.pid}" if launch.pid else ""
            text = f"Attempt {attempt.number} was started{where} but has not reported for {waited_s:.0f} s."
            _fail(log, action_lock(action_id), text, now=now)


def _queued(log: Log, known: Action, attempt: AttemptRow, launch: Launch, *, now: datetime) -> None:
    if (now - launch.started_at).total_seconds() <= QUEUE_S:
        return
    action = action_lock(known.pk)
    if action.state == ActionState.RUNNING:
        text = (
            f"Attempt {attempt.number} waits in the queue as job {launch.external_id}; it begins when Slurm starts it."
        )
        action_move(log, action, ActionState.SUCCEEDED, text=text, now=now)


def launch_noted(*, launch_id: int, fact: LaunchFact, now: datetime) -> None:
    """Take in that a launch is gone: its token ends, and so does its attempt, as far as its end is known."""
    if not fact.gone:
        return
    run_id = Launch.objects.values_list("run_id", flat=True).get(pk=launch_id)
    with recording(now=now):
        run_lock(run_id)  # before the launch, as whoever settles an order of the run does
        # Compare-and-set: of two who look at once, one notes it.
        changed = Launch.objects.filter(pk=launch_id, state=LaunchState.ALIVE).update(
            state=LaunchState.GONE,
            ended_at=fact.ended_at or now,
            exit_status=fact.status,
            exit_signal=fact.signal,
            last_words=fact.last_words.replace("\0", ""),
            exit_note=fact.note.replace("\0", "")[:300],
        )
        if not changed:
            return
        launch = Launch.objects.get(pk=launch_id)
        if launch.token_id is not None:
            token_revoke(token_id=launch.token_id, by=BY, source=Source.LAUNCHER, now=now)
        if _being_stopped(launch.attempt_id):
            return  # the order that stops it says how it ended
        reason, authority = _end_of(fact)
        if reason != EndReason.CANCELLED and (error := launch_error(launch.last_words, status=fact.status)):
            attempt_start_error_note(attempt_id=launch.attempt_id, text=error)
        attempt_end(
            attempt_id=launch.attempt_id,
            reason=reason,
            authority=authority,
            by="Slurm" if fact.reason else "local wrapper",
            source=Source.LAUNCHER,
            now=now,
            happened_at=fact.ended_at,
        )


def _being_stopped(attempt_id: int) -> bool:
    in_hand = Q(state__in=(OrderState.CLAIMED, OrderState.UNCERTAIN)) | Q(
        state=OrderState.WAITING, asked_at__isnull=False
    )
    return Order.objects.filter(in_hand, kind=OrderKind.STOP, attempt_id=attempt_id).exists()


def end_words(launch: Launch) -> str:
    """Return how a launch ended, for a sentence."""
    words = exit_words(launch.exit_status, launch.exit_signal) or "is gone, and nobody saw how it ended"
    return f"{words} ({launch.exit_note})" if launch.exit_note else words


def _end_of(fact: LaunchFact) -> tuple[str, str]:
    """Return reason and authority of an end. What nobody saw says nothing against those who did."""
    if fact.reason:
        return fact.reason, Authority.SCHEDULER
    if fact.status is None and fact.signal is None:
        return EndReason.UNKNOWN, Authority.SILENCE
    if fact.status == 0:
        return EndReason.FINISHED, Authority.WRAPPER
    # Somebody other than our orders asked it to stop: an order's own reason is stronger and stands already.
    return (EndReason.CANCELLED if fact.asked else EndReason.CRASHED), Authority.WRAPPER


def _succeed(log: Log, known: Action, attempt: AttemptRow, run: RunRow, *, now: datetime) -> None:
    found, asked = _went_on_from(known, attempt, run), known.resume_step
    astray = found is not None and asked is not None and found != asked
    suspect = found is not None and _is_suspect(attempt.run_id, found)
    nodes = list(ActionNode.objects.filter(action=known).values_list("node_id", flat=True))
    if not astray:
        # Incidents before the action: the order of locks. The run's status is written last (see run_lock).
        incidents_mitigated_by(
            run_id=known.run_id,
            node_ids=nodes,
            whole_run=True,
            reason=f"attempt {attempt.number} was started",
            by=known.requested_by,
            now=now,
            but_causes=MAY_BE_IN_A_SAVE if suspect else frozenset(),
        )
    action = action_lock(known.pk)
    if action.state != ActionState.RUNNING:
        return
    milestone_add(action, "reports", text=f"attempt {attempt.number} reports", now=now)
    runs = "runs" if attempt.state == AttemptState.OPEN else "ran, and finished"
    text = f"Attempt {attempt.number} {runs}. {_read_back(found, asked, suspect=suspect)}"
    if astray:
        milestone_add(action, "wrong_step", text=_read_back(found, asked, suspect=suspect), now=now)
        action_log(log, action, kind="action.wrong_step", text=text, asked=asked, found=found)
    action_move(log, action, ActionState.SUCCEEDED, text=text, now=now)


def _went_on_from(action: Action, attempt: AttemptRow, run: RunRow) -> int | None:
    """Return from which step the attempt went on, None if that cannot be read back."""
    asked = action.resume_step
    found = attempt.resumed_from_step if attempt.resume_confirmed else None
    first = run.first_step if run.first_step is not None else attempt.first_step
    if found is None and first is not None:
        # Programs count the first step after a restore as the restored one or as the next.
        found = asked if asked in (first, first - 1) else max(0, first - 1)
    return found


def _is_suspect(run_id: int, step: int) -> bool:
    rows = [row for row in checkpoints_of(run_id=run_id, step=step) if row.trust != Trust.DELETED]
    return bool(rows) and rows[0].trust == Trust.SUSPECT


def _read_back(found: int | None, asked: int | None, *, suspect: bool) -> str:
    """Return the sentence that says from which step it went on, and whether that is what it was told."""
    if found is None:
        return "From which step it went on was not read back."
    doubt = " That save is suspect." if suspect else ""
    if asked is None:
        return f"It chose step {found:,} itself, as its first report says.{doubt}"
    if found == asked:
        return f"It went on from step {found:,}, as its first report says.{doubt}"
    return f"Attention: it went on from step {found:,}, not from {asked:,} as it was told. Nothing counts as mitigated.{doubt}"


def _ended_early(log: Log, known: Action, attempt: AttemptRow, run: RunRow, launch: Launch, *, now: datetime) -> None:
    if attempt.reason == EndReason.SUPERSEDED and run.attempt_id != attempt.id:
        later = attempt_by_id(run.attempt_id) if run.attempt_id is not None else attempt
        action = action_lock(known.pk)
        if action.state == ActionState.RUNNING:
            text = f"It runs under a key of its own, as attempt {later.number}."
            action_move(log, action, ActionState.SUCCEEDED, text=text, now=now)
        return
    ended_s = (now - attempt.ended_at).total_seconds() if attempt.ended_at is not None else 0.0
    if launch.state == LaunchState.ALIVE and attempt.authority != Authority.ORDER and ended_s < GOODBYE_S:
        return  # the reporter said goodbye a moment before the wrapper: how it ended is worth waiting for
    words = end_words(launch) if launch.state == LaunchState.GONE else f"ended: {attempt.reason.lower()}"
    if attempt.reason == EndReason.FINISHED and attempt.last_step is not None:
        _succeed(log, known, attempt, run, now=now)
        return
    when = "before its first step" if attempt.last_step is None else f"after step {attempt.last_step:,}"
    text = f"Attempt {attempt.number} {words} {when}."
    if line := launch.last_words.rpartition("\n")[2].strip():
        text += f" Its last words: {line[:300]}"
    _fail(log, action_lock(known.pk), text, now=now)


def _fail(log: Log, action: Action, text: str, *, now: datetime) -> None:
    if action.state == ActionState.RUNNING:
        action_move(log, action, ActionState.FAILED, text=text, now=now)
