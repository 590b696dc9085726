"""Taking back that something of an attempt that is over is news."""

from django.db import transaction

from apps.telemetry.stores.news import news_forget


def attempt_news_seen(*, attempt_id: int, version: int) -> None:
    """Note that an attempt's news up to `version` were looked at."""
    with transaction.atomic():
        news_forget(attempt_id, version=version)
