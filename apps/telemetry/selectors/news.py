"""Attempts that were over when something of them was folded, and that nobody has looked at since."""

from apps.telemetry.models import News

MOST_NEWS = 200
"""Attempts told at once; whoever looks comes again."""


def attempts_with_news() -> list[int]:
    """Return such attempts, the longest waiting first."""
    return list(News.objects.order_by("pk").values_list("attempt_id", flat=True)[:MOST_NEWS])


def attempt_news(attempt_id: int) -> int | None:
    """Return the version of an attempt's news, None without any."""
    return News.objects.filter(attempt_id=attempt_id).values_list("version", flat=True).first()
