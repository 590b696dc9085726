"""Writing runs and their status."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import F

from apps.common.errors import BadRequest, Conflict, Forbidden
from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.models import short_of
from apps.fleet.selectors import clusters_all
from apps.fleet.services import cluster_default, cluster_ensure, exclusions_noted, nodes_known
from apps.journal.choices import StreamKey
from apps.journal.services import recording
from apps.runs.models import Placement, Run, RunStatus

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")

DESCRIPTIVE = (
    "name",
    "team",
    "external_id",
    "model",
    "layout",
    "checkpoint",
    "framework",
    "tokens_per_step",
    "tokens_planned",
    "gpu_model",
    "dtype",
    "gpus_per_node",
    "steps_planned",
    "due_at",
)
"""What a `report` token may set."""


OPERATIONAL = ("mode", "modes", "limits")
"""What needs `operate`."""


ADMINISTRATIVE = ("launcher",)
"""What needs `admin`: a launcher is code execution."""


def slug_checked(slug: str) -> str:
    """Return a run's name as it stands in addresses.

    Raises:
        BadRequest: it cannot stand there.
    """
    if not SLUG.fullmatch(slug):
        raise BadRequest("slug: 1 to 63 of a-z, 0-9, dot, underscore and dash, with a letter or digit at both ends.")
    return slug


def run_cluster(*, slug: str, name: str | None, bound_id: int | None, now: datetime) -> int:
    """Return the cluster that a run is written in: the one named, the run's own, the caller's (`bound_id`), or the default.

    Raises:
        Forbidden: it is not the cluster that the caller is bound to.
    """
    known = None if name else Run.objects.filter(slug=slug).values_list("cluster_id", flat=True).first()
    if name and bound_id is None:
        return cluster_ensure(name=name, now=now)
    if name:
        # Other clusters are none of a bound caller's business, known or not.
        known = next((row.id for row in clusters_all() if row.name == name), 0)
    if bound_id is not None and known not in (None, bound_id):
        raise Forbidden("This token belongs to another cluster.")
    return known or bound_id or cluster_default(now=now)


def run_put(
    *,
    slug: str,
    cluster_id: int,
    fields: Mapping[str, Any],
    by: str,
    source: str,
    now: datetime,
    practice: bool = False,
) -> tuple[int, bool]:
    """Create or update a run; return its row and whether it is new. Fields not given stay as they are.

    Raises:
        Conflict: the slug belongs to a run of another cluster.
    """
    with recording(now=now) as log:
        run, is_new = Run.objects.select_for_update(no_key=True).get_or_create(
            slug=slug,
            defaults={
                "name": slug,
                "cluster_id": cluster_id,
                "created_at": now,
                "updated_at": now,
                "practice": practice,
            },
        )
        if run.cluster_id != cluster_id:
            raise Conflict(f"“{slug}” is a run of another cluster.", run=slug)
        if is_new:
            RunStatus.objects.create(run=run)
            log.add(StreamKey.run(run.pk), kind="run.created", text=f"Run {slug} created", source=source, actor_name=by)
        changed = {name: value for name, value in fields.items() if getattr(run, name) != value}
        if changed:
            kept = {name: getattr(run, name) for name in changed}
            for name, value in changed.items():
                setattr(run, name, value)
            run.updated_at = now
            run.save()
            told = [name for name in changed if name in OPERATIONAL + ADMINISTRATIVE]
            if told and not is_new:
                log.add(
                    StreamKey.run(run.pk),
                    kind="run.settings",
                    text=f"Settings changed: {', '.join(told)}",
                    source=source,
                    actor_name=by,
                    payload={
                        "before": {n: kept[n] for n in told if n != "launcher"},
                        "after": {n: changed[n] for n in told if n != "launcher"},
                    },
                )
            if "launcher" in changed and not is_new:
                _nodes_taken_out(run, before=kept["launcher"], by=by, source=source, now=now)
            status_update(run_id=run.pk)
        return run.pk, is_new


def _nodes_taken_out(run: Run, *, before: Mapping[str, Any], by: str, source: str, now: datetime) -> None:
    """Enter in the ledger which nodes a launcher names no more; where it named none, which of those that the run had last.

    One that names none now leaves the choice to the program.
    """
    named, names = before.get("nodes") or (), run.launcher.get("nodes") or ()
    if not names:
        return
    known = nodes_known(run.cluster_id, [*named, *names])
    still = {short_of(name) for name in names}
    had = {known[name] for name in named if name in known and short_of(name) not in still}
    if not named:
        newest = Placement.objects.filter(attempt__run=run).order_by("-pk").values_list("node_ids", flat=True)
        had.update(newest.first() or ())
    exclusions_noted(
        node_ids=had - {known[name] for name in names if name in known},
        reason="taken out of the run's launcher.nodes",
        by_name=by or "somebody",
        scope=f"run {run.slug}",
        source=source,
        now=now,
    )


def status_update(*, run_id: int, **fields: Any) -> None:
    """Set fields of a run's status (each has one named writer, see RunStatus) and poke whoever looks."""
    RunStatus.objects.filter(pk=run_id).update(version=F("version") + 1, **fields)
    poke_on_commit(FLEET_GROUP, {"what": "run", "id": run_id})
