"""The values of many reports as a few arrays, checked together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from apps.engine.tiles.hot import ABSENT
from apps.engine.tiles.metrics import limits_of, within_limits
from apps.engine.tiles.scatter import NotFinite, split_not_finite
from apps.telemetry.choices import Reason, Which
from apps.telemetry.services.fold.entries import Entry, Refusals
from apps.telemetry.services.parse import Refused, Samples

WHICH = {NotFinite.NAN: Which.NAN, NotFinite.PLUS_INF: Which.PLUS_INF, NotFinite.MINUS_INF: Which.MINUS_INF}


@dataclass(slots=True)
class Bulk:
    """Values of one set of metrics, in the order in which they apply.

    values: float32 [metric, sample]. ranks, steps, source: int64 [sample]; source is the entry each sample is from.
    """

    names: tuple[str, ...]
    values: NDArray[np.float32]
    ranks: NDArray[np.int64]
    steps: NDArray[np.int64]
    source: NDArray[np.int64]

    def kept(self, mask: NDArray[np.bool_]) -> "Bulk":
        """Return the samples that `mask` marks."""
        return Bulk(self.names, self.values[:, mask], self.ranks[mask], self.steps[mask], self.source[mask])


@dataclass(frozen=True, slots=True)
class OddValue:
    """A value that was produced but is not finite."""

    metric: str
    step: int
    rank: int
    which: str


def bulks_of(entries: Sequence[Entry], *, late: bool) -> list[Bulk]:
    """Return the values of the entries that are late, or of those that are not.

    The n-th reports of all senders come before their n+1-th, and within that equal sets of metrics come together: so
    each sender's reports stay in order, and few arrays are made. Late ones, of which the first to fill a cell stays,
    come newest first.
    """
    given = [
        (-entry.nth if late else entry.nth, samples.names, number, samples)
        for number, entry in enumerate(entries)
        if entry.late == late
        for samples in entry.parsed.samples
    ]
    given.sort(key=lambda item: item[:3])
    return [_bulk(names, list(members)) for names, members in groupby(given, key=lambda item: item[1])]


def ranks_check(bulk: Bulk, entries: Sequence[Entry], refusals: Refusals, *, world_size: int) -> Bulk:
    """Return the samples whose rank and step can be; refuse the others."""
    outside = (bulk.ranks < 0) | (bulk.ranks >= world_size)
    negative = (bulk.steps < 0) & ~outside
    if not outside.any() and not negative.any():
        return bulk
    refuse(bulk, outside, entries, refusals, Reason.RANK_OUTSIDE, lambda at: f"rank {bulk.ranks[at]} of {world_size}")
    refuse(bulk, negative, entries, refusals, Reason.STEP_NEGATIVE, lambda at: f"step {bulk.steps[at]}")
    return bulk.kept(~outside & ~negative)


def values_check(bulk: Bulk, entries: Sequence[Entry], refusals: Refusals) -> list[OddValue]:
    """Make what is not finite or impossible absent, in place; refuse the impossible, return what is not finite."""
    clean, where, which = split_not_finite(bulk.values)
    bulk.values = clean
    metric, sample = np.divmod(where, max(1, clean.shape[1]))
    odd = [
        OddValue(bulk.names[m], int(bulk.steps[s]), int(bulk.ranks[s]), WHICH[NotFinite(w)])
        for m, s, w in zip(metric.tolist(), sample.tolist(), which.tolist(), strict=True)
    ]
    possible = within_limits(clean, *limits_of(list(bulk.names)))
    if not possible.all():
        if not bulk.values.flags.writeable:
            bulk.values = bulk.values.copy()
        for row in np.flatnonzero(~possible.all(axis=1)).tolist():
            name, values = bulk.names[row], bulk.values[row].copy()
            refuse(bulk, ~possible[row], entries, refusals, Reason.IMPOSSIBLE, lambda at: f"{name}: {values[at]:g}")  # noqa: B023 - used at once
        bulk.values[~possible] = ABSENT
    return odd


def refuse(
    bulk: Bulk,
    mask: NDArray[np.bool_],
    entries: Sequence[Entry],
    refusals: Refusals,
    reason: Reason,
    show: Callable[[int], str],
) -> None:
    """Count the samples that `mask` marks against their senders, each with a sample that `show(position)` gives."""
    if not mask.any():
        return
    positions = np.flatnonzero(mask)
    sources, firsts, counts = np.unique(bulk.source[positions], return_index=True, return_counts=True)
    for source, first, count in zip(sources.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        refusals.add(entries[source].row, Refused(reason, show(positions[first]), count))


def _bulk(names: tuple[str, ...], members: Sequence[tuple[int, tuple[str, ...], int, Samples]]) -> Bulk:
    runs = groupby(members, key=lambda item: (len(item[3].ranks), len(item[3].steps)))
    parts = list(_stacked(len(names), runs))
    if len(parts) == 1:
        return Bulk(names, *parts[0])
    values = np.concatenate([part[0] for part in parts], axis=1)
    return Bulk(names, values, *(np.concatenate([part[n] for part in parts]) for n in (1, 2, 3)))


Member = tuple[int, tuple[str, ...], int, Samples]
Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _stacked(n_metrics: int, runs: Iterable[tuple[tuple[int, int], Iterable[Member]]]) -> Iterator[Arrays]:
    """Reports of equal size in one go: bytes joined, lists made arrays."""
    for (n_ranks, n_steps), run in runs:
        found = list(run)
        count, cells = len(found), n_ranks * n_steps
        joined = b"".join([samples.bits for *_, samples in found])
        values = np.frombuffer(joined, "<f4").reshape(count, n_metrics, cells)
        by_metric = values.transpose(1, 0, 2).reshape(n_metrics, count * cells)
        ranks = np.array([samples.ranks for *_, samples in found], np.int64)
        steps = np.array([samples.steps for *_, samples in found], np.int64)
        source = np.array([number for _, _, number, _ in found], np.int64)
        yield (
            by_metric,
            np.repeat(ranks, n_steps, axis=1).reshape(-1),
            np.tile(steps, (1, n_ranks)).reshape(-1),
            np.repeat(source, cells),
        )
