"""What did not arrive as it should: refused values, lost reports, clocks that are off, and stacks of ranks that stand."""

from dataclasses import dataclass

from apps.console import words
from apps.engine.readers.stacks import stack_read, stacks_grouped
from apps.runs.selectors import RunRow
from apps.telemetry.choices import Reason, ScopeKind
from apps.telemetry.selectors import RefusalRow, SenderRow, StackRow, refusals_of, senders_of, stacks_of

MOST = 12
MOST_STACKS = 2048


@dataclass(frozen=True, slots=True)
class SenderLine:
    """A sender with something to say about it."""

    sender: str
    what: str


@dataclass(frozen=True, slots=True)
class StackLine:
    """Ranks whose stacks are alike, with the newest one of them; `stands`: they are not among the many."""

    ranks: str
    count: int
    stands: bool
    row: StackRow


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the page tells under the ranks; empty where all is well."""

    senders: tuple[SenderLine, ...]
    senders_more: int
    refusals: tuple[tuple[RefusalRow, str], ...]
    refusals_more: int
    stacks: tuple[StackLine, ...]
    stacks_sent: int = 0


def arrivals_of(run: RunRow) -> Arrivals:
    """Return what did not arrive as it should in the newest attempt."""
    if run.attempt_id is None:
        return Arrivals((), 0, (), 0, ())
    stacks = stacks_of(run.attempt_id, limit=MOST_STACKS)
    lines = [SenderLine(row.sender, said) for row in senders_of(run.attempt_id) if (said := _said(row))]
    refused = refusals_of(ScopeKind.ATTEMPT, run.attempt_id)
    return Arrivals(
        senders=tuple(lines[:MOST]),
        senders_more=max(0, len(lines) - MOST),
        refusals=tuple((row, _reason(row.reason)) for row in refused[:MOST]),
        refusals_more=max(0, len(refused) - MOST),
        stacks=tuple(_stack_lines(stacks)[:MOST]),
        stacks_sent=len(stacks),
    )


def _stack_lines(rows: list[StackRow]) -> list[StackLine]:
    """Return the stacks by who stands alike in the same step, those of the fewest first."""
    by_rank = {row.rank: row for row in rows}
    read = {row.rank: stack_read(row.text) for row in rows}
    newest = max((one.step for one in read.values() if one.step is not None), default=None)
    now = {rank: one for rank, one in read.items() if one.step == newest}
    groups = stacks_grouped(now)
    many = len(groups[-1].ranks) if groups else 0
    return [
        StackLine(
            ranks=words.ranks(list(group.ranks)),
            count=len(group.ranks),
            stands=2 * len(group.ranks) < many,
            row=max((by_rank[rank] for rank in group.ranks), key=lambda row: row.happened_at),
        )
        for group in groups
    ]


def _said(row: SenderRow) -> str:
    missing, drops, skew_s = row.missing, row.drops, row.skew_s
    parts = [f"{words.count(missing, 'report')} missing"] if missing else []
    parts += [f"{count:,} dropped: {reason}" for reason, count in sorted(drops.items()) if count]
    if skew_s:
        parts.append(f"clock {abs(skew_s):.1f}{words.NBSP}s {'ahead of' if skew_s > 0 else 'behind'} ours")
    return " · ".join(parts)


def _reason(code: str) -> str:
    return str(Reason(code).label) if code in Reason.values else code.lower().replace("_", " ")
