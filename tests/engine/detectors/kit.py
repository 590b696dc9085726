"""What the tests of detectors share: small windows written by hand, and ways to change a window."""

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apps.engine.detection import (
    Answer,
    Attempt,
    Beats,
    Columns,
    Detector,
    Nonfinite,
    Phase,
    Placement,
    State,
    Verdict,
    Window,
    verdicts_in,
)

NOW = 1_800_000_000.0


def placement(ranks: int, *, per_node: int = 4, stages: int = 1) -> Placement:
    """Ranks fill nodes n0, n1, … in order; stages are blocks of ranks."""
    rank = np.arange(ranks, dtype=np.int32)
    nodes = tuple(f"n{i}" for i in range(-(-ranks // per_node)))
    return Placement(rank // np.int32(per_node), nodes, (rank * stages // ranks).astype(np.int32), rank % per_node)


def columns_window(
    compute: Any, *, first: int = 10, per_node: int = 4, stages: int = 1, skip: Any = None, **more: Any
) -> Window:
    """A window of compute seconds [ranks, steps]; other metrics by name in `metrics`."""
    compute = np.asarray(compute, np.float32)
    ranks, steps = compute.shape
    values = {"compute_s": compute, **{name: np.asarray(v, np.float32) for name, v in more.pop("metrics", {}).items()}}
    flags = np.zeros(steps, np.bool_) if skip is None else np.asarray(skip)
    number = np.arange(first, first + steps, dtype=np.int64)
    columns = Columns(number, values, flags, NOW + number.astype(np.float64))
    where = placement(ranks, per_node=per_node, stages=stages)
    return Window(NOW + first + steps, NOW - 3600, Attempt(1, ranks, NOW - 3600), where, columns=columns, **more)


def clock_window(
    now: float,
    *,
    step: Sequence[int],
    phase: Sequence[Phase],
    heard_at: Sequence[float] | None = None,
    per_node: int = 4,
    watch_began_at: float = NOW - 3600,
    attempt: Mapping[str, Any] | None = None,
    **more: Any,
) -> Window:
    """A look of the clock; beats are heard at `now` unless said otherwise, senders with their newest rank."""
    ranks = len(step)
    where = placement(ranks, per_node=per_node)
    heard = np.full(ranks, now) if heard_at is None else np.asarray(heard_at, np.float64)
    by_node = np.array([np.fmax.reduce(heard[where.node == i]) for i in range(len(where.nodes))])
    beats = Beats(
        np.asarray(step, np.int64),
        np.asarray([int(p) for p in phase], np.int8),
        np.zeros(ranks, np.float32),
        heard,
        where.nodes,
        np.arange(len(where.nodes), dtype=np.int32),
        by_node,
    )
    opened = Attempt(**{"number": 1, "world_size": ranks, "started_at": NOW - 3600, **(attempt or {})})
    return Window(now, watch_began_at, opened, where, beats=beats, **more)


def run(detector: Detector, windows: Iterable[Window], state: State | None = None) -> tuple[State, list[Answer]]:
    """Evaluate window after window; return the last state and all answers in order."""
    state = detector.state_fresh() if state is None else state
    answers: list[Answer] = []
    for window in windows:
        state, now = detector.evaluate(window, state)
        answers += now
    return state, answers


def found(answers: Iterable[Answer]) -> dict[tuple[str, str], Verdict]:
    """The last word on each identity."""
    return {verdict.identity: verdict for verdict in verdicts_in(tuple(answers))}


def still_open(answers: Iterable[Answer]) -> dict[tuple[str, str], Verdict]:
    """What is open in the end."""
    return {key: verdict for key, verdict in found(answers).items() if verdict.closed is None}


def print_of(window: Window) -> bytes:
    """Everything in the window, for "unchanged"."""
    return pickle.dumps(window)


def stored(state: State) -> State:
    """The state after a round through the store."""
    return State.read(json.loads(json.dumps(state.write(), allow_nan=False)))


def permuted(window: Window, new: np.ndarray) -> Window:
    """The same window with rank r called new[r]."""
    old = np.argsort(new)
    where, beats, columns, bad = window.placement, window.beats, window.columns, window.nonfinite
    gpus = tuple(where.gpus[i] for i in old) if where.gpus else ()
    has_beats = len(beats.step) > 0
    return replace(
        window,
        placement=replace(
            where, node=where.node[old], stage=where.stage[old], local_rank=where.local_rank[old], gpus=gpus
        ),
        columns=replace(columns, values={name: v[old] for name, v in columns.values.items()}),
        beats=replace(
            beats,
            step=beats.step[old],
            phase=beats.phase[old],
            phase_age_s=beats.phase_age_s[old],
            heard_at=beats.heard_at[old],
        )
        if has_beats
        else beats,
        facts=tuple(replace(f, rank=None if f.rank is None else int(new[f.rank])) for f in window.facts),
        stacks=tuple(replace(s, rank=int(new[s.rank])) for s in window.stacks),
        nonfinite=Nonfinite(bad.metrics, bad.step, new[bad.rank].astype(np.int32), bad.kind),
    )


def silenced(window: Window, ranks: Sequence[int]) -> Window:
    """The same window without anything from these ranks."""
    values = {name: v.copy() for name, v in window.columns.values.items()}
    for v in values.values():
        v[list(ranks)] = np.nan
    beats = window.beats
    if len(beats.step):
        heard, step = beats.heard_at.copy(), beats.step.copy()
        heard[list(ranks)], step[list(ranks)] = np.nan, -1
        senders = beats.sender_heard_at.copy()
        gone = [i for i in range(len(senders)) if set(np.flatnonzero(window.placement.node == i)) <= set(ranks)]
        senders[gone] = np.nan
        beats = replace(beats, heard_at=heard, step=step, sender_heard_at=senders)
    keep = ~np.isin(window.nonfinite.rank, list(ranks))
    bad = window.nonfinite
    kept = Nonfinite(
        tuple(m for m, k in zip(bad.metrics, keep, strict=True) if k), bad.step[keep], bad.rank[keep], bad.kind[keep]
    )
    facts = tuple(f for f in window.facts if f.rank not in set(ranks))
    stacks = tuple(s for s in window.stacks if s.rank not in set(ranks))
    columns = replace(window.columns, values=values)
    # Attempts are known from what was heard of them.
    chain = () if len(set(ranks)) == window.attempt.world_size else window.chain
    return replace(window, columns=columns, beats=beats, nonfinite=kept, facts=facts, stacks=stacks, chain=chain)
