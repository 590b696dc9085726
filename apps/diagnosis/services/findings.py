"""From answers of detectors to findings: one row per open verdict, changed in place, versions for who reads them."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.db.models import F, QuerySet

from apps.common.errors import BadRequest, NotFound
from apps.common.tasks import queue_on_commit
from apps.diagnosis.choices import CloseReason, FindingState
from apps.diagnosis.models import Finding
from apps.diagnosis.places import place_key_of
from apps.diagnosis.services.status import MAKES_SAVES_SUSPECT, casts_doubt, doubted_from
from apps.engine.detection import Certainty, Verdict
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.services import checkpoint_trust_regain, checkpoint_trust_set

SHOWN_VICTIMS = 4096


def findings_lock(attempt_id: int) -> None:
    """Lock the open findings of an attempt for this transaction.

    Called before anything else is locked: whoever absorbs or considers a finding locks it first, too.
    """
    rows = Finding.objects.filter(attempt_id=attempt_id, state=FindingState.OPEN).order_by("pk")
    # Locked: detectors read, change and write whole rows; a mute, or how far incidents and remediation have read, that
    # was written in between would be lost.
    list(rows.select_for_update(no_key=True).values_list("pk", flat=True))


def verdict_take(
    verdict: Verdict, *, run_id: int, attempt_id: int, late: bool, log: Log, now: datetime
) -> Finding | None:
    """Open, change or close the finding that this verdict is about; return it, or None if there was nothing to close."""
    subject_key = verdict.subject.key
    row = Finding.objects.filter(
        attempt_id=attempt_id, cause=verdict.cause, subject_key=subject_key, state=FindingState.OPEN
    ).first()
    if verdict.closed is not None:
        return finding_close(row, reason=verdict.closed, verdict=verdict, log=log, now=now) if row else None
    if row is None and late and _is_known(verdict, attempt_id):
        return None
    if row is None:
        return _open(verdict, run_id=run_id, attempt_id=attempt_id, late=late, log=log, now=now)
    return _change(row, verdict, log=log, now=now)


def _is_known(verdict: Verdict, attempt_id: int) -> bool:
    """Return whether this was found before: what is found again in an attempt that is over adds nothing."""
    same = Finding.objects.filter(attempt_id=attempt_id, cause=verdict.cause, subject_key=verdict.subject.key)
    return same.exists()


def _open(verdict: Verdict, *, run_id: int, attempt_id: int, late: bool, log: Log, now: datetime) -> Finding:
    row = Finding(
        run_id=run_id,
        attempt_id=attempt_id,
        cause=verdict.cause,
        class_name=verdict.class_,
        subject_key=verdict.subject.key,
        place_key=place_key_of(verdict.subject),
        found_at=now,
        **_fields(verdict, now),
    )
    if late:
        row.state, row.closed_at, row.close_reason = FindingState.CLOSED, now, CloseReason.LATE
    row.save()
    _say(log, row, "finding.opened", f"{'Seen late: ' if late else ''}{_certain(row)}: {row.verdict}", now)
    _doubt(row)
    return row


def _doubt(row: Finding) -> None:
    """Let nobody restart by default from what a numeric finding may have got into."""
    if casts_doubt(row) and row.since_step is not None:
        checkpoint_trust_set(run_id=row.run_id, after_step=row.since_step, attempt_id=row.attempt_id)


def saves_doubt(*, run_id: int, attempt_id: int) -> None:
    """Let nobody restart by default from a save that was told of only after its attempt was over, in the midst of a fault."""
    since = doubted_from(attempt_id)
    if since is not None:
        checkpoint_trust_set(run_id=run_id, after_step=since, attempt_id=attempt_id)


def _doubt_no_more(row: Finding) -> None:
    """Trust again what was saved since a numeric finding that is over, but for what another one casts doubt on."""
    if row.cause in MAKES_SAVES_SUSPECT and row.since_step is not None:
        still = doubted_from(row.attempt_id)
        checkpoint_trust_regain(
            run_id=row.run_id, attempt_id=row.attempt_id, from_step=row.since_step, before_step=still
        )


def _change(row: Finding, verdict: Verdict, *, log: Log, now: datetime) -> Finding:
    before = {name: getattr(row, name) for name in ("level", "certainty", "proposal_kind", "proposal_node")}
    for name, value in _fields(verdict, now, known=row).items():
        setattr(row, name, value)
    changed = [name for name, value in before.items() if getattr(row, name) != value]
    if changed:
        row.version += 1
    row.save()
    if "level" in changed:
        _doubt(row)
    if "certainty" in changed and row.certainty == Certainty.CONFIRMED:
        _say(log, row, "finding.confirmed", f"{_certain(row)}: {row.verdict}", now)
    elif changed:
        _say(log, row, "finding.changed", row.verdict, now)
    return row


def finding_close(row: Finding, *, reason: str, verdict: Verdict | None, log: Log, now: datetime) -> Finding:
    """Close a finding; what was found stays its verdict, and how it ended is said where the reason stood."""
    if verdict is not None:
        ended = verdict.verdict if reason == CloseReason.RECOVERED and verdict.verdict != row.verdict else ""
        row.why, row.next = f"{ended} {verdict.why}".strip(), verdict.next
    row.state, row.closed_at, row.close_reason = FindingState.CLOSED, now, reason
    row.version += 1
    row.save()
    if reason == CloseReason.RECOVERED:
        _doubt_no_more(row)
    _say(log, row, "finding.closed", f"{said_of(row.cause, row.subject)}: {_closed_words(reason)}", now)
    return row


def findings_close(found: QuerySet[Finding], *, reason: str, log: Log, now: datetime) -> int:
    """Close what is open among some findings; return how many."""
    # Locked: what people, incidents or a detector write about them at this moment is neither lost nor undone.
    rows = list(found.filter(state=FindingState.OPEN).select_for_update(no_key=True).order_by("pk"))
    for row in rows:
        finding_close(row, reason=reason, verdict=None, log=log, now=now)
    return len(rows)


def finding_mute(
    *, finding_id: int, reason: str, until_at: datetime | None, by: str, source: str, now: datetime
) -> None:
    """Keep a finding quiet until a moment (snooze), or for good (dismiss, `until_at` None); it stays open, logged.

    Raises:
        BadRequest: no reason, or a moment that is past. NotFound: no such finding.
    """
    if len(reason.strip()) < 3:
        raise BadRequest("reason: say why in a few words; it goes into the timeline.")
    if until_at is not None and until_at <= now:
        raise BadRequest("until: must lie ahead.")
    with recording(now=now) as log:
        # Locked: two people who mute it at once are heard one after the other, the second one's words stay.
        row = Finding.objects.select_for_update(no_key=True).filter(pk=finding_id).first()
        if row is None:
            raise NotFound("There is no such finding.")
        row.muted_until_at, row.muted_for_good = until_at, until_at is None
        row.mute_reason, row.muted_by_name = reason.strip()[:2000], by
        row.version += 1
        row.save()
        log.add(
            StreamKey.run(row.run_id),
            kind="finding.dismissed" if until_at is None else "finding.snoozed",
            text=f"{said_of(row.cause, row.subject)}: {row.mute_reason}",
            source=source,
            actor_name=by,
            subject=row.subject,
            payload={"finding": row.pk, "until": until_at.isoformat() if until_at else None},
        )


def findings_dismiss(*, incident_id: int, reason: str, by: str) -> int:
    """Dismiss all findings of an incident that was a false alarm, in the caller's transaction; return how many.

    Called before the incident is locked: whoever absorbs locks a finding first, too."""
    rows = Finding.objects.filter(incident_id=incident_id, muted_for_good=False).order_by("pk")
    # Locked: what a detector writes about them at this moment is neither lost nor undone.
    ids = list(rows.select_for_update(no_key=True).values_list("pk", flat=True))
    return Finding.objects.filter(pk__in=ids).update(
        muted_for_good=True,
        muted_until_at=None,
        mute_reason=reason[:2000],
        muted_by_name=by,
        version=F("version") + 1,
    )


def findings_claim(*, limit: int, without: Collection[int] = ()) -> list[int]:
    """Return findings that incidents have not read in their present version, locked for this transaction.

    `without`: findings that are left out, because they could not be read a moment ago.
    """
    unread = Finding.objects.filter(absorbed_version__lt=F("version")).exclude(pk__in=list(without)).order_by("pk")
    # SKIP LOCKED: two absorbers share the work and never do one row twice.
    return list(unread.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True)[:limit])


def finding_absorbed(*, finding_id: int, version: int, incident_id: int | None) -> None:
    """Note that incidents have read a finding up to `version` and where it belongs."""
    row = Finding.objects.filter(pk=finding_id)
    row.update(absorbed_version=version, incident_id=incident_id)


def finding_considered(*, finding_id: int, version: int, looked_at: datetime | None, now: datetime) -> bool:
    """Note that remediation has considered a finding in `version`; False if somebody else did, who began when it had been
    looked at last at `looked_at`, too."""
    unlooked = Finding.objects.filter(pk=finding_id, considered_version__lte=version, considered_at=looked_at)
    return bool(unlooked.update(considered_version=version, considered_at=now))


def said_of(cause: str, subject: Mapping[str, Any]) -> str:
    """Return a cause and where it is; of a whole run nobody says that it is on the run.

    >>> said_of("hang", {"kind": "RUN"}), said_of("hang", {"kind": "NODE", "node": "trn017"})
    ('hang', 'hang on trn017')
    """
    return cause if subject.get("kind") == "RUN" else f"{cause} on {subject_words(subject)}"


def _closed_words(reason: str) -> str:
    return "told by another finding" if reason == CloseReason.MERGED else CloseReason(reason).label


def subject_words(subject: Mapping[str, Any]) -> str:
    """Return what a finding is about, in few words.

    >>> subject_words({"kind": "RANK", "rank": 5, "node": "trn017"})
    'rank 5 on trn017'
    """
    kind = subject.get("kind")
    if kind == "RANK":
        return f"rank {subject.get('rank')}" + (f" on {subject['node']}" if subject.get("node") else "")
    if kind == "GPU":
        return f"{subject.get('gpu') or subject.get('pci')} on {subject.get('node')}"
    if kind == "LINK":
        return " and ".join(subject.get("nodes") or ())
    if kind == "STAGE":
        return f"stage {subject.get('stage')}"
    if kind == "RUN":
        return "the run"
    return str(subject.get("node") or subject.get("place") or "the run")


def _fields(verdict: Verdict, now: datetime, known: Finding | None = None) -> dict[str, Any]:
    subject = {name: value for name, value in asdict(verdict.subject).items() if value not in (None, ())}
    confirmed = known.confirmed_at if known else None
    if verdict.certainty == Certainty.CONFIRMED and confirmed is None:
        confirmed = now
    began = datetime.fromtimestamp(verdict.began_at, UTC) if verdict.began_at is not None else None
    return {
        "level": verdict.level,
        "certainty": verdict.certainty,
        "subject": {**subject, "kind": str(verdict.subject.kind)},
        "victims": list(verdict.victims[:SHOWN_VICTIMS]),
        "score": verdict.score,
        "score_meaning": verdict.score_meaning,
        "since_step": verdict.since_step,
        "found_step": known.found_step if known else verdict.found_step,
        "began_at": began,
        "confirmed_at": confirmed,
        "coverage_have": verdict.coverage.have,
        "coverage_of": verdict.coverage.of,
        "evidence": [asdict(one) for one in verdict.evidence],
        "verdict": verdict.verdict,
        "why": verdict.why,
        "next": verdict.next,
        "proposal_kind": verdict.proposal.kind,
        "proposal_node": verdict.proposal.node or "",
        "cells": [asdict(one) for one in verdict.cells],
        "cost_s": verdict.cost_s,
    }


def _certain(row: Finding) -> str:
    return f"{row.cause} {str(row.certainty).lower()}"


def _say(log: Log, row: Finding, kind: str, text: str, now: datetime) -> None:
    queue_on_commit("incidents.findings_sweep")
    log.add(
        StreamKey.run(row.run_id),
        kind=kind,
        text=text,
        source=Source.DETECTOR,
        happened_at=now,
        subject=row.subject,
        payload={
            "finding": row.pk,
            "cause": row.cause,
            "class": row.class_name,
            "level": row.level,
            "certainty": row.certainty,
            "attempt": row.attempt_id,
            "since_step": row.since_step,
            "began_at": row.began_at.isoformat() if row.began_at else None,
        },
    )
