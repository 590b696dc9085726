"""What did not arrive as it should: refused values, lost reports, clocks that are off, and stacks of ranks that stand."""

from dataclasses import dataclass

from apps.console import words
from apps.runs.selectors import RunRow
from apps.telemetry.choices import Reason, ScopeKind
from apps.telemetry.selectors import RefusalRow, SenderRow, StackRow, refusals_of, senders_of, stacks_of

MOST = 12


@dataclass(frozen=True, slots=True)
class SenderLine:
    """A sender with something to say about it."""

    sender: str
    what: str


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the page tells under the ranks; empty where all is well."""

    senders: tuple[SenderLine, ...]
    senders_more: int
    refusals: tuple[tuple[RefusalRow, str], ...]
    refusals_more: int
    stacks: tuple[StackRow, ...]


def arrivals_of(run: RunRow) -> Arrivals:
    """Return what did not arrive as it should in the newest attempt."""
    if run.attempt_id is None:
        return Arrivals((), 0, (), 0, ())
    lines = [SenderLine(row.sender, said) for row in senders_of(run.attempt_id) if (said := _said(row))]
    refused = refusals_of(ScopeKind.ATTEMPT, run.attempt_id)
    return Arrivals(
        senders=tuple(lines[:MOST]),
        senders_more=max(0, len(lines) - MOST),
        refusals=tuple((row, _reason(row.reason)) for row in refused[:MOST]),
        refusals_more=max(0, len(refused) - MOST),
        stacks=tuple(stacks_of(run.attempt_id)[:MOST]),
    )


def _said(row: SenderRow) -> str:
    missing, drops, skew_s = row.missing, row.drops, row.skew_s
    parts = [f"{words.count(missing, 'report')} missing"] if missing else []
    parts += [f"{count:,} dropped: {reason}" for reason, count in sorted(drops.items()) if count]
    if skew_s:
        parts.append(f"clock {abs(skew_s):.1f}{words.NBSP}s {'ahead of' if skew_s > 0 else 'behind'} ours")
    return " · ".join(parts)


def _reason(code: str) -> str:
    return str(Reason(code).label) if code in Reason.values else code.lower().replace("_", " ")
