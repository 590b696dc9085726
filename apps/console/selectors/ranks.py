"""Ranks in words: the worst of the last steps against their peers, and what each rank does now."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.console import words
from apps.console.selectors.gauges import gauges_now
from apps.diagnosis.selectors import findings_of
from apps.fleet.selectors import nodes_by_id
from apps.runs.limits import limit_value
from apps.runs.selectors import PlacementRow, RunRow, placement_of
from apps.telemetry.selectors import SettledColumns, columns_settled, ranks_now, settled_watermark

LAST = 12
"""Steps that "now" means in words: enough for a median, few enough that a fault of the last quarter of a minute shows."""
NEEDED = ("compute_s", "step_s", "communication_s", "data_s")
SHOWN = 6
INTERVALS = 3
"""`no_telemetry_s` is so many report intervals."""
ALIKE = 0.8
"""A node stands as one row where its best rank has at least this share of its worst rank's slowness."""
Cells = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RankLine:
    """A node, or one rank of it, of the worst."""

    node: str
    ranks: str
    place: str
    compute_s: float
    ratio: float
    share: float
    waits_s: float | None
    last_share: float | None
    coverage: float
    gpu: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Ranks:
    """The worst ranks of the last steps; `lack` says why there are none."""

    rows: tuple[RankLine, ...]
    steps: int
    within: int
    word: str
    lack: str = ""
    total: int = 0
    shown: int = 0


@dataclass(frozen=True, slots=True)
class NowLine:
    """One rank, or ranks that do the same, now."""

    ranks: str
    node: str
    step: int | None
    phase: str
    phase_age_s: float | None
    heard_at: datetime | None
    word: str
    token: str
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class RanksNowPage:
    """What ranks do now, those that stand out first."""

    rows: tuple[NowLine, ...]
    counts: tuple[tuple[str, str, int], ...]
    more: int
    lack: str = ""


def node_names(placement: PlacementRow | None, world: int) -> list[str]:
    """Return the node's name of each rank, empty where unknown."""
    if placement is None:
        return [""] * world
    names = {row.id: row.name for row in nodes_by_id(placement.node_ids).values()}
    found = [names.get(int(node), "") for node in placement.nodes]
    return (found + [""] * world)[:world]


def worst_ranks(run: RunRow, found: SettledColumns | None, *, now: datetime) -> Ranks:
    """Return the worst nodes and ranks of what `last_steps` read of the newest attempt."""
    if run.attempt_id is None:
        return Ranks((), 0, 0, "", "No attempt has begun.")
    if found is None:
        return Ranks((), 0, 0, "", "No step is settled yet.")
    name = next((one for one in ("compute_s", "step_s") if one in found.values), None)
    if name is None:
        return Ranks((), 0, 0, "", "No step times have been sent.")
    values = found.values[name]
    placement = placement_of(run.attempt_id)
    ratio = _against_peers(values, _stages(placement, len(values)))
    lines = _lines(values, ratio, found.values.get("communication_s"), placement)
    return Ranks(
        shown=sum(line.count for line in lines),
        rows=tuple(_with_gauges(lines, placement, now=now)),
        steps=len(found.steps),
        within=int(np.sum(ratio <= 1.01)),
        word="compute" if name == "compute_s" else "step time",
        total=int(np.isfinite(ratio).sum()),
    )


def _with_gauges(lines: list[RankLine], placement: PlacementRow | None, *, now: datetime) -> list[RankLine]:
    nodes = nodes_by_id(placement.node_ids).values() if placement else ()
    wanted = {line.node for line in lines}
    said = {
        node.name: gauges_now(node, now=now)
        for node in nodes
        if node.name in wanted and node.telemetry_state == "FRESH"
    }
    return [replace(line, gpu=said.get(line.node, "")) for line in lines]


def paces_by_node(run: RunRow) -> dict[int, list[float | None]]:
    """Return for each node of an open attempt its ranks' compute time of the last steps against their peers."""
    placement = placement_of(run.attempt_id) if run.attempt_id and run.attempt_state == "OPEN" else None
    found = last_steps(placement.attempt_id) if placement else None
    if placement is None or found is None or "compute_s" not in found.values:
        return {}
    values = found.values["compute_s"]
    ratio = _against_peers(values, _stages(placement, len(values)))
    paces: dict[int, list[float | None]] = {}
    for node, value in zip(placement.nodes.tolist(), ratio.tolist(), strict=False):
        paces.setdefault(int(node), []).append(value if np.isfinite(value) else None)
    return paces


def last_steps(attempt_id: int | None) -> SettledColumns | None:
    """Return the settled steps that the table of ranks and the bars of a step are made of, None if there are none."""
    mark = settled_watermark(attempt_id) if attempt_id is not None else None
    if attempt_id is None or mark is None:
        return None
    found = columns_settled(attempt_id=attempt_id, after_step=max(-1, mark - LAST), limit=LAST, metrics=NEEDED)
    return found if len(found.steps) else None


def _stages(placement: PlacementRow | None, world: int) -> NDArray[np.int32]:
    if placement is None or len(placement.stages) < world:
        return np.zeros(world, np.int32)
    return placement.stages[:world]


def _against_peers(values: Cells, stages: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return each rank's median over steps of its value against its stage's median of the same step; NaN without data."""
    relative = np.full(values.shape, np.nan)
    for stage in np.unique(stages):
        mine = stages == stage
        relative[mine] = values[mine] / _nanmedian(values[mine], axis=0)
    return _nanmedian(relative, axis=1)


def _nanmedian(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        empty = np.isnan(values).all(axis=axis)
        filled = np.where(np.expand_dims(empty, axis), 0.0, values)
        return np.where(empty, np.nan, np.nanmedian(filled, axis=axis))


def _lines(
    values: Cells, ratio: NDArray[np.float64], waits: Cells | None, placement: PlacementRow | None
) -> list[RankLine]:
    names = node_names(placement, len(values))
    compute = _nanmedian(values, axis=1)
    waited = _nanmedian(waits, axis=1) if waits is not None else None
    last = _arrived_last(waits)
    coverage = 1.0 - np.isnan(values).mean(axis=1)
    order = [
        int(rank) for rank in np.argsort(-np.nan_to_num(ratio, nan=-1.0), kind="stable") if np.isfinite(ratio[rank])
    ]
    top = max(float(ratio[order[0]]) - 1.0, 1e-6) if order else 1.0
    lines: list[RankLine] = []
    seen: set[int] = set()
    for rank in order:
        if rank in seen or len(lines) == SHOWN:
            continue
        mates = [mate for mate, name in enumerate(names) if name and name == names[rank]] or [rank]
        slow = float(ratio[rank]) - 1.0
        alike = all(np.isfinite(ratio[mate]) and ratio[mate] - 1.0 >= ALIKE * slow for mate in mates) and slow > 0.01
        mine = mates if alike else [rank]
        seen.update(mates if alike else [rank])
        lines.append(
            RankLine(
                node=names[rank],
                ranks=words.ranks(mine),
                place=_place(placement, mine),
                compute_s=float(compute[rank]),
                ratio=float(ratio[rank]),
                share=max(0.0, slow) / max(top, 0.05),
                waits_s=float(np.nanmin(waited[mine]))
                if waited is not None and np.isfinite(waited[mine]).any()
                else None,
                last_share=float(last[mine].sum()) if last is not None else None,
                coverage=float(coverage[mine].mean()),
                count=len(mine),
            )
        )
    return lines


def _arrived_last(waits: Cells | None) -> NDArray[np.float64] | None:
    """Return for each rank the share of steps in which it waited least: the others waited for it."""
    if waits is None or np.isnan(waits).all():
        return None
    known = ~np.isnan(waits).all(axis=0)
    least = np.nanargmin(waits[:, known], axis=0)
    return np.bincount(least, minlength=len(waits)) / max(1, int(known.sum()))


def _place(placement: PlacementRow | None, ranks: list[int]) -> str:
    if placement is None:
        return ""
    coords = [placement.coords.get(str(rank)) or {} for rank in ranks]
    shared = {name: n for name, n in coords[0].items() if all(one.get(name) == n for one in coords)}
    return " · ".join(f"{name.upper()} {shared[name]}" for name in ("dp", "pp", "tp") if name in shared)


def ranks_now_page(run: RunRow, *, now: datetime, most: int = 24) -> RanksNowPage:
    """Return what the ranks of the open attempt do now; ranks that do the same on one node are one line."""
    if run.attempt_id is None or run.attempt_state != "OPEN":
        return RanksNowPage((), (), 0, "No attempt is open.")
    found = ranks_now(run.attempt_id, now)
    if not len(found.ranks):
        return RanksNowPage((), (), 0, "No rank has been heard of yet.")
    names = node_names(placement_of(run.attempt_id), run.world_size or 0)
    lines: dict[tuple[Any, ...], list[int]] = {}
    states: dict[tuple[Any, ...], NowLine] = {}
    newest = int(np.max(found.step)) if len(found.step) else 0
    limit_s = limit_value(run.limits, "no_telemetry_s")
    # What comes once in a report interval is as old as that: so many steps later it is still not late.
    batch = 0 if run.hang or not run.step_s else math.ceil(limit_s / INTERVALS / run.step_s)
    named = _held_by(run)
    for i, rank in enumerate(int(rank) for rank in found.ranks):
        line = _now_line(
            found, i, rank, names[rank] if rank < len(names) else "", newest=newest - batch, limit_s=limit_s, now=now
        )
        if run.hang and line.word == "under way":
            word = "stands" if rank in named else "waits"
            line = replace(line, word=word, token=_TOKENS[word])
        # Those that stand out are told by node; all that do the same share one line.
        key = (line.node if line.word in STAND_OUT else "", line.step, line.phase, line.word)
        lines.setdefault(key, []).append(rank)
        states.setdefault(key, line)
    order = sorted(lines, key=lambda key: (_ORDER[states[key].word], states[key].step or -1, lines[key][0]))
    rows = [_with_ranks(states[key], lines[key], names) for key in order[:most]]
    words_seen = [states[key].word for key in lines for _ in lines[key]]
    counts = tuple(
        (_of_many(word, words_seen.count(word)), _TOKENS[word], words_seen.count(word))
        for word in _ORDER
        if word in words_seen
    )
    return RanksNowPage(tuple(rows), counts, sum(len(lines[key]) for key in order[most:]))


_TOKENS = {"exited": "crit", "stands": "crit", "behind": "warn", "silent": "none", "waits": "warn", "under way": "ok"}
_ORDER = {"exited": 0, "stands": 1, "behind": 2, "silent": 3, "waits": 4, "under way": 5}
STAND_OUT = frozenset({"exited", "stands", "behind"})


def _of_many(word: str, n: int) -> str:
    return word.removesuffix("s") if n != 1 and word in {"stands", "waits"} else word


def _held_by(run: RunRow) -> frozenset[int]:
    """Return the ranks that an open hang names: while a run stands, nobody in it is under way."""
    if not run.hang or run.attempt_id is None:
        return frozenset()
    rows = findings_of(attempt_id=run.attempt_id, cause="hang", state="OPEN")
    victims = {rank for row in rows for rank in row.victims}
    if not victims:
        return frozenset()  # nobody is named, or the run is too large to list who waits
    return frozenset(range(run.world_size or 0)) - victims


def _now_line(found: Any, i: int, rank: int, node: str, *, newest: int, limit_s: float, now: datetime) -> NowLine:
    step, heard = int(found.step[i]), float(found.heard_at[i])
    age = float(found.phase_age_s[i]) + max(0.0, now.timestamp() - heard)  # a beat tells how old the phase was then
    known_heard = datetime.fromtimestamp(heard, UTC) if np.isfinite(heard) and heard > 0 else None
    word = "under way"
    if rank in found.exited:
        word = "exited"
    elif known_heard is None or (now - known_heard).total_seconds() > limit_s:
        word = "silent"
    elif 0 <= step < newest - 1:
        word = "behind"
    return NowLine(
        ranks=str(rank),
        node=node,
        step=step if step >= 0 else None,
        phase=str(found.phase[i]) or "unknown",
        phase_age_s=age if np.isfinite(age) else None,
        heard_at=known_heard,
        word=word,
        token=_TOKENS[word],
    )


def _with_ranks(line: NowLine, ranks: list[int], names: list[str]) -> NowLine:
    nodes = {names[rank] for rank in ranks if rank < len(names) and names[rank]}
    return replace(line, ranks=words.ranks(ranks), node=line.node if len(nodes) == 1 else "", nodes=len(nodes))
