"""Telling the workers that there is something to fold: in a thread of its own, so that a lost broker delays no report."""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

MOST_WAITING = 100
"""While the broker hangs, more calls than this are not even tried: the sweep finds the work."""


class Bell:
    """Rings for folds."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="report-door-bell")
        self._waiting = 0

    def ring(self, owners: Iterable[tuple[str, int]]) -> None:
        """Ask for the fold of each owner (kind, id)."""
        for kind, owner_id in owners:
            if self._waiting < MOST_WAITING:
                self._waiting += 1
                self._thread.submit(self._ask, kind, owner_id)

    def close(self) -> None:
        """Let go of the thread; calls not made yet are the sweep's."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, kind: str, owner_id: int) -> None:
        # Imported here: the web process needs Celery only to ask, and never while it answers.
        from apps.common.tasks import queue_now

        try:
            if kind == "ATTEMPT":
                queue_now("telemetry.inbox_fold", attempt_id=owner_id)
            else:
                queue_now("telemetry.cluster_fold", cluster_id=owner_id)
        except Exception:
            log.exception("a fold could not be asked for; the sweep will find it")
        finally:
            self._waiting -= 1
