"""Attempts that were over when something of them was folded, until somebody has looked at it."""

from apps.telemetry.models import News
from apps.telemetry.selectors.sql import cursor


def news_note(attempt_id: int) -> None:
    """Note that something of an attempt that is over was folded."""
    with cursor() as c:
        c.execute(
            """INSERT INTO telemetry_news AS n (attempt_id, version) VALUES (%s, 1)
               ON CONFLICT (attempt_id) DO UPDATE SET version = n.version + 1""",
            (attempt_id,),
        )


def news_forget(attempt_id: int, *, version: int) -> None:
    """Forget what was looked at; what came meanwhile stays."""
    News.objects.filter(attempt_id=attempt_id, version=version).delete()
