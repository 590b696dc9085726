"""What is kept long enough goes, and what could grow without end is held within bounds."""

from datetime import datetime, timedelta

from django.db import transaction

from apps.telemetry.selectors.sql import cursor
from apps.telemetry.services.sealing import series_trim as gauges_trim
from apps.telemetry.services.silence import gaps_refresh
from apps.telemetry.stores.folded import gaps_close
from apps.telemetry.stores.refusals import nonfinite_trim

NONFINITE_KEPT = 50_000
"""Values that are not finite kept of a series: once training diverged, the newest and the first tell the story."""

FACTS_KEPT = 100_000
"""Facts kept of an attempt, and of a node beside attempts; their logs keep what people were told."""

MOST_RANGES, KEEP_RANGES = 256, 128
"""Gaps in a sender's numbers kept apart; a healthy sender has none."""

CONTENT_KEPT = timedelta(hours=24)
"""How long a report without a number is known by its content (DESIGN §1)."""


def series_trim(*, now: datetime) -> None:
    """Delete what is kept long enough, each kind in a transaction of its own."""
    with transaction.atomic():
        gauges_trim(now=now)
    with transaction.atomic():
        gaps_close(most_ranges=MOST_RANGES, keep_ranges=KEEP_RANGES)
    with transaction.atomic():
        nonfinite_trim(keep=NONFINITE_KEPT)
    with transaction.atomic():
        _contents_forget(now=now)
    with transaction.atomic():
        _facts_trim()
    gaps_refresh(now=now)


def _contents_forget(*, now: datetime) -> int:
    with cursor() as c:
        c.execute(
            "DELETE FROM telemetry_folded WHERE boot LIKE 'sha256:%%' AND last_received_at < %s", (now - CONTENT_KEPT,)
        )
        return c.rowcount


def _facts_trim() -> int:
    """Delete the oldest log lines of attempts and nodes with more facts than are kept; exits stay."""
    with cursor() as c:
        c.execute(
            """WITH owners AS (SELECT attempt_id, CASE WHEN attempt_id IS NULL THEN node_id END AS node_id
                   FROM telemetry_fact GROUP BY 1, 2 HAVING count(*) > %s)
               DELETE FROM telemetry_fact f USING (
                   SELECT t.id, row_number() OVER (PARTITION BY o.attempt_id, o.node_id ORDER BY t.id DESC) AS back
                   FROM telemetry_fact t JOIN owners o ON t.attempt_id = o.attempt_id
                       OR (t.attempt_id IS NULL AND t.node_id = o.node_id)
                   WHERE t.kind <> 'EXIT') old
               WHERE old.id = f.id AND old.back > %s""",
            (FACTS_KEPT, FACTS_KEPT),
        )
        return c.rowcount
