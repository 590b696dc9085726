"""Nodes whose own gauges stopped coming, as far as that is theirs and not our door's."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from apps.fleet.choices import TelemetryState
from apps.fleet.models import NodeStatus
from apps.fleet.services import node_event, node_status_update
from apps.journal.choices import Source, StreamKey
from apps.journal.selectors import events_between
from apps.journal.services import recording
from apps.telemetry.selectors.door import door_state
from apps.telemetry.stores.inbox import nodes_waiting

SILENT_AFTER = timedelta(seconds=45)
"""Three intervals of the node sender's default 15 s."""

MOST_NODES = 1000
"""Nodes of one look; when a whole cluster falls silent, the next look tells the rest."""

DAY = timedelta(hours=24)
KIND = "node.silent"


def nodes_silence(*, now: datetime) -> int:
    """Mark nodes whose gauges stopped as SILENT, a row of their log each; return how many.

    Only time in which the door could accept counts: after a blind period every node has its full time again. A report
    that waits to be folded counts as heard.
    """
    since = door_state(now).accepting_since
    if now - since <= SILENT_AFTER:
        return 0
    heard = (TelemetryState.FRESH, TelemetryState.FLAPPING)
    late = NodeStatus.objects.filter(telemetry_state__in=heard, telemetry_last_at__lt=now - SILENT_AFTER)
    if not late.exists():
        return 0
    with recording(now=now) as log:
        # Locked: a fold that hears a node at this moment is not written over.
        rows = late.select_for_update(of=("self",), no_key=True).select_related("node").order_by("pk")[:MOST_NODES]
        waiting = nodes_waiting({status.node.cluster_id for status in rows}, since=now - SILENT_AFTER)
        found = [status for status in rows if status.pk not in waiting]
        for status in found:
            node_event(
                log,
                node_id=status.pk,
                kind=KIND,
                text=f"{status.node.name} sends no gauges",
                source=Source.SYSTEM,
                happened_at=status.telemetry_last_at,
                subject={"kind": "NODE", "node": status.node.name},
            )
            gaps = _gaps(status.pk, now=now) + 1
            node_status_update(node_id=status.pk, telemetry_state=TelemetryState.SILENT, telemetry_gaps_24h=gaps)
    return len(found)


def gaps_refresh(*, now: datetime) -> int:
    """Count the silences of the last day anew for nodes that had any; return how many changed."""
    changed = 0
    for node_id, known in _with_gaps():
        gaps = _gaps(node_id, now=now)
        if gaps != known:
            node_status_update(node_id=node_id, telemetry_gaps_24h=gaps)
            changed += 1
    return changed


def _with_gaps() -> Iterable[tuple[int, int]]:
    rows = NodeStatus.objects.filter(telemetry_gaps_24h__gt=0).order_by("pk")
    return list(rows.values_list("pk", "telemetry_gaps_24h"))


def _gaps(node_id: int, *, now: datetime) -> int:
    events = events_between(StreamKey.node(node_id), first=now - DAY, last=now, limit=10_000)
    return sum(event.kind == KIND for event in events)
