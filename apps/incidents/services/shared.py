"""Many nodes at once are one thing: a switch, a controller, a power feed; never so many faults of nodes (case 17)."""

from collections.abc import Collection, Mapping, Set
from datetime import datetime, timedelta

from django.db.models import F

from apps.engine.readers.slurm import SlurmNode, node_state
from apps.fleet.selectors import nodes_by_id
from apps.fleet.services import nodes_ensure
from apps.incidents.choices import UNRESOLVED, IncidentState
from apps.incidents.models import Incident
from apps.incidents.services.counts import counts_refresh
from apps.incidents.services.moving import incident_close, incident_say
from apps.incidents.services.notices import notice_joined, notices_consider
from apps.incidents.services.numbers import number_next
from apps.journal.choices import Source, StreamKey
from apps.journal.selectors import events_latest
from apps.journal.services import Log, recording

CAUSE = "nodes_down"
SHARED = 3
"""So many nodes that go within `TOGETHER` share a cause (CONTRACT)."""

TOGETHER = timedelta(seconds=60)
TOLD_LATE = timedelta(minutes=10)
"""A scheduler calls a node down only so long after it went (Slurm's SlurmdTimeout is 300 s unless a site sets it)."""


def shared_cause_see(*, cluster_id: int, went: Mapping[int, str], down: set[int], up: set[int], now: datetime) -> None:
    """Open, extend or close the incident of nodes that went down together.

    `went`: nodes that the scheduler shows down since this look, by name; `down` and `up`: all that were
    looked at, as they are now.
    """
    with recording(now=now) as log:
        row = (
            Incident.objects.select_for_update(no_key=True)
            .filter(cluster_id=cluster_id, run=None, cause=CAUSE, state__in=UNRESOLVED)
            .order_by("-pk")
            .first()
        )
        known = {int(pk): name for pk, name in row.subject.get("down", {}).items()} if row is not None else {}
        still = {pk: name for pk, name in known.items() if pk in _still_down(known.keys(), down=down, up=up)}
        joins = bool(went) and row is not None and now - row.last_seen_at <= TOGETHER
        if row is not None and not joins and not still:
            _close(log, row, now=now)
            row = None
        recent = _recent(cluster_id, went, down=down, up=up, now=now)
        if row is not None and joins:
            _extend(log, row, {**known, **went}, before=set(row.subject.get("before", ())), now=now)
        elif row is not None and len(recent) >= SHARED:
            # Another group while the first is down is told in the same row, and told anew: there can be only one per place.
            before = {name for pk, name in still.items() if pk not in recent}
            notice_joined(_extend(log, row, {**still, **recent}, before=before, now=now), now=now)
        elif row is None and len(recent) >= SHARED:
            _open(log, cluster_id, recent, now=now)


def nodes_down_together(cluster_id: int, *, at: datetime) -> set[str]:
    """Return the nodes of a cluster that went down together about then and are still down.

    `at`: when the fault began that one of them may be named for.
    """
    rows = Incident.objects.filter(
        cluster_id=cluster_id,
        run=None,
        cause=CAUSE,
        state__in=UNRESOLVED,
        began_at__lte=at + TOLD_LATE,
        last_seen_at__gte=at - TOGETHER,
    )
    known = {int(pk): name for row in rows for pk, name in row.subject.get("down", {}).items()}
    return {known[pk] for pk in _still_down(known.keys())}


def _still_down(node_ids: Collection[int], *, down: Set[int] = frozenset(), up: Set[int] = frozenset()) -> set[int]:
    """Return which of these nodes are down: by this look, or, what it left out, when they were last told of."""
    unseen = set(node_ids) - down - up
    said = {pk: node_state(row.scheduler_state) for pk, row in nodes_by_id(unseen).items()} if unseen else {}
    last = {pk for pk, state in said.items() if state is not None and SlurmNode("", *state).is_failed}
    return set(node_ids) & down | last


def _recent(cluster_id: int, went: Mapping[int, str], *, down: set[int], up: set[int], now: datetime) -> dict[int, str]:
    """Return what went down now, and what went in the looks of the last minute and is still down; none if none went now."""
    if not went:
        return {}
    names: set[str] = set()
    for event in events_latest(StreamKey.cluster(cluster_id), limit=50, kinds=["nodes.down"]):
        if now - event.happened_at <= TOGETHER:
            names |= set(event.payload.get("nodes", ()))
    earlier = {node_id: name for name, node_id in nodes_ensure(cluster_id=cluster_id, names=names, now=now).items()}
    still = _still_down(earlier.keys(), down=down, up=up)
    return {**{node_id: name for node_id, name in earlier.items() if node_id in still}, **went}


def _open(log: Log, cluster_id: int, nodes: Mapping[int, str], *, now: datetime) -> None:
    place, subject = _place(nodes)
    row = Incident.objects.create(
        number=number_next(),
        cluster_id=cluster_id,
        place_key=place,
        class_name="WATCHING",
        cause=CAUSE,
        level="CRITICAL",
        certainty="CONFIRMED",
        subject=subject,
        title=_title(nodes, subject),
        began_at=now,
        found_at=now,
        count=1,
        first_seen_at=now,
        last_seen_at=now,
    )
    incident_say(log, row, "incident.opened", f"INC-{row.number} opened: {row.title}", source=Source.RULE)
    counts_refresh(row)
    notices_consider(row, now=now)


def _extend(log: Log, row: Incident, nodes: Mapping[int, str], *, before: set[str], now: datetime) -> Incident:
    """Say of an incident that these are its nodes now, those of them `before` from a group that went earlier."""
    _, subject = _place(nodes)
    if before:
        subject["before"] = sorted(before)
    title = _title({pk: name for pk, name in nodes.items() if name not in before}, subject)
    Incident.objects.filter(pk=row.pk).update(
        subject=subject, title=title, count=F("count") + 1, last_seen_at=now, version=F("version") + 1
    )
    row.refresh_from_db()
    incident_say(log, row, "incident.joined", f"INC-{row.number}: {title}", source=Source.RULE)
    counts_refresh(row)
    return row


def _close(log: Log, row: Incident, *, now: datetime) -> None:
    incident_close(row, IncidentState.RESOLVED, answer="", words="all are up again at the scheduler", by="", now=now)
    text = f"INC-{row.number} resolved: all are up again at the scheduler"
    incident_say(log, row, "incident.resolved", text, source=Source.RULE)


def _place(nodes: Mapping[int, str]) -> tuple[str, dict[str, object]]:
    """Return the place that these nodes share, as a key and as a subject: a leaf, a rack, else the cluster."""
    rows = nodes_by_id(nodes).values()
    leaves, racks = {row.leaf for row in rows}, {row.rack for row in rows}
    kind, place = "CLUSTER", ""
    if len(leaves) == 1 and "" not in leaves:
        kind, place = "SWITCH", next(iter(leaves))
    elif len(racks) == 1 and "" not in racks:
        kind, place = "RACK", next(iter(racks))
    names = sorted(nodes.values())
    more: dict[str, object] = {"place": place} if place else {}
    return f"NODES_DOWN:{kind}:{place}"[:300], {
        "kind": kind,
        "nodes": names,
        "down": {str(node_id): name for node_id, name in nodes.items()},
        **more,
    }


def _title(nodes: Mapping[int, str], subject: Mapping[str, object]) -> str:
    names = sorted(nodes.values())
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    where = {"SWITCH": f" behind {subject.get('place')}", "RACK": f" in rack {subject.get('place')}"}.get(
        str(subject["kind"]), ""
    )
    before = subject.get("before")
    more = f" {len(before)} of a group before them are still down." if isinstance(before, list) else ""
    return (
        f"{len(names)} nodes{where} went down together: {shown}. One shared cause is likely; no node is proposed to be "
        f"excluded.{more}"
    )
