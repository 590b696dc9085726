"""A run's newest retry chain, as its page shows it."""

from dataclasses import dataclass
from datetime import datetime

from apps.engine.estimates.price import Spread
from apps.engine.estimates.retry_chains import (
    Share,
    fruitless,
    intervals_of,
    links_of,
    nodes_in_common,
)
from apps.runs.choices import AUTOMATIC, FAILURES, EndReason, StartedBy
from apps.runs.limits import limit_value, limits_in_force
from apps.runs.selectors import RunRow, TryRow, chains_listed, success_of_chains

SHOWN = 12
"""Attempts on the page, newest first; REST has all."""

NODES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ChainLine:
    """One attempt in the table. `token` is the colour of its outcome; what is not known is None."""

    id: int
    number: int
    began_at: datetime
    by: str
    by_name: str
    automatic: bool
    interval_s: float | None
    downtime_s: float | None
    from_step: int | None
    last_step: int | None
    gained_steps: int | None
    outcome: str
    token: str
    nodes: int


@dataclass(frozen=True, slots=True)
class ChainPage:
    """The newest chain. `nowhere`: attempts in a row that got nowhere, of `limit`, which is set by `limit_by`."""

    lines: tuple[ChainLine, ...]
    length: int
    chains: int
    nowhere: int
    limit: int
    limit_by: str
    common: tuple[str, ...]
    common_more: int
    interval: Spread | None
    success: Share


def chain_page(run: RunRow) -> ChainPage:
    """Return the newest chain of a run, its newest attempt first."""
    chains = chains_listed(run.id)
    rows = chains[-1] if chains else []
    tries = [row.launched() for row in rows]
    nowhere = fruitless(tries, quick_s=limit_value(run.limits, "restart_quick_s"))
    limit = limits_in_force(run.limits)["restart_limit"]
    common = nodes_in_common(nowhere)
    links = links_of(tries)
    lines = [
        _line(row, link.interval_s, link.downtime_s, link.gained_steps) for row, link in zip(rows, links, strict=True)
    ]
    return ChainPage(
        lines=tuple(lines[::-1][:SHOWN]),
        length=len(rows),
        chains=len(chains),
        nowhere=len(nowhere),
        limit=int(limit.value),
        limit_by=limit.set_by,
        common=common[:NODES_SHOWN],
        common_more=max(0, len(common) - NODES_SHOWN),
        interval=intervals_of(tries),
        success=success_of_chains(run, chains),
    )


def _line(row: TryRow, interval_s: float | None, downtime_s: float | None, gained: int | None) -> ChainLine:
    one = row.attempt
    reason = EndReason(one.reason) if one.reason else None
    token = "ok" if one.ended_at is None else "done" if reason == EndReason.FINISHED else "idle"
    return ChainLine(
        id=one.id,
        number=one.number,
        began_at=one.started_at,
        by=StartedBy(row.by).label,
        by_name="" if row.by == StartedBy.PACELINE else row.by_name,
        automatic=row.by in AUTOMATIC,
        interval_s=interval_s,
        downtime_s=downtime_s,
        from_step=one.first_step if one.resumed_from_step is None and one.number == 1 else one.resumed_from_step,
        last_step=one.last_step,
        gained_steps=gained,
        outcome="open" if one.ended_at is None else reason.label if reason is not None else "unknown",
        token="crit" if reason in FAILURES else token,
        nodes=len(row.nodes),
    )
