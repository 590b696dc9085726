"""Which scheduler runs a cluster: what admins set, and how reading it went."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import F

from apps.common.access import ADMIN, Principal
from apps.common.errors import BadRequest, Forbidden
from apps.journal.choices import Source, StreamKey
from apps.journal.services import recording
from apps.remediation.choices import SchedulerKind
from apps.remediation.models import SchedulerSetting
from apps.remediation.selectors.schedulers import SchedulerRow, scheduler_of

SHORTEST_POLL_S = 1.0
LONGEST_POLL_S = 600.0

READ_LIMIT_S = 60.0
"""Whoever began a read so long ago has died over it."""

BACKOFF_MOST_S = 60.0
"""The longest pause before a controller that does not answer is asked again."""


@dataclass(frozen=True, slots=True)
class SchedulerFields:
    """What an admin says about a cluster's scheduler; `conf` and `programs` are paths, empty for what Slurm finds itself."""

    kind: str = SchedulerKind.SLURM
    conf: str = ""
    programs: str = ""
    zone: str = "UTC"
    poll_s: float = 5.0
    drains: bool = True


def scheduler_set(
    *, principal: Principal, cluster_id: int, fields: SchedulerFields | None, source: str, now: datetime
) -> SchedulerRow | None:
    """Set which scheduler runs a cluster; None takes it away. Return what holds now.

    Raises:
        Forbidden: the caller does not configure. BadRequest: a field makes no sense.
    """
    if not principal.may(ADMIN):
        raise Forbidden(f"This needs the scope “{ADMIN}”: whoever names programs lets Paceline run them.")
    if fields is not None:
        _check(fields)
    with recording(now=now) as log:
        if fields is None:
            SchedulerSetting.objects.filter(pk=cluster_id).delete()
            text = "No scheduler is set any more"
        else:
            SchedulerSetting.objects.update_or_create(
                cluster_id=cluster_id,
                defaults={
                    "kind": fields.kind,
                    "conf": fields.conf,
                    "programs": fields.programs,
                    "zone": fields.zone,
                    "poll_s": fields.poll_s,
                    "drains": fields.drains,
                    "updated_by": principal.name,
                    "updated_at": now,
                    "next_read_at": now,
                    "failures": 0,
                    "error": "",
                },
            )
            acts = "drains and resumes nodes" if fields.drains else "does not touch nodes"
            text = (
                f"Scheduler set: {SchedulerKind(fields.kind).label}, {fields.conf or 'its own configuration'}; {acts}"
            )
        log.add(
            StreamKey.cluster(cluster_id),
            kind="scheduler.set",
            text=text,
            source=source,
            actor_name=principal.name,
        )
    return scheduler_of(cluster_id)


def scheduler_claim(*, cluster_id: int, now: datetime) -> SchedulerRow | None:
    """Take a read of a cluster's scheduler in hand; None if it is not due or somebody else has it."""
    # Compare-and-set: of two who find it due at once, one reads.
    claimed = SchedulerSetting.objects.filter(pk=cluster_id, next_read_at__lte=now).update(
        next_read_at=now + timedelta(seconds=READ_LIMIT_S)
    )
    return scheduler_of(cluster_id) if claimed else None


def scheduler_answered(*, cluster_id: int, soon: bool, now: datetime) -> None:
    """Note that a scheduler was read; `soon` where something is awaited of it."""
    with recording(now=now) as log:
        row = SchedulerSetting.objects.select_for_update(no_key=True).filter(pk=cluster_id).first()
        if row is None:
            return
        if row.failures:
            log.add(
                StreamKey.cluster(cluster_id),
                kind="scheduler.answers",
                text=f"Slurm answers again, after {row.failures} reads that failed",
                source=Source.SYSTEM,
            )
        pause_s = min(row.poll_s, SHORTEST_POLL_S) if soon else row.poll_s
        SchedulerSetting.objects.filter(pk=cluster_id).update(
            read_at=now, failures=0, error="", next_read_at=now + timedelta(seconds=pause_s)
        )


def scheduler_silent(*, cluster_id: int, error: str, now: datetime) -> None:
    """Note that a scheduler could not be read; it is asked again after a pause that grows."""
    with recording(now=now) as log:
        row = SchedulerSetting.objects.select_for_update(no_key=True).filter(pk=cluster_id).first()
        if row is None:
            return
        pause_s = min(BACKOFF_MOST_S, row.poll_s * 2 ** min(row.failures, 10))
        SchedulerSetting.objects.filter(pk=cluster_id).update(
            failures=F("failures") + 1, error=error[:1000], next_read_at=now + timedelta(seconds=pause_s)
        )
        if row.failures == 0:
            log.add(
                StreamKey.cluster(cluster_id),
                kind="scheduler.silent",
                text=f"Slurm cannot be read: {error[:500]}",
                source=Source.SYSTEM,
            )


def _check(fields: SchedulerFields) -> None:
    if fields.kind not in SchedulerKind.values:
        raise BadRequest(f"kind: must be one of {', '.join(SchedulerKind.values)}.")
    for name, path in (("conf", fields.conf), ("programs", fields.programs)):
        if path and (not path.startswith("/") or "\0" in path or len(path) > 1000):
            raise BadRequest(f"{name}: must be a path from the root, or empty.")
    if not SHORTEST_POLL_S <= fields.poll_s <= LONGEST_POLL_S:
        raise BadRequest(f"poll_s: must be from {SHORTEST_POLL_S:g} to {LONGEST_POLL_S:g} seconds.")
    try:
        ZoneInfo(fields.zone)
    except (KeyError, ValueError, OSError) as error:
        raise BadRequest(f"zone: there is no time zone “{fields.zone[:40]}”.") from error
