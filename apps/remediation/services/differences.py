"""Seeing where our ledger and a cluster's scheduler disagree. Nothing is mended by itself; people decide (`drifts.py`)."""

from collections.abc import Mapping
from datetime import datetime

from apps.engine.readers.slurm import SlurmNode, hostlist_compress
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.models import Exclusion
from apps.fleet.services import node_event
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log
from apps.remediation.choices import DriftKind
from apps.remediation.models import Drift, NodeDrain, SchedulerSetting
from apps.remediation.services.node_orders import drained_by_us

BY_HAND = "paceline "
"""How a drain begins that somebody made with a command copied from here: ours, though it has no mark."""

STATE_LENGTH = 63
BACK = (DriftKind.IN_SERVICE, DriftKind.RESUMED, DriftKind.RELEASED)
"""Differences in which a node is in service that somebody wanted out."""


def drifts_see(
    log: Log,
    cluster_id: int,
    nodes: Mapping[int, SlurmNode],
    *,
    was_out: set[int],
    released: Mapping[int, Exclusion],
    now: datetime,
) -> None:
    """Open, keep and close differences about nodes on which nothing is under way.

    `was_out`: nodes that the scheduler had out before. `released`: lines of others that ended in one sweep over many.
    """
    setting = SchedulerSetting.objects.filter(pk=cluster_id).first()
    drains = setting is not None and setting.drains
    ours = Exclusion.objects.filter(node_id__in=nodes, ended_at=None, origin=ExclusionOrigin.OURS)
    lines = {row.node_id: row for row in ours}
    drained = set(
        NodeDrain.objects.filter(exclusion_id__in=[row.pk for row in lines.values()], lifted_at=None).values_list(
            "exclusion_id", flat=True
        )
    )
    by_us = drained_by_us(nodes)
    open_now = {row.node_id: row for row in Drift.objects.filter(node_id__in=nodes, ended_at=None)}
    back: dict[str, list[str]] = {}
    for node_id, node in nodes.items():
        line, known = lines.get(node_id), open_now.get(node_id)
        kind = _kind(
            node,
            line,
            known=known.kind if known is not None else "",
            drains=drains,
            drained=line is not None and line.pk in drained,
            was_out=node_id in was_out,
            is_released=node_id in released,
            is_ours=node_id in by_us,
        )
        if known is not None and known.kind == kind:
            Drift.objects.filter(pk=known.pk).update(seen_at=now)
            continue
        if known is not None:
            Drift.objects.filter(pk=known.pk).update(ended_at=now)
        if kind is not None:
            about = line or released.get(node_id)
            _open(log, node_id, node, kind, about, now=now)
            if kind in BACK and about is not None:
                back.setdefault(about.reason, []).append(node.name)
    if back:
        _warn(log, cluster_id, back)


def _kind(
    node: SlurmNode,
    line: Exclusion | None,
    *,
    known: str,
    drains: bool,
    drained: bool,
    was_out: bool,
    is_released: bool,
    is_ours: bool,
) -> DriftKind | None:
    if line is None:
        if node.is_out:
            return DriftKind.LEFT if drains and is_ours else None
        return DriftKind.RELEASED if is_released or known == DriftKind.RELEASED else None
    if not node.is_out:
        if node.base == "DOWN":
            return None  # whatever keeps it away, it is not in service; one that only does not answer yet may be
        if drained:
            return DriftKind.RESUMED
        # Where Paceline drains nothing, a node that was never out there is out in the ledger alone, as it was set.
        return DriftKind.IN_SERVICE if drains or was_out or known == DriftKind.IN_SERVICE else None
    return DriftKind.OTHERS if drains and not (is_ours or node.reason.startswith(BY_HAND)) else None


def _open(log: Log, node_id: int, node: SlurmNode, kind: DriftKind, line: Exclusion | None, *, now: datetime) -> None:
    # Of what came back, the scheduler has forgotten why it was out: our ledger has not.
    forgotten = kind == DriftKind.RELEASED and line is not None
    reason = line.reason if forgotten and line is not None else node.reason
    by_name = line.by_name if forgotten and line is not None else node.reason_by
    Drift.objects.create(
        node_id=node_id,
        kind=kind,
        exclusion_id=line.pk if line is not None else None,
        scheduler_state=node.state[:STATE_LENGTH],
        reason=reason,
        by_name=by_name[:150],
        began_at=now,
        seen_at=now,
    )
    by = f" ({by_name}: {reason})" if reason else ""
    node_event(log, node_id=node_id, kind="node.drift", text=f"{node.name}: {kind.label}{by}", source=Source.SYSTEM)


def _warn(log: Log, cluster_id: int, back: Mapping[str, list[str]]) -> None:
    """Say in one line which nodes are back that somebody wanted out, with the reasons that nobody answered."""
    count = sum(len(names) for names in back.values())
    named = ", ".join(f"{hostlist_compress(names)} ({reason})" for reason, names in sorted(back.items()))
    text = f"{count} node{'s' if count != 1 else ''} in service although excluded: {named}"
    log.add(StreamKey.cluster(cluster_id), kind="nodes.drift", text=text[:4000], source=Source.SYSTEM)
