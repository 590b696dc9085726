"""The reports of one fold: in which order they apply, which of them are late, what of them was refused."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter

from apps.common.clock import has_happened
from apps.telemetry.choices import Reason
from apps.telemetry.services.parse import Event, Parsed, Refused, Save
from apps.telemetry.stores.folded import Key, Process
from apps.telemetry.stores.inbox import WaitingRow

OFFSET_SPAN = timedelta(minutes=5)
"""How long the smallest receive minus send time of a sender is kept as the present one; then it is the previous."""


@dataclass(slots=True)
class Entry:
    """One report: its row, its sender's process, whether it only fills empty cells, and what it says.

    `nth` counts the reports of the same sender before it in this fold. `is_now`: what it says of the moment holds."""

    row: WaitingRow
    process: Process
    late: bool
    nth: int
    is_now: bool
    parsed: Parsed


@dataclass(slots=True)
class Refusals:
    """What was not taken over, by (scope_kind, scope_id, sender, reason): how often, and the first sample."""

    found: dict[tuple[str, int, str, Reason], tuple[int, str]] = field(default_factory=dict)

    def add(self, row: WaitingRow, refused: Refused, *, of_all: bool = False) -> None:
        """Count what was refused against its sender; with `of_all` against all senders together."""
        key = (row.scope_kind, row.scope_id, "" if of_all else row.sender, refused.reason)
        count, sample = self.found.get(key, (0, refused.sample))
        self.found[key] = (count + refused.count, sample)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A row that is to be folded, with its process and place in the order."""

    row: WaitingRow
    process: Process
    late: bool
    nth: int
    is_now: bool


def numbered(rows: Iterable[WaitingRow], processes: dict[Key, Process]) -> list[Numbered]:
    """Return the rows in the order in which they apply, each number once; processes never heard of are added.

    A report below its process's highest folded number, or of a process first heard before its sender's newest, is late:
    it only fills empty cells. The others follow their numbers, so that the newer value overwrites.

    What is late says nothing about now either. But where the server was away, the spool of a process may be heard for the
    first time after its successor: the successor goes on to speak of now, as nobody of its sender sent anything later.
    """
    by_process: dict[Key, dict[int, WaitingRow]] = defaultdict(dict)
    for row in sorted(rows, key=attrgetter("id")):
        by_process[row.scope_kind, row.scope_id, row.sender, row.boot].setdefault(row.seq, row)
    before = {key: process.highest for key, process in processes.items()}
    for key, numbers in by_process.items():
        for row in numbers.values():
            _heard(processes, key, row)
    newest, last_sent_at = _newest(processes), _last_sent_at(processes)
    told: dict[tuple[str, int, str], int] = defaultdict(int)
    found = []
    for key in sorted(by_process, key=lambda key: (processes[key].first_heard_at, key)):
        sender, process, highest = key[:3], processes[key], before.get(key, -1)
        is_old = newest[sender] != key[3]
        for seq, row in sorted(by_process[key].items()):
            is_last = row.sent_at is not None and row.sent_at == last_sent_at[sender]
            is_now = seq >= highest and (not is_old or is_last)
            found.append(Numbered(row, process, is_old or seq < highest, told[sender], is_now))
            told[sender] += 1
    return found


def offset_note(process: Process, row: WaitingRow) -> None:
    """Take a report's send time into its sender's smallest recent offset."""
    if row.sent_at is None:
        return
    offset_s = (row.received_at - row.sent_at).total_seconds()
    began = process.offset_began_at
    if began is None or row.received_at - began > OFFSET_SPAN:
        process.offset_before_s, process.offset_s = process.offset_s, offset_s
        process.offset_began_at = row.received_at
    elif process.offset_s is None or offset_s < process.offset_s:
        process.offset_s = offset_s


def refusals_of(entries: Sequence[Entry], refusals: Refusals) -> None:
    """Take over what the parser refused, and refuse times that had not come yet when their report did."""
    for entry in entries:
        for refused in entry.parsed.refused:
            refusals.add(entry.row, refused)
        times_to_come_refuse(entry.row, entry.process, [*entry.parsed.events, *entry.parsed.saves], refusals)


def times_to_come_refuse(row: WaitingRow, process: Process, items: Iterable[Event | Save], refusals: Refusals) -> None:
    """Make times absent that lie past the receipt of their report, the sender's skew taken out."""
    for item in items:
        at = item.happened_at
        if at is not None and not has_happened(at.timestamp(), received_at=row.received_at, offset_s=process.offset):
            refusals.add(row, Refused(Reason.TIME, f"happened_at: {at.isoformat()}, received {row.received_at:%FT%TZ}"))
            item.happened_at = None


def _heard(processes: dict[Key, Process], key: Key, row: WaitingRow) -> None:
    seq = row.seq
    process = processes.get(key)
    if process is None:
        process = Process(key, seq, row.received_at, row.received_at, is_new=True)
        processes[key] = process
    process.seqs.append(seq)
    process.highest = max(process.highest, seq)
    process.first_heard_at = min(process.first_heard_at, row.received_at)
    process.last_received_at = max(process.last_received_at, row.received_at)
    if row.sent_at is not None:
        process.last_sent_at = _later(process.last_sent_at, row.sent_at)
    offset_note(process, row)


def _later(one: datetime | None, other: datetime) -> datetime:
    return other if one is None or other > one else one


def _last_sent_at(processes: dict[Key, Process]) -> dict[tuple[str, int, str], datetime]:
    """When each sender's newest report left, by its own clock."""
    found: dict[tuple[str, int, str], datetime] = {}
    for key, process in processes.items():
        if process.last_sent_at is not None:
            found[key[:3]] = _later(found.get(key[:3]), process.last_sent_at)
    return found


def _newest(processes: dict[Key, Process]) -> dict[tuple[str, int, str], str]:
    """The boot of each sender's process that was first heard last."""
    newest: dict[tuple[str, int, str], Process] = {}
    for key, process in processes.items():
        known = newest.get(key[:3])
        if known is None or (process.first_heard_at, key[3]) > (known.first_heard_at, known.key[3]):
            newest[key[:3]] = process
    return {sender: process.key[3] for sender, process in newest.items()}
