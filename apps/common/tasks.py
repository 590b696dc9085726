"""Asking Celery for work. A broker that is away is no error: every stage finds its work in the database."""

import logging
from typing import Any

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def queue_on_commit(task_name: str, **ids: int) -> None:
    """Ask for task `task_name` with `ids` once the present transaction is committed."""
    transaction.on_commit(lambda: queue_now(task_name, **ids))


def queue_now(task_name: str, **ids: int) -> None:
    """Ask for task `task_name` now; the clock-driven sweep asks again if the broker is away."""
    options: dict[str, Any] = {"retry": False, "ignore_result": True}
    try:
        current_app.tasks[task_name].apply_async(kwargs=ids, **options)
    except (OperationalError, OSError) as error:
        log.info("task %s not queued: %s", task_name, error)
