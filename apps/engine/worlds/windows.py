"""A story cut into the windows a detector would have been given."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from apps.engine.detection import (
    Attempt,
    Beats,
    Checkpoint,
    Columns,
    Fact,
    Launched,
    Nonfinite,
    NonfiniteKind,
    PastFault,
    Placement,
    Trigger,
    Window,
    skip_columns,
)
from apps.engine.worlds.story import BEGAN_AT, Story, picked
from apps.engine.worlds.world import FaultKind, World

LOOK_EVERY_S = 2.0
"""How often the clock looks. Source: DESIGN §5."""
EXIT_HEARD_S = 0.3
"""How long an exit takes to arrive: it is sent at once."""


def placement_of(world: World) -> Placement:
    """Return where the world's ranks run."""
    ranks = np.arange(world.ranks, dtype=np.int32)
    node = (ranks // world.ranks_per_node).astype(np.int32)
    return Placement(
        node=node,
        nodes=tuple(world.node_name(i * world.ranks_per_node) for i in range(world.nodes)),
        stage=(ranks * world.stages // world.ranks).astype(np.int32),
        local_rank=(ranks % world.ranks_per_node).astype(np.int32),
        gpus=tuple(f"GPU-{world.node_name(int(r))}-{int(r) % world.ranks_per_node}" for r in ranks),
    )


def attempt_of(world: World) -> Attempt:
    """Return the world's attempt, with its own interval of saves as the run's setting."""
    return Attempt(
        len(world.earlier) + 1,
        world.ranks,
        BEGAN_AT,
        steps_planned=world.steps,
        checkpoint_interval_steps=world.save_every,
    )


def chain_of(world: World, *, step: int) -> tuple[Launched, ...]:
    """Return the world's attempts: those before, their times counted from this one's start, and this one at `step`."""
    earlier = (
        replace(
            one,
            started_at=BEGAN_AT + one.started_at,
            ended_at=None if one.ended_at is None else BEGAN_AT + one.ended_at,
        )
        for one in world.earlier
    )
    nodes = tuple(world.node_name(at * world.ranks_per_node) for at in range(world.nodes))
    own = Launched(len(world.earlier) + 1, BEGAN_AT, nodes=nodes)
    return (*earlier, replace(own, first_step=0, last_step=step) if step >= 0 else own)


def settled_steps(story: Story) -> int:
    """Return how many steps of the story end, so that their columns settle."""
    return int(np.isfinite(story.start[1:]).sum())


def columns_window(
    story: Story, first: int, last: int, *, limits: Mapping[str, float] | None = None, past: tuple[PastFault, ...] = ()
) -> Window:
    """Return the window of the columns of steps first..last-1, as they settle."""
    world = story.world
    steps = np.arange(first, last, dtype=np.int64)
    part = story.compute[:, first:last]
    wait = part.max(axis=0) - part + np.float32(world.communication_s)
    loss = np.broadcast_to((2 + 8 / (1 + steps / 50)).astype(np.float32), part.shape).copy()
    values = {
        "compute_s": part.copy(),
        "communication_s": wait,
        "step_s": part + wait + np.float32(world.data_s + world.optimizer_s),
        "loss": loss,
        "grad_norm": np.ones_like(part),
    }
    if world.tells_gc:
        values["gc_s"] = story.gc[:, first:last].copy()
    nonfinite = _nonfinite(story, steps, values)
    saved = [step for step, _, _ in story.saves()]
    columns = Columns(
        steps,
        values,
        skip_columns(steps, first_step=0, checkpoint_steps=saved),
        story.start[first + 1 : last + 1] + 1.0,
    )
    now = float(story.start[last]) + world.report_s
    return Window(
        now,
        BEGAN_AT,
        attempt_of(world),
        placement_of(world),
        columns=columns,
        nonfinite=nonfinite,
        attempts=past,
        limits=limits or {},
    )


def _nonfinite(story: Story, steps: np.ndarray, values: dict[str, np.ndarray]) -> Nonfinite:
    """Return the values that are not finite, and take them out of `values`."""
    rows: list[tuple[str, int, int, int]] = []
    for fault in story.world.faults:
        if fault.kind is not FaultKind.NONFINITE:
            continue
        for at, step in enumerate(steps.tolist()):
            if step == fault.from_step:
                ranks = np.flatnonzero(picked(story.world, fault)).tolist()
                rows += [("grad_norm", step, rank, NonfiniteKind.PLUS_INF) for rank in ranks]
                values["grad_norm"][ranks, at] = np.nan
            elif step > fault.from_step:
                rows += [("loss", step, rank, NonfiniteKind.NAN) for rank in range(story.world.ranks)]
                values["loss"][:, at] = np.nan
    return Nonfinite(
        tuple(row[0] for row in rows),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int32),
        np.array([row[3] for row in rows], np.int8),
    )


def clock_window(
    story: Story, now: float, *, limits: Mapping[str, float] | None = None, watch_began_at: float = BEGAN_AT
) -> Window:
    """Return what the clock sees at `now`: the newest beats, exits and saves that have arrived by then."""
    world = story.world
    placement = placement_of(world)
    # Each node reports every report_s, at its own offset; nothing is heard once it is silent or all its ranks are gone.
    offset = np.arange(world.nodes) * world.report_s / world.nodes
    gone_at = np.minimum(story.silent_at, story.exit_at.reshape(world.nodes, -1).max(axis=1) + world.report_s)
    ends = np.minimum(now, gone_at)
    rounds = np.floor((ends - BEGAN_AT - offset) / world.report_s)
    heard = np.where(rounds >= 0, BEGAN_AT + offset + rounds * world.report_s, np.nan)
    first = BEGAN_AT + offset[placement.node]
    last_own = first + np.floor((np.minimum(story.exit_at, now) - first) / world.report_s) * world.report_s
    own = np.minimum(heard[placement.node], last_own)
    known = np.isfinite(own)
    step, phase, age = story.rank_states(np.where(known, own, BEGAN_AT))
    beats = Beats(
        np.where(known, step, -1),
        phase,
        age,
        own,
        placement.nodes,
        np.arange(world.nodes, dtype=np.int32),
        heard,
    )
    return Window(
        now,
        watch_began_at,
        attempt_of(world),
        placement,
        beats=beats,
        checkpoints=_checkpoints(story, now),
        facts=_exits(story, now),
        chain=chain_of(world, step=int(beats.step.max())),
        limits=limits or {},
    )


def _checkpoints(story: Story, now: float) -> tuple[Checkpoint, ...]:
    ended = [save for save in story.saves() if save[1] <= now]
    return tuple(_checkpoint(story, step, at, good=good) for step, at, good in ended)


def _checkpoint(story: Story, step: int, at: float, *, good: bool) -> Checkpoint:
    took_s, queue_s, fastest_s = story.save_numbers(step)
    return Checkpoint(
        step,
        "SAVED" if good else "FAILED",
        at,
        duration_s=took_s,
        queue_s=queue_s if story.world.tells_queue else None,
        blocking_s=took_s,
        fastest_s=fastest_s,
        shards=story.world.ranks,
    )


def _exits(story: Story, now: float) -> tuple[Fact, ...]:
    world = story.world
    codes = {rank: f.code for f in world.faults if f.kind is FaultKind.EXIT for rank in f.ranks}
    others = 0 if story.stuck is None else -15
    facts = []
    for rank in np.flatnonzero(story.exit_at + EXIT_HEARD_S <= now).tolist():
        at, code, node = float(story.exit_at[rank]), codes.get(rank, others), world.node_name(rank)
        facts.append(Fact("exit", at + EXIT_HEARD_S, node, at, rank, node, code, -code if code < 0 else None))
    return tuple(facts)


def windows(
    story: Story,
    trigger: Trigger,
    *,
    columns: int = 1,
    look_every_s: float = LOOK_EVERY_S,
    until_s: float = 0.0,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Window]:
    """Yield the story's windows as they come: `columns` settled steps at a time, or a look each `look_every_s`.

    until_s: how long the clock goes on looking after the last step that ends.
    """
    if trigger is Trigger.COLUMNS:
        end = settled_steps(story)
        for first in range(0, end, columns):
            yield columns_window(story, first, min(first + columns, end), limits=limits)
        return
    finite = story.start[np.isfinite(story.start)]
    for now in np.arange(BEGAN_AT + look_every_s, float(finite[-1]) + until_s, look_every_s).tolist():
        yield clock_window(story, now, limits=limits)
