"""Writing runs, attempts, placements and checkpoints."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import F, Max

from apps.common.errors import BadRequest, Conflict, PacelineError
from apps.common.live import FLEET_GROUP, poke_on_commit
from apps.fleet.models import NodeStatus
from apps.journal.choices import StreamKey
from apps.journal.services import Log, recording
from apps.runs.choices import AUTHORITY_RANK, AttemptState, Authority, CheckpointState, EndReason, Trust
from apps.runs.models import Attempt, Checkpoint, Placement, Run, RunStatus
from apps.runs.selectors import USABLE, AttemptRow, attempt_row

NO_TELEMETRY_S = 15.0
"""Default of the limit `no_telemetry_s`: three report intervals of 5 s (DESIGN §5)."""

MOST_RANKS = 131_072


class AttemptLive(Conflict):
    """Another key while the open attempt is still reporting."""

    code = "ATTEMPT_LIVE"
    retryable = True


class AttemptEnded(Conflict):
    """The key of an attempt that is over."""

    code = "ATTEMPT_ENDED"


class WorldSizeDiffers(Conflict):
    """The same key with another number of ranks."""

    code = "WORLD_SIZE_DIFFERS"


class StateChanged(PacelineError):
    """The run moved on since it was looked at."""

    code = "state_changed"
    http_status = 409


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank sits, as its sender says. `stage` is its pipeline coordinate, 0 where there is none."""

    rank: int
    node_id: int
    local_rank: int | None = None
    gpu: str | None = None
    coords: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """One thing that was said about a save."""

    step: int
    state: str
    happened_at: datetime
    duration_s: float | None = None
    queue_s: float | None = None
    blocking_s: float | None = None
    bytes: int | None = None
    rank: int | None = None
    error: str = ""


DESCRIPTIVE = (
    "name",
    "team",
    "external_id",
    "model",
    "layout",
    "checkpoint",
    "framework",
    "tokens_per_step",
    "tokens_planned",
    "gpu_model",
    "dtype",
    "gpus_per_node",
    "steps_planned",
    "due_at",
)
"""What a `report` token may set."""

OPERATIONAL = ("mode", "modes", "limits")
"""What needs `operate`."""

ADMINISTRATIVE = ("launcher",)
"""What needs `admin`: a launcher is code execution."""


def run_put(
    *,
    slug: str,
    cluster_id: int,
    fields: Mapping[str, Any],
    by: str,
    source: str,
    now: datetime,
    practice: bool = False,
) -> tuple[int, bool]:
    """Create or update a run; return its row and whether it is new. Fields not given stay as they are.

    Raises:
        Conflict: the slug belongs to a run of another cluster.
    """
    with recording(now=now) as log:
        run, is_new = Run.objects.select_for_update().get_or_create(
            slug=slug,
            defaults={
                "name": slug,
                "cluster_id": cluster_id,
                "created_at": now,
                "updated_at": now,
                "practice": practice,
            },
        )
        if run.cluster_id != cluster_id:
            raise Conflict(f"“{slug}” is a run of another cluster.", run=slug)
        if is_new:
            RunStatus.objects.create(run=run)
            log.add(StreamKey.run(run.pk), kind="run.created", text=f"Run {slug} created", source=source, actor_name=by)
        changed = {name: value for name, value in fields.items() if getattr(run, name) != value}
        if changed:
            kept = {name: getattr(run, name) for name in changed}
            for name, value in changed.items():
                setattr(run, name, value)
            run.updated_at = now
            run.save()
            told = [name for name in changed if name in OPERATIONAL + ADMINISTRATIVE]
            if told and not is_new:
                log.add(
                    StreamKey.run(run.pk),
                    kind="run.settings",
                    text=f"Settings changed: {', '.join(told)}",
                    source=source,
                    actor_name=by,
                    payload={
                        "before": {n: kept[n] for n in told if n != "launcher"},
                        "after": {n: changed[n] for n in told if n != "launcher"},
                    },
                )
            status_update(run_id=run.pk)
        return run.pk, is_new


def status_update(*, run_id: int, **fields: Any) -> None:
    """Set fields of a run's status (each has one named writer, see RunStatus) and poke whoever looks."""
    RunStatus.objects.filter(pk=run_id).update(version=F("version") + 1, **fields)
    poke_on_commit(FLEET_GROUP, {"what": "run", "id": run_id})


def attempt_open(
    *,
    run_id: int,
    key: str,
    world_size: int | None,
    by: str,
    source: str,
    now: datetime,
    resumed_from_step: int | None = None,
    external_id: str = "",
    config: Mapping[str, Any] | None = None,
    code_version: str = "",
    order_id: int | None = None,
    force: bool = False,
) -> tuple[AttemptRow, bool]:
    """Open an attempt by its key, or find the one that has it; return it and whether it is new (CONTRACT, Keys).

    Raises:
        BadRequest: no usable key or size.
        AttemptEnded, AttemptLive, WorldSizeDiffers: see there.
    """
    if not key or len(key) > 200 or key == "none":
        raise BadRequest("key: an attempt needs a key of 1 to 200 characters; “none” is not one.")
    if world_size is not None and not 1 <= world_size <= MOST_RANKS:
        raise BadRequest(f"world_size: must be from 1 to {MOST_RANKS:,}.")
    with recording(now=now) as log:
        # The run's row is the door for its attempts: two first reports of two attempts come one after the other.
        run = Run.objects.select_for_update().get(pk=run_id)
        same = Attempt.objects.filter(run=run, key=key).first()
        if same is not None:
            return _attempt_again(same, world_size=world_size, resumed_from_step=resumed_from_step), False
        live = Attempt.objects.filter(run=run, state=AttemptState.OPEN).first()
        if live is not None and live.order_id is not None and key.startswith(live.key + "/"):
            live.key = key
            live.save(update_fields=["key"])
            return _attempt_again(live, world_size=world_size, resumed_from_step=resumed_from_step), False
        if live is not None:
            _check_may_follow(run, live, key=key, external_id=external_id, order_id=order_id, force=force, now=now)
            _end(log, live, reason=EndReason.SUPERSEDED, authority=Authority.CLIENT, by=by, source=source, now=now)
        number = (Attempt.objects.filter(run=run).aggregate(n=Max("number"))["n"] or 0) + 1
        attempt = Attempt.objects.create(
            run=run,
            number=number,
            key=key,
            world_size=world_size,
            resumed_from_step=resumed_from_step,
            external_id=external_id,
            config=dict(config or {}),
            code_version=code_version[:100],
            opened_by=by[:150],
            order_id=order_id,
            started_at=now,
            previous=Attempt.objects.filter(run=run).order_by("-number").first(),
        )
        log.add(
            StreamKey.run(run.pk),
            kind="attempt.opened",
            text=_opened_text(attempt),
            source=source,
            actor_name=by,
            payload={"attempt": attempt.pk, "number": number, "resumed_from_step": resumed_from_step},
        )
        status_update(
            run_id=run.pk,
            attempt_id=attempt.pk,
            attempt_number=number,
            attempt_state=AttemptState.OPEN,
            attempt_ended_reason="",
            attempt_started_at=now,
            resumed_from_step=resumed_from_step,
            step=None,
            first_step=None,
            step_s=None,
            tokens_per_s=None,
            last_report_at=None,
            ranks_reporting=None,
            hang="",
            slow=False,
            slow_since_at=None,
            silent=False,
            queued=False,
            gave_up=False,
        )
        return attempt_row(attempt), True


def _opened_text(attempt: Attempt) -> str:
    size = f" with {attempt.world_size} ranks" if attempt.world_size else ""
    resumed = "" if attempt.resumed_from_step is None else f", from step {attempt.resumed_from_step:,}"
    return f"Attempt {attempt.number} opened{size}{resumed}"


def _attempt_again(attempt: Attempt, *, world_size: int | None, resumed_from_step: int | None) -> AttemptRow:
    if attempt.state == AttemptState.ENDED:
        raise AttemptEnded(
            f"Attempt {attempt.number} is over ({attempt.reason}); a new start needs a new key.",
            attempt=attempt.pk,
            reason=attempt.reason,
        )
    if world_size is not None and attempt.world_size not in (None, world_size):
        raise WorldSizeDiffers(
            f"Attempt {attempt.number} has {attempt.world_size} ranks, not {world_size}.", world_size=attempt.world_size
        )
    new: dict[str, Any] = {}
    if attempt.world_size is None and world_size is not None:
        new["world_size"] = world_size
    if attempt.resumed_from_step is None and resumed_from_step is not None:
        new["resumed_from_step"] = resumed_from_step
    if new:
        Attempt.objects.filter(pk=attempt.pk).update(**new)
        attempt.refresh_from_db()
        status_update(run_id=attempt.run_id, resumed_from_step=attempt.resumed_from_step)
    return attempt_row(attempt)


def _check_may_follow(
    run: Run, live: Attempt, *, key: str, external_id: str, order_id: int | None, force: bool, now: datetime
) -> None:
    if force or order_id is not None:
        return
    if external_id and external_id == live.external_id:
        return
    if key.partition("/")[0] == live.key.partition("/")[0]:
        return  # the same job starts its workers again
    last = RunStatus.objects.filter(pk=run.pk).values_list("last_report_at", flat=True).first() or live.started_at
    limit_s = float(run.limits.get("no_telemetry_s", NO_TELEMETRY_S))
    silent_s = (now - last).total_seconds()
    if silent_s < limit_s:
        raise AttemptLive(
            f"Attempt {live.number} reported {silent_s:.0f} s ago; another start is taken after {limit_s:.0f} s of silence.",
            attempt=live.pk,
            retry_after_s=max(1, int(limit_s - silent_s) + 1),
        )


def attempt_end(
    *,
    attempt_id: int,
    reason: str,
    authority: str,
    by: str,
    source: str,
    now: datetime,
    happened_at: datetime | None = None,
) -> bool:
    """End an attempt; return whether anything changed. A higher authority replaces a lower one's reason, logged.

    Raises:
        BadRequest: no such reason.
    """
    if reason not in EndReason.values:
        raise BadRequest(f"reason: must be one of {', '.join(EndReason.values)}.")
    with recording(now=now) as log:
        run_id = Attempt.objects.values_list("run_id", flat=True).get(pk=attempt_id)
        Run.objects.select_for_update().get(pk=run_id)  # as in attempt_open: ends and openings take turns
        attempt = Attempt.objects.select_related("run").get(pk=attempt_id)
        if attempt.state == AttemptState.OPEN:
            _end(log, attempt, reason=reason, authority=authority, by=by, source=source, now=happened_at or now)
            return True
        if attempt.reason == reason or AUTHORITY_RANK[authority] <= AUTHORITY_RANK.get(attempt.authority, -1):
            return False
        before = attempt.reason
        Attempt.objects.filter(pk=attempt.pk).update(reason=reason, authority=authority)
        _ended_status(attempt, reason)
        log.add(
            StreamKey.run(run_id),
            kind="attempt.reason",
            text=f"Attempt {attempt.number} ended as {EndReason(reason).label}, not {EndReason(before).label}",
            source=source,
            actor_name=by,
            payload={"attempt": attempt.pk, "before": before, "after": reason, "authority": authority},
        )
        return True


def _end(log: Log, attempt: Attempt, *, reason: str, authority: str, by: str, source: str, now: datetime) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(
        state=AttemptState.ENDED, reason=reason, authority=authority, ended_at=now
    )
    _ended_status(attempt, reason)
    _nodes_of_run(run_id=attempt.run_id, node_ids=())
    log.add(
        StreamKey.run(attempt.run_id),
        kind="attempt.ended",
        text=f"Attempt {attempt.number} ended: {EndReason(reason).label}",
        source=source,
        happened_at=now,
        actor_name=by,
        payload={"attempt": attempt.pk, "number": attempt.number, "reason": reason, "authority": authority},
    )


def _ended_status(attempt: Attempt, reason: str) -> None:
    newest = RunStatus.objects.filter(pk=attempt.run_id, attempt_id=attempt.pk).exists()
    if newest:
        status_update(run_id=attempt.run_id, attempt_state=AttemptState.ENDED, attempt_ended_reason=reason)


def placement_merge(*, attempt_id: int, places: Iterable[RankPlace]) -> bool:
    """Take over where ranks sit; return whether anything is new. A rank beyond the attempt's size is left out."""
    told = {place.rank: place for place in places}
    if not told:
        return False
    with transaction.atomic():
        # One row per attempt: merging is read, change, write under its lock.
        attempt = Attempt.objects.select_for_update().get(pk=attempt_id)
        size = attempt.world_size or max(told) + 1
        row = Placement.objects.filter(pk=attempt_id).first()
        nodes, local_ranks, stages = _placement_arrays(row, size)
        gpus, coords = (dict(row.gpus), dict(row.coords)) if row else ({}, {})
        changed = row is None
        for rank, place in told.items():
            if not 0 <= rank < size:
                continue
            stage = int((place.coords or {}).get("pp", 0))
            before = (int(nodes[rank]), int(local_ranks[rank]), int(stages[rank]), gpus.get(str(rank)))
            nodes[rank] = place.node_id
            local_ranks[rank] = -1 if place.local_rank is None else place.local_rank
            stages[rank] = stage
            if place.gpu:
                gpus[str(rank)] = place.gpu[:64]
            if place.coords:
                coords[str(rank)] = {str(k)[:8]: int(v) for k, v in list(place.coords.items())[:8]}
            changed |= before != (int(nodes[rank]), int(local_ranks[rank]), int(stages[rank]), gpus.get(str(rank)))
        if not changed:
            return False
        node_ids = [int(node) for node in np.unique(nodes) if node]
        Placement.objects.update_or_create(
            attempt_id=attempt_id,
            defaults={
                "version": (row.version if row else 0) + 1,
                "nodes": nodes.tobytes(),
                "local_ranks": local_ranks.tobytes(),
                "stages": stages.tobytes(),
                "gpus": gpus,
                "coords": coords,
                "node_ids": node_ids,
            },
        )
        if attempt.state == AttemptState.OPEN:
            _nodes_of_run(run_id=attempt.run_id, node_ids=node_ids)
        return True


def _placement_arrays(row: Placement | None, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes = np.zeros(size, "<i8")
    local_ranks = np.full(size, -1, "<i4")
    stages = np.full(size, -1, "<i4")
    if row is not None:
        for array, blob in ((nodes, row.nodes), (local_ranks, row.local_ranks), (stages, row.stages)):
            kept = np.frombuffer(bytes(blob), array.dtype)[:size]
            array[: len(kept)] = kept
    return nodes, local_ranks, stages


def _nodes_of_run(*, run_id: int, node_ids: Sequence[int]) -> None:
    """Write down which nodes a run holds now, in the nodes' status."""
    held = NodeStatus.objects.filter(open_runs__contains=[run_id]).exclude(pk__in=node_ids)
    wanted = NodeStatus.objects.filter(pk__in=node_ids).exclude(open_runs__contains=[run_id])
    # Locked in the order of their ids, as everywhere.
    for status in NodeStatus.objects.select_for_update().filter(pk__in=[*held, *wanted]).order_by("pk"):
        runs = set(status.open_runs)
        runs = runs | {run_id} if status.pk in set(node_ids) else runs - {run_id}
        NodeStatus.objects.filter(pk=status.pk).update(open_runs=sorted(runs), version=F("version") + 1)
        poke_on_commit(FLEET_GROUP, {"what": "node", "id": status.pk})


def checkpoint_note(
    *, attempt_id: int, fact: CheckpointFact, source: str, actor_name: str, suspect: bool, now: datetime
) -> bool:
    """Take in what was said about a save or a restore; return whether anything changed.

    SAVED makes it COMPLETE (or SUSPECT when `suspect`), a rank's WRITTEN never does; FAILED beats SAVED; DELETED takes it
    out of every default; RESTORED verifies the newest usable save of that step, whichever attempt made it.
    """
    with recording(now=now) as log:
        attempt = Attempt.objects.select_related("run").get(pk=attempt_id)
        if fact.state == CheckpointState.RESTORED:
            return _restored(log, attempt, fact, source=source, actor_name=actor_name)
        if fact.state == CheckpointState.DELETED:
            return _deleted(log, attempt, fact, source=source, actor_name=actor_name)
        row, _ = Checkpoint.objects.select_for_update().get_or_create(
            attempt=attempt, step=fact.step, defaults={"run": attempt.run, "started_at": fact.happened_at}
        )
        before = (row.trust, row.shards_written, row.queue_s, row.duration_s)
        _measure(row, fact)
        if fact.state == CheckpointState.WRITTEN:
            row.shards_written += 1
        elif fact.state == CheckpointState.FAILED:
            row.trust, row.error = Trust.FAILED, fact.error[:2000]
        elif fact.state == CheckpointState.SAVED and row.trust == Trust.PENDING:
            row.trust = Trust.SUSPECT if suspect else Trust.COMPLETE
            row.saved_at = fact.happened_at
        row.save()
        if row.trust != before[0] or fact.state == CheckpointState.STARTED:
            log.add(
                StreamKey.run(attempt.run_id),
                kind=f"checkpoint.{fact.state.lower()}",
                text=_checkpoint_text(row, fact),
                source=source,
                happened_at=fact.happened_at,
                actor_name=actor_name,
                payload={
                    "attempt": attempt.pk,
                    "step": fact.step,
                    "trust": row.trust,
                    "queue_s": row.queue_s,
                    "duration_s": row.duration_s,
                },
            )
        if row.trust != before[0]:
            checkpoint_status_refresh(run_id=attempt.run_id)
        return (row.trust, row.shards_written, row.queue_s, row.duration_s) != before


def checkpoint_trust_set(*, run_id: int, after_step: int, attempt_id: int) -> int:
    """Mark an attempt's complete saves from `after_step` on as SUSPECT; return how many. Called when a numeric finding opens."""
    with transaction.atomic():
        changed = Checkpoint.objects.filter(
            run_id=run_id, attempt_id=attempt_id, step__gte=after_step, trust__in=USABLE
        ).update(trust=Trust.SUSPECT)
        if changed:
            checkpoint_status_refresh(run_id=run_id)
        return changed


def checkpoint_status_refresh(*, run_id: int) -> None:
    """Write the newest trusted checkpoint into the run's status."""
    newest = Checkpoint.objects.filter(run_id=run_id, trust__in=USABLE).order_by("-saved_at", "-step").first()
    status_update(
        run_id=run_id,
        checkpoint_step=newest.step if newest else None,
        checkpoint_at=newest.saved_at if newest else None,
        checkpoint_trust=newest.trust if newest else "",
    )


def _measure(row: Checkpoint, fact: CheckpointFact) -> None:
    row.started_at = min(row.started_at, fact.happened_at)
    for name in ("duration_s", "queue_s", "blocking_s", "bytes"):
        value = getattr(fact, name)
        if value is None:
            continue
        known = getattr(row, name)
        if known is None or value > known:  # the slowest shard counts
            setattr(row, name, value)
            if name == "duration_s" and fact.rank is not None:
                row.slowest_rank = fact.rank


def _checkpoint_text(row: Checkpoint, fact: CheckpointFact) -> str:
    queued = f", {row.queue_s:.1f} of {row.duration_s:.1f} s queued" if row.queue_s and row.duration_s else ""
    if fact.state == CheckpointState.STARTED:
        return f"Checkpoint {fact.step:,} started"
    if row.trust == Trust.FAILED:
        return f"Checkpoint {fact.step:,} failed: {row.error or 'no reason given'}"
    if row.trust == Trust.SUSPECT:
        return f"Checkpoint {fact.step:,} saved, but suspect: a numeric finding is open"
    return f"Checkpoint {fact.step:,} complete{queued}"


def _restored(log: Log, attempt: Attempt, fact: CheckpointFact, *, source: str, actor_name: str) -> bool:
    if attempt.resume_confirmed and attempt.resumed_from_step == fact.step:
        return False
    row = (
        Checkpoint.objects.select_for_update()
        .filter(run_id=attempt.run_id, step=fact.step)
        .exclude(attempt=attempt)
        .exclude(trust__in=(Trust.FAILED, Trust.DELETED))
        .order_by("-attempt_id")
        .first()
    )
    if row is not None:
        row.restored_at = fact.happened_at
        if row.trust in (Trust.PENDING, Trust.COMPLETE):
            row.trust = Trust.VERIFIED
            row.saved_at = row.saved_at or fact.happened_at
        row.save()
    # A restore fact overrides what the key's opener claimed (CONTRACT).
    Attempt.objects.filter(pk=attempt.pk).update(resumed_from_step=fact.step, resume_confirmed=True)
    status_update(run_id=attempt.run_id, resumed_from_step=fact.step)
    checkpoint_status_refresh(run_id=attempt.run_id)
    log.add(
        StreamKey.run(attempt.run_id),
        kind="checkpoint.restored",
        text=f"Attempt {attempt.number} restored step {fact.step:,}",
        source=source,
        happened_at=fact.happened_at,
        actor_name=actor_name,
        payload={"attempt": attempt.pk, "step": fact.step, "duration_s": fact.duration_s},
    )
    return True


def _deleted(log: Log, attempt: Attempt, fact: CheckpointFact, *, source: str, actor_name: str) -> bool:
    changed = (
        Checkpoint.objects.filter(run_id=attempt.run_id, step=fact.step)
        .exclude(trust=Trust.DELETED)
        .update(trust=Trust.DELETED, deleted_at=fact.happened_at)
    )
    if changed:
        checkpoint_status_refresh(run_id=attempt.run_id)
        log.add(
            StreamKey.run(attempt.run_id),
            kind="checkpoint.deleted",
            text=f"Checkpoint {fact.step:,} deleted by rotation",
            source=source,
            happened_at=fact.happened_at,
            actor_name=actor_name,
            payload={"step": fact.step},
        )
    return bool(changed)
