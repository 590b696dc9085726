"""When the time comes until which a node was to be out: it is taken back, or people are asked, as was chosen."""

from datetime import datetime

from apps.common.access import SYSTEM, Principal
from apps.common.clock import rfc3339
from apps.common.errors import BadRequest, PacelineError
from apps.fleet.choices import AtUntil, ExclusionOrigin, NoteKind
from apps.fleet.models import Exclusion
from apps.fleet.selectors import ExclusionRow, exclusions_due, node_by_id
from apps.fleet.services import ledger_note
from apps.journal.choices import Source
from apps.journal.services import recording
from apps.remediation.choices import ActionKind
from apps.remediation.services.requesting import action_request
from apps.remediation.services.wishes import LONGEST_OUT, SHORTEST_REASON, ActionOpen, NotOurs, may_act


def exclusion_due(*, exclusion_id: int, now: datetime) -> None:
    """Follow an exclusion whose time has come. What holds its node is waited for; what forbids it is asked about."""
    line = next(iter(exclusions_due(now=now, exclusion_id=exclusion_id)), None)
    if line is None:
        return
    if line.at_until == AtUntil.ASK:
        _ask(line, "it was to be out until then; take it back, or keep it out longer", now=now)
        return
    until = rfc3339(line.out_until_at)
    try:
        action_request(
            principal=SYSTEM,
            kind=ActionKind.READMIT_NODE,
            node_id=line.node_id,
            reason=f"It was to be out until {until}: {line.reason}"[:2000],
            source=Source.RULE,
            now=now,
        )
    except ActionOpen:
        return  # asked again with the next sweep
    except PacelineError as error:
        _ask(line, f"it was to be taken back, but: {error.message}", now=now)


def exclusion_keep(
    *, principal: Principal, node_id: int, until_at: datetime | None, reason: str, source: str, now: datetime
) -> None:
    """Keep a node out longer, with the reason: a line under the first, which stays as it is. None: without an end.

    Raises:
        Forbidden: the caller may not act here. BadRequest: no reason, or no time that lies ahead.
        Conflict: the node is in service. NotOurs: somebody else put it out.
    """
    node = node_by_id(node_id)
    may_act(principal, node.cluster_id)
    words = " ".join(reason.split())
    if len(words) < SHORTEST_REASON:
        raise BadRequest(f"reason: say why in at least {SHORTEST_REASON} characters; it goes into the ledger.")
    if until_at is not None and not now < until_at <= now + LONGEST_OUT:
        raise BadRequest(f"until_at: must lie ahead, at most {LONGEST_OUT.days} days.")
    with recording(now=now):
        line = Exclusion.objects.filter(node_id=node_id, ended_at=None).first()
        if line is not None and line.origin != ExclusionOrigin.OURS:
            raise NotOurs(f"{node.name} was put out by {line.by_name}: “{line.reason}”. How long is decided there.")
        ledger_note(
            node_id=node_id,
            kind=NoteKind.KEPT,
            text=words[:2000],
            by_name=principal.name,
            source=source,
            now=now,
            until_at=until_at,
        )


def _ask(line: ExclusionRow, text: str, *, now: datetime) -> None:
    ledger_note(
        node_id=line.node_id, kind=NoteKind.ASKED, text=text[:2000], by_name=SYSTEM.name, source=Source.RULE, now=now
    )
