"""The rank × step picture of a whole run: attempts side by side, the newest one winning from its first step on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from apps.engine.tiles.layout import Bucket
from apps.engine.tiles.pyramid import plane_of
from apps.runs.selectors import AttemptRow
from apps.telemetry.selectors.changes import changed_columns, cursor_text, runs_of
from apps.telemetry.selectors.heatmap import View, heatmap_open, picture_of, strip_read
from apps.telemetry.selectors.pictures import Ask, Drawn, Heatmap, bucket_asked, side_by_side

MOST_ATTEMPTS = 200
"""Attempts of one picture: the newest ones that lie in its range."""


@dataclass(frozen=True, slots=True)
class Span:
    """Steps first..end-1 of one attempt; from `redone` on a later attempt did them again."""

    attempt: AttemptRow
    first: int
    end: int
    redone: int


@dataclass(frozen=True, eq=False)
class RunView:
    """A run's picture before it is drawn; `views` belong to `spans`, oldest first."""

    ask: Ask
    spans: tuple[Span, ...]
    views: tuple[View, ...]

    @property
    def newest(self) -> View | None:
        """The view whose rows are drawn."""
        return self.views[-1] if self.views else None

    @cached_property
    def bucket(self) -> Bucket | None:
        """Which steps each column holds."""
        if self.newest is None:
            return None
        first, last = min(span.first for span in self.spans), max(span.end for span in self.spans) - 1
        return bucket_asked(self.ask, first_step=first, last_step=last, rows=self.newest.rows.n_rows)

    @property
    def how(self) -> str:
        """What pooled cells show."""
        return plane_of(self.ask.pool, self.views[-1].metric.worst)

    @cached_property
    def form(self) -> str:
        """A digest of all that makes columns of two answers fit together, older attempts' versions among it."""
        asked = replace(self.ask, first=None, end=None, since="", columns=0)
        older = [(span, view.key[2:]) for span, view in zip(self.spans[:-1], self.views[:-1], strict=True)]
        newest = self.views[-1]
        past = None if newest.baseline is None else newest.baseline.steps
        now = (self.spans[-1].first, newest.attempt.id, newest.layout.version, newest.layout.world, newest.marks, past)
        told = repr((asked, older, now, None if self.bucket is None else self.bucket.steps))
        return hashlib.blake2b(told.encode(), digest_size=6).hexdigest()

    @property
    def key(self) -> tuple[object, ...]:
        """What the picture depends on."""
        return (
            self.ask,
            *(part for span, view in zip(self.spans, self.views, strict=True) for part in (span, view.key)),
        )


def spans_of(attempts: Sequence[AttemptRow], *, redone: bool) -> list[Span]:
    """Return which steps are drawn of which attempt, oldest attempt first; `attempts` come newest first.

    The newest attempt wins from its first step on, and what older ones did past it is work done again. With `redone` the
    older attempt shows as far as it went.
    """
    claims: list[tuple[AttemptRow, int, int, int]] = []
    limit: int | None = None
    for attempt in attempts:
        if attempt.first_step is None or attempt.last_step is None:
            continue
        end = attempt.last_step + 1
        claims.append((attempt, attempt.first_step, end, end if limit is None else min(end, limit)))
        limit = attempt.first_step if limit is None else min(limit, attempt.first_step)
    found = []
    shown_until = 0
    for attempt, first, end, until in reversed(claims):
        start = max(first, shown_until) if redone else first
        stop = end if redone else until
        shown_until = max(shown_until, stop)
        if start < stop:
            found.append(Span(attempt, start, stop, max(until, start)))
    return found


def run_heatmap_open(attempts: Sequence[AttemptRow], ask: Ask) -> RunView:
    """Return a run's picture before it is drawn; `attempts` come newest first.

    Raises:
        MetricUnknown: the newest attempt has other metrics.
    """
    spans = spans_of(attempts, redone=ask.redone)
    inside = [s for s in spans if (ask.end is None or s.first < ask.end) and (ask.first is None or s.end > ask.first)]
    kept = (inside or spans[-1:])[-MOST_ATTEMPTS:]
    if not kept:
        views = tuple(heatmap_open(attempt, ask) for attempt in attempts[:1])
        return RunView(ask, tuple(Span(view.attempt, 0, 0, 0) for view in views), views)
    newest = heatmap_open(kept[-1].attempt, ask)
    named = replace(ask, metric=newest.ask.metric)
    older = [heatmap_open(span.attempt, named, missing_is_empty=True) for span in kept[:-1]]
    return RunView(named, tuple(kept), (*older, newest))


def run_heatmap_read(view: RunView) -> Heatmap | None:
    """Draw a run's picture; None for a run without an attempt."""
    newest = view.newest
    if newest is None:
        return None
    bucket = view.bucket
    rows = newest.rows
    if bucket is None:
        return picture_of(newest, rows)
    parts = [part for piece in _wanted(view, bucket) for part in _joined(_strips(view, piece), view.how)]
    return replace(
        picture_of(newest, rows, side_by_side(parts, rows.n_rows)),
        steps_per_column=bucket.steps,
        cursor="" if newest.series is None else cursor_text(newest.series, form=view.form),
        first_step=min(span.first for span in view.spans),
        last_step=max(span.end for span in view.spans) - 1,
    )


def _wanted(view: RunView, bucket: Bucket) -> list[Bucket]:
    """The stretches of columns to draw: only the newest attempt still changes, or the cursor does not fit."""
    newest = view.newest
    whole = not view.ask.since or view.ask.order == "slowest" or view.ask.axis == "time"
    if newest is None or newest.series is None or whole:
        return [bucket]
    changed = changed_columns(newest.series, bucket, since=view.ask.since, form=view.form)
    return [bucket] if changed is None else runs_of(bucket, changed)


def _strips(view: RunView, bucket: Bucket) -> list[Drawn]:
    found = []
    for span, one in zip(view.spans, view.views, strict=True):
        part = _overlap(bucket, span)
        if part is None or one.series is None or one.metric.name not in one.series.numbers:
            continue
        drawn = strip_read(one, part, view.views[-1].rows, within=(span.first, span.end))
        found.append(replace(drawn, redone=drawn.steps + bucket.steps > span.redone))
    return found


def _overlap(bucket: Bucket, span: Span) -> Bucket | None:
    first = max(bucket.start, span.first // bucket.steps)
    end = min(bucket.start + bucket.columns, -(-span.end // bucket.steps))
    return Bucket(bucket.steps, first, end - first) if end > first else None


def _joined(strips: Sequence[Drawn], how: str) -> list[Drawn]:
    """The strips in order of step; a column that two attempts share becomes one, of the newer, the worse value showing."""
    out: list[Drawn] = []
    for strip in strips:
        if out and len(out[-1].steps) and len(strip.steps) and out[-1].steps[-1] == strip.steps[0]:
            before = out[-1].cells[:, -1]
            cells = strip.cells.copy()
            mine = cells[:, 0]
            worse = {"max": np.fmax, "min": np.fmin}.get(how)
            cells[:, 0] = np.where(np.isnan(mine), before, mine) if worse is None else worse(mine, before)
            flags = tuple((row, 0, which) for row, column, which in out[-1].flags if column == len(out[-1].steps) - 1)
            out[-1] = _without_last(out[-1])
            strip = replace(strip, cells=cells, flags=(*flags, *strip.flags))
        out.append(strip)
    return out


def _without_last(drawn: Drawn) -> Drawn:
    last = len(drawn.steps) - 1
    return Drawn(
        drawn.cells[:, :last],
        drawn.steps[:last],
        drawn.veiled[:last],
        drawn.ended_s[:last],
        drawn.attempts[:last],
        drawn.redone[:last],
        tuple(flag for flag in drawn.flags if flag[1] < last),
    )
