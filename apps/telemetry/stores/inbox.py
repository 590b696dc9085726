"""The inbox as the fold sees it: what waits, its bodies in slices, and its end."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.telemetry.selectors.sql import cursor, lock_key, numbers_text

MOST_ROWS = 20_000
"""Rows looked at by one fold, newest first: sorting a whole backlog each time would cost more than folding it."""

_WAITING = """
WITH newest AS MATERIALIZED (
    SELECT id, scope_kind, scope_id, sender, boot, seq, received_at, sent_at, newest_step, octet_length(body) AS size
    FROM telemetry_inbox WHERE owner_kind = %s AND owner_id = %s ORDER BY id DESC LIMIT %s
)
SELECT n.id, n.scope_kind, n.scope_id, n.sender, n.boot, n.seq, n.received_at, n.sent_at, n.size,
       coalesce(f.seqs @> n.seq, false), f.highest
FROM newest n LEFT JOIN telemetry_folded f
  ON f.scope_kind = n.scope_kind AND f.scope_id = n.scope_id AND f.sender = n.sender AND f.boot = n.boot
ORDER BY n.newest_step DESC NULLS LAST, n.id DESC
"""


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A report that waits. `repeat`: its number is folded already; `highest`: of its sender's process, None if new."""

    id: int
    scope_kind: str
    scope_id: int
    sender: str
    boot: str
    seq: int
    received_at: datetime
    sent_at: datetime | None
    size: int
    repeat: bool
    highest: int | None


def fold_lock(owner_kind: str, owner_id: int) -> bool:
    """Return whether this transaction has the owner's fold to itself now; it never waits for another one."""
    with cursor() as c:
        c.execute("SELECT pg_try_advisory_xact_lock(%s)", (lock_key(owner_kind, owner_id),))
        return bool(c.fetchone()[0])  # type: ignore[index]


def fold_lock_wait(owner_kind: str, owner_id: int) -> None:
    """Wait until this transaction has the owner's series to itself: a seal or an import between two folds."""
    with cursor() as c:
        c.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(owner_kind, owner_id),))


def rows_waiting(owner_kind: str, owner_id: int) -> list[WaitingRow]:
    """Return what waits for an owner, newest steps first, at most `MOST_ROWS` of the newest arrivals."""
    with cursor() as c:
        c.execute(_WAITING, (owner_kind, owner_id, MOST_ROWS))
        return [WaitingRow(*row) for row in c]


def bodies(ids: Sequence[int], *, slice_rows: int = 500) -> Iterator[dict[int, bytes]]:
    """Yield the bodies of rows by their ids, some hundred at a time, so that the caller can stop when it is time."""
    for start in range(0, len(ids), slice_rows):
        with cursor() as c:
            c.execute(
                "SELECT id, body FROM telemetry_inbox WHERE id = ANY(string_to_array(%s, ',')::int8[])",
                (numbers_text(ids[start : start + slice_rows]),),
            )
            yield dict(c.fetchall())


def rows_delete(ids: Sequence[int]) -> None:
    """Delete rows: what they said is folded, in this transaction."""
    if ids:
        with cursor() as c:
            c.execute(
                "DELETE FROM telemetry_inbox WHERE id = ANY(string_to_array(%s, ',')::int8[])", (numbers_text(ids),)
            )


def oldest_waiting(owner_kind: str, owner_id: int) -> datetime | None:
    """Return when the oldest waiting report of an owner was received, None if none waits.

    Several processes' doors may have committed out of order by milliseconds, so a few of the lowest ids are looked at.
    """
    with cursor() as c:
        c.execute(
            """SELECT min(received_at) FROM (SELECT received_at FROM telemetry_inbox
               WHERE owner_kind = %s AND owner_id = %s ORDER BY id LIMIT 64) o""",
            (owner_kind, owner_id),
        )
        found: datetime | None = c.fetchone()[0]  # type: ignore[index]
        return found


def owners_waiting() -> list[tuple[str, int]]:
    """Return every owner with a report waiting, by kind then id; a loose scan of the index, however full it is."""
    found: list[tuple[str, int]] = []
    with cursor() as c:
        last = ("", 0)
        while True:
            c.execute(
                """SELECT owner_kind, owner_id FROM telemetry_inbox WHERE (owner_kind, owner_id) > (%s, %s)
                   ORDER BY owner_kind, owner_id LIMIT 1""",
                last,
            )
            row = c.fetchone()
            if row is None:
                return found
            last = (row[0], row[1])
            found.append(last)


def nodes_waiting(cluster_ids: Collection[int], *, since: datetime) -> set[int]:
    """Return the nodes of some clusters of which a report waits that was received after `since`."""
    with cursor() as c:
        c.execute(
            """SELECT DISTINCT scope_id FROM telemetry_inbox
               WHERE owner_kind = 'CLUSTER' AND owner_id = ANY(%b) AND scope_kind = 'NODE' AND received_at > %s""",
            (list(cluster_ids), since),
        )
        return {node_id for (node_id,) in c}


def call_answer(owner_kind: str, owner_id: int) -> None:
    """Take back the call for an owner's fold, which now begins: reports that come later call again."""
    with cursor() as c:
        c.execute("DELETE FROM telemetry_foldcall WHERE owner_kind = %s AND owner_id = %s", (owner_kind, owner_id))
