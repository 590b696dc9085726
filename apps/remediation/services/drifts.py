"""Deciding about a difference between our ledger and a cluster's scheduler: one click, one action that says who and why."""

from datetime import datetime
from typing import Any

from apps.common.access import Principal
from apps.common.clock import rfc3339
from apps.common.errors import BadRequest, Conflict
from apps.fleet.choices import ExclusionOrigin
from apps.fleet.services import exclusion_open
from apps.journal.choices import Source
from apps.journal.services import recording
from apps.remediation.choices import DECISIONS, ActionKind, Decision, DriftKind
from apps.remediation.models import Drift
from apps.remediation.selectors.jobs import DriftRow, drift_by_id
from apps.remediation.selectors.rows import ActionRow
from apps.remediation.services.requesting import action_request
from apps.remediation.services.wishes import LONGEST_OUT, may_act

KINDS: dict[str, ActionKind] = {
    Decision.END: ActionKind.READMIT_NODE,
    Decision.DRAIN: ActionKind.EXCLUDE_NODE,
    Decision.TAKE: ActionKind.READMIT_NODE,
    Decision.LIFT: ActionKind.READMIT_NODE,
    Decision.EXCLUDE: ActionKind.EXCLUDE_NODE,
    Decision.KEEP: ActionKind.RECORD_DONE,
}


class DriftMoved(Conflict):
    """The difference is over, or another one by now."""

    code = "drift_moved"


def drift_decide(
    *,
    principal: Principal,
    drift_id: int,
    decision: str,
    reason: str,
    source: str,
    now: datetime,
    until_at: datetime | None = None,
) -> ActionRow:
    """Decide about a difference; return the action that carries it out. Without a reason the difference is the reason.

    Raises:
        Forbidden, ActionOpen, GuardClosed, NodeStateDiffers: see `action_request`.
        BadRequest: this difference does not allow that decision. DriftMoved: it is over; look again.
    """
    row = drift_by_id(drift_id)
    may_act(principal, row.cluster_id)
    allowed = DECISIONS[row.kind]
    if decision not in allowed:
        raise BadRequest(f"decision: must be one of {', '.join(allowed)}.")
    if until_at is not None and (decision != Decision.KEEP or not now < until_at <= now + LONGEST_OUT):
        raise BadRequest(f"until_at: belongs to KEEP, and must lie ahead, at most {LONGEST_OUT.days} days.")
    words = " ".join(reason.split()) or _reason(row, decision, until_at)
    with recording(now=now):
        action = action_request(
            principal=principal,
            kind=KINDS[decision],
            node_id=row.node_id,
            reason=words,
            options=_options(decision),
            source=source,
            now=now,
        )
        if decision == Decision.TAKE:
            exclusion_open(
                node_id=row.node_id,
                reason=row.reason or "drained, no reason given",
                by_name=row.by_name or "the site",
                origin=ExclusionOrigin.OBSERVED,
                source=Source.SYSTEM,
                now=now,
                action_id=action.id,
            )
        # Compare-and-set: what changed while it was looked at takes everything above back.
        found = Drift.objects.filter(pk=drift_id, ended_at=None, kind=row.kind)
        if not found.update(**_decided(decision, principal, until_at, now=now)):
            raise DriftMoved(f"The difference about {row.node} is over; nothing was done. Look again.", node=row.node)
    return action


def _decided(decision: str, principal: Principal, until_at: datetime | None, *, now: datetime) -> dict[str, Any]:
    if decision == Decision.KEEP:
        return {"kept_by_name": principal.name[:150], "kept_until_at": until_at}
    return {"ended_at": now}


def _options(decision: str) -> dict[str, Any]:
    plain = decision in (Decision.END, Decision.EXCLUDE, Decision.KEEP)
    return {} if plain else {"decision": str(decision)}


def _reason(row: DriftRow, decision: str, until_at: datetime | None) -> str:
    words = f"{DriftKind(row.kind).label}: {Decision(decision).label}"
    if decision == Decision.EXCLUDE and row.reason:
        return f"{row.reason} (put out by {row.by_name or 'the site'}, came back unanswered)"[:2000]
    if until_at is not None:
        words += f" until {rfc3339(until_at)}"
    return f"{words[:1].upper()}{words[1:]}"
