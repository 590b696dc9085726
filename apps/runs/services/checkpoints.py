"""Writing checkpoints and how far each can be trusted."""

from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction

from apps.journal.choices import StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import CheckpointState, Trust
from apps.runs.models import Attempt, Checkpoint, Doubt, RunStatus
from apps.runs.selectors import USABLE, checkpoint_newest_suspect, checkpoint_newest_trusted
from apps.runs.services.runs import status_update

LOCK_SPACE = 0x52 << 56
"""Of the advisory locks of attempts' saves; the first byte is this room's."""


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """One thing that was said about a save."""

    step: int
    state: str
    happened_at: datetime
    duration_s: float | None = None
    queue_s: float | None = None
    blocking_s: float | None = None
    bytes: int | None = None
    rank: int | None = None
    error: str = ""


def checkpoint_note(*, attempt_id: int, fact: CheckpointFact, source: str, actor_name: str, now: datetime) -> bool:
    """Take in what was said about a save or a restore; return whether anything changed.

    SAVED makes it COMPLETE (or SUSPECT while a numeric finding is open), a rank's WRITTEN never does; FAILED beats
    SAVED; DELETED takes it out of every default; RESTORED verifies the newest usable save of that step, whichever attempt made it.
    """
    with recording(now=now) as log:
        attempt = Attempt.objects.select_related("run").get(pk=attempt_id)
        if fact.state == CheckpointState.RESTORED:
            return _restored(log, attempt, fact, source=source, actor_name=actor_name)
        if fact.state == CheckpointState.DELETED:
            return _deleted(log, attempt, fact, source=source, actor_name=actor_name)
        if fact.state == CheckpointState.SAVED:
            saves_lock(attempt_id)
        # Locked: what two ranks say of one save at once is taken in one after the other.
        row, _ = Checkpoint.objects.select_for_update(no_key=True).get_or_create(
            attempt=attempt, step=fact.step, defaults={"run": attempt.run, "started_at": fact.happened_at}
        )
        before = (row.trust, row.shards_written, row.queue_s, row.duration_s)
        _measure(row, fact)
        if fact.state == CheckpointState.WRITTEN:
            row.shards_written += 1
        elif fact.state == CheckpointState.FAILED:
            row.trust, row.error = Trust.FAILED, fact.error[:2000]
        elif fact.state == CheckpointState.SAVED and row.trust == Trust.PENDING:
            row.trust = Trust.SUSPECT if _is_suspect(attempt, fact.step) else Trust.COMPLETE
            row.saved_at = fact.happened_at
        row.save()
        if row.trust != before[0]:
            log.add(
                StreamKey.run(attempt.run_id),
                kind=f"checkpoint.{fact.state.lower()}",
                text=_checkpoint_text(row, fact),
                source=source,
                happened_at=fact.happened_at,
                actor_name=actor_name,
                payload={
                    "attempt": attempt.pk,
                    "step": fact.step,
                    "trust": row.trust,
                    "queue_s": row.queue_s,
                    "duration_s": row.duration_s,
                },
            )
            checkpoint_status_refresh(run_id=attempt.run_id)
        return (row.trust, row.shards_written, row.queue_s, row.duration_s) != before


def saves_lock(attempt_id: int) -> None:
    """Take the turn of whoever says of an attempt's saves how far they can be trusted, to the end of the transaction.

    Closes the race of a save that is told while doubt is cast: neither sees what the other has not committed. Whoever
    writes the run's status or checkpoints in the same transaction takes it before them, after the run's turn and findings.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_SPACE | attempt_id])


def checkpoint_trust_set(*, run_id: int, after_step: int, attempt_id: int) -> int:
    """Mark an attempt's complete saves from `after_step` on as SUSPECT, those too that are told of later; return how many
    there are. Called when a numeric finding opens."""
    with transaction.atomic():
        saves_lock(attempt_id)
        _doubt(attempt_id, from_step=after_step)
        changed = Checkpoint.objects.filter(
            run_id=run_id, attempt_id=attempt_id, step__gte=after_step, trust__in=USABLE
        ).update(trust=Trust.SUSPECT)
        if changed:
            checkpoint_status_refresh(run_id=run_id)
        return changed


def checkpoint_trust_regain(*, run_id: int, attempt_id: int, from_step: int, before_step: int | None) -> int:
    """Trust an attempt's suspect saves from `from_step` on (and before `before_step`) again; return how many.

    Called when a numeric finding closes because all values are finite again: a NaN in the state would have stayed.
    """
    with transaction.atomic():
        saves_lock(attempt_id)
        Doubt.objects.filter(pk=attempt_id).delete()
        if before_step is not None:
            _doubt(attempt_id, from_step=before_step)
        found = Checkpoint.objects.filter(
            run_id=run_id, attempt_id=attempt_id, step__gte=from_step, trust=Trust.SUSPECT
        )
        if before_step is not None:
            found = found.filter(step__lt=before_step)
        changed = found.filter(restored_at__isnull=False).update(trust=Trust.VERIFIED)
        changed += found.update(trust=Trust.COMPLETE)
        if changed:
            checkpoint_status_refresh(run_id=run_id)
        return changed


def checkpoint_status_refresh(*, run_id: int) -> None:
    """Write the newest trusted checkpoint into the run's status; if there is none, the newest suspect one, called so."""
    newest = checkpoint_newest_trusted(run_id) or checkpoint_newest_suspect(run_id)
    status_update(
        run_id=run_id,
        checkpoint_step=newest.step if newest else None,
        checkpoint_at=newest.saved_at if newest else None,
        checkpoint_trust=newest.trust if newest else "",
    )


def _is_suspect(attempt: Attempt, step: int) -> bool:
    """Return whether a numeric finding casts doubt on what this attempt saves at this step.

    The run's status tells of its newest attempt alone; of each the doubt itself is kept. Doubt that is over is taken off
    every save since it began: where one still stands, it holds for what the same attempt saved later, too.
    """
    status = RunStatus.objects.filter(pk=attempt.run_id, attempt_id=attempt.pk, suspect_from_step__lte=step)
    earlier = Checkpoint.objects.filter(attempt=attempt, step__lte=step, trust=Trust.SUSPECT)
    return status.exists() or Doubt.objects.filter(pk=attempt.pk, from_step__lte=step).exists() or earlier.exists()


def _doubt(attempt_id: int, *, from_step: int) -> None:
    """Remember from which step on an attempt's saves are suspect: from the earliest one told."""
    row, is_new = Doubt.objects.get_or_create(attempt_id=attempt_id, defaults={"from_step": from_step})
    if not is_new and from_step < row.from_step:
        Doubt.objects.filter(pk=attempt_id).update(from_step=from_step)


def _measure(row: Checkpoint, fact: CheckpointFact) -> None:
    row.started_at = min(row.started_at, fact.happened_at)
    if fact.state == CheckpointState.WRITTEN and fact.duration_s is not None:
        row.fastest_s = min(fact.duration_s, row.fastest_s if row.fastest_s is not None else fact.duration_s)
    for name in ("duration_s", "queue_s", "blocking_s", "bytes"):
        value = getattr(fact, name)
        if value is None:
            continue
        known = getattr(row, name)
        if known is None or value > known:  # the slowest shard counts
            setattr(row, name, value)
            if name == "duration_s" and fact.rank is not None:
                row.slowest_rank = fact.rank


def _checkpoint_text(row: Checkpoint, fact: CheckpointFact) -> str:
    queued = f", {row.queue_s:.1f} of {row.duration_s:.1f} s queued" if row.queue_s and row.duration_s else ""
    if row.trust == Trust.FAILED:
        return f"Checkpoint {fact.step:,} failed: {row.error or 'no reason given'}"
    if row.trust == Trust.SUSPECT:
        return f"Checkpoint {fact.step:,} saved, but suspect: a numeric finding is open"
    return f"Checkpoint {fact.step:,} complete{queued}"


def _restored(log: Log, attempt: Attempt, fact: CheckpointFact, *, source: str, actor_name: str) -> bool:
    if attempt.resume_confirmed and attempt.resumed_from_step == fact.step:
        return False
    # Locked: a failure that is told at the same moment is not overwritten.
    row = (
        Checkpoint.objects.select_for_update(no_key=True)
        .filter(run_id=attempt.run_id, step=fact.step)
        .exclude(attempt=attempt)
        .exclude(trust__in=(Trust.FAILED, Trust.DELETED))
        .order_by("-attempt_id")
        .first()
    )
    if row is not None:
        row.restored_at = fact.happened_at
        if row.trust in (Trust.PENDING, Trust.COMPLETE):
            row.trust = Trust.VERIFIED
            row.saved_at = row.saved_at or fact.happened_at
        row.save()
    # A restore fact overrides what the key's opener claimed (CONTRACT).
    Attempt.objects.filter(pk=attempt.pk).update(resumed_from_step=fact.step, resume_confirmed=True)
    status_update(run_id=attempt.run_id, resumed_from_step=fact.step)
    checkpoint_status_refresh(run_id=attempt.run_id)
    log.add(
        StreamKey.run(attempt.run_id),
        kind="checkpoint.restored",
        text=f"Attempt {attempt.number} restored step {fact.step:,}",
        source=source,
        happened_at=fact.happened_at,
        actor_name=actor_name,
        payload={"attempt": attempt.pk, "step": fact.step, "duration_s": fact.duration_s},
    )
    return True


def _deleted(log: Log, attempt: Attempt, fact: CheckpointFact, *, source: str, actor_name: str) -> bool:
    changed = (
        # What a later attempt saved anew at that step is another save: the word of an older one may come late.
        Checkpoint.objects.filter(run_id=attempt.run_id, step=fact.step, attempt__number__lte=attempt.number)
        .exclude(trust=Trust.DELETED)
        .update(trust=Trust.DELETED, deleted_at=fact.happened_at)
    )
    if changed:
        checkpoint_status_refresh(run_id=attempt.run_id)
        log.add(
            StreamKey.run(attempt.run_id),
            kind="checkpoint.deleted",
            text=f"Checkpoint {fact.step:,} deleted by rotation",
            source=source,
            happened_at=fact.happened_at,
            actor_name=actor_name,
            payload={"step": fact.step},
        )
    return bool(changed)
