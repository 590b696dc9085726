"""A large site in few statements: runs with open attempts, nodes with fresh gauges, rows in every listing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from apps.diagnosis.models import Finding
from apps.fleet.models import Gpu, Node, NodeStatus
from apps.incidents.models import Incident
from apps.journal.choices import StreamKey
from apps.journal.services import recording
from apps.remediation.models import Action
from apps.runs.models import Attempt, Placement, Run, RunStatus
from apps.telemetry.choices import SeriesKind
from apps.telemetry.models import DoorBeat, Folded
from apps.telemetry.services.gauges import Gauge, gauges_write

GPUS = 8


@dataclass(frozen=True)
class Size:
    """How large a site is; `rows` of findings, incidents, actions and lines of the first run's log together."""

    runs: int
    nodes: int
    rows: int


SMALL = Size(runs=4, nodes=8, rows=40)
LARGE = Size(runs=200, nodes=2048, rows=10_000)


def crowd(size: Size, *, cluster: int, now: datetime) -> list[Run]:
    """Fill an installation: each run has its share of the nodes and one open incident; most of the rows are of the past."""
    nodes = _nodes(size, cluster, now)
    DoorBeat.objects.create(instance="crowd", accepting_since=now - timedelta(days=1), last_beat_at=now)
    runs = Run.objects.bulk_create(
        [
            Run(slug=f"run-{n:03d}", name=f"run {n}", cluster_id=cluster, created_at=now, updated_at=now)
            for n in range(size.runs)
        ]
    )
    attempts = Attempt.objects.bulk_create(
        [
            Attempt(run=run, number=1, key="k", world_size=GPUS, started_at=now - timedelta(hours=1), last_step=50)
            for run in runs
        ]
    )
    share = size.nodes // size.runs
    RunStatus.objects.bulk_create(
        [
            RunStatus(
                run=run, attempt_id=attempt.pk, attempt_number=1, attempt_state="OPEN", step=50, first_step=0, step_s=3.0,
                last_report_at=now, attempt_started_at=attempt.started_at, slow=True,
            )
            for run, attempt in zip(runs, attempts, strict=True)
        ]
    )  # fmt: skip
    for n, (run, attempt) in enumerate(zip(runs, attempts, strict=True)):
        mine = nodes[n * share : (n + 1) * share]
        _seat(attempt, mine)
        NodeStatus.objects.filter(node__in=mine).update(open_runs=[run.pk])
    _senders(attempts, nodes, share, now)
    gauges = [
        Gauge(node.slot * GPUS + n, now.timestamp(), {"temperature_c": 60.0}) for node in nodes for n in range(GPUS)
    ]
    gauges_write(kind=SeriesKind.GPU, cluster_id=cluster, gauges=gauges, most_metrics=64, now=now)
    _rows(size, runs, attempts, cluster, now)
    return runs


def _nodes(size: Size, cluster: int, now: datetime) -> list[Node]:
    nodes = Node.objects.bulk_create(
        [
            Node(cluster_id=cluster, name=f"trn{n:04d}", slot=n, rack=str(n // 8), rack_slot=str(n % 8), created_at=now)
            for n in range(size.nodes)
        ]
    )
    NodeStatus.objects.bulk_create([NodeStatus(node=n, telemetry_state="FRESH", telemetry_last_at=now) for n in nodes])
    Gpu.objects.bulk_create(
        [
            Gpu(
                node=node,
                key=f"GPU-{node.slot}-{n}",
                index=n,
                slot=node.slot * GPUS + n,
                first_seen_at=now,
                last_seen_at=now,
            )
            for node in nodes
            for n in range(GPUS)
        ]
    )
    return nodes


def _seat(attempt: Attempt, nodes: list[Node]) -> None:
    Placement.objects.create(
        attempt=attempt,
        nodes=np.full(GPUS, nodes[0].pk, "<i8").tobytes(),
        local_ranks=np.arange(GPUS, dtype="<i4").tobytes(),
        stages=np.zeros(GPUS, "<i4").tobytes(),
        node_ids=[node.pk for node in nodes],
    )


def _senders(attempts: list[Attempt], nodes: list[Node], share: int, now: datetime) -> None:
    """One node in fifty has not been heard for minutes."""
    Folded.objects.bulk_create(
        [
            Folded(
                scope_kind="ATTEMPT", scope_id=attempt.pk, sender=node.name, boot="b", highest=9, node_id=node.pk, reports=9,
                first_heard_at=now - timedelta(hours=1),
                last_received_at=now - timedelta(minutes=5 if node.slot % 50 == 0 else 0),
            )
            for n, attempt in enumerate(attempts)
            for node in nodes[n * share : (n + 1) * share]
        ]
    )  # fmt: skip


def _rows(size: Size, runs: list[Run], attempts: list[Attempt], cluster: int, now: datetime) -> None:
    each = size.rows // 4
    common: dict[str, Any] = {"class_name": "COMPUTE", "cause": "compute_straggler", "level": "CRITICAL"}
    state = {"certainty": "CONFIRMED", "found_at": now, "began_at": now}
    subjects = [{"kind": "RANK", "rank": n % GPUS, "node": f"trn{n % size.nodes:04d}"} for n in range(each)]
    incidents = Incident.objects.bulk_create(
        [
            Incident(
                number=n + 1, cluster_id=cluster, run=runs[n % size.runs], attempt_id=attempts[n % size.runs].pk,
                place_key=f"NODE:{n}", subject=subjects[n], title=f"slow {n}", first_seen_at=now, last_seen_at=now,
                state="OPEN" if n < size.runs else "RESOLVED", resolved_at=None if n < size.runs else now,
                **common, **state,
            )
            for n in range(each)
        ]
    )  # fmt: skip
    Finding.objects.bulk_create(
        [
            Finding(
                run=runs[n % size.runs], attempt=attempts[n % size.runs], subject=subjects[n], subject_key=f"s{n}",
                place_key=f"NODE:{n}", score=1, score_meaning="x", coverage_have=8, coverage_of=8, verdict=f"slow {n}",
                state="OPEN" if n < size.runs else "CLOSED", closed_at=None if n < size.runs else now,
                why="w", next="n", proposal_kind="NONE", incident_id=incidents[n].pk, absorbed_version=1, considered_version=1,
                **common, **state,
            )
            for n in range(each)
        ]
    )  # fmt: skip
    Action.objects.bulk_create(
        [
            Action(
                kind="STOP_RUN", state="SUCCEEDED", run=runs[n % size.runs], reason="a long enough reason",
                requested_by="op", requested_by_key="k", source="WEB", requested_at=now, expires_at=now,
            )
            for n in range(each)
        ]
    )  # fmt: skip
    with recording(now=now) as log:
        for n in range(each):
            log.add(StreamKey.run(runs[0].pk), kind="rank.log", text=f"line {n}", source="SENDER")
