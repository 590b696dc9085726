"""Running the detectors of an attempt: state, findings and watermark in one transaction under the attempt's lock."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from apps.diagnosis.choices import AnswerKind, CloseReason, FindingState
from apps.diagnosis.models import DetectorState, Finding
from apps.diagnosis.services.findings import findings_close, findings_lock, verdict_take
from apps.diagnosis.services.status import best_pace_learn, run_status_refresh
from apps.diagnosis.services.windows import (
    Scene,
    beats_of,
    columns_of,
    nonfinite_in,
    run_failed,
    scene_read,
    window_of,
)
from apps.engine.detection import (
    NEIGHBOUR_STEPS,
    PAUSES,
    Answer,
    Class,
    Columns,
    Detector,
    Nonfinite,
    State,
    StateUnreadable,
    Trigger,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors import registry
from apps.journal.services import Log, recording
from apps.runs.choices import AttemptState
from apps.runs.models import Attempt
from apps.runs.selectors import AttemptRow, attempt_by_id, run_by_id
from apps.telemetry.selectors import SettledColumns, columns_settled, nonfinite_of

log = logging.getLogger(__name__)

COLUMNS_AT_ONCE = 256
CELLS_AT_ONCE = 2**20
"""What a detector sees in one window at most: bounds the memory of a catch-up (4 MiB a metric), and the time in which
nothing else is looked at."""

BEHIND = "_behind"
"""The row of DetectorState that says an attempt has more settled columns than one look takes; no cause begins like it."""

MOST_BAD = 10_000
"""Values that are not finite which one evaluation looks at; past that the picture is clear."""

LAST_LOOK = timedelta(seconds=60)
"""How long after its end an attempt is still looked at: exits and their reports come a little later than the end."""

LOCK_SPACE = 0x70_6C_64_67
"""First key of the advisory locks of diagnosis; the second is the attempt."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at settled columns did. `more`: others are settled and were not looked at yet."""

    columns: int = 0
    more: bool = False


def windows_evaluate(*, attempt_id: int, now: datetime) -> Looked:
    """Show the next settled columns of an attempt to the detectors that wait for them.

    Bounded, so that clock-driven checks come in between while an attempt has to catch up; `windows_due` names it until
    it has.
    """
    with recording(now=now) as journal:
        if not _lock(attempt_id):
            return Looked()
        findings_lock(attempt_id)
        attempt = attempt_by_id(attempt_id)
        if not attempt.world_size:
            return Looked()
        detectors = [detector for detector in registry().values() if detector.trigger == Trigger.COLUMNS]
        states = {row.cause: row for row in DetectorState.objects.filter(attempt_id=attempt_id)}
        marks = [row.watermark if (row := states.get(d.cause)) else None for d in detectors]
        after = None if None in marks else min(mark for mark in marks if mark is not None)
        most = min(COLUMNS_AT_ONCE, max(1, CELLS_AT_ONCE // attempt.world_size))
        settled = _settled(attempt_id, detectors, after=after, most=most)
        fresh = len(settled.steps) if after is None else int((settled.steps > after).sum())
        _behind_note(attempt_id, more=fresh == most, known=BEHIND in states, now=now)
        if not fresh:
            return Looked()
        run = run_by_id(attempt.run_id)
        scene = scene_read(run, attempt, now=now)
        columns = columns_of(scene, settled)
        beats = beats_of(scene, now=now)
        bad = nonfinite_in(scene, columns)
        for detector in detectors:
            row = states.get(detector.cause)
            mark = row.watermark if row and row.watermark is not None else None
            new = columns if mark is None else _after(columns, mark)
            if len(new):
                window = window_of(scene, now=now, columns=new, beats=beats, nonfinite=_between(bad, new))
                _look(detector, window, scene, row, journal=journal, now=now)
        best = best_pace_learn(attempt_id=attempt_id, columns=columns, is_slow=run.slow, now=now)
        run_status_refresh(run_by_id(run.id), attempt_id=attempt_id, best_step_s=best)
        return Looked(fresh, more=fresh == most)


def clocks_evaluate(*, attempt_id: int, now: datetime) -> None:
    """Look at an attempt by the clock and by its facts: hang, silence, lost ranks, stale checkpoints."""
    with recording(now=now) as journal:
        if not _lock(attempt_id):
            return
        findings_lock(attempt_id)
        attempt = attempt_by_id(attempt_id)
        if not attempt.world_size:
            return
        run = run_by_id(attempt.run_id)
        scene = scene_read(run, attempt, now=now)
        beats = beats_of(scene, now=now)
        states = {row.cause: row for row in DetectorState.objects.filter(attempt_id=attempt_id)}
        window = window_of(scene, now=now, columns=Columns.none(), beats=beats, nonfinite=Nonfinite.none())
        for detector in registry().values():
            if detector.trigger == Trigger.COLUMNS:
                continue
            if attempt.state == AttemptState.ENDED and not _speaks_of_the_dead(detector):
                continue  # in an attempt that is over nothing moves, beats or ages any more
            _look(detector, window, scene, states.get(detector.cause), journal=journal, now=now)
        run_status_refresh(run_by_id(run.id), attempt_id=attempt_id, best_step_s=None)


def _speaks_of_the_dead(detector: Detector) -> bool:
    """Return whether a detector has something to say of an attempt that is over: who left it, and how."""
    return detector.needs.exits and detector.class_ != Class.WATCHING


def attempts_due(*, now: datetime) -> list[int]:
    """Return attempts that clock-driven checks look at: open ones, and those that ended a moment ago; oldest first."""
    open_or_fresh = Attempt.objects.filter(state=AttemptState.OPEN) | Attempt.objects.filter(
        ended_at__gte=now - LAST_LOOK
    )
    return list(open_or_fresh.order_by("pk").values_list("pk", flat=True))


def windows_due(*, now: datetime) -> list[int]:
    """Return attempts whose settled columns are to be looked at: those the clock looks at, and those that are behind."""
    behind = DetectorState.objects.filter(cause=BEHIND).values_list("attempt_id", flat=True)
    return sorted({*attempts_due(now=now), *behind})


def attempts_settle(*, now: datetime) -> int:
    """Close the findings of attempts that are over and done with; return how many.

    What stopped a run stays open until the run moves on: a newer attempt, or an end that is no failure.
    """
    ended = Finding.objects.filter(state=FindingState.OPEN, attempt__state=AttemptState.ENDED)
    rows = Attempt.objects.filter(pk__in=ended.values("attempt_id"))
    done: list[int] = []
    for row in rows:
        attempt = attempt_by_id(row.pk)
        followed = Attempt.objects.filter(run_id=row.run_id, number__gt=row.number).exists()
        if followed or not run_failed(attempt):
            done.append(row.pk)
        else:
            _settle_stopped(attempt, now=now)
    if not done:
        return 0
    with recording(now=now) as journal:
        found = Finding.objects.filter(attempt_id__in=done)
        return findings_close(found, reason=CloseReason.ATTEMPT_ENDED, log=journal, now=now)


def _settle_stopped(attempt: AttemptRow, *, now: datetime) -> None:
    """Close what says only that a stopped attempt is quiet; what stopped it stays open."""
    if attempt.ended_at is None or now - attempt.ended_at < LAST_LOOK:
        return
    with recording(now=now) as journal:
        quiet = Finding.objects.filter(attempt_id=attempt.id, class_name=Class.WATCHING)
        findings_close(quiet, reason=CloseReason.ATTEMPT_ENDED, log=journal, now=now)


def _lock(attempt_id: int) -> bool:
    """Take the attempt's lock for this transaction; False if another process looks at it right now (it will do)."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [LOCK_SPACE, attempt_id % 2**31])
        row = cursor.fetchone()
    return bool(row and row[0])


def _behind_note(attempt_id: int, *, more: bool, known: bool, now: datetime) -> None:
    """Remember that an attempt has columns nobody looked at yet: it may be over, and then nothing else says so."""
    rows = DetectorState.objects.filter(attempt_id=attempt_id, cause=BEHIND)
    if more and not known:
        DetectorState.objects.create(attempt_id=attempt_id, cause=BEHIND, evaluated_at=now)
    elif known and not more:
        rows.delete()


def _settled(attempt_id: int, detectors: Sequence[Detector], *, after: int | None, most: int) -> SettledColumns:
    bad_metrics = {row.metric for row in nonfinite_of(attempt_id, after_step=after, limit=MOST_BAD)}
    return columns_settled(
        attempt_id=attempt_id,
        # One column that was seen before: a pause in it makes the next one no evidence.
        after_step=None if after is None else after - NEIGHBOUR_STEPS,
        limit=most if after is None else most + NEIGHBOUR_STEPS,
        metrics=sorted(_metrics(detectors) | bad_metrics),
    )


def _metrics(detectors: Iterable[Detector]) -> set[str]:
    wanted = {"step_s", *PAUSES}
    for detector in detectors:
        wanted |= {*detector.needs.metrics, *detector.needs.useful}
    return wanted


def _after(columns: Columns, step: int) -> Columns:
    first = int((columns.steps <= step).sum())
    return columns.part(first, len(columns))


def _between(bad: Nonfinite, columns: Columns) -> Nonfinite:
    inside = (bad.step >= columns.steps[0]) & (bad.step <= columns.steps[-1])
    metrics = [name for name, keep in zip(bad.metrics, inside, strict=True) if keep]
    return Nonfinite(metrics, bad.step[inside], bad.rank[inside], bad.kind[inside])


def _look(
    detector: Detector, window: Window, scene: Scene, row: DetectorState | None, *, journal: Log, now: datetime
) -> None:
    """Let one detector look; an error of its own makes it undecided and never touches its neighbours."""
    row = row or DetectorState(attempt_id=scene.attempt.id, cause=detector.cause)
    answers: tuple[Answer, ...]
    try:
        state, answers = detector.evaluate(window, _state_of(detector, row))
        row.memory = state.write()
    except Exception as error:  # arithmetic only, no database: whatever it is, the others can go on
        log.exception("detector %s failed on attempt %d", detector.cause, scene.attempt.id)
        sentence = f"This detector failed on our side ({type(error).__name__}); it is not counted as healthy."
        answers = (Undecided(detector.cause, (), ("a working detector",), sentence),)
    if len(window.columns):
        row.watermark = int(window.columns.steps[-1])
    row.evaluated_at = now
    _note(row, answers)
    row.save()
    for answer in answers:
        if isinstance(answer, Verdict):
            verdict_take(
                answer, run_id=scene.run.id, attempt_id=scene.attempt.id, late=_is_past(scene), log=journal, now=now
            )
    if not any(isinstance(answer, Verdict | Undecided) for answer in answers):
        # What a detector no longer speaks of although it looked and found nothing is over.
        forgotten = Finding.objects.filter(attempt_id=scene.attempt.id, cause=detector.cause)
        findings_close(forgotten, reason=CloseReason.RECOVERED, log=journal, now=now)


def _state_of(detector: Detector, row: DetectorState) -> State:
    """Return what a detector remembers; one whose memory cannot be read begins anew rather than never again."""
    try:
        return detector.state_read(row.memory)
    except StateUnreadable:
        log.exception("memory of detector %s of attempt %d", detector.cause, row.attempt_id)
        return detector.state_fresh()


def _is_past(scene: Scene) -> bool:
    """Return whether the attempt is over and the run has moved on: what is found now fills the record only."""
    return scene.attempt.state == AttemptState.ENDED and scene.run.attempt_id != scene.attempt.id


def _note(row: DetectorState, answers: tuple[Answer, ...]) -> None:
    first = answers[0] if answers else None
    if isinstance(first, Verdict):
        row.answer, row.have, row.lack, row.sentence = AnswerKind.VERDICT, [], [], first.verdict
    elif isinstance(first, Undecided):
        row.answer, row.have, row.lack, row.sentence = (
            AnswerKind.UNDECIDED,
            list(first.have),
            list(first.lack),
            first.sentence,
        )
    elif first is not None:
        row.answer, row.have, row.lack, row.sentence = AnswerKind.HEALTHY, list(first.have), [], first.sentence
