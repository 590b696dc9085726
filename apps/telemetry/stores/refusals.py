"""What was not taken over, counted per sender and reason; and values that are not finite."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from apps.telemetry.choices import Reason
from apps.telemetry.selectors.sql import cursor
from apps.telemetry.stores.series import Writing

NONFINITE_PER_STEP = 256
"""Ranks kept of one metric and step: once everything is NaN, the first ranks tell as much as all of them."""

SAMPLE_LENGTH = 300

_SAVE = """INSERT INTO telemetry_refusal AS r (scope_kind, scope_id, sender, reason, count, sample, first_at, last_at)
SELECT k, i, s, w, n, e, %s, %s FROM unnest(%b::text[], %b::int8[], %b::text[], %b::text[], %b::int8[], %b::text[])
    AS t(k, i, s, w, n, e)
ON CONFLICT (scope_kind, scope_id, sender, reason) DO UPDATE SET count = r.count + excluded.count,
    last_at = excluded.last_at RETURNING reason, sample, (xmax = 0)"""


def refusals_save(found: Mapping[tuple[str, int, str, Reason], tuple[int, str]], *, now: datetime) -> dict[str, str]:
    """Add to the counts; return reason → sample of those that a sender had for the first time."""
    if not found:
        return {}
    rows = [
        (*key[:3], str(key[3]), count, sample.replace("\x00", "\ufffd")[:SAMPLE_LENGTH])
        for key, (count, sample) in sorted(found.items())
    ]
    with cursor() as c:
        c.execute(_SAVE, (now, now, *map(list, zip(*rows, strict=True))))
        return {reason: sample for reason, sample, is_new in c if is_new}


def refusal_reasons(scope_kind: str, scope_id: int) -> set[str]:
    """Return the reasons for which anything of a scope was ever refused."""
    with cursor() as c:
        c.execute(
            "SELECT DISTINCT reason FROM telemetry_refusal WHERE scope_kind = %s AND scope_id = %s",
            (scope_kind, scope_id),
        )
        return {reason for (reason,) in c}


def nonfinite_add(series: Writing, found: Sequence[tuple[int, int, int, str]]) -> None:
    """Keep (step, metric number, rank, which) of values that are not finite, at most so many of a step and metric."""
    if not found:
        return
    kept: dict[tuple[int, int], list[tuple[int, int, int, str]]] = {}
    for row in found:
        kept.setdefault(row[:2], []).append(row)
    rows = [row for group in kept.values() for row in group[:NONFINITE_PER_STEP]]
    with cursor() as c:
        c.execute(
            """INSERT INTO telemetry_nonfinite (series_id, step, metric, rank, which)
               SELECT %s, s, m, r, w FROM unnest(%b::int8[], %b::int4[], %b::int4[], %b::text[]) AS t(s, m, r, w)
               WHERE (SELECT count(*) FROM telemetry_nonfinite n
                      WHERE n.series_id = %s AND n.step = t.s AND n.metric = t.m) < %s
               ON CONFLICT DO NOTHING""",
            (series.id, *map(list, zip(*rows, strict=True)), series.id, NONFINITE_PER_STEP),
        )


def nonfinite_trim(*, keep: int) -> int:
    """Delete all but the newest `keep` values of each series, the first 1,000 excepted; return how many went."""
    with cursor() as c:
        c.execute(
            """DELETE FROM telemetry_nonfinite n USING (
                   SELECT id, row_number() OVER (PARTITION BY series_id ORDER BY step DESC, id DESC) AS back,
                          row_number() OVER (PARTITION BY series_id ORDER BY step, id) AS front
                   FROM telemetry_nonfinite WHERE series_id IN (
                       SELECT series_id FROM telemetry_nonfinite GROUP BY series_id HAVING count(*) > %s + 1000)) o
               WHERE o.id = n.id AND o.back > %s AND o.front > 1000""",
            (keep, keep),
        )
        return c.rowcount
