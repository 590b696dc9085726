"""Running the detectors of an attempt: state, findings and watermark in one transaction under the attempt's lock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Exists, OuterRef

from apps.diagnosis.choices import CloseReason, FindingState
from apps.diagnosis.models import DetectorState, Finding
from apps.diagnosis.selectors import run_failed
from apps.diagnosis.services.ending import attempt_end_check
from apps.diagnosis.services.findings import findings_close, findings_lock, saves_doubt
from apps.diagnosis.services.looking import RECORD, look, look_back, speaks_of_the_dead
from apps.diagnosis.services.status import best_pace_learn, run_status_refresh
from apps.diagnosis.services.windows import (
    beats_of,
    columns_of,
    nonfinite_in,
    scene_read,
    window_of,
)
from apps.engine.detection import (
    NEIGHBOUR_STEPS,
    PAUSES,
    Beats,
    Class,
    Columns,
    Detector,
    Nonfinite,
    Trigger,
)
from apps.engine.detectors import registry
from apps.journal.services import recording
from apps.runs.choices import AttemptState
from apps.runs.models import Attempt
from apps.runs.selectors import AttemptRow, attempt_by_id, run_by_id
from apps.runs.services import saves_lock
from apps.telemetry.selectors import SettledColumns, attempt_news, attempts_with_news, columns_settled, nonfinite_of
from apps.telemetry.services.news import attempt_news_seen

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

MAKE_UP = timedelta(days=1)
"""How long after its end an attempt that nobody looked at is still found by the clock; past that a report of it does it."""

LAST = "_last"
"""The row of DetectorState that says an attempt had its last look."""

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
        _behind_note(attempt_id, more=fresh >= most, known=BEHIND in states, now=now)
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
                look(detector, window, scene, row, journal=journal, now=now)
        best = best_pace_learn(attempt_id=attempt_id, columns=columns, is_slow=run.slow, now=now)
        run_status_refresh(run_by_id(run.id), attempt_id=attempt_id, best_step_s=best)
        return Looked(fresh, more=fresh >= most)


def clocks_evaluate(*, attempt_id: int, now: datetime) -> None:
    """Look at an attempt by the clock and by its facts: hang, silence, lost ranks, stale checkpoints."""
    attempt_end_check(attempt_id=attempt_id, now=now)  # before anything is locked here: it locks the attempt's row
    _by_clock(attempt_id, now=now)


def _by_clock(attempt_id: int, *, now: datetime) -> None:
    with recording(now=now) as journal:
        if not _lock(attempt_id):
            return
        findings_lock(attempt_id)
        attempt = attempt_by_id(attempt_id)
        run = run_by_id(attempt.run_id)
        scene = scene_read(run, attempt, now=now)
        unheard = not attempt.world_size  # no rank ever spoke: it may have died before it could
        beats = Beats.none(0) if unheard else beats_of(scene, now=now)
        states = {row.cause: row for row in DetectorState.objects.filter(attempt_id=attempt_id)}
        window = window_of(scene, now=now, columns=Columns.none(), beats=beats, nonfinite=Nonfinite.none())
        for detector in registry().values():
            if detector.trigger == Trigger.COLUMNS or (unheard and not detector.needs.chain):
                continue
            if attempt.state == AttemptState.ENDED and not speaks_of_the_dead(detector):
                continue  # in an attempt that is over nothing moves, beats or ages any more
            look(detector, window, scene, states.get(detector.cause), journal=journal, now=now)
        if unheard:
            return
        look_back(scene, states.get(RECORD), journal=journal, now=now)
        run_status_refresh(run_by_id(run.id), attempt_id=attempt_id, best_step_s=None)


def attempt_catch_up(*, attempt_id: int, now: datetime) -> None:
    """Look once more at an attempt that is over: reports of it were folded, or its last look was missed."""
    attempt_end_check(attempt_id=attempt_id, now=now)
    with recording(now=now):
        news = attempt_news(attempt_id)
        if not _lock(attempt_id):
            return
        findings_lock(attempt_id)
        saves_lock(attempt_id)  # after the findings and before the run's status, which the first of the looks writes
        windows_evaluate(attempt_id=attempt_id, now=now)  # what is more than one look takes is remembered (BEHIND)
        _by_clock(attempt_id, now=now)
        saves_doubt(run_id=attempt_by_id(attempt_id).run_id, attempt_id=attempt_id)
        _last_look_note(attempt_id, now=now)
        if news is not None:
            attempt_news_seen(attempt_id=attempt_id, version=news)


def _last_look_note(attempt_id: int, *, now: datetime) -> None:
    DetectorState.objects.update_or_create(attempt_id=attempt_id, cause=LAST, defaults={"evaluated_at": now})


def attempts_due(*, now: datetime) -> list[int]:
    """Return attempts that clock-driven checks look at: open ones, and those that ended a moment ago; oldest first."""
    open_or_fresh = Attempt.objects.filter(state=AttemptState.OPEN) | Attempt.objects.filter(
        ended_at__gte=now - LAST_LOOK
    )
    return list(open_or_fresh.order_by("pk").values_list("pk", flat=True))


def attempts_unseen(*, now: datetime) -> list[int]:
    """Return attempts that are over of which something was folded since they were looked at, oldest first.

    Among them are those that ended while nobody looked: their last look is made up for.
    """
    looked = DetectorState.objects.filter(attempt_id=OuterRef("pk"), cause=LAST)
    over = Attempt.objects.filter(state=AttemptState.ENDED, world_size__gt=0)
    missed = over.filter(ended_at__gte=now - MAKE_UP, ended_at__lt=now - LAST_LOOK).exclude(Exists(looked))
    return sorted({*missed.values_list("pk", flat=True), *attempts_with_news()})


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
