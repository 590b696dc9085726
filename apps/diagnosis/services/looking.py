"""One detector's look at one window: its state, its answers, the findings that come of them."""

import logging
from dataclasses import replace
from datetime import datetime

from apps.diagnosis.choices import AnswerKind, CloseReason
from apps.diagnosis.models import DetectorState, Finding
from apps.diagnosis.services.findings import findings_close, verdict_take
from apps.diagnosis.services.windows import Scene, window_of_record
from apps.engine.detection import (
    Answer,
    Class,
    Detector,
    Proposal,
    State,
    StateUnreadable,
    Trigger,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors import registry
from apps.journal.services import Log
from apps.runs.choices import AttemptState

log = logging.getLogger(__name__)

RECORD = "_record"
"""The row of DetectorState that says up to which fact about the past an attempt was looked at."""

LATE_NEXT = "Nothing to do now: it was seen late and is kept for the record."


def speaks_of_the_dead(detector: Detector) -> bool:
    """Return whether a detector has something to say of an attempt that is over: who left it, and how."""
    return detector.needs.exits and detector.class_ != Class.WATCHING


def look(
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
            _take(answer, scene, late=_is_past(scene), journal=journal, now=now)
    if not any(isinstance(answer, Verdict | Undecided) for answer in answers):
        # What a detector no longer speaks of although it looked and found nothing is over.
        forgotten = Finding.objects.filter(attempt_id=scene.attempt.id, cause=detector.cause)
        is_over = window.attempt.ended and detector.trigger != Trigger.COLUMNS  # nothing recovers after the end
        reason = CloseReason.ATTEMPT_ENDED if is_over else CloseReason.RECOVERED
        findings_close(forgotten, reason=reason, log=journal, now=now)


def look_back(scene: Scene, row: DetectorState | None, *, journal: Log, now: datetime) -> None:
    """Let the detectors look at what was told about the past, from the beginning and apart from what they remember.

    All exits are looked at together, those heard in time, too: who was first is not who was heard of first.
    """
    if scene.record_mark <= (row.watermark or 0 if row else 0):
        return
    window = window_of_record(scene, now=now)
    for detector in registry().values():
        if detector.trigger != Trigger.COLUMNS and speaks_of_the_dead(detector):
            try:
                _, answers = detector.evaluate(window, detector.state_fresh())
            except Exception:  # as in look
                log.exception("detector %s failed on the past of attempt %d", detector.cause, scene.attempt.id)
                continue
            for answer in answers:
                if isinstance(answer, Verdict) and answer.closed is None:
                    _take(answer, scene, late=True, journal=journal, now=now)
    defaults = {"watermark": scene.record_mark, "evaluated_at": now}
    DetectorState.objects.update_or_create(attempt_id=scene.attempt.id, cause=RECORD, defaults=defaults)


def _take(verdict: Verdict, scene: Scene, *, late: bool, journal: Log, now: datetime) -> None:
    if late:  # it never proposes
        verdict = replace(verdict, proposal=Proposal(), next=LATE_NEXT if verdict.closed is None else verdict.next)
    verdict_take(verdict, run_id=scene.run.id, attempt_id=scene.attempt.id, late=late, log=journal, now=now)


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
