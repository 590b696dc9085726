"""Writing the values of one fold: far steps and unknown ranks refused, each touched block read and written once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from apps.common.clock import has_happened
from apps.engine.tiles.layout import BLOCK
from apps.engine.tiles.scatter import Rule, Written, scatter
from apps.telemetry.choices import Reason
from apps.telemetry.selectors.patches import PATCH
from apps.telemetry.services.fold.bulk import Bulk, OddValue, bulks_of, ranks_check, refuse, values_check
from apps.telemetry.services.fold.entries import Entry, Refusals
from apps.telemetry.services.parse.steps import Refused, name_is_usable
from apps.telemetry.stores.hot import Loaded, blocks_load, blocks_save, patches_add
from apps.telemetry.stores.series import Writing, columns_note, metrics_add

FAR_STEPS = 10_000
"""A step this far past the newest settled one is a broken counter, until half the ranks say so (DESIGN §1)."""

CHUNK_BYTES = 64 * 2**20
"""Hot blocks held in memory at once; a fold that touches more takes them in parts, each block still once."""


@dataclass(slots=True)
class Outcome:
    """What the values of a fold did: whether anything changed, the steps seen, and what was not finite."""

    changed: bool = False
    first_step: int | None = None
    last_step: int | None = None
    written: Written = field(default_factory=Written)
    odd: list[OddValue] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ranks and steps can be in this attempt. `world_size` None: not told, ranks count up to `most_ranks`."""

    world_size: int | None
    resumed_from_step: int | None
    most_ranks: int
    most_metrics: int


def samples_write(
    series: Writing, entries: Sequence[Entry], refusals: Refusals, *, bounds: Bounds, now: datetime
) -> Outcome:
    """Write the values of all entries into hot blocks and patches and note their columns."""
    pairs = _checked(series, entries, refusals, bounds)
    outcome = Outcome()
    for bulk, _ in pairs:
        outcome.odd += values_check(bulk, entries, refusals)
    pairs = [(bulk, rule) for bulk, rule in pairs if len(bulk.steps)]
    if not pairs:
        return outcome
    steps = np.unique(np.concatenate([bulk.steps for bulk, _ in pairs]))
    outcome.changed, outcome.first_step, outcome.last_step = True, int(steps[0]), int(steps[-1])
    series.row.width = max(series.row.width, bounds.world_size or _width(pairs))
    grown = _write_hot(series, pairs, outcome)
    _write_cold(series, pairs)
    _note_columns(series, entries, pairs, steps, grown, refusals, now)
    return outcome


def _checked(series: Writing, entries: Sequence[Entry], refusals: Refusals, bounds: Bounds) -> list[tuple[Bulk, Rule]]:
    size = bounds.world_size or bounds.most_ranks
    found = []
    for late, rule in ((False, Rule.OVERWRITE), (True, Rule.FILL)):
        for bulk in bulks_of(entries, late=late):
            named = _names_check(series, bulk, entries, refusals, bounds)
            found.append((ranks_check(named, entries, refusals, world_size=size), rule))
    return _far_check(series, found, entries, refusals, bounds)


def _names_check(series: Writing, bulk: Bulk, entries: Sequence[Entry], refusals: Refusals, bounds: Bounds) -> Bulk:
    unusable = {name for name in bulk.names if not name_is_usable(name)}
    without_room = metrics_add(series, [n for n in bulk.names if n not in unusable], most=bounds.most_metrics)
    if not unusable and not without_room:
        return bulk
    for wrong, reason in ((unusable, Reason.METRIC_NAME), (without_room, Reason.METRICS_MANY)):
        for name in sorted(wrong):
            given = ~np.isnan(bulk.values[bulk.names.index(name)])
            refuse(bulk, given, entries, refusals, reason, partial(_named, name))
    rows = [n for n, name in enumerate(bulk.names) if name not in unusable and name not in without_room]
    names = tuple(bulk.names[n] for n in rows)
    whole = Bulk(names, bulk.values[rows], bulk.ranks, bulk.steps, bulk.source)
    return whole if rows else whole.kept(np.zeros(len(bulk.steps), bool))


def _far_check(
    series: Writing,
    pairs: list[tuple[Bulk, Rule]],
    entries: Sequence[Entry],
    refusals: Refusals,
    bounds: Bounds,
) -> list[tuple[Bulk, Rule]]:
    base = series.row.settled_step
    if base is None:
        base = bounds.resumed_from_step
    if base is None:
        base = _usual_step(pairs)
    far = [bulk.steps > base + FAR_STEPS for bulk, _ in pairs]
    if not any(mask.any() for mask in far):
        return pairs
    size = bounds.world_size or max(series.row.width, _width(pairs))
    ranks = np.zeros(size, bool)
    if series.row.far_ranks:
        known = np.unpackbits(np.frombuffer(bytes(series.row.far_ranks), np.uint8), count=size)
        ranks[: len(known)] = known
    for (bulk, _), mask in zip(pairs, far, strict=True):
        ranks[bulk.ranks[mask]] = True
    if 2 * int(ranks.sum()) >= size:
        series.row.far_ranks = None
        return pairs
    series.row.far_ranks = np.packbits(ranks).tobytes()
    for (bulk, _), mask in zip(pairs, far, strict=True):
        refuse(bulk, mask, entries, refusals, Reason.STEP_FAR, partial(_step_named, bulk, base))
    return [(bulk.kept(~mask), rule) for (bulk, rule), mask in zip(pairs, far, strict=True)]


def _named(name: str, _at: int) -> str:
    return name[:80]


def _step_named(bulk: Bulk, base: int, at: int) -> str:
    return f"step {bulk.steps[at]} after {base}"


def _usual_step(pairs: Sequence[tuple[Bulk, Rule]]) -> int:
    """Where an attempt begins that nobody told where it resumed: the lower median of what its first reports say."""
    steps = np.concatenate([bulk.steps for bulk, _ in pairs]) if pairs else np.empty(0, np.int64)
    return int(np.sort(steps)[(len(steps) - 1) // 2]) if len(steps) else 0


def _width(pairs: Sequence[tuple[Bulk, Rule]]) -> int:
    return max((int(bulk.ranks.max()) + 1 for bulk, _ in pairs if len(bulk.ranks)), default=1)


def _write_hot(series: Writing, pairs: Sequence[tuple[Bulk, Rule]], outcome: Outcome) -> dict[int, int]:
    """Write what belongs into hot blocks; return by how many ranks each column grew."""
    floor = series.row.hot_floor
    hot = [(bulk.kept(bulk.steps >= floor) if (bulk.steps < floor).any() else bulk, rule) for bulk, rule in pairs]
    hot = [(bulk, rule) for bulk, rule in hot if len(bulk.steps)]
    if not hot:
        return {}
    per_column = -(-series.row.width // BLOCK)
    keys = [bulk.steps * per_column + bulk.ranks // BLOCK for bulk, _ in hot]
    unique = np.unique(np.concatenate(keys))
    width = min(BLOCK, series.row.width)
    numbers = sorted({series.numbers[name] for bulk, _ in hot for name in bulk.names})
    room = max(1, CHUNK_BYTES // (4 * width * max(1, len(series.numbers))))
    grown: dict[int, int] = defaultdict(int)
    for start in range(0, len(unique), room):
        chunk = unique[start : start + room]
        cols, blocks = np.divmod(chunk, per_column)
        loaded = blocks_load(series, cols=cols, blocks=blocks, metric_ids=numbers, width=width)
        for (bulk, rule), key in zip(hot, keys, strict=True):
            outcome.written += _scatter(series, loaded, bulk, rule, key, chunk)
        for col, count in zip(
            cols.tolist(),
            blocks_save(series, loaded, cols=cols, blocks=blocks, width=series.row.width).tolist(),
            strict=True,
        ):
            grown[col] += count
    return grown


def _scatter(
    series: Writing, loaded: Loaded, bulk: Bulk, rule: Rule, key: NDArray[np.int64], chunk: NDArray[np.int64]
) -> Written:
    place = np.searchsorted(chunk, key)
    inside = (key >= chunk[0]) & (key <= chunk[-1])
    if not inside.any():
        return Written()
    values, ranks = bulk.values, bulk.ranks
    if not inside.all():
        values, ranks, place = values[:, inside], ranks[inside], place[inside]
    rows = np.array([loaded.metric_ids.index(series.numbers[name]) for name in bulk.names])
    return scatter(loaded.cells, blocks=place, rows=rows, entities=ranks % BLOCK, values=values, rule=rule)


def _write_cold(series: Writing, pairs: Sequence[tuple[Bulk, Rule]]) -> None:
    """Append what belongs to sealed columns as patches, in the order in which it applies."""
    parts = []
    for bulk, rule in pairs:
        late = bulk.steps < series.row.hot_floor
        if not late.any():
            continue
        for name, values in zip(bulk.names, bulk.values[:, late], strict=True):
            given = ~np.isnan(values)
            rows = np.zeros(int(given.sum()), PATCH)
            rows["metric"], rows["rule"] = series.numbers[name], int(rule is Rule.FILL)
            rows["entity"], rows["col"] = bulk.ranks[late][given], bulk.steps[late][given]
            rows["value"] = values[given]
            parts.append(rows)
    if parts:
        patches_add(series, np.concatenate(parts))


def _note_columns(
    series: Writing,
    entries: Sequence[Entry],
    pairs: Sequence[tuple[Bulk, Rule]],
    steps: NDArray[np.int64],
    grown: dict[int, int],
    refusals: Refusals,
    now: datetime,
) -> None:
    received = np.array([entry.row.received_at.timestamp() for entry in entries])
    first = np.full(len(steps), np.inf)
    for bulk, _ in pairs:
        np.minimum.at(first, np.searchsorted(steps, bulk.steps), received[bulk.source])
    known = set(steps.tolist())
    ended: dict[int, list[float]] = defaultdict(list)
    for entry in entries:
        for samples in entry.parsed.samples:
            for step, at in zip(samples.steps, samples.ended_at or (), strict=False):
                if at != at or step not in known:
                    continue
                if has_happened(at, received_at=entry.row.received_at, offset_s=entry.process.offset):
                    ended[step].append(at)
                else:
                    told = f"ended_at of step {step}: {datetime.fromtimestamp(at, UTC).isoformat()}"
                    refusals.add(entry.row, Refused(Reason.TIME, told))
    columns_note(
        series,
        steps=steps.tolist(),
        received_at=[datetime.fromtimestamp(at, UTC) for at in first.tolist()],
        ranks=[grown.get(step, 0) for step in steps.tolist()],
        ended=ended,
        now=now,
    )
