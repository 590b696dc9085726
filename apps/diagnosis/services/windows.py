"""From rows of the rooms below to the Window that detectors look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from django.db.models import Q

from apps.diagnosis.choices import CloseReason
from apps.diagnosis.models import Finding
from apps.diagnosis.selectors import run_failed, start_said
from apps.engine import detection
from apps.engine.detection import (
    PAUSES,
    Beats,
    Columns,
    Nonfinite,
    NonfiniteKind,
    Phase,
    Placement,
    Window,
    skip_columns,
)
from apps.fleet.selectors import nodes_by_id
from apps.runs.choices import AttemptState, CheckpointState, Trust
from apps.runs.selectors import (
    AttemptRow,
    CheckpointRow,
    PlacementRow,
    RunRow,
    TryRow,
    checkpoints_of,
    placement_of,
    tries_of,
)
from apps.telemetry.selectors import (
    FactRow,
    RanksNow,
    SenderRow,
    SettledColumns,
    door_state,
    facts_of,
    nonfinite_of,
    ranks_now,
    senders_of,
    stacks_of,
)

MOST_PAST = 200
"""Findings of earlier attempts that a window carries: enough for any recurrence rule, bounded for a run of months."""

MOST_STACKS = 2048
"""Stacks that one look reads, 16 kB each at most: among so many the odd one shows, or nobody's does."""

MOST_TRIES = 20
"""Attempts of the run that a window carries: more in a row than any of them is worth."""

MOST_SAVES = 200
"""Saves of this attempt, and of earlier ones, that a window carries: far more than any interval is learnt from."""

BLAMES = ("rank_lost", "hang", "gpu_lost", "gpu_fault")
"""Causes that say which machine stopped an attempt."""

_SPOKEN = {
    Trust.COMPLETE: CheckpointState.SAVED,
    Trust.VERIFIED: CheckpointState.SAVED,
    Trust.SUSPECT: CheckpointState.SAVED,
    Trust.FAILED: CheckpointState.FAILED,
    Trust.DELETED: CheckpointState.DELETED,
    Trust.PENDING: CheckpointState.STARTED,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """What all detectors of one evaluation share: read once.

    `record`: the facts as they would have been heard had nothing held them up, `record_mark`: the newest of them that was
    held up so long that it is about the past, 0 without any."""

    run: RunRow
    attempt: AttemptRow
    placement: Placement
    node_ids: Mapping[str, int]
    checkpoints: tuple[detection.Checkpoint, ...]
    checkpoint_steps: tuple[int, ...]
    facts: tuple[detection.Fact, ...]
    record: tuple[detection.Fact, ...]
    record_mark: int
    past: tuple[detection.PastFault, ...]
    dismissed: tuple[detection.PastFault, ...]
    chain: tuple[detection.Launched, ...]
    stacks: tuple[detection.Stack, ...]
    watch_began_at: float


def scene_read(run: RunRow, attempt: AttemptRow, *, now: datetime) -> Scene:
    """Return what every window of this attempt needs, whatever the detector."""
    placed = placement_of(attempt.id)
    names = {row.id: row.name for row in nodes_by_id(placed.node_ids if placed else ()).values()}
    tries = tries_of(run.id, up_to_number=attempt.number, limit=MOST_TRIES)
    saves = _saves(run.id, attempt, tries)
    exits = facts_of(attempt.id, kinds=("exit",))  # no detector reads lines of logs, of which there may be very many
    mark = max((fact.id for fact in exits if not fact.current), default=0)
    past, dismissed = _past(run.id, attempt)
    return Scene(
        run=run,
        attempt=attempt,
        placement=_placement(placed, world_size=attempt.world_size or 0, names=names),
        node_ids={name: node_id for node_id, name in names.items()},
        checkpoints=saves,
        checkpoint_steps=tuple(row.step for row in saves if row.attempt == attempt.number),
        facts=tuple(_fact(fact, names) for fact in exits),
        record=tuple(_recorded(fact, names) for fact in exits) if mark else (),
        record_mark=mark,
        past=past,
        dismissed=dismissed,
        chain=_chain(tries),
        # Stacks are long, and only a run that stands is asked why: a first look suspects without them.
        stacks=tuple(detection.Stack(row.rank, row.text) for row in stacks_of(attempt.id, limit=MOST_STACKS))
        if run.hang and run.attempt_id == attempt.id
        else (),
        watch_began_at=door_state(now).accepting_since.timestamp(),
    )


def window_of(scene: Scene, *, now: datetime, columns: Columns, beats: Beats, nonfinite: Nonfinite) -> Window:
    """Return the window that one detector looks at."""
    run, attempt = scene.run, scene.attempt
    setting = run.checkpoint_setting
    return Window(
        now=now.timestamp(),
        watch_began_at=scene.watch_began_at,
        attempt=detection.Attempt(
            number=attempt.number,
            world_size=len(scene.placement),
            started_at=attempt.started_at.timestamp(),
            resumed_from_step=attempt.resumed_from_step,
            stopping=run.open_action_kind in ("RESTART_RUN", "STOP_RUN")
            or (attempt.state == AttemptState.ENDED and not run_failed(attempt)),
            ended=attempt.state == AttemptState.ENDED,
            steps_planned=run.steps_planned,
            checkpoint_interval_s=setting.get("interval_s"),
            checkpoint_interval_steps=setting.get("interval_steps"),
        ),
        placement=scene.placement,
        columns=columns,
        beats=beats,
        checkpoints=scene.checkpoints,
        facts=scene.facts,
        nonfinite=nonfinite,
        attempts=scene.past,
        dismissed=scene.dismissed,
        chain=scene.chain,
        stacks=scene.stacks,
        limits=run.limits,
    )


def window_of_record(scene: Scene, *, now: datetime) -> Window:
    """Return the window of what was told about the past: facts as if heard when they happened, and nothing that is now."""
    nothing = window_of(scene, now=now, columns=Columns.none(), beats=Beats.none(0), nonfinite=Nonfinite.none())
    return replace(nothing, facts=scene.record, chain=(), stacks=())


def columns_of(scene: Scene, settled: SettledColumns) -> Columns:
    """Return settled columns with the marks of what is neither baseline nor evidence."""
    attempt = scene.attempt
    first = attempt.first_step if attempt.first_step is not None else attempt.resumed_from_step or 0
    skip = skip_columns(
        settled.steps,
        first_step=first,
        checkpoint_steps=scene.checkpoint_steps,
        pauses_s=[settled.values[name] for name in PAUSES if name in settled.values],
    )
    size = len(scene.placement)
    values = {name: _fit(array, size) for name, array in settled.values.items()}
    return Columns(steps=settled.steps, values=values, skip=skip, received_at=settled.received_at)


def nonfinite_in(scene: Scene, columns: Columns) -> Nonfinite:
    """Return the values of these columns that were produced but are not finite."""
    if not len(columns):
        return Nonfinite.none()
    first, last = int(columns.steps[0]), int(columns.steps[-1])
    rows = [row for row in nonfinite_of(scene.attempt.id, after_step=first - 1, limit=10_000) if row.step <= last]
    kinds = {"NAN": NonfiniteKind.NAN, "+INF": NonfiniteKind.PLUS_INF, "-INF": NonfiniteKind.MINUS_INF}
    return Nonfinite(
        metrics=[row.metric for row in rows],
        step=np.array([row.step for row in rows], np.int64),
        rank=np.array([row.rank for row in rows], np.int32),
        kind=np.array([kinds[row.which] for row in rows], np.int8),
    )


def beats_of(scene: Scene, *, now: datetime) -> Beats:
    """Return the newest beat of each rank and the newest word of each sender, folded and unfolded."""
    heard: RanksNow = ranks_now(scene.attempt.id, now)
    senders: list[SenderRow] = senders_of(scene.attempt.id)
    index = {name: place for place, name in enumerate(scene.placement.nodes)}
    ids = {node_id: name for name, node_id in scene.node_ids.items()}
    return Beats.latest(
        len(scene.placement),
        rank=np.asarray(heard.ranks, np.int32),
        step=np.asarray(heard.step, np.int64),
        phase=np.array([Phase.of(word) for word in heard.phase], np.int8),
        phase_age_s=np.asarray(heard.phase_age_s, np.float32),
        heard_at=np.asarray(heard.heard_at, np.float64),
        senders=[row.sender for row in senders],
        sender_node=np.array(
            [index.get(ids.get(row.node_id or 0, ""), index.get(row.sender, -1)) for row in senders], np.int32
        ),
        sender_heard_at=np.array([row.last_received_at.timestamp() for row in senders], np.float64),
    )


def _placement(placed: PlacementRow | None, *, world_size: int, names: Mapping[int, str]) -> Placement:
    nodes = np.zeros(world_size, np.int64)
    stages, local_ranks = np.zeros(world_size, np.int32), np.full(world_size, -1, np.int32)
    if placed is not None:
        told = min(world_size, len(placed.nodes))
        nodes[:told], stages[:told] = placed.nodes[:told], np.maximum(placed.stages[:told], 0)
        local_ranks[:told] = placed.local_ranks[:told]
    order = sorted(names, key=lambda node_id: names[node_id])
    index = {node_id: place for place, node_id in enumerate(order)}
    return Placement(
        node=np.array([index.get(int(node), -1) for node in nodes], np.int32),
        nodes=[names[node_id] for node_id in order],
        stage=stages,
        local_rank=local_ranks,
        gpus=[placed.gpus.get(str(rank), "") for rank in range(world_size)] if placed and placed.gpus else (),
    )


def _saves(run_id: int, attempt: AttemptRow, tries: Sequence[TryRow]) -> tuple[detection.Checkpoint, ...]:
    """Return the newest saves of this attempt and of those before it, by step; of one step the later attempt's last.

    Asked for apart: hundreds of saves of a tail that was given up must not push out those of the attempt that goes on.
    """
    numbers = {row.attempt.id: row.attempt.number for row in tries}
    own = checkpoints_of(attempt_id=attempt.id, limit=MOST_SAVES)
    others = [row for row in checkpoints_of(run_id=run_id, limit=MOST_SAVES) if row.attempt_id < attempt.id]
    rows = sorted([*own, *others], key=lambda row: (row.step, row.attempt_id))
    return tuple(_checkpoint(row, numbers.get(row.attempt_id, 0)) for row in rows)


def _checkpoint(row: CheckpointRow, attempt: int) -> detection.Checkpoint:
    moment = row.deleted_at or row.saved_at or row.started_at
    return detection.Checkpoint(
        step=row.step,
        state=_SPOKEN[Trust(row.trust)],
        heard_at=(row.saved_at or moment).timestamp(),
        duration_s=row.duration_s,
        queue_s=row.queue_s,
        blocking_s=row.blocking_s,
        fastest_s=row.fastest_s,
        shards=row.shards_written,
        attempt=attempt,
    )


def _fact(fact: FactRow, names: Mapping[int, str]) -> detection.Fact:
    return detection.Fact(
        kind=fact.kind,
        heard_at=fact.received_at.timestamp(),
        sender=fact.sender,
        happened_at=fact.happened_at.timestamp() if fact.happened_at else None,
        rank=fact.rank,
        node=names.get(fact.node_id or 0),
        code=fact.code,
        signal=fact.signal,
        text=fact.text,
        current=fact.current,
    )


def _recorded(fact: FactRow, names: Mapping[int, str]) -> detection.Fact:
    return replace(_fact(fact, names), heard_at=fact.ours_at.timestamp(), current=True)


def _chain(rows: Sequence[TryRow]) -> tuple[detection.Launched, ...]:
    """Return the attempts as detectors read them, each with the node that is known to have stopped it; of the newest that
    ended, what was said before it could start."""
    ended = [row for row in rows if row.attempt.state == AttemptState.ENDED]
    blamed = _blamed([row.attempt.id for row in ended])
    return tuple(
        row.launched(
            **(start_said(row.attempt) if ended and row is ended[-1] else {}), blamed=blamed.get(row.attempt.id, "")
        )
        for row in rows
    )


def _blamed(attempt_ids: Sequence[int]) -> dict[int, str]:
    """Return the node that is said to have stopped each attempt, where one is: by what was found first. Several attempts
    that say the same count together, so suspected ones are among them."""
    rows = (
        Finding.objects.filter(attempt_id__in=attempt_ids, cause__in=BLAMES, muted_for_good=False)
        .exclude(close_reason__in=(CloseReason.MERGED, CloseReason.RECOVERED))
        .order_by("-began_at", "-pk")
        .values_list("attempt_id", "subject")
    )
    return {attempt_id: subject["node"] for attempt_id, subject in rows if subject.get("node")}


def _past(run_id: int, attempt: AttemptRow) -> tuple[tuple[detection.PastFault, ...], tuple[detection.PastFault, ...]]:
    """Return what was found in earlier attempts and let stand, and what of this one people dismissed."""
    earlier = Q(attempt__number__lt=attempt.number, muted_for_good=False)
    own = Q(attempt_id=attempt.id, muted_for_good=True)
    rows = Finding.objects.filter(earlier | own, run_id=run_id).select_related("attempt").order_by("-found_at")
    found = [
        (
            row.attempt_id == attempt.id,
            detection.PastFault(
                attempt=row.attempt.number,
                cause=row.cause,
                node=row.subject.get("node"),
                rank=row.subject.get("rank"),
                step=row.since_step,
            ),
        )
        for row in rows[:MOST_PAST]
    ]
    return tuple(fault for is_own, fault in found if not is_own), tuple(fault for is_own, fault in found if is_own)


def _fit(array: np.ndarray, size: int) -> np.ndarray:
    """Return values [size, c]: padded with absent cells, or cut, where the store's width differs from the world's."""
    if array.shape[0] >= size:
        return array[:size]
    fitted = np.full((size, array.shape[1]), np.nan, np.float32)
    fitted[: array.shape[0]] = array
    return fitted
