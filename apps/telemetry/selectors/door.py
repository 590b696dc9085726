"""Whether the report door can take reports, since when, and how much waits behind it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apps.telemetry.models import DoorBeat

ALIVE = timedelta(seconds=5)
"""A process that has not beaten for this long takes no reports; it beats each second."""

NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DoorState:
    """The door. Clocks of clock-driven checks count from `accepting_since` at the earliest; while nobody accepts it is
    the present moment, so that no clock runs. `last_beat_at` None: no door ever beat."""

    accepting_since: datetime
    last_beat_at: datetime | None
    inbox_rows: int
    inbox_bytes: int
    oldest_received_at: datetime | None


def door_state(now: datetime | None = None) -> DoorState:
    """Return the state of the door over all processes that serve it.

    With `now`, processes that stopped beating count as gone; without it, as they last said.
    """
    rows = list(DoorBeat.objects.order_by("-last_beat_at"))
    if not rows:
        return DoorState(now or NEVER, None, 0, 0, None)
    newest = rows[0]
    moment = now or newest.last_beat_at
    accepting = [row.accepting_since for row in rows if row.accepting_since and moment - row.last_beat_at <= ALIVE]
    return DoorState(
        accepting_since=min(accepting) if accepting else moment,
        last_beat_at=newest.last_beat_at,
        inbox_rows=newest.inbox_rows,
        inbox_bytes=newest.inbox_bytes,
        oldest_received_at=newest.oldest_received_at,
    )
