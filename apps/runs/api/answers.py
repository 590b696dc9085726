"""What REST says of runs, attempts and checkpoints (CONTRACT, Runs and attempts). What is not measured is null."""

from datetime import datetime
from typing import Any

from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.engine.detection import Launched
from apps.engine.estimates.progress import progress_of
from apps.engine.estimates.retry_chains import Link, fruitless, intervals_of, links_of, nodes_in_common
from apps.runs.choices import AUTOMATIC
from apps.runs.launcher import launcher_shown
from apps.runs.limits import limit_value, limits_in_force
from apps.runs.selectors import AttemptRow, CheckpointRow, RunRow, TryRow, success_of_chains


def run_answer(run: RunRow, *, now: datetime) -> dict[str, Any]:
    """Return a run as listings show it."""
    ahead = progress_of(
        now=now,
        step=run.step,
        steps_planned=run.steps_planned,
        step_s=run.step_s,
        best_step_s=run.own_best_step_s,
        due_at=run.due_at,
    )
    return {
        "id": id_write("run", run.id),
        "slug": run.slug,
        "name": run.name,
        "cluster": run.cluster,
        "team": run.team,
        "state": run.state,
        "step": run.step,
        "steps_planned": run.steps_planned,
        "step_s": run.step_s,
        "own_best_step_s": run.own_best_step_s,
        "tokens_per_s": run.tokens_per_s,
        "loss": run.loss,
        "attempt": id_write("att", run.attempt_id) if run.attempt_id else None,
        "attempt_number": run.attempt_number or None,
        "world_size": run.world_size,
        "ranks_reporting": run.ranks_reporting,
        "checkpoint": _newest_checkpoint(run, now=now),
        "at_risk": {"steps": run.at_risk_steps, "gpu_hours": run.at_risk_gpu_hours},
        "eta_at": rfc3339(ahead.eta_at),
        "eta_at_best_pace": rfc3339(ahead.eta_at_best_pace),
        "slip_s": ahead.slip_s,
        "goodput": None,
        "mfu": None,
        "open_incidents": run.open_incidents,
        "open_action": id_write("act", run.open_action_id) if run.open_action_id else None,
        "last_report_at": rfc3339(run.last_report_at),
        "created_at": rfc3339(run.created_at),
    }


def run_whole_answer(run: RunRow, *, now: datetime, with_launcher: bool) -> dict[str, Any]:
    """Return a run with its settings; the launcher only for those who may configure it."""
    limits = {
        name: {
            "value": row.value,
            "unit": row.unit,
            "default": row.default,
            "from": row.set_by,
            "reason": row.reason,
            "source": row.origin,
        }
        for name, row in limits_in_force(run.limits).items()
    }
    whole = {
        **run_answer(run, now=now),
        "external_id": run.external_id,
        "model": run.model,
        "layout": run.layout,
        "checkpoint_setting": run.checkpoint_setting,
        "framework": run.framework,
        "tokens_per_step": run.tokens_per_step,
        "tokens_planned": run.tokens_planned,
        "gpu_model": run.gpu_model or None,
        "dtype": run.dtype or None,
        "gpus_per_node": run.gpus_per_node,
        "due_at": rfc3339(run.due_at),
        "mode": run.mode,
        "modes": run.modes,
        "limits": limits,
        "launcher_kind": run.launcher.get("kind"),
    }
    if with_launcher:
        whole["launcher"] = launcher_shown(run.launcher)
    return whole


def attempt_answer(attempt: AttemptRow, *, chain: tuple[int, int, int]) -> dict[str, Any]:
    """Return an attempt. `chain` is (row of its first attempt, place in it, its length)."""
    first_id, position, length = chain
    return {
        "id": id_write("att", attempt.id),
        "run": attempt.run,
        "number": attempt.number,
        "key": attempt.key,
        "state": attempt.state,
        "reason": attempt.reason or None,
        "reason_from": attempt.authority or None,
        "world_size": attempt.world_size,
        "resumed_from_step": attempt.resumed_from_step,
        "resume_confirmed": attempt.resume_confirmed,
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "started_at": rfc3339(attempt.started_at),
        "first_step_at": rfc3339(attempt.first_step_at),
        "ended_at": rfc3339(attempt.ended_at),
        "opened_by": attempt.opened_by,
        "external_id": attempt.external_id or None,
        "code_version": attempt.code_version or None,
        "order": id_write("ord", attempt.order_id) if attempt.order_id else None,
        "chain": {"id": id_write("att", first_id), "position": position, "length": length},
    }


def chains_answer(run: RunRow, chains: list[list[TryRow]]) -> dict[str, Any]:
    """Return a run's retry chains, newest first, with how many ended in success."""
    tries = [[row.launched() for row in chain] for chain in chains]
    success = success_of_chains(run, chains)
    return {
        "items": [_chain_answer(run, rows, chain) for rows, chain in zip(chains, tries, strict=True)][::-1],
        "success": {
            "count": success.count,
            "of": success.of,
            "share": success.share,
            "low": success.low,
            "high": success.high,
            "level": 0.95,
        },
    }


def _chain_answer(run: RunRow, rows: list[TryRow], chain: list[Launched]) -> dict[str, Any]:
    limit = limits_in_force(run.limits)["restart_limit"]
    nowhere = fruitless(chain, quick_s=limit_value(run.limits, "restart_quick_s"))
    apart = intervals_of(chain)
    return {
        "id": id_write("att", rows[0].attempt.id),
        "length": len(rows),
        "outcome": chain[-1].outcome or None,
        "interval_s": apart.median_s if apart is not None else None,
        "got_nowhere": len(nowhere),
        "limit": {"value": int(limit.value), "set_by": limit.set_by},
        "nodes_in_common": list(nodes_in_common(nowhere)),
        "attempts": [_link_answer(row, link) for row, link in zip(rows, links_of(chain), strict=True)],
    }


def _link_answer(row: TryRow, link: Link) -> dict[str, Any]:
    one = row.attempt
    return {
        "id": id_write("att", one.id),
        "number": one.number,
        "started_at": rfc3339(one.started_at),
        "ended_at": rfc3339(one.ended_at),
        "started_by": row.by,
        "started_by_name": row.by_name or None,
        "automatic": row.by in AUTOMATIC,
        "outcome": one.reason or None,
        "from_step": one.resumed_from_step,
        "first_step": one.first_step,
        "last_step": one.last_step,
        "gained_steps": link.gained_steps,
        "interval_s": link.interval_s,
        "downtime_s": link.downtime_s,
        "lasted_s": link.lasted_s,
        "nodes": list(row.nodes),
    }


def checkpoint_answer(row: CheckpointRow) -> dict[str, Any]:
    """Return a checkpoint."""
    return {
        "step": row.step,
        "attempt": id_write("att", row.attempt_id),
        "trust": row.trust,
        "started_at": rfc3339(row.started_at),
        "saved_at": rfc3339(row.saved_at),
        "duration_s": row.duration_s,
        "queue_s": row.queue_s,
        "blocking_s": row.blocking_s,
        "fastest_s": row.fastest_s,
        "bytes": row.bytes,
        "shards_written": row.shards_written,
        "error": row.error or None,
        "restored_at": rfc3339(row.restored_at),
        "deleted_at": rfc3339(row.deleted_at),
    }


def _newest_checkpoint(run: RunRow, *, now: datetime) -> dict[str, Any] | None:
    if run.checkpoint_step is None or run.checkpoint_at is None:
        return None
    age_s = max(0.0, (now - run.checkpoint_at).total_seconds())
    return {
        "step": run.checkpoint_step,
        "at": rfc3339(run.checkpoint_at),
        "age_s": age_s,
        "trust": run.checkpoint_trust,
    }
