"""Who sends for an attempt, and how well that works."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

from apps.telemetry.choices import ScopeKind
from apps.telemetry.selectors.sql import cursor

SKEW_FROM_S = 1.0
"""Below this the difference between receiving and sending is the way, not a clock."""


@dataclass(frozen=True, slots=True)
class SenderRow:
    """One sender. `missing`: numbers that never came; `drops`: what it says it lost, by reason; `skew_s`: how far its
    clock is ahead of ours, 0.0 where that is less than a second, None where it never told when it sent."""

    sender: str
    node_id: int | None
    last_received_at: datetime
    reports: int
    missing: int
    drops: dict[str, int]
    skew_s: float | None
    boots: int
    rewritten: int


@dataclass(frozen=True, slots=True)
class SenderHeard:
    """One sender, and when it was last heard."""

    sender: str
    node_id: int | None
    last_received_at: datetime


_SENDERS = """
SELECT sender, (array_agg(node_id ORDER BY first_heard_at DESC) FILTER (WHERE node_id IS NOT NULL))[1],
    max(last_received_at), sum(reports)::int8,
    sum((SELECT upper(f.seqs) - lower(f.seqs) - coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(f.seqs) r))::int8,
    jsonb_agg(drops)::text,
    (array_agg(least(offset_s, offset_before_s) ORDER BY last_received_at DESC))[1], count(*)::int8,
    sum(rewritten)::int8
FROM telemetry_folded f WHERE scope_kind = %s AND scope_id = %s GROUP BY sender ORDER BY sender
"""


_WAITING = """
SELECT sender, max(received_at) FROM (SELECT sender, received_at FROM telemetry_inbox
    WHERE owner_kind = 'ATTEMPT' AND owner_id = %s ORDER BY id DESC LIMIT 20000) i GROUP BY sender
"""


def senders_of(attempt_id: int) -> list[SenderRow]:
    """Return an attempt's senders by name, each over all of its restarts; reports that wait to be folded count as heard."""
    with cursor() as c:
        c.execute(_SENDERS, (ScopeKind.ATTEMPT.value, attempt_id))
        found = {
            sender: SenderRow(
                sender=sender,
                node_id=node_id,
                last_received_at=last,
                reports=reports,
                missing=missing or 0,
                drops=_joined(orjson.loads(drops)),
                skew_s=skew_of(offset),
                boots=boots,
                rewritten=rewritten,
            )
            for sender, node_id, last, reports, missing, drops, offset, boots, rewritten in c
        }
        c.execute(_WAITING, (attempt_id,))
        for sender, heard_at in c:
            known = found.get(sender) or SenderRow(sender, None, heard_at, 0, 0, {}, None, 0, 0)
            found[sender] = replace(known, last_received_at=max(heard_at, known.last_received_at))
    return [found[sender] for sender in sorted(found)]


_HEARD = """
SELECT scope_id, sender, (array_agg(node_id ORDER BY first_heard_at DESC) FILTER (WHERE node_id IS NOT NULL))[1],
    max(last_received_at)
FROM telemetry_folded WHERE scope_kind = %s AND scope_id = ANY(%b) GROUP BY 1, 2 ORDER BY 1, 2
"""

_HEARD_WAITING = """
SELECT a, i.sender, max(i.received_at) FROM unnest(%b::int8[]) a CROSS JOIN LATERAL (
    SELECT sender, received_at FROM telemetry_inbox WHERE owner_kind = 'ATTEMPT' AND owner_id = a
    ORDER BY id DESC LIMIT 20000) i GROUP BY 1, 2
"""


def senders_heard(attempt_ids: Collection[int]) -> dict[int, list[SenderHeard]]:
    """Return the senders of some attempts by name, as `senders_of` knows them, in two queries however many there are."""
    found: dict[int, dict[str, SenderHeard]] = {attempt_id: {} for attempt_id in attempt_ids}
    if not found:
        return {}
    with cursor() as c:
        c.execute(_HEARD, (ScopeKind.ATTEMPT.value, list(found)))
        for attempt_id, sender, node_id, heard_at in c:
            found[attempt_id][sender] = SenderHeard(sender, node_id, heard_at)
        c.execute(_HEARD_WAITING, (list(found),))
        for attempt_id, sender, heard_at in c:
            known = found[attempt_id].get(sender) or SenderHeard(sender, None, heard_at)
            found[attempt_id][sender] = replace(known, last_received_at=max(heard_at, known.last_received_at))
    return {attempt_id: [rows[name] for name in sorted(rows)] for attempt_id, rows in found.items()}


def skew_of(offset_s: float | None) -> float | None:
    """Return how far a clock is ahead of ours, from its smallest receive minus send time."""
    if offset_s is None:
        return None
    return -offset_s if abs(offset_s) >= SKEW_FROM_S else 0.0


def _joined(drops: list[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for counts in drops:
        for reason, count in counts.items():
            found[reason] = found.get(reason, 0) + count
    return found
