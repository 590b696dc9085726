"""Opening and ending attempts."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Coalesce, Greatest, Least

from apps.common.errors import BadRequest, Conflict, PacelineError
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import AUTHORITY_RANK, AttemptState, Authority, EndReason
from apps.runs.limits import limit_value
from apps.runs.models import Attempt, Run, RunStatus
from apps.runs.selectors import AttemptRow, attempt_row
from apps.runs.services.placement import nodes_of_run_set
from apps.runs.services.runs import status_update


class AttemptLive(Conflict):
    """Another key while the open attempt is still reporting."""

    code = "ATTEMPT_LIVE"
    retryable = True


class AttemptEnded(Conflict):
    """The key of an attempt that is over."""

    code = "ATTEMPT_ENDED"


class WorldSizeDiffers(Conflict):
    """The same key with another number of ranks."""

    code = "WORLD_SIZE_DIFFERS"


class StateChanged(PacelineError):
    """The run moved on since it was looked at."""

    code = "state_changed"
    http_status = 409


def attempt_open(
    *,
    run_id: int,
    key: str,
    world_size: int | None,
    by: str,
    source: str,
    now: datetime,
    resumed_from_step: int | None = None,
    external_id: str = "",
    config: Mapping[str, Any] | None = None,
    code_version: str = "",
    order_id: int | None = None,
    force: bool = False,
) -> tuple[AttemptRow, bool]:
    """Open an attempt by its key, or find the one that has it; return it and whether it is new (CONTRACT, Keys).

    Raises:
        BadRequest: no usable key or size.
        AttemptEnded, AttemptLive, WorldSizeDiffers: see there.
    """
    if not key or len(key) > 200 or key == "none":
        raise BadRequest("key: an attempt needs a key of 1 to 200 characters; “none” is not one.")
    most = settings.PACELINE_LIMITS["ranks_per_attempt"]
    if world_size is not None and not 1 <= world_size <= most:
        raise BadRequest(f"world_size: must be from 1 to {most:,}.")
    with recording(now=now) as log:
        # The run's row is the door for its attempts: two first reports of two attempts come one after the other.
        run = run_lock(run_id)
        same = Attempt.objects.filter(run=run, key=key).first()
        if same is not None:
            return _attempt_again(same, world_size=world_size, resumed_from_step=resumed_from_step), False
        live = Attempt.objects.filter(run=run, state=AttemptState.OPEN).first()
        if live is not None and _JOB_START.fullmatch(key) and live.key.startswith((f"{key}.", f"{key}/")):
            # A step of this start of the job reported before its scheduler was read.
            return _attempt_again(live, world_size=world_size, resumed_from_step=resumed_from_step), False
        if live is not None and _extends(key, live):
            live.key, live.external_id = key, external_id or live.external_id
            live.save(update_fields=["key", "external_id"])
            return _attempt_again(live, world_size=world_size, resumed_from_step=resumed_from_step), False
        if live is not None:
            _check_may_follow(run, live, key=key, external_id=external_id, order_id=order_id, force=force, now=now)
            _end(log, live, reason=EndReason.SUPERSEDED, authority=Authority.CLIENT, by=by, source=source, now=now)
        previous = Attempt.objects.filter(run=run).order_by("-number").first()
        number = previous.number + 1 if previous is not None else 1
        attempt = Attempt.objects.create(
            run=run,
            number=number,
            key=key,
            world_size=world_size,
            resumed_from_step=resumed_from_step,
            external_id=external_id,
            config=dict(config or {}),
            code_version=code_version[:100],
            opened_by=by[:150],
            order_id=order_id,
            started_at=now,
            previous=previous,
        )
        log.add(
            StreamKey.run(run.pk),
            kind="attempt.opened",
            text=_opened_text(attempt),
            source=source,
            actor_name=by,
            payload={"attempt": attempt.pk, "number": number, "resumed_from_step": resumed_from_step},
        )
        status_update(
            run_id=run.pk,
            attempt_id=attempt.pk,
            attempt_number=number,
            attempt_state=AttemptState.OPEN,
            attempt_ended_reason="",
            attempt_started_at=now,
            resumed_from_step=resumed_from_step,
            step=None,
            first_step=None,
            step_s=None,
            tokens_per_s=None,
            loss=None,
            last_report_at=None,
            ranks_reporting=None,
            hang="",
            slow=False,
            slow_since_at=None,
            silent=False,
            suspect_from_step=None,
            queued=False,
            gave_up=False,
            stopping_as="",
        )
        return attempt_row(attempt), True


def run_lock(run_id: int) -> Run:
    """Lock a run's open attempt, then the run, and return it; rows that refer to them may be added.

    Attempt before run, everywhere. Whoever writes an attempt, the run's status and nodes in one transaction, in an order
    that follows from what it was told, calls this first: all who do take turns. The run's status itself has no place in the
    order of locks: it is written late, and who has written it waits for no incident and no action.
    """
    list(Attempt.objects.select_for_update(no_key=True).filter(run_id=run_id, state=AttemptState.OPEN).order_by("pk"))
    return Run.objects.select_for_update(no_key=True).get(pk=run_id)


def _opened_text(attempt: Attempt) -> str:
    ranks = "1 rank" if attempt.world_size == 1 else f"{attempt.world_size} ranks"
    size = f" with {ranks}" if attempt.world_size else ""
    resumed = "" if attempt.resumed_from_step is None else f", from step {attempt.resumed_from_step:,}"
    return f"Attempt {attempt.number} opened{size}{resumed}"


def _attempt_again(attempt: Attempt, *, world_size: int | None, resumed_from_step: int | None) -> AttemptRow:
    if attempt.state == AttemptState.ENDED:
        raise AttemptEnded(
            f"Attempt {attempt.number} is over ({attempt.reason}); a new start needs a new key.",
            attempt=attempt.pk,
            reason=attempt.reason,
        )
    if world_size is not None and attempt.world_size not in (None, world_size):
        raise WorldSizeDiffers(
            f"Attempt {attempt.number} has {attempt.world_size} ranks, not {world_size}.", world_size=attempt.world_size
        )
    new: dict[str, Any] = {}
    if attempt.world_size is None and world_size is not None:
        new["world_size"] = world_size
    if attempt.resumed_from_step is None and resumed_from_step is not None:
        new["resumed_from_step"] = resumed_from_step
    if new:
        Attempt.objects.filter(pk=attempt.pk).update(**new)
        attempt.refresh_from_db()
        status_update(run_id=attempt.run_id, resumed_from_step=attempt.resumed_from_step)
    return attempt_row(attempt)


def _check_may_follow(
    run: Run, live: Attempt, *, key: str, external_id: str, order_id: int | None, force: bool, now: datetime
) -> None:
    if force or order_id is not None:
        return
    if external_id and external_id == live.external_id:
        return
    if key.partition("/")[0] == live.key.partition("/")[0]:
        return  # the same job starts its workers again
    heard_at = RunStatus.objects.filter(pk=run.pk).values_list("last_report_at", flat=True).first()
    has_reported = heard_at is not None and heard_at >= live.started_at
    limit_s = limit_value(run.limits, "no_telemetry_s")
    silent_s = (now - (heard_at if heard_at is not None and has_reported else live.started_at)).total_seconds()
    if silent_s < limit_s:
        raise AttemptLive(
            f"Attempt {live.number} {'reported' if has_reported else 'was opened'} {silent_s:.0f} s ago"
            f"{'' if has_reported else ' and has not reported yet'}; "
            f"another start is taken after {limit_s:.0f} s of silence.",
            attempt=live.pk,
            retry_after_s=max(1, int(limit_s - silent_s) + 1),
        )


def attempt_end(
    *,
    attempt_id: int,
    reason: str,
    authority: str,
    by: str,
    source: str,
    now: datetime,
    happened_at: datetime | None = None,
) -> bool:
    """End an attempt; return whether anything changed. A higher authority replaces a lower one's reason, logged.

    Who says that it was cancelled while our order to stop it is out tells of that order: its reason is said at once, and
    once.

    Raises:
        BadRequest: no such reason.
    """
    if reason not in EndReason.values:
        raise BadRequest(f"reason: must be one of {', '.join(EndReason.values)}.")
    with recording(now=now) as log:
        run_id = Attempt.objects.values_list("run_id", flat=True).get(pk=attempt_id)
        run_lock(run_id)  # as in attempt_open: ends and openings take turns
        attempt = Attempt.objects.select_related("run").get(pk=attempt_id)
        if reason == EndReason.CANCELLED and authority != Authority.ORDER:
            told = RunStatus.objects.filter(pk=run_id, attempt_id=attempt_id).values_list("stopping_as", flat=True)
            reason = told.first() or reason
        if attempt.state == AttemptState.OPEN:
            _end(log, attempt, reason=reason, authority=authority, by=by, source=source, now=happened_at or now)
            return True
        if AUTHORITY_RANK[authority] <= AUTHORITY_RANK.get(attempt.authority, -1):
            return False
        before = attempt.reason
        Attempt.objects.filter(pk=attempt.pk).update(reason=reason, authority=authority)
        if reason == before:
            return True  # the same word, now from somebody whom those between cannot correct
        _ended_status(attempt, reason)
        log.add(
            StreamKey.run(run_id),
            kind="attempt.reason",
            text=f"Attempt {attempt.number} ended: {EndReason(reason).label} (told as {EndReason(before).label} at first)",
            source=source,
            actor_name=by,
            payload={"attempt": attempt.pk, "before": before, "after": reason, "authority": authority},
        )
        return True


def attempt_start_error_note(*, attempt_id: int, text: str) -> None:
    """Keep the mistake with which an attempt's program ended, in the caller's transaction; of one that made a step nothing."""
    Attempt.objects.filter(pk=attempt_id, first_step=None).update(start_error=text)


def attempt_failure_note(*, attempt_id: int, how: str, now: datetime) -> bool:
    """Call an attempt crashed that its own program called finished though a rank of it failed; return whether it was.

    `how`: which rank, and how it ended. Whoever knows better than the program (wrapper, scheduler, order) is believed still.
    """
    with recording(now=now) as log:
        run_id = Attempt.objects.values_list("run_id", flat=True).get(pk=attempt_id)
        run_lock(run_id)  # as in attempt_open: ends and openings take turns
        said = {"state": AttemptState.ENDED, "reason": EndReason.FINISHED, "authority": Authority.CLIENT}
        if not Attempt.objects.filter(pk=attempt_id, **said).update(reason=EndReason.CRASHED):
            return False
        attempt = Attempt.objects.get(pk=attempt_id)
        _ended_status(attempt, EndReason.CRASHED)
        log.add(
            StreamKey.run(run_id),
            kind="attempt.reason",
            text=f"Attempt {attempt.number} crashed: {how}, though another rank said that it was finished",
            source=Source.RULE,
            payload={"attempt": attempt_id, "before": EndReason.FINISHED, "after": EndReason.CRASHED},
        )
        return True


def _end(log: Log, attempt: Attempt, *, reason: str, authority: str, by: str, source: str, now: datetime) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(
        state=AttemptState.ENDED, reason=reason, authority=authority, ended_at=now
    )
    _ended_status(attempt, reason)
    nodes_of_run_set(run_id=attempt.run_id, node_ids=())
    log.add(
        StreamKey.run(attempt.run_id),
        kind="attempt.ended",
        text=f"Attempt {attempt.number} ended: {EndReason(reason).label}",
        source=source,
        happened_at=now,
        actor_name=by,
        payload={"attempt": attempt.pk, "number": attempt.number, "reason": reason, "authority": authority},
    )


def _ended_status(attempt: Attempt, reason: str) -> None:
    newest = RunStatus.objects.filter(pk=attempt.run_id, attempt_id=attempt.pk).exists()
    if newest:
        status_update(run_id=attempt.run_id, attempt_state=AttemptState.ENDED, attempt_ended_reason=reason)


def attempt_rekey(*, attempt_id: int, key: str, external_id: str) -> bool:
    """Name an attempt after the job that it turned out to be; return whether it could be.

    It keeps its name if the job has reported under a longer one already, or if another attempt has the new one.
    """
    with transaction.atomic():
        run_id = Attempt.objects.values_list("run_id", flat=True).get(pk=attempt_id)
        run_lock(run_id)  # as in attempt_open: a first report and this take turns
        attempt = Attempt.objects.get(pk=attempt_id)
        taken = Attempt.objects.filter(run_id=run_id, key=key).exclude(pk=attempt_id).exists()
        if taken or attempt.key.startswith(f"{key}."):
            return False
        Attempt.objects.filter(pk=attempt_id).update(key=key, external_id=external_id)
        return True


_JOB_START = re.compile(r"slurm:\d+\.\d+")
"""The key of one start of a job, before any of its steps reported."""


def _extends(key: str, live: Attempt) -> bool:
    """Return whether a key belongs to the attempt that an order or a job opened before anybody reported."""
    if live.order_id is not None and key.startswith(f"{live.key}/"):
        return True
    return _JOB_START.fullmatch(live.key) is not None and key.startswith((f"{live.key}.", f"{live.key}/"))


def attempt_progress(*, attempt_id: int, first_step: int, last_step: int, now: datetime) -> None:
    """Note which steps an attempt has reported; called by the fold, which is the only writer of these."""
    row = Attempt.objects.filter(pk=attempt_id)
    row.filter(first_step_at=None).update(first_step_at=now)
    row.update(
        first_step=Least(Coalesce("first_step", first_step), first_step),
        last_step=Greatest(Coalesce("last_step", last_step), last_step),
    )
