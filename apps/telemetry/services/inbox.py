"""Putting one report into the inbox, where it does not come through the lean door with others."""

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Sum
from django.db.models.functions import Length

from apps.common.errors import Busy
from apps.common.tasks import queue_on_commit
from apps.telemetry.choices import OwnerKind
from apps.telemetry.models import Inbox
from apps.telemetry.services.heads import Head
from apps.telemetry.services.targets import Target


def inbox_put(*, target: Target, head: Head, now: datetime) -> None:
    """Keep a report until it is folded, and ask for the fold.

    Raises:
        Busy: the inbox is past its bounds.
    """
    _check_room()
    with transaction.atomic():
        Inbox.objects.create(
            owner_kind=target.owner_kind,
            owner_id=target.owner_id,
            scope_kind=target.scope_kind,
            scope_id=target.scope_id,
            sender=head.sender,
            boot=head.boot,
            seq=head.seq,
            received_at=now,
            sent_at=head.sent_at,
            newest_step=head.newest_step,
            beats=head.beats,
            exits=head.exits,
            body=head.body,
        )
        if target.owner_kind == OwnerKind.ATTEMPT:
            queue_on_commit("telemetry.inbox_fold", attempt_id=target.owner_id)
        else:
            queue_on_commit("telemetry.cluster_fold", cluster_id=target.owner_id)


def _check_room() -> None:
    limits = settings.PACELINE_LIMITS
    have = Inbox.objects.aggregate(rows=Count("id"), size=Sum(Length("body")))
    if have["rows"] >= limits["inbox_rows"] or (have["size"] or 0) >= limits["inbox_bytes"]:
        raise Busy("More reports wait to be folded than may; keep this one and send it later.", retry_after_s=3)
