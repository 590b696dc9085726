"""Writing which rank sits where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.conf import settings
from django.db import transaction
from django.db.models import F

from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.models import NodeStatus
from apps.runs.choices import AttemptState
from apps.runs.models import Attempt, Placement


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank sits, as its sender says. `stage` is its pipeline coordinate, 0 where there is none."""

    rank: int
    node_id: int
    local_rank: int | None = None
    gpu: str | None = None
    coords: Mapping[str, int] | None = None


def placement_merge(*, attempt_id: int, places: Iterable[RankPlace], past: bool = False) -> bool:
    """Take over where ranks sit; return whether anything is new. A rank beyond the attempt's size is left out.

    What a sender does not tell stays as it was told before. past: it is told of what was over long ago.
    """
    told = {place.rank: place for place in places}
    if not told:
        return False
    with transaction.atomic():
        # One row per attempt: merging is read, change, write under its lock.
        attempt = Attempt.objects.select_for_update(no_key=True).get(pk=attempt_id)
        row = Placement.objects.filter(pk=attempt_id).first()
        told_of = len(bytes(row.local_ranks)) // 4 if row else 0
        # As long as nobody tells the size, it only grows, as far as attempts can.
        size = attempt.world_size or max(told_of, min(max(told) + 1, settings.PACELINE_LIMITS["ranks_per_attempt"]))
        nodes, local_ranks, stages = _placement_arrays(row, size)
        gpus, coords = (dict(row.gpus), dict(row.coords)) if row else ({}, {})

        def known(rank: int) -> tuple[Any, ...]:
            name = str(rank)
            return int(nodes[rank]), int(local_ranks[rank]), int(stages[rank]), gpus.get(name), coords.get(name)

        changed, to_compare = row is None, row.to_compare if row else None
        for rank, place in told.items():
            if not 0 <= rank < size:
                continue
            before = known(rank)
            nodes[rank] = place.node_id
            if place.local_rank is not None:
                local_ranks[rank] = place.local_rank
            if place.gpu:
                gpus[str(rank)] = place.gpu[:64]
            if place.coords:
                coords[str(rank)] = {str(k)[:8]: int(v) for k, v in list(place.coords.items())[:8]}
            stages[rank] = coords.get(str(rank), {}).get("pp", 0)
            changed |= before != known(rank)
        is_whole = attempt.world_size is not None and bool(nodes.all())
        if to_compare is None and is_whole and not past and attempt.previous_id is not None:
            changed = to_compare = True
        if not changed:
            return False
        node_ids = [int(node) for node in np.unique(nodes) if node]
        Placement.objects.update_or_create(
            attempt_id=attempt_id,
            defaults={
                "version": (row.version if row else 0) + 1,
                "nodes": nodes.tobytes(),
                "local_ranks": local_ranks.tobytes(),
                "stages": stages.tobytes(),
                "gpus": gpus,
                "coords": coords,
                "node_ids": node_ids,
                "to_compare": to_compare,
            },
        )
        if attempt.state == AttemptState.OPEN:
            nodes_of_run_set(run_id=attempt.run_id, node_ids=node_ids)
        return True


def placement_compare_claim(*, attempt_id: int) -> bool:
    """Take it in hand to look which nodes an attempt left out, once; False if somebody did before."""
    return bool(Placement.objects.filter(pk=attempt_id, to_compare=True).update(to_compare=False))


def _placement_arrays(row: Placement | None, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes = np.zeros(size, "<i8")
    local_ranks = np.full(size, -1, "<i4")
    stages = np.full(size, -1, "<i4")
    if row is not None:
        for array, blob in ((nodes, row.nodes), (local_ranks, row.local_ranks), (stages, row.stages)):
            kept = np.frombuffer(bytes(blob), array.dtype)[:size]
            array[: len(kept)] = kept
    return nodes, local_ranks, stages


def nodes_of_run_set(*, run_id: int, node_ids: Sequence[int]) -> None:
    """Write down which nodes a run holds now, in the nodes' status."""
    here = set(node_ids)
    held = NodeStatus.objects.filter(open_runs__contains=[run_id]).exclude(pk__in=here)
    wanted = NodeStatus.objects.filter(pk__in=here).exclude(open_runs__contains=[run_id])
    # Locked in the order of their ids, as everywhere.
    for status in NodeStatus.objects.select_for_update(no_key=True).filter(pk__in=[*held, *wanted]).order_by("pk"):
        runs = set(status.open_runs)
        runs = runs | {run_id} if status.pk in here else runs - {run_id}
        NodeStatus.objects.filter(pk=status.pk).update(open_runs=sorted(runs), version=F("version") + 1)
        poke_on_commit(FLEET_GROUP, {"what": "node", "id": status.pk})
