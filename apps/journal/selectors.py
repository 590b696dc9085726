"""Reading the log."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q, QuerySet

from apps.journal.choices import StreamKey
from apps.journal.models import Event, Stream


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event as other rooms see it."""

    id: int
    stream_kind: str
    stream_id: int
    seq: int
    happened_at: datetime
    recorded_at: datetime
    uncertainty_s: float | None
    kind: str
    source: str
    actor_name: str
    text: str
    subject: dict[str, Any]
    payload: dict[str, Any]


def events_after(stream: StreamKey, *, after: int, limit: int) -> list[EventRow]:
    """Return a stream's events with a number above `after`, by number, at most `limit`."""
    return _rows(_stream(stream).filter(seq__gt=after).order_by("seq")[:limit])


def events_latest(stream: StreamKey, *, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
    """Return a stream's newest events, newest number first; `kinds` are prefixes such as `finding.`."""
    found = _stream(stream)
    if kinds:
        pattern = "^(" + "|".join(kind.replace(".", r"\.") for kind in kinds) + ")"
        found = found.filter(kind__regex=pattern)
    return _rows(found.order_by("-seq")[:limit])


def events_between(
    stream: StreamKey,
    *,
    first: datetime,
    last: datetime,
    limit: int,
    about: Mapping[str, Collection[int]] | None = None,
    noun: str = "",
) -> list[EventRow]:
    """Return a stream's events that happened from `first` to `last`, both included, by time then number.

    Of more than `limit` the last ones. `about`: only those whose payload names one of these numbers under such a word;
    `noun`: only those whose kind begins with this word. Every event of the time is looked at: keep it short.
    """
    found = _stream(stream).filter(happened_at__gte=first, happened_at__lte=last)
    if about:
        found = found.filter(reduce(or_, (Q(**{f"payload__{word}__in": list(ids)}) for word, ids in about.items())))
    if noun:
        found = found.filter(kind__startswith=f"{noun}.")
    return _rows(found.order_by("-happened_at", "-seq")[:limit])[::-1]


def stream_seq(stream: StreamKey) -> int:
    """Return the number of a stream's newest event, 0 if it has none."""
    found = Stream.objects.filter(stream_kind=stream.kind, stream_id=stream.id).values_list("seq", flat=True).first()
    return found or 0


def _stream(stream: StreamKey) -> QuerySet[Event]:
    return Event.objects.filter(stream_kind=stream.kind, stream_id=stream.id)


def _rows(events: QuerySet[Event]) -> list[EventRow]:
    return [
        EventRow(
            id=event.pk,
            stream_kind=event.stream_kind,
            stream_id=event.stream_id,
            seq=event.seq,
            happened_at=event.happened_at,
            recorded_at=event.recorded_at,
            uncertainty_s=event.uncertainty_s,
            kind=event.kind,
            source=event.source,
            actor_name=event.actor_name,
            text=event.payload.get("text", ""),
            subject=event.subject,
            payload={name: value for name, value in event.payload.items() if name != "text"},
        )
        for event in events
    ]
