"""The one way to write the log.

`recording()` collects the events of a transaction and writes them at its very end in one statement, so that streams are
the last thing locked, always in the same order, and numbers have no holes: what rolls back never took one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from django.db import connection, transaction

from apps.common.clock import aware
from apps.common.live import poke_on_commit, stream_group
from apps.journal.choices import StreamKey


@dataclass(slots=True)
class Log:
    """The events of one transaction, in the order in which they were added."""

    now: datetime
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        stream: StreamKey,
        *,
        kind: str,
        text: str,
        source: str,
        happened_at: datetime | None = None,
        actor_name: str = "",
        subject: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        uncertainty_s: float | None = None,
    ) -> None:
        """Add one event. `text` is one sentence for people; `kind` is `noun.verb`; `happened_at` defaults to now."""
        self.rows.append(
            {
                "stream_kind": str(stream.kind),
                "stream_id": stream.id,
                "happened_at": aware(happened_at or self.now).isoformat(),
                "uncertainty_s": uncertainty_s,
                "kind": kind,
                "source": str(source),
                "actor_name": actor_name[:150],
                "subject": dict(subject or {}),
                "payload": {"text": text, **(payload or {})},
            }
        )


_open = threading.local()

_WRITE = """
WITH given AS (
    SELECT * FROM jsonb_to_recordset(%(rows)s::jsonb) AS r(
        place int, stream_kind text, stream_id int8, happened_at timestamptz, uncertainty_s float8,
        kind text, source text, actor_name text, subject jsonb, payload jsonb)
), counted AS (
    SELECT stream_kind, stream_id, count(*) AS n FROM given GROUP BY 1, 2 ORDER BY 1, 2
), taken AS (
    INSERT INTO journal_stream AS s (stream_kind, stream_id, seq)
    SELECT stream_kind, stream_id, n FROM counted ORDER BY 1, 2
    ON CONFLICT (stream_kind, stream_id) DO UPDATE SET seq = s.seq + excluded.seq
    RETURNING stream_kind, stream_id, seq
)
INSERT INTO journal_event (stream_kind, stream_id, seq, happened_at, recorded_at, uncertainty_s, kind, source,
                           actor_name, subject, payload)
SELECT g.stream_kind, g.stream_id,
       t.seq - c.n + row_number() OVER (PARTITION BY g.stream_kind, g.stream_id ORDER BY g.place),
       g.happened_at, %(now)s, g.uncertainty_s, g.kind, g.source, g.actor_name, g.subject, g.payload
FROM given g JOIN counted c USING (stream_kind, stream_id) JOIN taken t USING (stream_kind, stream_id)
"""


@contextmanager
def recording(*, now: datetime) -> Iterator[Log]:
    """Open a transaction (or join the one that is recording) and give its log; written when the outermost block ends."""
    current: Log | None = getattr(_open, "log", None)
    if current is not None:
        with transaction.atomic():
            mark = len(current.rows)
            try:
                yield current
            except BaseException:
                del current.rows[mark:]  # its savepoint is rolled back, so its events never happened
                raise
        return
    with transaction.atomic():
        log = Log(now=aware(now))
        _open.log = log
        try:
            yield log
        finally:
            _open.log = None
        _flush(log)


def _flush(log: Log) -> None:
    if not log.rows:
        return
    rows = [{"place": place, **row} for place, row in enumerate(log.rows)]
    with connection.cursor() as cursor:
        cursor.execute(_WRITE, {"rows": orjson.dumps(rows).decode(), "now": log.now})
    for kind, stream_id in sorted({(row["stream_kind"], row["stream_id"]) for row in log.rows}):
        poke_on_commit(stream_group(kind, stream_id), {"what": "log"})
