"""Times as Slurm writes them: local and without a zone unless told otherwise, epoch seconds in JSON, words for none."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

NO_TIME = frozenset({"", "none", "unknown", "n/a", "(null)", "invalid", "infinite", "unlimited", "now"})
"""What stands where there is no time. `Unknown` is an end that has not come."""

LATEST = datetime(2100, 1, 1, tzinfo=UTC)
"""Slurm writes an unlimited job's end as a date of the next century; no job of ours ends there."""

_WALL = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?")
_EPOCH = re.compile(r"\d{9,11}")


@dataclass(frozen=True, slots=True)
class SlurmTime:
    """A moment, None where there is none; `text` as it stood; `uncertain` where its hour exists twice or not at all."""

    at: datetime | None
    text: str = ""
    uncertain: bool = False


NOTHING = SlurmTime(None)


def time_read(text: str, *, zone: tzinfo, today: datetime | None = None) -> SlurmTime | None:
    """Return the moment that a text of Slurm names, aware UTC; None if it is not understood.

    text: a date and time, with or without an offset; epoch seconds; a word for none; or a time of day.
    zone: in which the source writes what has no offset. today: the day that a bare time of day belongs to, aware.
    A wall time that exists twice (clocks go back) is taken as the first of the two, one that exists never as if the
    clocks had not gone forward; both are marked uncertain.
    Source: ours; forms seen in Slurm 20.11 to 26.05.

    >>> from zoneinfo import ZoneInfo
    >>> time_read("2026-10-25T02:30:00", zone=ZoneInfo("Europe/Paris"))
    SlurmTime(at=datetime.datetime(2026, 10, 25, 0, 30, tzinfo=datetime.timezone.utc), text='2026-10-25T02:30:00', uncertain=True)
    """
    words = text.strip()
    if words.lower() in NO_TIME:
        return SlurmTime(None, words)
    if _EPOCH.fullmatch(words):
        return epoch_read(int(words))
    if found := _WALL.fullmatch(words):
        return _wall(words, found, zone)
    if today is not None and (found := _CLOCK.fullmatch(words)):
        return _clock(words, found, zone, today)
    return None


def times_in_order(times: Iterable[SlurmTime], *, zone: tzinfo) -> tuple[SlurmTime, ...]:
    """Return the times of one thing, each of which follows the one before it, so that they follow each other.

    times: in their order; one without a moment is passed over. zone: as in `time_read`.
    Of a wall time that exists twice the second is taken where the first lies before what it follows; it stays marked.
    Source: ours; a job that was submitted before clocks went back and began within the hour after.

    >>> from zoneinfo import ZoneInfo
    >>> paris = ZoneInfo("Europe/Paris")
    >>> read = [time_read(f"2026-10-25T{clock}", zone=paris) for clock in ("02:50:00", "02:10:00")]
    >>> [f"{time.at:%H:%M}" for time in times_in_order(read, zone=paris)]
    ['00:50', '01:10']
    """
    placed: list[SlurmTime] = []
    latest: datetime | None = None
    for time_ in times:
        if time_.at is None:
            placed.append(time_)
            continue
        at = time_.at
        if latest is not None and time_.uncertain and at < latest:
            second = at.astimezone(zone).replace(fold=1).astimezone(UTC)
            at = second if second >= latest else at
        placed.append(replace(time_, at=at))
        latest = at
    return tuple(placed)


def epoch_read(value: Any) -> SlurmTime | None:
    """Return the moment of an epoch second as JSON has it, plain or `{set, infinite, number}`; None if it is neither.

    >>> epoch_read({"set": True, "infinite": False, "number": 1796043048}).at.isoformat()
    '2026-11-30T12:50:48+00:00'
    """
    seconds = number_read(value)
    if seconds is None:
        return NOTHING if value is None or isinstance(value, dict) else None
    if seconds <= 0:
        return NOTHING
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return SlurmTime(at if at < LATEST else None, str(value) if not isinstance(value, dict) else str(seconds))


def number_read(value: Any) -> int | None:
    """Return a whole number as JSON of any version has it; None where it is unset, infinite or no number.

    >>> number_read(3), number_read({"set": False, "infinite": False, "number": 0}), number_read("24")
    (3, None, 24)
    """
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 2**62:
        return None
    return int(value)


def _wall(text: str, found: re.Match[str], zone: tzinfo) -> SlurmTime | None:
    try:
        if found[7]:
            return SlurmTime(datetime.fromisoformat(text.replace(" ", "T")).astimezone(UTC), text)
        return _placed(text, datetime(*(int(part) for part in found.groups()[:6])), zone)  # type: ignore[arg-type] # noqa: DTZ001
    except (ValueError, OverflowError):
        return None


def _clock(text: str, found: re.Match[str], zone: tzinfo, today: datetime) -> SlurmTime | None:
    try:
        of_day = time(int(found[1]), int(found[2]), int(found[3] or 0))
    except ValueError:
        return None
    placed = _placed(text, datetime.combine(today.astimezone(zone).date(), of_day), zone)
    return SlurmTime(placed.at, text, uncertain=True)


def _placed(text: str, naive: datetime, zone: tzinfo) -> SlurmTime:
    first, second = naive.replace(tzinfo=zone), naive.replace(tzinfo=zone, fold=1)
    twice_or_never = (first.utcoffset() or timedelta()) != (second.utcoffset() or timedelta())
    return SlurmTime(first.astimezone(UTC), text, uncertain=twice_or_never)
