"""What admins set, and what people tell the log."""

from datetime import datetime
from typing import Any

from apps.common.access import ADMIN, Principal
from apps.common.errors import BadRequest, Forbidden
from apps.fleet.selectors import node_by_id
from apps.fleet.services import node_event
from apps.journal.choices import StreamKey
from apps.journal.services import recording
from apps.remediation.models import Guard
from apps.remediation.services.wishes import may_act
from apps.runs.selectors import run_by_id

LONGEST_WINDOW_S = 30 * 24 * 3600


def guard_set(
    *,
    principal: Principal,
    cluster_id: int,
    window_s: int,
    exclusions_per_window: int,
    share_of_run: float,
    source: str,
    now: datetime,
) -> None:
    """Set a cluster's limits on exclusions.

    Raises:
        Forbidden: the caller does not configure. BadRequest: a figure makes no sense.
    """
    if not principal.may(ADMIN):
        raise Forbidden(f"This needs the scope “{ADMIN}”.")
    if principal.cluster_id not in (None, cluster_id):
        raise Forbidden("This token belongs to another cluster.")
    if not 60 <= window_s <= LONGEST_WINDOW_S:
        raise BadRequest(f"window_s: must be from 60 to {LONGEST_WINDOW_S:,} seconds.")
    if not 0 <= exclusions_per_window <= 100_000:
        raise BadRequest("exclusions_per_window: must be from 0 to 100,000.")
    if not 0.0 <= share_of_run <= 1.0:
        raise BadRequest("share_of_run: must be from 0 to 1.")
    fields = {
        "window_s": window_s,
        "exclusions_per_window": exclusions_per_window,
        "share_of_run": share_of_run,
        "updated_by": principal.name,
        "updated_at": now,
    }
    with recording(now=now) as log:
        Guard.objects.update_or_create(cluster_id=cluster_id, defaults=fields)
        share = f"{share_of_run:.0%}"
        log.add(
            StreamKey.cluster(cluster_id),
            kind="guard.set",
            text=f"Guards: {exclusions_per_window} exclusions in {window_s / 3600:g} h, {share} of a run's nodes",
            source=source,
            actor_name=principal.name,
            payload={"window_s": window_s, "exclusions": exclusions_per_window, "share_of_run": share_of_run},
        )


def command_copied(
    *,
    principal: Principal,
    kind: str,
    commands: str,
    source: str,
    now: datetime,
    run_id: int | None = None,
    node_id: int | None = None,
) -> None:
    """Note in the log that somebody copied commands to run them by hand.

    Raises:
        Forbidden: the caller may not act here. BadRequest: nothing is named.
    """
    text = f"{principal.name} copied the commands for {kind}"
    more: dict[str, Any] = {"actor_name": principal.name, "payload": {"action_kind": kind, "commands": commands[:4000]}}
    with recording(now=now) as log:
        if run_id is not None:
            may_act(principal, run_by_id(run_id).cluster_id)
            log.add(StreamKey.run(run_id), kind="command.copied", text=text, source=source, **more)
        elif node_id is not None:
            may_act(principal, node_by_id(node_id).cluster_id)
            node_event(log, node_id=node_id, kind="command.copied", text=text, source=source, **more)
        else:
            raise BadRequest("run, node: say what the commands were for.")
