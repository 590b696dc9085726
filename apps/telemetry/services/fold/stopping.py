"""When nothing of an owner's reports can be folded: they wait, each time longer, and everybody can see it."""

from datetime import datetime, timedelta

from django.db.models import F

from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.selectors import attempt_by_id
from apps.telemetry.choices import OwnerKind, Reason
from apps.telemetry.models import FoldStop, Inbox, Refusal
from apps.telemetry.stores.refusals import SAMPLE_LENGTH

FIRST_WAIT = timedelta(seconds=4)
LONGEST_WAIT = timedelta(seconds=60)
"""A mended fault is noticed within a minute; until then a long backlog costs one fold's tries a minute."""


def fold_turn(owner_kind: str, owner_id: int, *, now: datetime) -> int | None:
    """Return how often in a row nothing could be folded, None while the next try has to wait."""
    stop = FoldStop.objects.filter(owner_kind=owner_kind, owner_id=owner_id).first()
    if stop is None:
        return 0
    return stop.tries if stop.until_at <= now else None


def fold_stop(owner_kind: str, owner_id: int, *, error: Exception, now: datetime) -> None:
    """Put the next try off, and say in the log (once) and among the refusals what holds the reports up."""
    why = error.__cause__ or error
    sample = f"{type(why).__name__}: {why}".replace("\x00", "\ufffd")[:SAMPLE_LENGTH]
    with recording(now=now) as log:
        stop, is_new = FoldStop.objects.get_or_create(
            owner_kind=owner_kind,
            owner_id=owner_id,
            defaults={"tries": 1, "began_at": now, "until_at": now + FIRST_WAIT},
        )
        if not is_new:
            wait = min(FIRST_WAIT * 2 ** min(stop.tries, 10), LONGEST_WAIT)
            FoldStop.objects.filter(pk=stop.pk).update(tries=F("tries") + 1, until_at=now + wait)
        waiting = Inbox.objects.filter(owner_kind=owner_kind, owner_id=owner_id).count()
        Refusal.objects.update_or_create(
            scope_kind=owner_kind,
            scope_id=owner_id,
            sender="",
            reason=Reason.KEPT_WAITING,
            defaults={"count": waiting, "sample": sample, "last_at": now},
            create_defaults={"count": waiting, "sample": sample, "first_at": now, "last_at": now},
        )
        if is_new:
            text = f"{Reason.KEPT_WAITING.label} {waiting:,} wait: {sample}"
            log.add(_stream(owner_kind, owner_id), kind="telemetry.stuck", text=text, source=Source.SYSTEM)


def fold_go_on(log: Log, owner_kind: str, owner_id: int) -> None:
    """Note that reports are folded again."""
    FoldStop.objects.filter(owner_kind=owner_kind, owner_id=owner_id).delete()
    Refusal.objects.filter(scope_kind=owner_kind, scope_id=owner_id, reason=Reason.KEPT_WAITING).delete()
    text = "The reports that waited for a fault of Paceline's own are taken in"
    log.add(_stream(owner_kind, owner_id), kind="telemetry.going_on", text=text, source=Source.SYSTEM)


def _stream(owner_kind: str, owner_id: int) -> StreamKey:
    if owner_kind == OwnerKind.ATTEMPT:
        return StreamKey.run(attempt_by_id(owner_id).run_id)
    return StreamKey.cluster(owner_id)
