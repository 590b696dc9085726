"""Who died first in an incident, how, and what it said last: what somebody reads before anything else after a crash."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.diagnosis.selectors import FindingRow
from apps.engine.readers.exits import exit_words
from apps.engine.readers.rank_marks import lines_marked
from apps.incidents.selectors import IncidentRow
from apps.remediation.selectors import launch_of_attempt
from apps.remediation.selectors.rows import LaunchRow
from apps.runs.choices import EndReason
from apps.runs.selectors import AttemptRow, attempt_by_id, placement_of
from apps.telemetry.selectors import FactRow, facts_of, rank_said

LAST_LINES = 100
UNSEEN = re.compile(
    "\\x1b\\[[0-9;?]*[ -/]*[@-~]"  # colours and cursor moves of a terminal
    "|[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"  # what turns a line round
)
"""What a program writes for a terminal, and what would make a page show other words than are there."""

CRASHES = (EndReason.CRASHED, EndReason.NODE_FAILURE)


@dataclass(frozen=True, slots=True)
class Death:
    """The first to die, and its last lines, oldest first. `whose` says of whom they are.

    `together` is what all processes wrote, where `lines` are those of it that are marked as the one rank's.
    """

    who: str
    how: str
    at: datetime | None
    lines: tuple[str, ...]
    whose: str
    together: tuple[str, ...] = ()
    together_whose: str = ""

    @property
    def text(self) -> str:
        """Return the lines as they are copied."""
        return "\n".join(self.lines)

    @property
    def together_text(self) -> str:
        """Return the lines of all processes as they are copied."""
        return "\n".join(self.together)


def death_of(incident: IncidentRow, findings: Sequence[FindingRow]) -> Death | None:
    """Return who died first in an incident, None where nobody is known to have.

    Who was first is the detector's to say, which compares no clocks of different machines; what a rank said itself comes
    before what its whole program said. A program that ended after the incident was over did not die of it.
    """
    lost = next((row for row in findings if row.cause == "rank_lost"), None)
    attempt_id = lost.attempt_id if lost is not None else incident.attempt_id
    if attempt_id is None:
        return None
    attempt, launch = attempt_by_id(attempt_id), launch_of_attempt(attempt_id)
    rank = lost.subject.get("rank") if lost is not None else None
    if rank is not None and lost is not None:
        return _of_rank(int(rank), str(lost.subject.get("node") or ""), attempt, launch)
    if launch is None or not launch.last_words or not _crashed(attempt, launch):
        return None
    died_at, over_at = launch.ended_at or attempt.ended_at, _over_at(incident)
    if died_at is not None and over_at is not None and died_at > over_at:
        return None
    return Death(
        who=f"The program of attempt {attempt.number}",
        how=_program(launch),
        at=launch.ended_at,
        lines=_lines(launch.last_words),
        whose=_together(attempt),
    )


def _over_at(incident: IncidentRow) -> datetime | None:
    """Return from when on nothing of an incident was open any more, or it was closed."""
    return min((at for at in (incident.calm_since_at, incident.resolved_at) if at is not None), default=None)


def _of_rank(rank: int, node: str, attempt: AttemptRow, launch: LaunchRow | None) -> Death:
    left = _exit_of(rank, facts_of(attempt.id, kinds=["exit"]))
    own = _lines("\n".join(rank_said(attempt.id, rank, limit=LAST_LINES)))
    said = () if own or launch is None else _lines(launch.last_words)
    marked = tuple(lines_marked(said, rank=rank, local_rank=_local_rank(attempt.id, rank)))
    return Death(
        who=f"Rank {rank}" + (f" on {node}" if node else ""),
        how=exit_words(left.code, left.signal) if left is not None else "",
        at=left.ours_at if left is not None else None,
        lines=own or marked or said,
        whose=_whose(rank, attempt, own=bool(own), marked=bool(marked)) if own or said else "",
        together=said if marked and len(marked) < len(said) else (),
        together_whose=_together(attempt),
    )


def _whose(rank: int, attempt: AttemptRow, *, own: bool, marked: bool) -> str:
    if own:
        return "its own last lines"
    if marked:
        return f"its own last lines, as they are marked among those of all ranks of attempt {attempt.number}"
    return f"{_together(attempt)}; none is marked as rank {rank}'s, so they may be another's"


def _local_rank(attempt_id: int, rank: int) -> int | None:
    """Return a rank's number within its machine where all ranks sit on one; else such a number could mean several."""
    placed = placement_of(attempt_id)
    if placed is None or len(placed.node_ids) != 1 or not placed.nodes.all() or rank >= len(placed.nodes):
        return None
    local = int(placed.local_ranks[rank])
    return local if local >= 0 else rank


def _crashed(attempt: AttemptRow, launch: LaunchRow) -> bool:
    """Return whether a program died: by what was seen of its end, or because whoever should have seen it died as well."""
    unseen = launch.exit_status is None and launch.exit_signal is None
    return attempt.reason in CRASHES or (attempt.reason == EndReason.UNKNOWN and unseen)


def _program(launch: LaunchRow) -> str:
    words = exit_words(launch.exit_status, launch.exit_signal) or "is gone, and nobody saw how it ended"
    return f"{words} ({launch.exit_note})" if launch.exit_note else words


def _exit_of(rank: int, exits: Sequence[FactRow]) -> FactRow | None:
    return next((fact for fact in exits if fact.rank == rank and (fact.signal or fact.code)), None)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(UNSEEN.sub("", line) for line in text.strip("\n").split("\n")[-LAST_LINES:] if text.strip())


def _together(attempt: AttemptRow) -> str:
    return f"the last lines of attempt {attempt.number}, all its ranks together"
