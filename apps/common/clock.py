"""The wall clock, which only doors read: everything below them is given `now`. And which of other clocks' times are any."""

from datetime import UTC, datetime, timedelta

OLDEST_AT, NEWEST_AT = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""A time outside of these is none: at the ends of the calendar, a zone moves it to where nobody can read it back."""

AHEAD = timedelta(minutes=5)
"""What is told from further ahead of its receipt, its sender's skew taken out, has a time that is none."""


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


def usable(moment: datetime | None) -> datetime | None:
    """Return a time that others tell if it has a zone and lies where calendars are sure, else None."""
    return moment if moment and moment.tzinfo and OLDEST_AT <= moment <= NEWEST_AT else None


def has_happened(at_s: float, *, received_at: datetime, offset_s: float) -> bool:
    """Return whether unix s of another clock lie before they were received here; `offset_s` is how far it is behind."""
    return at_s + offset_s <= (received_at + AHEAD).timestamp()


def rfc3339(moment: datetime | None) -> str | None:
    """Return `moment` as RFC 3339 in UTC with `Z` and milliseconds, or None.

    >>> rfc3339(datetime(2026, 11, 30, 12, 0, 5, 120000, tzinfo=UTC))
    '2026-11-30T12:00:05.120Z'
    """
    if moment is None:
        return None
    return aware(moment).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
