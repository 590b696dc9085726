"""Which nodes an attempt left out that the one before it had, though nobody told Paceline to."""

from dataclasses import dataclass
from typing import Any

from apps.fleet.selectors import nodes_by_id
from apps.remediation.selectors.schedulers import job_named, scheduler_of
from apps.runs.launcher import launcher_usable
from apps.runs.models import Placement
from apps.runs.selectors import AttemptRow, attempt_by_id, attempts_of, placement_of, run_by_id

LOOKED_BACK = 20
"""Attempts that end before all their ranks have a place; after so many in a row nobody knows what was before."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nodes that an attempt left out, and the one that had them."""

    attempt: AttemptRow
    before: AttemptRow
    node_ids: frozenset[int]


def attempts_to_compare() -> list[int]:
    """Return the attempts all of whose ranks have a place now and which nobody has compared yet, in their order."""
    return list(Placement.objects.filter(to_compare=True).order_by("pk").values_list("pk", flat=True))


def nodes_dropped(attempt_id: int) -> Dropped | None:
    """Return which nodes an attempt left out that the one before it had, None where that says nothing.

    An attempt whose ranks did not all have a place is taken together with the one before it. A scheduler gives out other
    nodes without anybody's decision; so does a launcher's list where a node before it is back.
    """
    attempt = attempt_by_id(attempt_id)
    run = run_by_id(attempt.run_id)
    placed = placement_of(attempt_id)
    if placed is None or scheduler_of(run.cluster_id) is not None or _is_job(attempt):
        return None
    had: set[int] = set()
    for before in attempts_of(attempt.run_id, before_number=attempt.number, limit=LOOKED_BACK):
        seen = placement_of(before.id)
        had.update(seen.node_ids if seen is not None else ())
        if seen is not None and seen.nodes.all():
            left = had - set(placed.node_ids)
            left = _decided(attempt, left, placed.node_ids, run.launcher) if left else left
            return None if _is_job(before) else Dropped(attempt, before, frozenset(left))
    return None


def _is_job(attempt: AttemptRow) -> bool:
    return job_named(attempt.key, attempt.external_id) is not None


def _decided(attempt: AttemptRow, left: set[int], used: list[int], launcher: dict[str, Any]) -> set[int]:
    """Return those of the nodes left out of which it is not known otherwise why.

    A node that the launcher's list does not name was entered when it was taken out of it. The list is in order of
    preference: a start of ours leaves out what comes behind the last node that it needs.
    """
    setting = launcher_usable(launcher)
    if setting is None or not setting.nodes:
        return left
    order = {name: place for place, name in enumerate(setting.nodes)}
    rows = nodes_by_id({*left, *used}).values()
    named = {row.id: [order[name] for name in (row.name, *row.aliases) if name in order] for row in rows}
    at = {node_id: min(places) for node_id, places in named.items() if places}
    last = max((at.get(node_id, len(order)) for node_id in used), default=0)
    return {one for one in left if one in at and (attempt.order_id is None or at[one] < last)}
