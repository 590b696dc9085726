"""The fold of a cluster's node reports: gauges of GPU slots and nodes, and whether each node is heard."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings

from apps.fleet.choices import TelemetryState
from apps.fleet.selectors import NodeRow, nodes_by_id
from apps.fleet.services import gpus_ensure, node_event, node_status_update, nodes_heard
from apps.journal.choices import Source
from apps.journal.services import Log, recording
from apps.telemetry.choices import FactKind, OwnerKind, Reason, SeriesKind
from apps.telemetry.selectors.facts import is_current, lag_of
from apps.telemetry.selectors.senders import skew_of
from apps.telemetry.services.facts import Told, facts_keep
from apps.telemetry.services.fold.entries import Numbered, Refusals, numbered, times_to_come_refuse
from apps.telemetry.services.fold.isolating import NothingFolds, fold_isolating
from apps.telemetry.services.fold.stopping import fold_go_on, fold_stop, fold_turn
from apps.telemetry.services.fold.taking import FOLD_BYTES, Folded, rows_take
from apps.telemetry.services.gauges import Gauge, gauges_write
from apps.telemetry.services.parse import Refused
from apps.telemetry.services.parse.node import NodeParsed, Reading, node_parse
from apps.telemetry.services.parse.parts import text_clean
from apps.telemetry.stores.folded import Process, processes_load, processes_save
from apps.telemetry.stores.inbox import MOST_ROWS, WaitingRow, call_answer, fold_lock, rows_delete, rows_waiting
from apps.telemetry.stores.refusals import refusals_save

log = logging.getLogger(__name__)

HEARD_EVERY = timedelta(seconds=15)
"""A node's last word is written down at most this often: pages show it in seconds, not to the report."""

GPU_SEEN_EVERY_S = 600.0
FLAPPING_FROM = 5
"""Silences within a day from which a node's telemetry is called flapping."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One report of a node, read."""

    row: WaitingRow
    process: Process
    late: bool
    parsed: NodeParsed


@dataclass(slots=True)
class _Work:
    cluster_id: int
    now: datetime
    log: Log
    refusals: Refusals = field(default_factory=Refusals)


def cluster_fold(
    *, cluster_id: int, now: datetime, clock: Callable[[], float] = time.monotonic, most_bytes: int = FOLD_BYTES
) -> Folded:
    """Fold what waits of a cluster's node reports, within the same bounds and by the same identity as an attempt's."""
    began = clock()
    call_answer(OwnerKind.CLUSTER, cluster_id)  # first, and by itself: what comes from now on calls again
    turn = fold_turn(OwnerKind.CLUSTER, cluster_id, now=now)
    if turn is None:
        return Folded(stopped=True)
    try:
        return _fold(cluster_id, turn, began=began, clock=clock, most_bytes=most_bytes, now=now)
    except NothingFolds as error:
        fold_stop(OwnerKind.CLUSTER, cluster_id, error=error, now=now)
        raise


def _fold(
    cluster_id: int, turn: int, *, began: float, clock: Callable[[], float], most_bytes: int, now: datetime
) -> Folded:
    with recording(now=now) as journal:
        if not fold_lock(OwnerKind.CLUSTER, cluster_id):
            return Folded(busy=True)
        waiting = rows_waiting(OwnerKind.CLUSTER, cluster_id)
        repeats = [row.id for row in waiting if row.repeat]
        fresh = [row for row in waiting if not row.repeat]
        rows_delete(repeats)
        taken, found = rows_take(fresh, began=began, clock=clock, most_bytes=most_bytes)
        work = _Work(cluster_id, now, journal)
        isolated = fold_isolating(
            taken, lambda rows: _fold_rows(work, rows, found), now=now, kept=work.refusals.found, turn=turn
        )
        for row, error in isolated.refused:
            work.refusals.add(row, Refused(Reason.UNREADABLE, error))
        if turn:
            fold_go_on(journal, OwnerKind.CLUSTER, cluster_id)
        refusals_save(work.refusals.found, now=now)
        done = len(taken) - len(isolated.left)
        return Folded(done, len(repeats), 0, more=done < len(fresh) or len(waiting) >= MOST_ROWS)


def _fold_rows(work: _Work, rows: Sequence[WaitingRow], found: Mapping[int, bytes]) -> None:
    processes = processes_load({(row.scope_kind, row.scope_id, row.sender) for row in rows})
    before = _boot_ids(processes.values())
    entries = [_entry(n, found[n.row.id]) for n in numbered(rows, processes)]
    nodes = nodes_by_id({entry.row.scope_id for entry in entries})
    entries = [entry for entry in entries if entry.row.scope_id in nodes]
    for entry in entries:
        entry.process.node_id = entry.row.scope_id
        for refused in entry.parsed.refused:
            work.refusals.add(entry.row, refused)
        times_to_come_refuse(entry.row, entry.process, entry.parsed.events, work.refusals)
        if entry.parsed.drops and not entry.late:
            entry.process.drops = {**entry.process.drops, **entry.parsed.drops}
    _gauges_keep(work, entries, nodes)
    _facts_keep(work, entries, nodes)
    _reboots_tell(work, entries, nodes, before)
    _heard_note(entries, nodes)
    processes_save([process for process in processes.values() if process.seqs])
    rows_delete([row.id for row in rows])


def _entry(row: Numbered, body: bytes) -> NodeEntry:
    return NodeEntry(row.row, row.process, row.late, node_parse(body))


def _gauges_keep(work: _Work, entries: Sequence[NodeEntry], nodes: Mapping[int, NodeRow]) -> None:
    of_gpus: list[Gauge] = []
    of_nodes: list[Gauge] = []
    for source, entry in enumerate(entries):
        node = nodes[entry.row.scope_id]
        slots = _slots(node, entry, now=work.now)
        for key in entry.parsed.devices.keys() - slots.keys():
            work.refusals.add(entry.row, Refused(Reason.DEVICES_MANY, key[:80]))
        for reading in entry.parsed.readings:
            at_s = _at_s(entry, reading)
            if reading.host:
                of_nodes.append(Gauge(node.slot, at_s, reading.host, source, entry.late))
            of_gpus += [
                Gauge(slots[key], at_s, values, source, entry.late)
                for key, values in reading.gpus.items()
                if values and key in slots
            ]
    for kind, gauges in ((SeriesKind.GPU, of_gpus), (SeriesKind.NODE, of_nodes)):
        if gauges:
            done = gauges_write(
                kind=kind,
                cluster_id=work.cluster_id,
                gauges=gauges,
                most_metrics=settings.PACELINE_LIMITS["metrics_per_run"],
                now=work.now,
            )
            for source, refused in done.refused:
                work.refusals.add(entries[source].row, refused)


def _slots(node: NodeRow, entry: NodeEntry, *, now: datetime) -> dict[str, int]:
    """The slots of a report's devices; the fleet is asked only where it has something to learn."""
    known = {gpu.key: gpu for gpu in node.gpus}
    news = [
        seen
        for key, seen in entry.parsed.devices.items()
        if (gpu := known.get(key)) is None
        or (seen.pci and seen.pci != gpu.pci)
        or (seen.index is not None and seen.index != gpu.index)
        or (seen.model and seen.model != gpu.model)
        or (now - gpu.last_seen_at).total_seconds() > GPU_SEEN_EVERY_S
    ]
    slots = {key: gpu.slot for key, gpu in known.items()}
    return slots | gpus_ensure(node_id=node.id, seen=news, now=now) if news else slots


def _at_s(entry: NodeEntry, reading: Reading) -> float:
    """When a reading was taken, by our clock: the sender's word, moved by the smallest offset of its recent reports."""
    at = reading.at or entry.row.sent_at
    return entry.row.received_at.timestamp() if at is None else at.timestamp() + entry.process.offset


def _facts_keep(work: _Work, entries: Sequence[NodeEntry], nodes: Mapping[int, NodeRow]) -> None:
    told: list[Told] = []
    for entry in entries:
        for event in entry.parsed.events:
            kind = event.kind.upper()
            if kind not in FactKind.values:
                work.refusals.add(entry.row, Refused(Reason.WORD, f"event kind “{event.kind[:40]}”"))
                continue
            row = entry.row
            happened = event.happened_at if event.happened_at and event.happened_at.tzinfo else row.received_at
            offset_s = lag_of(entry.process.least, nodes[row.scope_id].clock_skew_s)
            told.append(
                Told(
                    kind=kind,
                    happened_at=happened,
                    ours_at=happened + timedelta(seconds=offset_s) if event.happened_at else row.received_at,
                    received_at=row.received_at,
                    sender=row.sender,
                    current=is_current(
                        happened_at=happened, sent_at=row.sent_at, received_at=row.received_at, offset_s=offset_s
                    ),
                    node_id=row.scope_id,
                    node=nodes[row.scope_id].name,
                    text=text_clean(event.text),
                    code=event.code,
                    signal=event.signal,
                )
            )
    if told:
        many = facts_keep(work.log, told, run_id=None, now=work.now)
        if many:
            work.refusals.add(entries[0].row, Refused(Reason.EVENTS_MANY, f"{len(told):,} events at once", many))


def _boot_ids(processes: Iterable[Process]) -> dict[int, str]:
    """The newest boot id that each node was heard with before this fold."""
    newest: dict[int, Process] = {}
    for process in processes:
        known = newest.get(process.key[1])
        if process.boot_id and (known is None or process.last_received_at > known.last_received_at):
            newest[process.key[1]] = process
    return {node_id: process.boot_id for node_id, process in newest.items()}


def _reboots_tell(
    work: _Work, entries: Sequence[NodeEntry], nodes: Mapping[int, NodeRow], before: dict[int, str]
) -> None:
    """A machine with another boot id has restarted: a row of its log, so that counters that begin anew make sense."""
    for entry in entries:
        if not entry.parsed.boot_id or entry.late:
            continue
        known, node = before.get(entry.row.scope_id), nodes[entry.row.scope_id]
        entry.process.boot_id = entry.parsed.boot_id
        if known and known != entry.parsed.boot_id:
            node_event(
                work.log,
                node_id=node.id,
                kind="node.rebooted",
                text=f"{node.name} was rebooted",
                source=Source.SENDER,
                happened_at=entry.row.received_at,
                subject={"kind": "NODE", "node": node.name},
                payload={"boot_id": entry.parsed.boot_id, "before": known},
            )
        before[entry.row.scope_id] = entry.parsed.boot_id


def _heard_note(entries: Sequence[NodeEntry], nodes: Mapping[int, NodeRow]) -> None:
    newest: dict[int, NodeEntry] = {}
    for entry in entries:
        known = newest.get(entry.row.scope_id)
        if known is None or entry.row.received_at > known.row.received_at:
            newest[entry.row.scope_id] = entry
    heard: dict[int, tuple[datetime, float | None]] = {}
    for node_id, entry in sorted(newest.items()):
        node, at = nodes[node_id], entry.row.received_at
        if node.telemetry_last_at is not None and at <= node.telemetry_last_at:
            continue
        skew_s = skew_of(entry.process.least)
        state = TelemetryState.FLAPPING if node.telemetry_gaps_24h >= FLAPPING_FROM else TelemetryState.FRESH
        if node.telemetry_state != state:
            node_status_update(node_id=node_id, telemetry_state=state, telemetry_last_at=at, clock_skew_s=skew_s)
        elif node.telemetry_last_at is None or at - node.telemetry_last_at >= HEARD_EVERY:
            heard[node_id] = (at, skew_s)
    nodes_heard(heard=heard)
