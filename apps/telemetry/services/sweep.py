"""What the clock finds: reports that wait, columns whose time is up, windows of repeated facts that are over, nodes that fell silent."""

import logging
from collections.abc import Callable
from datetime import datetime

from apps.common.sweeps import sweeping
from apps.common.tasks import queue_now
from apps.telemetry.choices import OwnerKind
from apps.telemetry.services.facts import facts_told_close
from apps.telemetry.services.fold import inbox_fold
from apps.telemetry.services.silence import nodes_silence
from apps.telemetry.stores.inbox import owners_waiting
from apps.telemetry.stores.series import attempts_unsettled

log = logging.getLogger(__name__)


def inbox_sweep(*, now: datetime) -> int:
    """Ask for the fold of each owner that has reports waiting, settle what is due, close windows; return how many owners.

    With an empty queue this alone keeps everything going, a little later.
    """
    waiting = owners_waiting()
    for kind, owner_id in waiting:
        if kind == OwnerKind.ATTEMPT:
            queue_now("telemetry.inbox_fold", attempt_id=owner_id)
        else:
            queue_now("telemetry.cluster_fold", cluster_id=owner_id)
    folding = {owner_id for kind, owner_id in waiting if kind == OwnerKind.ATTEMPT}
    unsettled = [attempt_id for attempt_id in attempts_unsettled() if attempt_id not in folding]
    with sweeping("some of what the clock finds could not be done") as each:
        each(unsettled, lambda attempt_id: inbox_fold(attempt_id=attempt_id, now=now))
        duties: tuple[Callable[..., object], ...] = (facts_told_close, nodes_silence)
        each(duties, lambda duty: duty(now=now))
    return len(waiting)
