"""Taking in what a scheduler says about nodes: their state, what others put out, and where that differs from our ledger.

What others did enters the ledger as observed, and ends there when it ends at the scheduler; it is never lifted by us.
Differences are listed for people to decide, never mended by themselves.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from apps.engine.readers.slurm import SlurmNode, hostlist_compress, node_state
from apps.fleet.choices import ExclusionOrigin, NodeState
from apps.fleet.models import Exclusion, NodeStatus
from apps.fleet.services import (
    exclusion_end,
    exclusion_open,
    name_is_usable,
    node_status_update,
    nodes_ensure,
)
from apps.incidents.services import shared_cause_see
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.remediation.models import ActionNode, SchedulerTold
from apps.remediation.services.differences import STATE_LENGTH, drifts_see
from apps.remediation.services.node_orders import drained_by_us

BY = "Slurm"

SWEPT = 3
"""So many nodes that others kept out, for different reasons, and that come back within one listing, were not looked at
one by one."""

KEPT_FRESH = timedelta(seconds=60)
"""How old the time of the last read may stand at a node that did not change: a row a node and read is not worth it."""

NOT_MACHINES = frozenset({"FUTURE"})
"""Base states of names that no machine has yet."""


def nodes_seen(*, cluster_id: int, nodes: Iterable[SlurmNode], at: datetime, now: datetime) -> int:
    """Take in nodes as they were at a moment; return how many there are. A listing older than the last changes nothing."""
    told = {node.name: node for node in nodes if node.base not in NOT_MACHINES and name_is_usable(node.name)}
    if not told:
        return 0
    with recording(now=now) as log:
        SchedulerTold.objects.get_or_create(
            cluster_id=cluster_id, defaults={"nodes_at": at - timedelta(microseconds=1)}
        )
        # Compare-and-set, held to the end: of two listings taken in at once the older one changes nothing.
        if not SchedulerTold.objects.filter(pk=cluster_id, nodes_at__lt=at).update(nodes_at=at):
            return 0
        ids = nodes_ensure(cluster_id=cluster_id, names=list(told), now=now)
        by_id = {ids[name]: node for name, node in told.items()}
        rows = NodeStatus.objects.select_for_update(no_key=True, of=("self",)).filter(pk__in=by_id).order_by("pk")
        statuses = {row.pk: row for row in rows}
        _log_changes(log, cluster_id, statuses, by_id)
        was_out = {pk for pk, row in statuses.items() if "DRAIN" in row.scheduler_state}
        by_us = drained_by_us(by_id)
        acted_on = set(ActionNode.objects.filter(node_id__in=by_id, holds=True).values_list("node_id", flat=True))
        lines = {row.node_id: row for row in Exclusion.objects.filter(node_id__in=by_id, ended_at=None)}
        ended: dict[int, Exclusion] = {}
        for node_id, status in statuses.items():
            line = lines.get(node_id)
            if node_id not in acted_on and _observe(status, by_id[node_id], line, is_ours=node_id in by_us, now=now):
                status.refresh_from_db()
                if line is not None:
                    ended[node_id] = line
            _state_set(status, by_id[node_id], at=at)
        free = {node_id: node for node_id, node in by_id.items() if node_id not in acted_on}
        drifts_see(log, cluster_id, free, was_out=was_out, released=_released(ended), now=now)
    return len(told)


def node_state_of(node: SlurmNode, *, excluded: bool) -> str:
    """Return how a node stands for whoever gives out work.

    >>> node_state_of(SlurmNode("a", "MIXED", frozenset({"DRAIN"})), excluded=True)
    'DRAINING'
    """
    if excluded:
        return str(NodeState.DRAINING if node.is_out and node.is_busy else NodeState.EXCLUDED)
    return str(NodeState.DOWN if node.is_down else NodeState.IN_SERVICE)


def _observe(status: NodeStatus, node: SlurmNode, line: Exclusion | None, *, is_ours: bool, now: datetime) -> bool:
    """Enter what others did; return whether the ledger has a line more or one fewer that is open."""
    if node.is_out and line is None and not is_ours:
        exclusion_open(
            node_id=status.pk,
            reason=node.reason or "drained, no reason given",
            by_name=(node.reason_by or "the site")[:150],
            origin=ExclusionOrigin.OBSERVED,
            source=Source.SYSTEM,
            now=now,
        )
        return True
    if line is not None and line.origin == ExclusionOrigin.OBSERVED and not node.is_out:
        exclusion_end(
            node_id=status.pk, reason="in service again at the scheduler", by_name=BY, source=Source.SYSTEM, now=now
        )
        return True
    return False


def _state_set(status: NodeStatus, node: SlurmNode, *, at: datetime) -> None:
    said, state = node.state[:STATE_LENGTH], node_state_of(node, excluded=status.exclusion_id is not None)
    if status.partitions != list(node.partitions):
        NodeStatus.objects.filter(pk=status.pk).update(partitions=list(node.partitions))
    if status.scheduler_state != said or status.state != state:
        node_status_update(node_id=status.pk, scheduler_state=said, state=state, scheduler_read_at=at)
    elif status.scheduler_read_at is None or at - status.scheduler_read_at > KEPT_FRESH:
        NodeStatus.objects.filter(pk=status.pk).update(scheduler_read_at=at)


def _log_changes(log: Log, cluster_id: int, statuses: Mapping[int, NodeStatus], by_id: Mapping[int, SlurmNode]) -> None:
    """Say in one line each which nodes went down and which came back, however many they are: they share a moment."""
    # Of what the scheduler said last, not of the node's state: an excluded node goes down and comes back too.
    before = {pk: node_state(row.scheduler_state) for pk, row in statuses.items()}
    was_down = {pk for pk, state in before.items() if state is not None and SlurmNode("", *state).is_failed}
    is_down = {pk for pk in statuses if by_id[pk].is_failed}
    went = [by_id[pk].name for pk in statuses if pk in is_down - was_down and before[pk] is not None]
    came = [by_id[pk].name for pk in statuses if pk in was_down - is_down]
    for names, kind, words in ((went, "nodes.down", "down"), (came, "nodes.up", "up again")):
        if names:
            text = f"{hostlist_compress(names)} {words} at the scheduler ({len(names)})"
            log.add(StreamKey.cluster(cluster_id), kind=kind, text=text, source=Source.SYSTEM, payload={"nodes": names})
    shared_cause_see(
        cluster_id=cluster_id,
        went={pk: by_id[pk].name for pk in statuses if by_id[pk].name in set(went)},
        down=is_down,
        up=set(statuses) - is_down,
        now=log.now,
    )


def _released(ended: Mapping[int, Exclusion]) -> Mapping[int, Exclusion]:
    """Return the lines of others that ended as one of a sweep over many: nobody looked at each one's reason (case 16)."""
    is_sweep = len(ended) >= SWEPT and len({line.reason for line in ended.values()}) > 1
    return ended if is_sweep else {}
