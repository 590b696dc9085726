"""Asking Celery for work. A broker that is away is no error: every stage finds its work in the database."""

import logging
from typing import Any

from celery import current_app
from kombu.exceptions import OperationalError

from apps.common.commits import on_commit_once

log = logging.getLogger(__name__)


def queue_on_commit(task_name: str, **ids: int) -> None:
    """Ask for task `task_name` with `ids` once the present transaction is committed; equal ones of it go once."""
    on_commit_once(("task", task_name, tuple(sorted(ids.items()))), lambda: queue_now(task_name, **ids))


def queue_now(task_name: str, **ids: int) -> None:
    """Ask for task `task_name` now; the clock-driven sweep asks again if the broker is away."""
    options: dict[str, Any] = {"retry": False, "ignore_result": True}
    try:
        current_app.send_task(task_name, kwargs=ids, **options)
    except (OperationalError, OSError) as error:
        log.info("task %s not queued: %s", task_name, error)
