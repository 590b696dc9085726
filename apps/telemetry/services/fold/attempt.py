"""The fold of an attempt's reports: one transaction from the inbox to everything that is read later."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings

from apps.common.errors import NotFound
from apps.common.live import poke_on_commit, stream_group
from apps.common.tasks import queue_on_commit
from apps.journal.choices import Source, StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import AttemptState
from apps.runs.limits import limit_value
from apps.runs.selectors import AttemptRow, RunRow, attempt_by_id, run_by_id
from apps.runs.services import attempt_progress, run_lock, saves_lock
from apps.telemetry.choices import OwnerKind, Reason, SeriesKind
from apps.telemetry.services.fold.entries import Entry, Refusals, numbered, refusals_of
from apps.telemetry.services.fold.isolating import NothingFolds, fold_isolating
from apps.telemetry.services.fold.parts import beats_keep, drops_keep, places_keep, saves_keep
from apps.telemetry.services.fold.samples import Bounds, Outcome, samples_write
from apps.telemetry.services.fold.settle import columns_settle_due
from apps.telemetry.services.fold.status import run_status_write
from apps.telemetry.services.fold.stopping import fold_go_on, fold_stop, fold_turn
from apps.telemetry.services.fold.taking import FOLD_BYTES, Folded, rows_take
from apps.telemetry.services.fold.told import events_keep
from apps.telemetry.services.parse import Refused, report_parse
from apps.telemetry.stores.folded import processes_load, processes_save
from apps.telemetry.stores.inbox import (
    MOST_ROWS,
    WaitingRow,
    call_answer,
    fold_lock,
    oldest_waiting,
    rows_delete,
    rows_waiting,
)
from apps.telemetry.stores.news import news_note
from apps.telemetry.stores.refusals import nonfinite_add, refusal_reasons, refusals_save
from apps.telemetry.stores.series import Writing, series_open, series_save

MOST_SENDERS = 200_000
"""Senders and restarts of senders told apart within one attempt."""


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

    Raises:
        NothingFolds: none of several reports can be folded: all are kept, and tried again later and later.
    """
    began = clock()
    call_answer(OwnerKind.ATTEMPT, attempt_id)  # first, and by itself: what comes from now on calls again
    turn = fold_turn(OwnerKind.ATTEMPT, attempt_id, now=now)
    if turn is None:
        return Folded(stopped=True)
    try:
        return _fold(attempt_id, turn, began=began, clock=clock, most_bytes=most_bytes, now=now)
    except NothingFolds as error:
        fold_stop(OwnerKind.ATTEMPT, attempt_id, error=error, now=now)
        raise


def _fold(
    attempt_id: int, turn: int, *, began: float, clock: Callable[[], float], most_bytes: int, now: datetime
) -> Folded:
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
        taken, found = rows_take(fresh, began=began, clock=clock, most_bytes=most_bytes)
        done = len(taken) - _fold_some(work, taken, found, turn)
        if turn:
            fold_go_on(entries, OwnerKind.ATTEMPT, attempt_id)
        settled = _finish(work, reports=done)
        return Folded(done, len(repeats), settled, more=done < len(fresh) or len(waiting) >= MOST_ROWS)


def _fold_some(work: _Work, rows: Sequence[WaitingRow], found: dict[int, bytes], turn: int) -> int:
    """Fold rows, each try from the state that the one before left; return how many were left for another fold."""

    def fold(part: Sequence[WaitingRow]) -> None:
        row, numbers, outcome = work.series.row.__dict__.copy(), dict(work.series.numbers), work.outcome
        try:
            _fold_rows(work, part, found)
        except BaseException:
            work.series.row.__dict__.update(row)
            work.series.numbers, work.outcome = numbers, outcome
            raise

    isolated = fold_isolating(rows, fold, now=work.now, kept=work.refusals.found, turn=turn)
    for row, error in isolated.refused:
        work.refusals.add(row, Refused(Reason.UNREADABLE, error))
    return len(isolated.left)


def _fold_rows(work: _Work, rows: Sequence[WaitingRow], found: dict[int, bytes]) -> None:
    processes = processes_load({(row.scope_kind, row.scope_id, row.sender) for row in rows})
    ordered = numbered(rows, processes)
    entries = [Entry(n.row, n.process, n.late, n.nth, n.is_now, report_parse(found[n.row.id])) for n in ordered]
    entries = _room_for_senders(work, entries)
    refusals_of(entries, work.refusals)
    if any(entry.parsed.places or entry.parsed.saves for entry in entries):
        # Closes the race with who ends the attempt, or acts on it: they write attempt, status and nodes as well. Before
        # the attempt's own row is written, which who ends it anew takes after the run's.
        run_lock(work.run.id)
    if any(entry.parsed.saves for entry in entries):
        saves_lock(work.attempt.id)
    bounds = _bounds(work)
    outcome = samples_write(work.series, entries, work.refusals, bounds=bounds, now=work.now)
    _odd_keep(work, outcome)
    world = bounds.world_size or bounds.most_ranks
    beats_keep(entries, work.refusals, world_size=world)
    drops_keep(entries)
    _progress_tell(work, outcome)
    saves_keep(entries, work.refusals, attempt_id=work.attempt.id, now=work.now)
    places_keep(
        entries,
        work.refusals,
        attempt_id=work.attempt.id,
        run_id=work.run.id,
        cluster_id=work.run.cluster_id,
        world_size=world,
        now=work.now,
    )
    events_keep(work.log, entries, work.refusals, attempt=work.attempt, processes=processes.values(), now=work.now)
    processes_save([process for process in processes.values() if process.seqs])
    rows_delete([row.id for row in rows])
    _merge(work, outcome, entries)


def _progress_tell(work: _Work, outcome: Outcome) -> None:
    """Tell the attempt which steps it has reported, if that is news."""
    first, last, attempt = outcome.first_step, outcome.last_step, work.attempt
    if first is None or last is None:
        return
    known = attempt.first_step, attempt.last_step
    if attempt.first_step_at is None or None in known or first < known[0] or last > known[1]:  # type: ignore[operator]
        attempt_progress(attempt_id=attempt.id, first_step=first, last_step=last, now=work.now)


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
            refused = Refused(Reason.SENDERS_MANY, f"sender “{entry.row.sender[:80]}”")
            work.refusals.add(entry.row, refused, of_all=True)
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
    )
    heard = [entry.row.received_at for entry in entries]
    work.last_report_at = max([*heard, *filter(None, [work.last_report_at])], default=None)


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
    if (reports or settled) and work.attempt.state == AttemptState.ENDED:
        news_note(work.attempt.id)
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
