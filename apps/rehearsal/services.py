"""Making the practice run, starting and stopping it like any user's, and setting faults in it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.common.access import SYSTEM, Principal
from apps.common.clock import rfc3339
from apps.common.errors import Conflict, NotFound, Unprocessable
from apps.fleet.services import cluster_ensure, nodes_ensure
from apps.journal.choices import Source, StreamKey
from apps.journal.services import recording
from apps.rehearsal.selectors import PRACTICE, FaultRow, fault_row, fault_stands, practice_folder, practice_run
from apps.rehearsal.trainer.faults import (
    Fault,
    FaultRefused,
    Placement,
    fault_make,
    faults_read,
    faults_write,
    placement_read,
)
from apps.rehearsal.trainer.gauges import MODEL
from apps.remediation.choices import ActionKind
from apps.remediation.selectors.guards import guard_settings
from apps.remediation.selectors.prices import choice_needed
from apps.remediation.selectors.rows import ActionRow
from apps.remediation.services import action_request, guard_set
from apps.runs.choices import AttemptState, Mode
from apps.runs.launcher import launcher_checked
from apps.runs.selectors import RunRow, run_by_id
from apps.runs.services import run_put

STEPS = 50_000
"""Seven hours at the usual pace: longer than anybody practises, and a run that can end."""
STEP_S = 0.5
CHECKPOINT_EVERY = 20
NODES = 4
RANKS_PER_NODE = 4
BY = "practice"
LIMITS = {"hang_floor_s": 4, "no_telemetry_s": 4}
"""A practice run shows each fault within seconds; real runs wait longer before they call a silence one."""


SHARE_OF_RUN = 0.5
"""Who practises takes a second node of four out, too; on a real cluster a tenth is a shared cause already."""


class NotPractising(Conflict):
    """A fault needs a practice run that runs."""

    code = "not_practising"


class FaultImpossible(Unprocessable):
    """This fault cannot be set; the message says why."""

    code = "fault_impossible"


def practice_size(cores: int) -> tuple[int, int]:
    """Return (nodes, ranks per node) for a machine: sixteen ranks on four nodes, half of that on a single core."""
    return NODES, RANKS_PER_NODE if cores >= 2 else RANKS_PER_NODE // 2


def practice_ensure(*, now: datetime, nodes: int | None = None, ranks: int | None = None) -> RunRow:
    """Return the practice run, made at first need with its cluster and nodes.

    What people set on it since (mode, limits) stays; how it is started follows this installation.

    Raises:
        Unprocessable: ranks that can't be spread evenly over the nodes.
    """
    n_nodes, per_node = practice_size(os.cpu_count() or 1)
    if nodes is not None or ranks is not None:
        n_nodes = nodes or n_nodes
        per_node, rest = divmod(ranks or n_nodes * per_node, n_nodes)
        if rest or not per_node or not 1 <= n_nodes <= 32 or per_node > 16:
            raise Unprocessable("ranks: must spread evenly over 1 to 32 nodes, at most 16 on each.")
    names = [f"{PRACTICE}-{number:02d}" for number in range(1, n_nodes + 1)]
    cluster_id = cluster_ensure(name=PRACTICE, now=now)
    nodes_ensure(cluster_id=cluster_id, names=names, now=now)
    _guard_widened(cluster_id, now=now)
    folder = Path(settings.DATA_DIR) / PRACTICE
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = _before()
    steps = _steps_planned(before)
    fields: dict[str, Any] = {
        "name": "Practice run",
        "launcher": _launcher(folder, names, per_node, steps=steps),
        "gpu_model": MODEL,
        "gpus_per_node": per_node,
        "dtype": "fp32",
        "steps_planned": steps,
        "checkpoint": {"interval_steps": CHECKPOINT_EVERY, "directory": str(folder / "checkpoints")},
        "framework": {"name": "numpy"},
    }
    if before is None:
        fields |= {"limits": LIMITS, "mode": Mode.PROPOSE.value}
    run_id, _ = run_put(
        slug=PRACTICE, cluster_id=cluster_id, fields=fields, by=BY, source=Source.SYSTEM, now=now, practice=True
    )
    return run_by_id(run_id)


def _guard_widened(cluster_id: int, *, now: datetime) -> None:
    """Let half of a practice run's nodes be out, unless somebody has set this cluster's guards."""
    known = guard_settings(cluster_id)
    if known.updated_at is None:
        guard_set(
            principal=replace(SYSTEM, name=BY),
            cluster_id=cluster_id,
            window_s=known.window_s,
            exclusions_per_window=known.exclusions_per_window,
            share_of_run=SHARE_OF_RUN,
            source=Source.SYSTEM,
            now=now,
        )


def _before() -> RunRow | None:
    """Return the practice run as it stands, None where there is none yet."""
    try:
        return practice_run()
    except NotFound:
        return None


def _steps_planned(before: RunRow | None) -> int:
    """Return the step to end after: one that has made all its steps gets as many again, else a start would end at once."""
    if before is None:
        return STEPS
    return max(before.steps_planned or STEPS, STEPS * (1 + (before.step or 0) // STEPS))


def _launcher(folder: Path, names: list[str], per_node: int, *, steps: int) -> dict[str, Any]:
    """Return the launch recipe: a command, as any user would give one."""
    command = [sys.executable, "-m", "apps.rehearsal.trainer", "--directory", str(folder)]
    command += ["--ranks-per-node", str(per_node), "--steps", str(steps), "--step-s", str(STEP_S)]
    command += ["--checkpoint-every", str(CHECKPOINT_EVERY)]
    recipe = {
        "kind": "LOCAL",
        "command": command,
        "directory": str(folder),
        "environment": {
            "PYTHONPATH": os.pathsep.join((str(settings.BASE_DIR), str(settings.BASE_DIR / "client" / "src"))),
            "PACELINE_INTERVAL_S": "1",
            "PACELINE_NODE_INTERVAL_S": "1",
            "PACELINE_STACK_AFTER_S": "5",
            "PACELINE_CLUSTER": PRACTICE,
        },
        "nodes": names,
        "stop_grace_s": 5,
    }
    return launcher_checked(recipe)[0]


def practice_start(
    *, principal: Principal, source: str, now: datetime, nodes: int | None = None, ranks: int | None = None
) -> ActionRow | None:
    """Start the practice run by the same action as any user's run; return it, or None if it runs already.

    Raises:
        Conflict: another action holds the run.
    """
    run = practice_ensure(now=now, nodes=nodes, ranks=ranks)
    if placement_read(practice_folder(run)) is not None and run.attempt_state == AttemptState.OPEN:
        return None
    # Nobody is there who could choose: where no checkpoint can be trusted, it begins anew.
    options = {"from_step": 0} if choice_needed(run, None) else None
    return _request(run, ActionKind.RESTART_RUN, "The practice run is to be started", principal, source, now, options)


def practice_stop(*, principal: Principal, source: str, now: datetime) -> ActionRow | None:
    """Stop the practice run by the same action as any user's run; return it, or None if it does not run.

    Raises:
        NotFound: there is none yet.
        Conflict: another action holds the run.
    """
    run = practice_run()
    if run.attempt_state != AttemptState.OPEN:
        return None
    return _request(run, ActionKind.STOP_RUN, "The practice run is to be stopped", principal, source, now)


def _request(
    run: RunRow,
    kind: str,
    reason: str,
    principal: Principal,
    source: str,
    now: datetime,
    options: dict[str, Any] | None = None,
) -> ActionRow:
    return action_request(
        principal=principal,
        kind=kind,
        run_id=run.id,
        node_id=None,
        reason=reason,
        source=source,
        now=now,
        options=options,
    )


def fault_set(
    *, kind: str, rank: int | None, node: str | None, value: float | None, by: str, source: str, now: datetime
) -> FaultRow:
    """Set a fault in the practice run; one of the same kind in the same place is replaced. Return it.

    Raises:
        NotPractising: nothing runs that could have a fault.
        FaultImpossible: no such kind, target or value.
    """
    run = practice_run()
    folder = practice_folder(run)
    with _faults_locked(folder):
        placement = _placement(folder)
        try:
            fault = fault_make(placement, kind=kind, rank=rank, node=node, value=value, set_at=rfc3339(now) or "")
        except FaultRefused as error:
            raise FaultImpossible(f"{str(error)[:1].upper()}{str(error)[1:]}.", kind=kind[:80]) from error
        row = fault_row(fault, placement)
        with recording(now=now) as log:
            log.add(
                StreamKey.run(run.id),
                kind="practice.fault",
                text=f"Practice fault: {_words(row)}",
                source=source,
                actor_name=by,
                subject={"kind": "RANK" if row.rank is not None else "NODE", "rank": row.rank, "node": row.node},
                payload={"fault": row.id, "fault_kind": kind, "value": row.value},
            )
            others = tuple(old for old in faults_read(folder) if _place(old) != _place(fault))
            faults_write(folder, (*others, fault))
    return row


def faults_clear(*, fault_id: str | None, by: str, source: str, now: datetime) -> int:
    """Take one fault away, or all; return how many went. A hang goes on, a slow rank is itself again.

    What was left of attempts that are over goes, too, and is not told of: it could do nothing any more.
    """
    run = practice_run()
    folder = practice_folder(run)
    with _faults_locked(folder):
        placement = placement_read(folder)
        standing = faults_read(folder)
        left = tuple(fault for fault in standing if fault_stands(fault, placement))
        gone = tuple(fault for fault in left if fault_id in (None, fault.id))
        if not gone:
            return 0
        with recording(now=now) as log:
            words = "; ".join(_words(fault_row(fault, placement)) for fault in gone)
            log.add(
                StreamKey.run(run.id),
                kind="practice.cleared",
                text=f"Practice fault taken away: {words}",
                source=source,
                actor_name=by,
                payload={"faults": [fault.id for fault in gone]},
            )
            faults_write(folder, tuple(fault for fault in left if fault not in gone))
    return len(gone)


def _placement(folder: Path) -> Placement:
    placement = placement_read(folder)
    if placement is None:
        raise NotPractising("The practice run is not running, so nothing in it can fail. Start it first.")
    return placement


def _place(fault: Fault) -> tuple[str, str | None, int | None]:
    return fault.kind, fault.node, fault.local_rank


def _words(row: FaultRow) -> str:
    where = f"rank {row.rank} on {row.node}" if row.rank is not None else row.node or "everywhere"
    amount = f", {row.value_words}" if row.value_words else ""
    return f"{row.label} ({where}{amount})"


@contextmanager
def _faults_locked(folder: Path) -> Iterator[None]:
    """Let one writer of the faults at a time in: a page and a command may both add one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "faults.lock").open("a") as handle:
        flock(handle.fileno(), LOCK_EX)
        yield
