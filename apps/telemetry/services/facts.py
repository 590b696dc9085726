"""Facts: what was told besides numbers. Each becomes a row of the log: of equal texts the first stands at once, then one
row with the count per closed window."""

import hashlib
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from apps.fleet.services import node_event
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.selectors import attempt_by_id
from apps.telemetry.choices import FactKind
from apps.telemetry.models import Fact
from apps.telemetry.selectors.sql import cursor

WINDOW = timedelta(seconds=60)
"""How long equal texts are one fact: short enough that a count is news, long enough that a flood is one row."""

MOST_NEW = 200
"""New texts that one fold writes into the log; a sender whose lines all differ must not drown the others."""

EXITS_APART = 8
"""Exits told one by one in the log; when a whole job ends, the rest is one row."""

RANKS_KEPT = 64
LOG_LENGTH = 500
_STREAM_WORDS = {
    FactKind.LOG: "rank.log",
    FactKind.EXIT: "rank.exit",
    FactKind.XID: "rank.xid",
    FactKind.NOTE: "rank.note",
    FactKind.PHASE: "rank.phase",
    FactKind.STACK: "rank.stack",
}


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that was told. `happened_at` is the sender's clock, `ours_at` the same by ours."""

    kind: str
    happened_at: datetime
    ours_at: datetime
    received_at: datetime
    sender: str
    current: bool
    attempt_id: int | None = None
    node_id: int | None = None
    node: str = ""
    rank: int | None = None
    text: str = ""
    code: int | None = None
    signal: int | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)


def facts_keep(log: Log, told: Sequence[Told], *, run_id: int | None, now: datetime) -> int:
    """Keep facts and write them into the log; return how many were too many to be told apart and were not kept."""
    groups: dict[bytes, list[Told]] = {}
    for fact in told:
        if fact.kind == FactKind.STACK:
            _stack_keep(fact)
        groups.setdefault(_fingerprint(fact), []).append(fact)
    known = {bytes(row.fingerprint): row for row in Fact.objects.filter(fingerprint__in=list(groups), until_at__gt=now)}
    new = [group for mark, group in groups.items() if mark not in known]
    exits = [group for group in new if group[0].kind == FactKind.EXIT]
    others = [group for group in new if group[0].kind != FactKind.EXIT]
    Fact.objects.bulk_create([_row(group, now) for group in [*exits, *others[:MOST_NEW]]])
    for mark, row in known.items():
        _again(row, groups[mark])
    for group in others[:MOST_NEW]:
        _tell(log, group[0], run_id=run_id)
    _tell_exits(log, [group[0] for group in exits], run_id=run_id)
    return sum(len(group) for group in others[MOST_NEW:])


def facts_told_close(*, now: datetime, limit: int = 500) -> int:
    """Write one row with the count for each window that is over and had repeats; return how many."""
    with recording(now=now) as log:
        # Locked so that two sweeps never tell one window twice.
        rows = Fact.objects.select_for_update(skip_locked=True).filter(count__gt=F("told"), until_at__lte=now)
        closed = list(rows.order_by("pk")[:limit])
        runs = _runs_of(closed)
        for row in closed:
            repeats = row.count - row.told
            text = f"{_line(row.kind, row.rank, row.text, row.code, row.signal)} (again {repeats:,} times)"
            _write(
                log,
                kind=row.kind,
                text=text,
                happened_at=row.last_at,
                node_id=row.node_id if row.attempt_id is None else None,
                run_id=runs.get(row.attempt_id) if row.attempt_id else None,
                subject=_subject(row.rank, ""),
                payload={"attempt": row.attempt_id, "count": repeats},
            )
        Fact.objects.filter(pk__in=[row.pk for row in closed]).update(told=F("count"))
        return len(closed)


def _fingerprint(fact: Told) -> bytes:
    parts: list[object] = [fact.attempt_id, fact.kind, fact.text, fact.code, fact.signal]
    if fact.kind in (FactKind.EXIT, FactKind.PHASE, FactKind.STACK):
        parts.append(fact.rank)
    if fact.attempt_id is None or fact.kind == FactKind.XID:
        parts.append(fact.node_id)
    return hashlib.md5(repr(parts).encode(), usedforsecurity=False).digest()


def _row(group: Sequence[Told], now: datetime) -> Fact:
    first = group[0]
    return Fact(
        attempt_id=first.attempt_id,
        node_id=first.node_id,
        kind=first.kind,
        fingerprint=_fingerprint(first),
        happened_at=first.happened_at,
        received_at=first.received_at,
        last_at=group[-1].ours_at,
        until_at=now + WINDOW,
        rank=first.rank,
        text=first.text,
        code=first.code,
        signal=first.signal,
        payload={**first.payload, "sender": first.sender, "ranks": _ranks(group)},
        current=any(fact.current for fact in group),
        count=len(group),
        told=1,
    )


def _again(row: Fact, group: Sequence[Told]) -> None:
    ranks = sorted({*row.payload.get("ranks", ()), *_ranks(group)})[:RANKS_KEPT]
    Fact.objects.filter(pk=row.pk).update(
        count=F("count") + len(group),
        last_at=max(row.last_at, group[-1].ours_at),
        payload={**row.payload, "ranks": ranks},
        current=row.current or any(fact.current for fact in group),
    )


def _ranks(group: Sequence[Told]) -> list[int]:
    return sorted({fact.rank for fact in group if fact.rank is not None})[:RANKS_KEPT]


def _stack_keep(fact: Told) -> None:
    if fact.attempt_id is None or fact.rank is None:
        return
    with cursor() as c:
        c.execute(
            """INSERT INTO telemetry_stack AS s (attempt_id, rank, happened_at, text) VALUES (%s, %s, %s, %s)
               ON CONFLICT (attempt_id, rank) DO UPDATE SET happened_at = excluded.happened_at, text = excluded.text
               WHERE s.happened_at <= excluded.happened_at""",
            (fact.attempt_id, fact.rank, fact.happened_at, fact.text),
        )


def _tell(log: Log, fact: Told, *, run_id: int | None) -> None:
    _write(
        log,
        kind=fact.kind,
        text=_line(fact.kind, fact.rank, fact.text, fact.code, fact.signal),
        happened_at=fact.ours_at,
        node_id=fact.node_id if fact.attempt_id is None or fact.kind == FactKind.XID else None,
        run_id=run_id,
        subject=_subject(fact.rank, fact.node),
        payload={"attempt": fact.attempt_id, "sender": fact.sender, "code": fact.code, "signal": fact.signal},
    )


def _tell_exits(log: Log, exits: Sequence[Told], *, run_id: int | None) -> None:
    for fact in exits[:EXITS_APART]:
        _tell(log, fact, run_id=run_id)
    rest = exits[EXITS_APART:]
    if rest:
        _write(
            log,
            kind=FactKind.EXIT,
            text=f"{len(rest):,} more ranks exited",
            happened_at=rest[-1].ours_at,
            node_id=None,
            run_id=run_id,
            subject={"kind": "RUN"},
            payload={"attempt": rest[0].attempt_id, "count": len(rest)},
        )


def _write(
    log: Log,
    *,
    kind: str,
    text: str,
    happened_at: datetime,
    node_id: int | None,
    run_id: int | None,
    subject: Mapping[str, Any],
    payload: Mapping[str, Any],
) -> None:
    word = _STREAM_WORDS[FactKind(kind)]
    more: dict[str, Any] = {"happened_at": happened_at, "subject": dict(subject), "payload": dict(payload)}
    if node_id is not None:
        node_event(log, node_id=node_id, kind=word.replace("rank.", "node."), text=text, source=Source.SENDER, **more)
    elif run_id is not None:
        log.add(StreamKey.run(run_id), kind=word, text=text, source=Source.SENDER, **more)


def _subject(rank: int | None, node: str) -> dict[str, Any]:
    if rank is not None:
        return {"kind": "RANK", "rank": rank, **({"node": node} if node else {})}
    return {"kind": "NODE", "node": node} if node else {"kind": "RUN"}


def _line(kind: str, rank: int | None, text: str, code: int | None, signal: int | None) -> str:
    who = "A process" if rank is None else f"Rank {rank}"
    said = text.strip()[:LOG_LENGTH]
    if kind == FactKind.EXIT:
        return _exit_line(who, code, signal) + (f": {said}" if said else "")
    if kind == FactKind.XID:
        return f"XID {code}" + (f": {said}" if said else "")
    if kind == FactKind.STACK:
        return f"{who} sent its Python stack"
    return said if rank is None else f"{who}: {said}"


def _exit_line(who: str, code: int | None, signal: int | None) -> str:
    number = signal if signal is not None else (-code if code is not None and code < 0 else None)
    if number is not None:
        try:
            return f"{who} was ended by {signals.Signals(number).name}"
        except ValueError:
            return f"{who} was ended by signal {number}"
    return f"{who} exited" + (f" with status {code}" if code is not None else "")


def _runs_of(facts: Sequence[Fact]) -> dict[int | None, int]:
    attempts = {row.attempt_id for row in facts if row.attempt_id is not None}
    return {attempt_id: attempt_by_id(attempt_id).run_id for attempt_id in attempts}
