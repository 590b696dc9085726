"""What REST says of actions and previews (CONTRACT, Actions). What is not measured is null."""

from typing import Any

from apps.common.access import Principal
from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.remediation.selectors import ActionRow, OrderRow, Preview, Price, QueuedJob, job_waits_words, look_lines


def action_answer(action: ActionRow, *, who: Principal) -> dict[str, Any]:
    """Return an action, as far as the caller may read it."""
    return {
        "id": id_write("act", action.id),
        "kind": action.kind,
        "state": action.state,
        "run": action.run,
        "node": action.node,
        "nodes": [name for _, name in action.nodes],
        "reason": action.reason,
        "requested_by": action.requested_by,
        "requested_at": rfc3339(action.requested_at),
        "source": action.source,
        "expires_at": rfc3339(action.expires_at),
        "began_at": rfc3339(action.began_at),
        "ended_at": rfc3339(action.ended_at),
        "expected_state": {"attempt": _id("att", action.expected_attempt_id), "state": action.expected_state or None},
        "options": who.shown(action.options),
        "price": {
            "steps": action.price.get("steps"),
            "gpu_hours": action.price.get("gpu_hours"),
            "downtime_s": action.price.get("downtime_s"),
            "payback_s": action.price.get("payback_s"),
        },
        "orders": [order_answer(order) for order in action.orders],
        "attempt": _id("att", action.attempt_id),
        "resume_step": action.resume_step,
        "finding": _id("fin", action.finding_id),
        "incident": _id("inc", action.incident_id),
        "decided_by": action.decided_by or None,
        "outcome": action.outcome or None,
        "look": look_lines(action),
        "milestones": [{"name": row.name, "at": rfc3339(row.at), "text": row.text} for row in action.milestones],
    }


def order_answer(order: OrderRow) -> dict[str, Any]:
    """Return an order."""
    return {
        "id": id_write("ord", order.id),
        "kind": order.kind,
        "launcher": order.launcher,
        "state": order.state,
        "receipt": order.receipt or None,
        "error": order.error or None,
        "tries": order.tries,
        "claimed_at": rfc3339(order.claimed_at),
        "settled_at": rfc3339(order.settled_at),
    }


def preview_answer(preview: Preview, *, with_commands: bool) -> dict[str, Any]:
    """Return a preview; the commands, which hold the launcher's own, only for those who may act."""
    expected = preview.expected_state
    return {
        "kind": preview.kind,
        "run": preview.run.slug if preview.run is not None else None,
        "node": preview.node.name if preview.node is not None else None,
        "can": preview.can,
        "why_not": preview.why_not or None,
        "expected_state": {"attempt": _id("att", expected.get("attempt")), "state": expected.get("state")},
        "seen_step": preview.seen_step,
        "from_step": preview.from_step,
        "exclude_nodes": list(preview.exclude_names),
        "spares": list(preview.spares),
        "prices": [price_answer(price) for price in preview.prices],
        "choose": preview.choose or None,
        "unsure": preview.unsure or None,
        "short": preview.short or None,
        "loss_per_hour": preview.loss_per_hour,
        "checkpoints": [
            {"step": row.step, "trust": row.trust, "saved_at": rfc3339(row.saved_at)} for row in preview.checkpoints
        ],
        "guards": [
            {"name": row.name, "holds": row.holds, "text": row.text, "after": row.have, "limit": row.most}
            for row in preview.guards
        ],
        "blast": None
        if preview.blast is None
        else {
            "out_now": preview.blast.out_now,
            "out_after": preview.blast.out_after,
            "nodes": preview.blast.nodes,
            "limit": preview.blast.most,
        },
        "happens": [{"text": row.text, "small": row.small or None} for row in preview.happens],
        "launcher": preview.launcher or None,
        "orders": list(preview.orders) if with_commands else None,
        "commands": list(preview.commands) if with_commands else None,
        "confirm": preview.confirm,
        "expires_s": preview.expires_s,
        "held_by": _id("act", preview.held_by.id) if preview.held_by is not None else None,
        "requeued": _requeued_answer(preview.queued) if preview.queued is not None else None,
    }


def _requeued_answer(queued: QueuedJob) -> dict[str, Any]:
    job = queued.job
    return {
        "job": job.job_id,
        "restarts": job.restarts,
        "held": job.held,
        "waits": job_waits_words(job),
        "starts_at": rfc3339(job.eligible_at),
        "told_at": rfc3339(job.told_at),
        "may": list(queued.may),
        "chosen": queued.chosen,
    }


def price_answer(price: Price) -> dict[str, Any]:
    """Return the price of one moment."""
    return {"when": price.moment, **{name: value for name, value in price.stored().items() if name != "moment"}}


def _id(prefix: str, number: int | None) -> str | None:
    return None if number is None else id_write(prefix, number)
