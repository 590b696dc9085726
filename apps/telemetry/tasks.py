"""Tasks of telemetry: each fetches ids and calls the service of the same name."""

from typing import Any

from celery import shared_task

from apps.common.clock import now
from apps.common.tasks import queue_now
from apps.telemetry.services import fold, sealing, trim
from apps.telemetry.services.sweep import inbox_sweep as sweep

MOST_FOLDS = 20
"""Folds of one owner in a row before another task gets its turn: 20 × 200 ms."""


@shared_task(name="telemetry.inbox_fold")
def inbox_fold(*, attempt_id: int, **_later: Any) -> None:
    """Fold what waits for an attempt; ask again if a long inbox is not empty yet."""
    for _ in range(MOST_FOLDS):
        done = fold.inbox_fold(attempt_id=attempt_id, now=now())
        if not done.more:
            return
    queue_now("telemetry.inbox_fold", attempt_id=attempt_id)


@shared_task(name="telemetry.cluster_fold")
def cluster_fold(*, cluster_id: int, **_later: Any) -> None:
    """Fold what waits of a cluster's node reports; ask again if a long inbox is not empty yet."""
    for _ in range(MOST_FOLDS):
        done = fold.cluster_fold(cluster_id=cluster_id, now=now())
        if not done.more:
            return
    queue_now("telemetry.cluster_fold", cluster_id=cluster_id)


@shared_task(name="telemetry.inbox_sweep")
def inbox_sweep(**_later: Any) -> None:
    """Find every owner with reports waiting or columns whose time is up, whoever forgot to ask."""
    sweep(now=now())


@shared_task(name="telemetry.tiles_sweep")
def tiles_sweep(**_later: Any) -> None:
    """Seal what is behind the hot horizon and merge late values, of every series."""
    sealing.tiles_sweep(now=now())


@shared_task(name="telemetry.series_trim")
def series_trim(**_later: Any) -> None:
    """Delete what is kept long enough."""
    trim.series_trim(now=now())
