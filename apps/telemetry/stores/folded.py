"""What is folded of each sender's process: numbers, when it was heard, its clock, its newest beats."""

from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from apps.telemetry.selectors.sql import cursor

Key = tuple[str, int, str, str]
"""scope_kind, scope_id, sender, boot."""


@dataclass(slots=True)
class Process:
    """One sender's process: what is known of it, and what this fold adds."""

    key: Key
    highest: int
    first_heard_at: datetime
    last_received_at: datetime
    last_sent_at: datetime | None = None
    node_id: int | None = None
    offset_s: float | None = None
    offset_before_s: float | None = None
    offset_began_at: datetime | None = None
    beats: bytes = b""
    drops: dict[str, Any] = field(default_factory=dict)
    boot_id: str = ""
    is_new: bool = False
    seqs: list[int] = field(default_factory=list)
    rewritten: int = 0

    @property
    def offset(self) -> float:
        """The smallest recent receive time minus send time, in s; 0 where it is below 1 s and so no clock's fault."""
        least = self.least
        return least if least is not None and abs(least) >= 1.0 else 0.0

    @property
    def least(self) -> float | None:
        """The smallest recent receive time minus send time, in s; None where it never told when it sent."""
        return min((value for value in (self.offset_s, self.offset_before_s) if value is not None), default=None)


_LOAD = """SELECT scope_kind, scope_id, sender, boot, highest, first_heard_at, last_received_at, last_sent_at, node_id,
offset_s, offset_before_s, offset_began_at, boot_id, beats, drops::text FROM telemetry_folded
WHERE (scope_kind, scope_id, sender) IN (SELECT * FROM unnest(%b::text[], %b::int8[], %b::text[]))"""

_SAVE = """INSERT INTO telemetry_folded AS f (scope_kind, scope_id, sender, boot, highest, first_heard_at,
    last_received_at, last_sent_at, reports, rewritten, node_id, offset_s, offset_before_s, offset_began_at, drops,
    boot_id, beats, seqs)
SELECT scope_kind, scope_id, sender, boot, highest, first_heard_at, last_received_at, last_sent_at, reports, rewritten,
    node_id, offset_s, offset_before_s, offset_began_at, drops, boot_id, decode(beats, 'base64'), seqs::int8multirange
FROM jsonb_to_recordset(%s::jsonb) AS t(scope_kind text, scope_id int8, sender text, boot text, highest int8,
    first_heard_at timestamptz, last_received_at timestamptz, last_sent_at timestamptz, reports int8, rewritten int8,
    node_id int8, offset_s float8, offset_before_s float8, offset_began_at timestamptz, drops jsonb, boot_id text,
    beats text, seqs text)
ON CONFLICT (scope_kind, scope_id, sender, boot) DO UPDATE SET highest = greatest(f.highest, excluded.highest),
    first_heard_at = least(f.first_heard_at, excluded.first_heard_at),
    last_received_at = greatest(f.last_received_at, excluded.last_received_at),
    last_sent_at = greatest(f.last_sent_at, excluded.last_sent_at), reports = f.reports + excluded.reports,
    rewritten = f.rewritten + excluded.rewritten, node_id = coalesce(excluded.node_id, f.node_id),
    offset_s = excluded.offset_s, offset_before_s = excluded.offset_before_s,
    offset_began_at = excluded.offset_began_at, drops = excluded.drops, boot_id = excluded.boot_id,
    beats = excluded.beats, seqs = f.seqs + excluded.seqs"""


def processes_load(senders: Collection[tuple[str, int, str]]) -> dict[Key, Process]:
    """Return all known processes of these senders (scope_kind, scope_id, sender), by key."""
    found: dict[Key, Process] = {}
    with cursor() as c:
        c.execute(_LOAD, tuple(map(list, zip(*senders, strict=True))) if senders else ([], [], []))
        for kind, scope_id, sender, boot, *known, boot_id, beats, drops in c:
            key = (kind, scope_id, sender, boot)
            rest: dict[str, Any] = {"beats": bytes(beats), "drops": orjson.loads(drops), "boot_id": boot_id}
            found[key] = Process(key, *known, **rest)
    return found


def processes_save(processes: Sequence[Process]) -> None:
    """Write what a fold learnt; numbers are joined to the folded ones."""
    if not processes:
        return
    rows = [
        {
            "scope_kind": p.key[0],
            "scope_id": p.key[1],
            "sender": p.key[2],
            "boot": p.key[3],
            "highest": p.highest,
            "first_heard_at": p.first_heard_at,
            "last_received_at": p.last_received_at,
            "last_sent_at": p.last_sent_at,
            "reports": len(p.seqs),
            "rewritten": p.rewritten,
            "node_id": p.node_id,
            "offset_s": p.offset_s,
            "offset_before_s": p.offset_before_s,
            "offset_began_at": p.offset_began_at,
            "drops": p.drops,
            "boot_id": p.boot_id,
            "beats": b64encode(p.beats).decode(),
            "seqs": multirange(p.seqs),
        }
        for p in processes
    ]
    with cursor() as c:
        # One document is read by the server in a fraction of the time that eighteen arrays take to be written here.
        c.execute(_SAVE, (orjson.dumps(rows).decode(),))


def multirange(numbers: Sequence[int]) -> str:
    """Return numbers as the text of an int8multirange.

    >>> multirange([3, 1, 2, 9])
    '{[1,4),[9,10)}'
    """
    parts: list[str] = []
    first = last = None
    for number in sorted(numbers):
        if last is not None and first is not None and number <= last + 1:
            last = max(last, number)
            continue
        if first is not None and last is not None:
            parts.append(f"[{first},{last + 1})")
        first = last = number
    if first is not None and last is not None:
        parts.append(f"[{first},{last + 1})")
    return "{" + ",".join(parts) + "}"


def gaps_close(*, most_ranges: int, keep_ranges: int) -> int:
    """Join the lowest numbers of processes with too many gaps into one range; return how many processes.

    What is joined and never came counts as folded: a sender that skips every second number must not grow its row for
    ever, and its old gaps are lost by then.
    """
    with cursor() as c:
        c.execute(
            """UPDATE telemetry_folded f SET seqs = f.seqs + int8multirange(int8range(lower(f.seqs), w.upto))
               FROM (SELECT p.id, min(lower(r)) AS upto FROM telemetry_folded p,
                         LATERAL (SELECT r, row_number() OVER (ORDER BY r DESC) AS n FROM unnest(p.seqs) r) t
                     WHERE t.n <= %s AND pg_column_size(p.seqs) > 24 + 18 * %s GROUP BY p.id) w
               WHERE w.id = f.id""",
            (keep_ranges, most_ranges),
        )
        return c.rowcount
