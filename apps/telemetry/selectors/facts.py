"""What was told besides numbers, folded and still waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec
from django.db.models import Q

from apps.common.clock import usable
from apps.engine.readers.exits import code_usable, signal_usable
from apps.engine.readers.partial import partly_read
from apps.runs.selectors import attempt_by_id, placement_of
from apps.telemetry.choices import FactKind, OwnerKind
from apps.telemetry.models import Fact, NonFinite, Refusal, SeriesMetric, Stack
from apps.telemetry.selectors.series import series_of
from apps.telemetry.selectors.sql import cursor

CURRENT_S = 600.0
"""A fact without a step is about now if it happened at most this long before it was sent and received (CONTRACT)."""

MOST_FACTS = 20_000
MOST_EXITS = 20_000
"""Exit events that wait and are read at once: more than any attempt's crash is told by one second's reports."""


@dataclass(frozen=True, slots=True)
class FactRow:
    """One fact; `kind` is the lower-case word of senders. `id` 0: it waits in the inbox still.

    `happened_at` is by the sender's clock, `ours_at` the same by ours. `current`: it is about now."""

    id: int
    kind: str
    happened_at: datetime
    ours_at: datetime
    received_at: datetime
    sender: str
    rank: int | None
    node_id: int | None
    text: str
    code: int | None
    signal: int | None
    payload: dict[str, Any]
    current: bool
    count: int


@dataclass(frozen=True, slots=True)
class NonFiniteRow:
    """A value that was produced but is not finite: `which` is NAN, +INF or -INF."""

    metric: str
    step: int
    rank: int
    which: str


@dataclass(frozen=True, slots=True)
class StackRow:
    """The newest Python stack that a rank sent."""

    rank: int
    happened_at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """What of a sender was not taken over for one reason."""

    sender: str
    reason: str
    count: int
    sample: str
    first_at: datetime
    last_at: datetime


class _Exit(msgspec.Struct):
    rank: int | None = None
    happened_at: datetime | None = None
    text: str | None = None
    code: int | None = None
    signal: int | None = None


_exits = msgspec.json.Decoder(list[msgspec.Raw])
_exit = msgspec.json.Decoder(_Exit)


def is_current(*, happened_at: datetime, sent_at: datetime | None, received_at: datetime, offset_s: float) -> bool:
    """Return whether a fact is about now: by the sender's own clock, and by ours with the skew taken out."""
    sent = sent_at or received_at
    aged_s = (sent - happened_at).total_seconds()
    travelled_s = (received_at - sent).total_seconds() - offset_s
    return aged_s < CURRENT_S and travelled_s < CURRENT_S


def lag_of(least_s: float | None, node_skew_s: float | None = None) -> float:
    """Return how far a sender's clock is behind ours, in s, from its smallest receive minus send time.

    A report that was held up looks like a clock that is behind: so much is a clock's only if its node's own sender says so,
    too (`node_skew_s`: how far it is ahead).

    >>> lag_of(0.2), lag_of(7200.0), lag_of(7201.0, -7200.0), lag_of(-3600.0)
    (0.2, 0.0, 7200.0, -3600.0)
    """
    if least_s is None or least_s < CURRENT_S:
        return least_s or 0.0
    lag_s = min(least_s, -(node_skew_s or 0.0))
    return lag_s if lag_s >= CURRENT_S else 0.0


def facts_of(attempt_id: int, *, after_id: int = 0, kinds: Sequence[str] = ()) -> list[FactRow]:
    """Return an attempt's facts by id, then exits that wait in the inbox; facts of its nodes since it began are among them.

    `kinds` are lower-case words; none means all. A repeat of a text raises `count` and is no new fact.
    """
    attempt = attempt_by_id(attempt_id)
    placement = placement_of(attempt_id)
    rows = Fact.objects.filter(pk__gt=after_id)
    if len(kinds) == 1:  # so that the index of exits serves
        rows = rows.filter(kind=kinds[0].upper())
    elif kinds:
        rows = rows.filter(kind__in=[kind.upper() for kind in kinds])
    own = list(rows.filter(attempt_id=attempt_id).order_by("pk")[:MOST_FACTS])
    if placement is not None:
        of_nodes = rows.filter(attempt_id=None, node_id__in=placement.node_ids, received_at__gte=attempt.started_at)
        if attempt.ended_at is not None:
            of_nodes = of_nodes.filter(received_at__lte=attempt.ended_at)
        own = sorted([*own, *of_nodes.order_by("pk")[:MOST_FACTS]], key=attrgetter("pk"))[:MOST_FACTS]
    found = [_row(row) for row in own]
    if not kinds or "exit" in [kind.lower() for kind in kinds]:
        found += exits_unfolded(attempt_id)
    return found


def exits_unfolded(attempt_id: int) -> list[FactRow]:
    """Return the exits in reports that are not folded yet, oldest report first: a lost rank waits for no inbox."""
    with cursor() as c:
        c.execute(
            """WITH waiting AS MATERIALIZED (
                   SELECT id, scope_kind, scope_id, sender, received_at, sent_at, exits FROM telemetry_inbox
                   WHERE owner_kind = %s AND owner_id = %s AND exits IS NOT NULL ORDER BY id LIMIT %s)
               SELECT w.sender, w.received_at, w.sent_at, w.exits,
                      (SELECT min(least(f.offset_s, f.offset_before_s)) FROM telemetry_folded f
                       WHERE (f.scope_kind, f.scope_id, f.sender) = (w.scope_kind, w.scope_id, w.sender))
               FROM waiting w ORDER BY w.id""",
            (OwnerKind.ATTEMPT.value, attempt_id, MOST_EXITS),
        )
        return [
            _waiting(sender, received, sent, least_s, event)
            for sender, received, sent, raw, least_s in c
            for event in _events(raw)
        ]


def nonfinite_of(attempt_id: int, *, after_step: int | None, limit: int) -> list[NonFiniteRow]:
    """Return an attempt's values that are not finite past `after_step`, by step, metric, rank, at most `limit`."""
    series = series_of("RANK", attempt_id)
    if series is None:
        return []
    names = {number: name for name, number in series.numbers.items()}
    rows = NonFinite.objects.filter(series_id=series.id, step__gt=-1 if after_step is None else after_step)
    found = rows.order_by("step", "metric", "rank").values_list("metric", "step", "rank", "which")[:limit]
    return [NonFiniteRow(names[metric], step, rank, which) for metric, step, rank, which in found]


def stacks_of(attempt_id: int, *, limit: int = 131_072) -> list[StackRow]:
    """Return the newest stack of each rank that sent one, by rank, at most `limit`."""
    rows = Stack.objects.filter(attempt_id=attempt_id).order_by("rank")[:limit]
    return [StackRow(rank=row.rank, happened_at=row.happened_at, text=row.text) for row in rows]


def rank_said(attempt_id: int, rank: int, *, limit: int) -> list[str]:
    """Return the last texts that a rank logged, oldest first; one that came again and again stands once."""
    rows = Fact.objects.filter(attempt_id=attempt_id, kind=FactKind.LOG, rank=rank).exclude(text="")
    return list(rows.order_by("-pk").values_list("text", flat=True)[:limit])[::-1]


def refusals_of(
    scope_kind: str, scope_id: int, *, after: tuple[str, str] | None = None, limit: int = 1000
) -> list[RefusalRow]:
    """Return what of a scope's reports was not taken over, by sender then reason, after the pair `after`."""
    rows = Refusal.objects.filter(scope_kind=scope_kind, scope_id=scope_id)
    if after is not None:
        rows = rows.filter(Q(sender__gt=after[0]) | Q(sender=after[0], reason__gt=after[1]))
    return [
        RefusalRow(
            sender=row.sender,
            reason=row.reason,
            count=row.count,
            sample=row.sample,
            first_at=row.first_at,
            last_at=row.last_at,
        )
        for row in rows.order_by("sender", "reason")[:limit]
    ]


def metrics_of(attempt_id: int) -> list[str]:
    """Return the metrics that an attempt's ranks sent, first heard first."""
    rows = SeriesMetric.objects.filter(series__kind="RANK", series__owner_id=attempt_id)
    return list(rows.order_by("number").values_list("name", flat=True))


def _row(row: Fact) -> FactRow:
    return FactRow(
        id=row.pk,
        kind=FactKind(row.kind).value.lower(),
        happened_at=row.happened_at,
        ours_at=row.last_at,
        received_at=row.received_at,
        sender=row.payload.get("sender", ""),
        rank=row.rank,
        node_id=row.node_id,
        text=row.text,
        code=row.code,
        signal=row.signal,
        payload=row.payload,
        current=row.current,
        count=row.count,
    )


def _events(raw: bytes) -> list[_Exit]:
    found = []
    for item in _exits.decode(raw):
        try:
            found.append(_exit.decode(item))
        except (msgspec.MsgspecError, RecursionError):
            event, _ = partly_read(item, _Exit, about=frozenset({"rank", "text"}))
            found += [] if event is None else [event]  # what is not taken is refused when it is folded
    return found


def _waiting(
    sender: str, received_at: datetime, sent_at: datetime | None, least_s: float | None, event: _Exit
) -> FactRow:
    happened = usable(event.happened_at) or received_at
    own_s = [(received_at - sent_at).total_seconds()] if sent_at is not None else []
    offset_s = lag_of(min([*own_s, *([] if least_s is None else [least_s])], default=None))
    return FactRow(
        id=0,
        kind="exit",
        happened_at=happened,
        ours_at=received_at,
        received_at=received_at,
        sender=sender,
        rank=event.rank,
        node_id=None,
        text=event.text or "",
        code=event.code if code_usable(event.code) else None,
        signal=event.signal if signal_usable(event.signal) else None,
        payload={"sender": sender},
        current=is_current(happened_at=happened, sent_at=sent_at, received_at=received_at, offset_s=offset_s),
        count=1,
    )
