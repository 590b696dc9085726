"""Would a report be taken? Everything is done as for a real one, in a transaction that is taken back."""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.common.ids import id_write
from apps.fleet.selectors import node_by_id
from apps.journal.choices import Source
from apps.runs.selectors import run_by_id
from apps.runs.services import attempt_open, run_cluster, run_put, slug_checked
from apps.telemetry.choices import ScopeKind
from apps.telemetry.selectors import RefusalRow, refusals_of
from apps.telemetry.services.fold import inbox_fold
from apps.telemetry.services.heads import head_read
from apps.telemetry.services.inbox import inbox_put
from apps.telemetry.services.targets import target_of_attempt, target_of_node

KEY = "check"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a report would meet: the cluster that it would count to, what of it could not be used or would not be read."""

    cluster: str
    refused: tuple[RefusalRow, ...]
    ignored: tuple[str, ...]


def ranks_report_check(
    *, slug: str, cluster: str | None, bound_id: int | None, world_size: int, report: bytes, by: str, now: datetime
) -> Checked:
    """Make the run, open an attempt, keep and fold a report of its ranks, and take all of it back.

    An attempt that is under way is no obstacle: it goes on as if nobody had asked. `bound_id` is the caller's cluster,
    None for a caller who may report for all.

    Raises:
        PacelineError: whatever a real report would be refused with.
    """
    with transaction.atomic():
        slug_checked(slug)
        cluster_id = run_cluster(slug=slug, name=cluster, bound_id=bound_id, now=now)
        run_id, _ = run_put(slug=slug, cluster_id=cluster_id, fields={}, by=by, source=Source.API, now=now)
        attempt, _ = attempt_open(
            run_id=run_id, key=KEY, world_size=world_size, by=by, source=Source.API, now=now, force=True
        )
        head = head_read(report, scope_kind=ScopeKind.ATTEMPT, default_sender=by)
        inbox_put(target=target_of_attempt(id_write("att", attempt.id)), head=head, now=now)
        inbox_fold(attempt_id=attempt.id, now=now)
        refused = tuple(refusals_of(ScopeKind.ATTEMPT, attempt.id))
        found = Checked(run_by_id(run_id).cluster, refused, head.ignored)
        transaction.set_rollback(True)
    return found


def node_report_check(*, code: str, bound_id: int | None, report: bytes, by: str, now: datetime) -> Checked:
    """Find or make a node, keep a report of its own, and take all of it back; `bound_id` as above.

    Raises:
        PacelineError: whatever a real report would be refused with.
    """
    with transaction.atomic():
        target = target_of_node(code, cluster_id=bound_id, now=now)
        head = head_read(report, scope_kind=ScopeKind.NODE, default_sender=by)
        inbox_put(target=target, head=head, now=now)
        found = Checked(node_by_id(target.scope_id).cluster, (), head.ignored)
        transaction.set_rollback(True)
    return found
