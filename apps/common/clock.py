"""The wall clock. Only doors read it; everything below them is given `now`."""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the present moment, aware, in UTC."""
    return datetime.now(UTC)


def aware(moment: datetime) -> datetime:
    """Return `moment` unchanged if it carries a zone.

    Raises:
        ValueError: it is naive; a time without a zone never crosses an app border.
    """
    if moment.tzinfo is None:
        raise ValueError("a time without a zone was given")
    return moment


def rfc3339(moment: datetime | None) -> str | None:
    """Return `moment` as RFC 3339 in UTC with `Z` and milliseconds, or None.

    >>> rfc3339(datetime(2026, 11, 30, 12, 0, 5, 120000, tzinfo=UTC))
    '2026-11-30T12:00:05.120Z'
    """
    if moment is None:
        return None
    return aware(moment).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
