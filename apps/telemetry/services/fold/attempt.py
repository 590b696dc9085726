"""The fold of an attempt's reports: one transaction from the inbox to everything that is read later."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import psycopg
from django.conf import settings
from django.db import Error as DatabaseError

from apps.common.errors import NotFound
from apps.common.live import poke_on_commit, stream_group
from apps.common.tasks import queue_on_commit
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import AttemptState
from apps.runs.limits import limit_value
from apps.runs.selectors import AttemptRow, RunRow, attempt_by_id, run_by_id
from apps.runs.services import attempt_progress
from apps.telemetry.choices import FactKind, OwnerKind, Reason, SeriesKind
from apps.telemetry.services.facts import Told, facts_keep, is_current
from apps.telemetry.services.fold.entries import Entry, Refusals, numbered, refusals_of
from apps.telemetry.services.fold.parts import beats_keep, drops_keep, moment_of, places_keep, saves_keep
from apps.telemetry.services.fold.samples import Bounds, Outcome, samples_write
from apps.telemetry.services.fold.settle import columns_settle_due
from apps.telemetry.services.fold.status import run_status_write
from apps.telemetry.services.parse import Event, Refused, report_parse
from apps.telemetry.services.parse.parts import STACK_LENGTH, TEXT_LENGTH, int4, text_clean
from apps.telemetry.stores.folded import processes_load, processes_save
from apps.telemetry.stores.inbox import WaitingRow, bodies, fold_lock, oldest_waiting, rows_delete, rows_waiting
from apps.telemetry.stores.refusals import nonfinite_add, refusal_reasons, refusals_save
from apps.telemetry.stores.series import Writing, series_open, series_save

log = logging.getLogger(__name__)

FOLD_S = 0.2
FOLD_BYTES = 16 * 2**20
"""Bounds of one fold (DESIGN §1): long enough to be worth its transaction, short enough to share a worker."""

MOST_SENDERS = 200_000
"""Senders and restarts of senders told apart within one attempt."""

CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold did. `more`: reports still wait. `busy`: another fold of this owner is at work."""

    reports: int = 0
    repeats: int = 0
    settled: int = 0
    more: bool = False
    busy: bool = False


@dataclass(slots=True)
class _Work:
    attempt: AttemptRow
    run: RunRow
    series: Writing
    now: datetime
    log: Log
    refusals: Refusals = field(default_factory=Refusals)
    outcome: Outcome = field(default_factory=Outcome)
    last_report_at: datetime | None = None


def inbox_fold(
    *, attempt_id: int, now: datetime, clock: Callable[[], float] = time.monotonic, most_bytes: int = FOLD_BYTES
) -> Folded:
    """Fold what waits for an attempt, newest steps first, within 200 ms or 16 MiB; settle the columns whose turn it is.

    A repeat is harmless: numbers that are folded are deleted unread. One fold of an attempt at a time; a second one
    returns at once. A report that cannot be folded is refused whole and never keeps others waiting.
    """
    began = clock()
    with recording(now=now) as entries:
        if not fold_lock(OwnerKind.ATTEMPT, attempt_id):
            return Folded(busy=True)
        waiting = rows_waiting(OwnerKind.ATTEMPT, attempt_id)
        try:
            attempt = attempt_by_id(attempt_id)
        except NotFound:
            rows_delete([row.id for row in waiting])  # purged while its last reports were on their way
            return Folded(repeats=len(waiting))
        series = series_open(kind=SeriesKind.RANK, owner_id=attempt_id, now=now)
        work = _Work(attempt, run_by_id(attempt.run_id), series, now, entries)
        repeats = [row.id for row in waiting if row.repeat]
        fresh = [row for row in waiting if not row.repeat]
        rows_delete(repeats)
        taken, found = _take(fresh, began=began, clock=clock, most_bytes=most_bytes)
        _fold_some(work, taken, found)
        settled = _finish(work, reports=len(taken))
        return Folded(len(taken), len(repeats), settled, more=len(taken) < len(fresh) or len(waiting) >= 20_000)


def _take(
    rows: Sequence[WaitingRow], *, began: float, clock: Callable[[], float], most_bytes: int
) -> tuple[list[WaitingRow], dict[int, bytes]]:
    """The rows that fit into this fold, and their bodies; at least some, however slow the machine is."""
    chosen: list[WaitingRow] = []
    size = 0
    for row in rows:
        size += row.size
        if chosen and size > most_bytes:
            break
        chosen.append(row)
    taken: list[WaitingRow] = []
    found: dict[int, bytes] = {}
    for part in bodies([row.id for row in chosen]):
        found |= part
        taken = chosen[: len(found)]
        if clock() - began > FOLD_S / 2:
            break
    return taken, found


def _fold_some(work: _Work, rows: Sequence[WaitingRow], found: dict[int, bytes]) -> None:
    """Fold rows together; if that fails, in halves, until the one that cannot be folded is alone and refused."""
    if not rows:
        return
    kept = (work.series.row.__dict__.copy(), dict(work.series.numbers), dict(work.refusals.found), work.outcome)
    try:
        with recording(now=work.now):
            _fold_rows(work, rows, found)
    except CONNECTION_LOST:
        raise
    except Exception as error:
        if isinstance(error, DatabaseError) and isinstance(error.__cause__, CONNECTION_LOST):
            raise
        work.series.row.__dict__.update(kept[0])
        work.series.numbers, work.refusals.found, work.outcome = kept[1], kept[2], kept[3]
        if len(rows) > 1:
            middle = len(rows) // 2
            _fold_some(work, rows[:middle], found)
            _fold_some(work, rows[middle:], found)
            return
        log.exception("report %d of attempt %d cannot be folded", rows[0].id, work.attempt.id)
        work.refusals.add(rows[0], Refused(Reason.UNREADABLE, f"{type(error).__name__}: {error}"))
        rows_delete([rows[0].id])


def _fold_rows(work: _Work, rows: Sequence[WaitingRow], found: dict[int, bytes]) -> None:
    processes = processes_load({(row.scope_kind, row.scope_id, row.sender) for row in rows})
    ordered = numbered(rows, processes)
    entries = [Entry(n.row, n.process, n.late, n.nth, report_parse(found[n.row.id])) for n in ordered]
    entries = _room_for_senders(work, entries)
    refusals_of(entries, work.refusals)
    bounds = _bounds(work)
    outcome = samples_write(work.series, entries, work.refusals, bounds=bounds, now=work.now)
    _odd_keep(work, outcome)
    world = bounds.world_size or bounds.most_ranks
    beats_keep(entries, work.refusals, world_size=world)
    drops_keep(entries)
    if outcome.changed:
        assert outcome.first_step is not None
        assert outcome.last_step is not None
        attempt_progress(
            attempt_id=work.attempt.id, first_step=outcome.first_step, last_step=outcome.last_step, now=work.now
        )
    saves_keep(entries, work.refusals, attempt_id=work.attempt.id, now=work.now)
    places_keep(entries, work.refusals, attempt_id=work.attempt.id, cluster_id=work.run.cluster_id, now=work.now)
    _facts_keep(work, entries)
    processes_save([process for process in processes.values() if process.seqs])
    rows_delete([row.id for row in rows])
    _merge(work, outcome, entries)


def _bounds(work: _Work) -> Bounds:
    limits = settings.PACELINE_LIMITS
    attempt = work.attempt
    return Bounds(attempt.world_size, attempt.resumed_from_step, limits["ranks_per_attempt"], limits["metrics_per_run"])


def _room_for_senders(work: _Work, entries: list[Entry]) -> list[Entry]:
    """Refuse reports of processes for which there is no more room; the others count."""
    new = {entry.process.key for entry in entries if entry.process.is_new}
    room = MOST_SENDERS - work.series.row.senders
    if len(new) <= room:
        work.series.row.senders += len(new)
        return entries
    allowed = set(sorted(new)[: max(0, room)])
    work.series.row.senders += len(allowed)
    kept = []
    for entry in entries:
        if not entry.process.is_new or entry.process.key in allowed:
            kept.append(entry)
        else:
            entry.process.seqs.clear()
            row = entry.row
            work.refusals.found.setdefault(
                (row.scope_kind, row.scope_id, "", Reason.SENDERS_MANY), (0, f"sender “{row.sender[:80]}”")
            )
            count, sample = work.refusals.found[row.scope_kind, row.scope_id, "", Reason.SENDERS_MANY]
            work.refusals.found[row.scope_kind, row.scope_id, "", Reason.SENDERS_MANY] = (count + 1, sample)
    return kept


def _odd_keep(work: _Work, outcome: Outcome) -> None:
    numbers = work.series.numbers
    nonfinite_add(work.series, [(odd.step, numbers[odd.metric], odd.rank, odd.which) for odd in outcome.odd])
    work.series.row.nonfinite += len(outcome.odd)


def _merge(work: _Work, outcome: Outcome, entries: Sequence[Entry]) -> None:
    row = work.series.row
    row.filled += outcome.written.filled
    row.rewritten += outcome.written.rewritten
    if outcome.first_step is not None:
        row.first_step = outcome.first_step if row.first_step is None else min(row.first_step, outcome.first_step)
    if outcome.last_step is not None:
        row.last_step = outcome.last_step if row.last_step is None else max(row.last_step, outcome.last_step)
    work.outcome = Outcome(
        changed=work.outcome.changed or outcome.changed,
        odd=[*work.outcome.odd, *outcome.odd],
        late_columns=work.outcome.late_columns + outcome.late_columns,
    )
    heard = [entry.row.received_at for entry in entries]
    work.last_report_at = max([*heard, *filter(None, [work.last_report_at])], default=None)


def _facts_keep(work: _Work, entries: Sequence[Entry]) -> None:
    told: list[Told] = []
    for entry in entries:
        for event in entry.parsed.events:
            fact = _told(work, entry, event)
            if fact is None:
                work.refusals.add(entry.row, Refused(Reason.WORD, f"event kind “{event.kind[:40]}”"))
            else:
                told.append(fact)
    if told:
        many = facts_keep(work.log, told, run_id=work.run.id, now=work.now)
        if many:
            work.refusals.add(entries[0].row, Refused(Reason.EVENTS_MANY, f"{len(told):,} events at once", many))


def _told(work: _Work, entry: Entry, event: Event) -> Told | None:
    kind = event.kind.upper()
    if kind not in FactKind.values:
        return None
    row = entry.row
    happened = event.happened_at if event.happened_at is not None and event.happened_at.tzinfo else row.received_at
    return Told(
        kind=kind,
        happened_at=happened,
        ours_at=moment_of(entry, event.happened_at),
        received_at=row.received_at,
        sender=row.sender,
        current=work.attempt.state == AttemptState.OPEN
        and is_current(
            happened_at=happened, sent_at=row.sent_at, received_at=row.received_at, offset_s=entry.process.offset
        ),
        attempt_id=work.attempt.id,
        node_id=entry.process.node_id,
        node=text_clean(event.node, length=255) or row.sender,
        rank=event.rank,
        text=text_clean(event.text, length=STACK_LENGTH if kind == FactKind.STACK else TEXT_LENGTH),
        code=int4(event.code),
        signal=int4(event.signal),
    )


def _finish(work: _Work, *, reports: int) -> int:
    """Settle, write the heads, tell who looks; return how many columns settled."""
    row = work.series.row
    settled = columns_settle_due(
        work.series,
        world_size=work.attempt.world_size,
        settle_s=limit_value(work.run.limits, "settle_s"),
        oldest_waiting=oldest_waiting(OwnerKind.ATTEMPT, work.attempt.id),
        now=work.now,
    )
    _refusals_tell(work)
    if reports or settled:
        series_save(work.series, now=work.now, changed=work.outcome.changed)
        run_status_write(
            work.series,
            attempt=work.attempt,
            run=work.run,
            last_report_at=work.last_report_at,
            settled=settled > 0,
        )
        poke_on_commit(
            stream_group("RUN", work.run.id), {"what": "series", "version": row.version, "attempt": work.attempt.id}
        )
        queue_on_commit("diagnosis.windows_evaluate", attempt_id=work.attempt.id)
    return settled


def _refusals_tell(work: _Work) -> None:
    """Count what was refused; the first refusal for a reason is a row of the run's log."""
    if not work.refusals.found:
        return
    known = refusal_reasons("ATTEMPT", work.attempt.id)
    first = refusals_save(work.refusals.found, now=work.now)
    for reason, sample in sorted(first.items()):
        if reason not in known:
            work.log.add(
                StreamKey.run(work.run.id),
                kind="telemetry.refused",
                text=f"{Reason(reason).label} First seen: {sample}",
                source=Source.SYSTEM,
                payload={"attempt": work.attempt.id, "reason": reason},
            )
