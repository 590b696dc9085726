"""How many incidents are not over, pushed down to the status of their run and node."""

from functools import partial

from django.db import transaction
from django.db.models import Count

from apps.common.commits import on_commit_once
from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.models import NodeStatus
from apps.fleet.services import node_status_update
from apps.incidents.choices import UNRESOLVED
from apps.incidents.models import Incident
from apps.runs.models import RunStatus
from apps.runs.services import status_update


def counts_refresh(incident: Incident) -> None:
    """Have the counts of the incident's run and node written once this transaction is committed, and poke who looks.

    Not within it: whoever writes an incident holds its lock, which would then wait for whoever writes the status.
    A count that is lost between the two is mended by the clock (`counts_mend`).
    """
    if incident.run_id is not None:
        on_commit_once(("incidents.run", incident.run_id), partial(run_count_write, incident.run_id))
    if incident.node_id is not None:
        on_commit_once(("incidents.node", incident.node_id), partial(node_count_write, incident.node_id))
    poke_on_commit(FLEET_GROUP, {"what": "incident", "id": incident.pk})


def run_count_write(run_id: int) -> None:
    """Write how many unresolved incidents a run has."""
    with transaction.atomic():
        # Locked before it is counted: of two incidents that change at once the later writer sees both.
        status = RunStatus.objects.select_for_update(no_key=True).filter(pk=run_id).first()
        count = Incident.objects.filter(run_id=run_id, state__in=UNRESOLVED).count()
        if status is not None and status.open_incidents != count:
            status_update(run_id=run_id, open_incidents=count)


def node_count_write(node_id: int) -> None:
    """Write how many unresolved incidents a node has."""
    with transaction.atomic():
        # Locked before it is counted, as above.
        status = NodeStatus.objects.select_for_update(no_key=True).filter(pk=node_id).first()
        count = Incident.objects.filter(node_id=node_id, state__in=UNRESOLVED).count()
        if status is not None and status.open_incidents != count:
            node_status_update(node_id=node_id, open_incidents=count)


def counts_mend() -> int:
    """Write every count that is not what it should be; return how many there were."""
    runs = _wrong(dict(RunStatus.objects.exclude(open_incidents=0).values_list("pk", "open_incidents")), "run_id")
    nodes = _wrong(dict(NodeStatus.objects.exclude(open_incidents=0).values_list("pk", "open_incidents")), "node_id")
    for run_id in runs:
        run_count_write(run_id)
    for node_id in nodes:
        node_count_write(node_id)
    return len(runs) + len(nodes)


def _wrong(shown: dict[int, int], field: str) -> list[int]:
    open_ones = Incident.objects.filter(state__in=UNRESOLVED, **{f"{field}__isnull": False})
    counted = dict(open_ones.values_list(field).annotate(Count("pk")).order_by(field))
    return sorted(pk for pk in shown.keys() | counted.keys() if shown.get(pk, 0) != counted.get(pk, 0))
