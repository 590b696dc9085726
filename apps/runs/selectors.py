"""Reading runs."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from django.db.models import Q, QuerySet

from apps.common.access import SYSTEM
from apps.common.errors import NotFound
from apps.common.ids import id_read
from apps.engine.detection import Launched
from apps.engine.estimates.retry_chains import Share, chains_cut, success_of
from apps.fleet.selectors import nodes_by_id
from apps.runs.choices import AttemptState, EndReason, RunState, StartedBy, Trust
from apps.runs.models import Attempt, Checkpoint, Placement, Run, RunStatus

ATTEMPTS_BACK = 50
"""Of so many attempts it is known which nodes a run had before."""

USABLE = (Trust.COMPLETE, Trust.VERIFIED)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run with its status. What is not measured yet is None."""

    id: int
    slug: str
    name: str
    cluster_id: int
    cluster: str
    team: str
    external_id: str
    model: dict[str, Any]
    layout: dict[str, Any]
    checkpoint_setting: dict[str, Any]
    framework: dict[str, Any]
    tokens_per_step: int | None
    tokens_planned: int | None
    gpu_model: str
    dtype: str
    gpus_per_node: int | None
    steps_planned: int | None
    due_at: datetime | None
    mode: str
    modes: dict[str, str]
    limits: dict[str, float]
    launcher: dict[str, Any]
    practice: bool
    created_at: datetime
    state: str
    version: int
    attempt_id: int | None
    attempt_number: int
    attempt_state: str
    attempt_ended_reason: str
    attempt_started_at: datetime | None
    world_size: int | None
    resumed_from_step: int | None
    checkpoint_step: int | None
    checkpoint_at: datetime | None
    checkpoint_trust: str
    step: int | None
    first_step: int | None
    step_s: float | None
    tokens_per_s: float | None
    loss: float | None
    last_report_at: datetime | None
    ranks_reporting: int | None
    series_version: int
    own_best_step_s: float | None
    hang: str
    slow: bool
    slow_since_at: datetime | None
    silent: bool
    suspect_from_step: int | None
    open_incidents: int
    open_action_id: int | None
    open_action_kind: str

    @property
    def at_risk_steps(self) -> int | None:
        """Return how many steps a stop right now would do again, or None if that is not known."""
        if self.step is None or self.attempt_state != AttemptState.OPEN or self.silent:
            return None
        if self.checkpoint_trust == Trust.SUSPECT:
            return self.step  # nothing that was saved can be trusted: all of it may have to be done again
        safe = self.checkpoint_step if self.checkpoint_step is not None else self.resumed_from_step
        return max(0, self.step - (safe if safe is not None else (self.first_step or 0) - 1))

    @property
    def at_risk_gpu_hours(self) -> float | None:
        """Return what those steps cost, in GPU-hours, at the present pace."""
        steps = self.at_risk_steps
        if steps is None or self.step_s is None or self.world_size is None:
            return None
        return steps * self.step_s * self.world_size / 3600


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One launch of a run."""

    id: int
    run_id: int
    run: str
    number: int
    key: str
    state: str
    reason: str
    authority: str
    world_size: int | None
    resumed_from_step: int | None
    resume_confirmed: bool
    external_id: str
    config: dict[str, Any]
    code_version: str
    opened_by: str
    order_id: int | None
    first_step: int | None
    last_step: int | None
    started_at: datetime
    first_step_at: datetime | None
    ended_at: datetime | None
    previous_id: int | None
    start_error: str


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One save."""

    id: int
    run_id: int
    attempt_id: int
    step: int
    trust: str
    started_at: datetime
    saved_at: datetime | None
    duration_s: float | None
    queue_s: float | None
    blocking_s: float | None
    fastest_s: float | None
    bytes: int | None
    shards_written: int
    error: str
    restored_at: datetime | None
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Which rank sits where: arrays by rank. `nodes` node ids (0 unknown), `local_ranks` and `stages` (-1 unknown)."""

    attempt_id: int
    version: int
    nodes: np.ndarray
    local_ranks: np.ndarray
    stages: np.ndarray
    gpus: dict[str, str]
    coords: dict[str, dict[str, int]]

    @property
    def node_ids(self) -> list[int]:
        """Return the nodes that hold a rank, in ascending order."""
        return [int(node) for node in np.unique(self.nodes) if node]


def runs_all(*, cluster_id: int | None = None, before: int | None = None, limit: int = 1000) -> list[RunRow]:
    """Return runs, newest first, below row `before`."""
    found = Run.objects.all()
    if cluster_id is not None:
        found = found.filter(cluster_id=cluster_id)
    if before is not None:
        found = found.filter(pk__lt=before)
    return _runs(found.order_by("-pk")[:limit])


def runs_by_id(run_ids: Collection[int]) -> dict[int, RunRow]:
    """Return runs by their numbers; unknown numbers are left out."""
    return {row.id: row for row in _runs(Run.objects.filter(pk__in=list(run_ids)))}


def run_by_code(code: str) -> RunRow:
    """Return the run that a slug or an id names.

    Raises:
        NotFound: there is none.
    """
    found = Q(slug=code)
    if code.startswith("run_"):
        with suppress(NotFound):
            found |= Q(pk=id_read("run", code))
    rows = _runs(Run.objects.filter(found).order_by("pk")[:2])
    for row in sorted(rows, key=lambda row: row.slug != code):
        return row
    raise NotFound(f"There is no run “{code[:80]}”.", run=code[:80])


def run_by_id(run_id: int) -> RunRow:
    """Return a run.

    Raises:
        NotFound: there is none.
    """
    rows = _runs(Run.objects.filter(pk=run_id))
    if not rows:
        raise NotFound("There is no such run.")
    return rows[0]


def attempt_by_code(code: str) -> AttemptRow:
    """Return the attempt that an id names.

    Raises:
        NotFound: there is none.
    """
    return attempt_by_id(id_read("att", code))


def attempt_by_id(attempt_id: int) -> AttemptRow:
    """Return an attempt.

    Raises:
        NotFound: there is none.
    """
    row = Attempt.objects.select_related("run").filter(pk=attempt_id).first()
    if row is None:
        raise NotFound("There is no such attempt.")
    return attempt_row(row)


def attempts_by_id(attempt_ids: Collection[int]) -> dict[int, AttemptRow]:
    """Return attempts by their numbers; unknown numbers are left out."""
    found = Attempt.objects.select_related("run").filter(pk__in=list(attempt_ids))
    return {row.pk: attempt_row(row) for row in found}


def attempts_of(run_id: int, *, before_number: int | None = None, limit: int = 1000) -> list[AttemptRow]:
    """Return a run's attempts, newest first, below number `before_number`."""
    found = Attempt.objects.select_related("run").filter(run_id=run_id)
    if before_number is not None:
        found = found.filter(number__lt=before_number)
    return [attempt_row(row) for row in found.order_by("-number")[:limit]]


def attempts_beside(*, run_id: int, cluster_id: int, launcher_kind: str, limit: int) -> list[AttemptRow]:
    """Return attempts of the other runs of a cluster that are started in the same way, by run, newest first."""
    found = Attempt.objects.select_related("run").exclude(run_id=run_id).filter(run__cluster_id=cluster_id)
    found = found.filter(run__launcher__kind=launcher_kind) if launcher_kind else found.filter(run__launcher={})
    return [attempt_row(row) for row in found.order_by("-run_id", "-number")[:limit]]


def attempts_open() -> list[AttemptRow]:
    """Return all open attempts, oldest first."""
    return [
        attempt_row(row) for row in Attempt.objects.select_related("run").filter(state=AttemptState.OPEN).order_by("pk")
    ]


def chains_of(run_ids: Collection[int]) -> dict[int, tuple[int, int, int]]:
    """Return for each attempt of some runs its retry chain: (first attempt's row, place from 1, length).

    A chain goes on from an attempt that did not finish to the next one of the run.
    """
    found: dict[int, tuple[int, int, int]] = {}
    chains: list[list[int]] = []
    last: tuple[int, str] | None = None
    rows = Attempt.objects.filter(run_id__in=list(run_ids)).order_by("run_id", "number")
    for run_id, attempt_id, reason in rows.values_list("run_id", "pk", "reason"):
        if last is None or last[0] != run_id or last[1] == EndReason.FINISHED:
            chains.append([])
        chains[-1].append(attempt_id)
        last = (run_id, reason)
    for chain in chains:
        for place, attempt_id in enumerate(chain, 1):
            found[attempt_id] = (chain[0], place, len(chain))
    return found


@dataclass(frozen=True, slots=True)
class TryRow:
    """An attempt as part of its chain. `by_name`: who began it, as far as it was told; `nodes`: their names, sorted."""

    attempt: AttemptRow
    by: str
    by_name: str
    nodes: tuple[str, ...]

    def launched(self, *, message: str = "", said_by: str = "", blamed: str = "") -> Launched:
        """Return it as the engine reckons with it; `message`: what was said before it could start, `said_by` whom;
        `blamed`: the node that is said to have stopped it."""
        row = self.attempt
        return Launched(
            number=row.number,
            started_at=row.started_at.timestamp(),
            first_step_at=row.first_step_at.timestamp() if row.first_step_at is not None else None,
            ended_at=row.ended_at.timestamp() if row.ended_at is not None else None,
            first_step=row.first_step,
            last_step=row.last_step,
            resumed_from_step=row.resumed_from_step,
            outcome=(row.reason or EndReason.UNKNOWN) if row.state == AttemptState.ENDED else "",
            nodes=self.nodes,
            message=message,
            said_by=said_by,
            blamed=blamed,
        )


MOST_TRIES = 200
"""Attempts that are read at once for chains: a run of months may have more, and the older ones change nothing now."""


def tries_of(run_id: int, *, up_to_number: int | None = None, limit: int = MOST_TRIES) -> list[TryRow]:
    """Return a run's newest attempts with who began them and their nodes, oldest first, up to number `up_to_number`."""
    newest = attempts_of(
        run_id, before_number=None if up_to_number is None else up_to_number + 1, limit=min(limit, MOST_TRIES)
    )
    rows = newest[::-1]
    placed = Placement.objects.filter(pk__in=[row.id for row in rows])
    node_ids: dict[int, list[int]] = dict(placed.values_list("pk", "node_ids"))
    names = {row.id: row.name for row in nodes_by_id({one for ids in node_ids.values() for one in ids}).values()}
    found: list[TryRow] = []
    for row in rows:
        before = found[-1].attempt if found else None
        by, by_name = _began(row, before)
        nodes = tuple(sorted(names[one] for one in node_ids.get(row.id, ()) if one in names))
        found.append(TryRow(attempt=row, by=by, by_name=by_name, nodes=nodes))
    return found


def chains_listed(run_id: int) -> list[list[TryRow]]:
    """Return a run's chains, oldest first, each with its attempts in order; of very many attempts the newest."""
    tries = tries_of(run_id)
    at = {row.attempt.number: row for row in tries}
    return [[at[one.number] for one in chain] for chain in chains_cut([row.launched() for row in tries])]


def chain_newest(run_id: int) -> list[TryRow]:
    """Return the attempts of a run's newest chain, oldest first; none of a run that never began."""
    return (chains_listed(run_id) or [[]])[-1]


def _began(row: AttemptRow, before: AttemptRow | None) -> tuple[str, str]:
    """Return who began an attempt: an order of ours first, else what its key and its opener say."""
    if row.order_id is not None:
        return (StartedBy.PACELINE if row.opened_by == SYSTEM.name else StartedBy.PERSON), row.opened_by
    job, _, rest = row.key.removeprefix("slurm:").partition(".")
    if row.key.startswith("slurm:"):
        again = rest.partition(".")[0].partition("/")[0]
        return (StartedBy.SCHEDULER if again.isdigit() and int(again) > 0 else StartedBy.SUBMITTED), f"Slurm job {job}"
    if row.key.startswith("torchrun:"):
        agent = row.key.partition("/")[0]
        again_here = before is not None and before.key.partition("/")[0] == agent
        return (StartedBy.LAUNCHER if again_here else StartedBy.SUBMITTED), "torchrun"
    return StartedBy.SUBMITTED, row.opened_by


def checkpoints_of(
    *,
    run_id: int | None = None,
    attempt_id: int | None = None,
    step: int | None = None,
    before_step: int | None = None,
    usable_only: bool = False,
    limit: int = 1000,
) -> list[CheckpointRow]:
    """Return checkpoints, newest step first; of one step in several attempts the newest attempt's first."""
    found = Checkpoint.objects.all()
    if run_id is not None:
        found = found.filter(run_id=run_id)
    if attempt_id is not None:
        found = found.filter(attempt_id=attempt_id)
    if step is not None:
        found = found.filter(step=step)
    if before_step is not None:
        found = found.filter(step__lt=before_step)
    if usable_only:
        found = found.filter(trust__in=USABLE)
    return [_checkpoint_row(row) for row in found.order_by("-step", "-attempt_id")[:limit]]


def checkpoint_steps(attempt_id: int) -> list[int]:
    """Return the steps at which an attempt began a checkpoint, ascending."""
    return list(Checkpoint.objects.filter(attempt_id=attempt_id).order_by("step").values_list("step", flat=True))


def checkpoint_newest_trusted(run_id: int) -> CheckpointRow | None:
    """Return the newest complete checkpoint that is not suspect, failed or deleted: the default of a restart.

    Newest means of the newest attempt that has one: after a resume from an earlier step the higher steps of the old
    attempt are abandoned work. When a save was made is its sender's word, and clocks of two machines are never compared.
    """
    row = Checkpoint.objects.filter(run_id=run_id, trust__in=USABLE).order_by("-attempt__number", "-step").first()
    return None if row is None else _checkpoint_row(row)


def checkpoint_newest_suspect(run_id: int) -> CheckpointRow | None:
    """Return the newest complete checkpoint that a numeric finding casts doubt on: no default of anything."""
    row = Checkpoint.objects.filter(run_id=run_id, trust=Trust.SUSPECT).order_by("-attempt__number", "-step").first()
    return None if row is None else _checkpoint_row(row)


def placement_of(attempt_id: int) -> PlacementRow | None:
    """Return who sits where in an attempt, or None if nobody told yet."""
    row = Placement.objects.filter(pk=attempt_id).first()
    if row is None:
        return None
    return PlacementRow(
        attempt_id=attempt_id,
        version=row.version,
        nodes=np.frombuffer(bytes(row.nodes), "<i8"),
        local_ranks=np.frombuffer(bytes(row.local_ranks), "<i4"),
        stages=np.frombuffer(bytes(row.stages), "<i4"),
        gpus=row.gpus,
        coords=row.coords,
    )


def success_of_chains(run: RunRow, chains: Sequence[Sequence[TryRow]]) -> Share:
    """Return how many of a run's chains ended in success, the oldest first. The newest is over when it has arrived or was
    given up: between two attempts it goes on."""
    newest = chains[-1] if chains else ()
    is_over = bool(newest) and (newest[-1].attempt.reason == EndReason.FINISHED or run.state == RunState.GAVE_UP)
    return success_of([[row.launched() for row in chain] for chain in (chains if is_over else chains[:-1])])


def nodes_of_run(run_id: int, *, among: Collection[int]) -> set[int]:
    """Return the nodes that a run has: those of its newest attempt, as far as it told, and of `among` those it had before.

    An attempt whose ranks have not all said where they sit is taken together with the one before it.
    """
    placements = Placement.objects.filter(attempt__run_id=run_id)
    newest: set[int] = set()
    for nodes, node_ids in placements.order_by("-attempt_id").values_list("nodes", "node_ids")[:2]:
        newest.update(node_ids)
        if np.frombuffer(bytes(nodes), "<i8").all():
            break
    before = set(among) - newest
    earlier = placements.filter(node_ids__overlap=list(before)).order_by("-attempt_id") if before else placements.none()
    sat = {node_id for node_ids in earlier.values_list("node_ids", flat=True)[:ATTEMPTS_BACK] for node_id in node_ids}
    return newest | (before & sat)


def placement_version(attempt_id: int) -> int:
    """Return the version of an attempt's placement, 0 if nobody told yet: what was made of it may be kept until it grows."""
    return Placement.objects.filter(pk=attempt_id).values_list("version", flat=True).first() or 0


def run_state(run: RunStatus) -> str:
    """Return a run's state: the first that holds, in the order of DESIGN §1."""
    is_open = run.attempt_state == AttemptState.OPEN
    decided: tuple[tuple[bool, str], ...] = (
        (not is_open and run.attempt_ended_reason == EndReason.FINISHED, RunState.FINISHED),
        (run.gave_up, RunState.GAVE_UP),
        (run.open_action_kind == "RESTART_RUN" and _never_ran(run), RunState.STARTING),
        (run.open_action_kind == "RESTART_RUN", RunState.RESTARTING),
        (run.queued or run.attempt_id is None, RunState.QUEUED),
        (is_open and run.step is None and not run.silent and not run.hang, RunState.STARTING),
        (not is_open, RunState.STOPPED),
        (run.silent, RunState.SILENT),
        (bool(run.hang), RunState.HUNG),
        (run.slow, RunState.SLOW),
    )
    return next((state for holds, state in decided if holds), RunState.RUNNING)


def _never_ran(run: RunStatus) -> bool:
    """Return whether a start is the first: there is no attempt yet, or the first one, open, has no step."""
    is_first = run.attempt_number <= 1 and run.attempt_state == AttemptState.OPEN and run.step is None
    return run.attempt_id is None or is_first


def attempt_row(row: Attempt) -> AttemptRow:
    """Return the frozen form of an attempt."""
    return AttemptRow(
        id=row.pk,
        run_id=row.run_id,
        run=row.run.slug,
        number=row.number,
        key=row.key,
        state=row.state,
        reason=row.reason,
        authority=row.authority,
        world_size=row.world_size,
        resumed_from_step=row.resumed_from_step,
        resume_confirmed=row.resume_confirmed,
        external_id=row.external_id,
        config=row.config,
        code_version=row.code_version,
        opened_by=row.opened_by,
        order_id=row.order_id,
        first_step=row.first_step,
        last_step=row.last_step,
        started_at=row.started_at,
        first_step_at=row.first_step_at,
        ended_at=row.ended_at,
        previous_id=row.previous_id,
        start_error=row.start_error,
    )


def _checkpoint_row(row: Checkpoint) -> CheckpointRow:
    return CheckpointRow(
        id=row.pk,
        run_id=row.run_id,
        attempt_id=row.attempt_id,
        step=row.step,
        trust=row.trust,
        started_at=row.started_at,
        saved_at=row.saved_at,
        duration_s=row.duration_s,
        queue_s=row.queue_s,
        blocking_s=row.blocking_s,
        fastest_s=row.fastest_s,
        bytes=row.bytes,
        shards_written=row.shards_written,
        error=row.error,
        restored_at=row.restored_at,
        deleted_at=row.deleted_at,
    )


def _runs(found: QuerySet[Run]) -> list[RunRow]:
    rows = list(found.select_related("cluster", "status"))
    sizes = _world_sizes(row.status.attempt_id for row in rows)
    return [_run_row(row, sizes) for row in rows]


def _world_sizes(attempt_ids: Iterable[int | None]) -> dict[int, int | None]:
    wanted = [attempt_id for attempt_id in attempt_ids if attempt_id is not None]
    return dict(Attempt.objects.filter(pk__in=wanted).values_list("pk", "world_size"))


def _run_row(row: Run, sizes: dict[int, int | None]) -> RunRow:
    status = row.status
    return RunRow(
        id=row.pk,
        slug=row.slug,
        name=row.name,
        cluster_id=row.cluster_id,
        cluster=row.cluster.name,
        team=row.team,
        external_id=row.external_id,
        model=row.model,
        layout=row.layout,
        checkpoint_setting=row.checkpoint,
        framework=row.framework,
        tokens_per_step=row.tokens_per_step,
        tokens_planned=row.tokens_planned,
        gpu_model=row.gpu_model,
        dtype=row.dtype,
        gpus_per_node=row.gpus_per_node,
        steps_planned=row.steps_planned,
        due_at=row.due_at,
        mode=row.mode,
        modes=row.modes,
        limits=row.limits,
        launcher=row.launcher,
        practice=row.practice,
        created_at=row.created_at,
        state=run_state(status),
        version=status.version,
        attempt_id=status.attempt_id,
        attempt_number=status.attempt_number,
        attempt_state=status.attempt_state,
        attempt_ended_reason=status.attempt_ended_reason,
        attempt_started_at=status.attempt_started_at,
        world_size=sizes.get(status.attempt_id) if status.attempt_id else None,
        resumed_from_step=status.resumed_from_step,
        checkpoint_step=status.checkpoint_step,
        checkpoint_at=status.checkpoint_at,
        checkpoint_trust=status.checkpoint_trust,
        step=status.step,
        first_step=status.first_step,
        step_s=status.step_s,
        tokens_per_s=status.tokens_per_s,
        loss=status.loss,
        last_report_at=status.last_report_at,
        ranks_reporting=status.ranks_reporting,
        series_version=status.series_version,
        own_best_step_s=status.own_best_step_s,
        hang=status.hang,
        slow=status.slow,
        slow_since_at=status.slow_since_at,
        silent=status.silent,
        suspect_from_step=status.suspect_from_step,
        open_incidents=status.open_incidents,
        open_action_id=status.open_action_id,
        open_action_kind=status.open_action_kind,
    )
