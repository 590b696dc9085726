"""How a cluster's nodes are checked, whether a node may be checked now, and what its last check says."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime

from apps.fleet.choices import CHECKS, ExclusionOrigin, NoteKind
from apps.fleet.selectors import NodeRow, NoteRow, exclusions_of, notes_of_node
from apps.remediation.choices import CheckKind, OrderKind
from apps.remediation.models import CheckSetting, Order
from apps.remediation.selectors.guards import GuardRow

BUSY = ("ALLOCATED", "MIXED", "COMPLETING")
"""Base states in which a scheduler has work on a node."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """How a cluster's nodes are checked."""

    cluster_id: int
    kind: str
    command: tuple[str, ...]
    url: str
    timeout_s: float
    valid_s: int
    required: bool
    updated_by: str
    updated_at: datetime
    secret: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class CheckOver:
    """The order of a check that is over."""

    id: int
    settled_at: datetime


def checks_over(order_ids: Collection[int]) -> list[CheckOver]:
    """Return those of these orders that are checks and over, the last one first."""
    over = Order.objects.filter(pk__in=list(order_ids), kind=OrderKind.CHECK).exclude(settled_at=None)
    rows = over.order_by("-settled_at", "-pk").values_list("pk", "settled_at")
    return [CheckOver(pk, settled_at) for pk, settled_at in rows if settled_at is not None]


def check_of(cluster_id: int) -> CheckRow | None:
    """Return how a cluster's nodes are checked, None where nobody set it."""
    row = CheckSetting.objects.filter(pk=cluster_id).first()
    if row is None:
        return None
    return CheckRow(
        cluster_id=row.pk,
        kind=row.kind,
        command=tuple(row.command),
        url=row.url,
        secret=row.secret,
        timeout_s=row.timeout_s,
        valid_s=row.valid_s,
        required=row.required,
        updated_by=row.updated_by,
        updated_at=row.updated_at,
    )


def check_why_not(node: NodeRow, how: CheckRow | None) -> str:
    """Return why a node cannot be checked now, or nothing. A check may take a GPU away from whoever computes there."""
    if how is None:
        return f"No check is set for {node.cluster}; an admin sets one under Settings. Check by hand, then record it."
    if node.open_runs:
        return f"A run is on {node.name}, and a check would disturb it. Wait until it has left the node."
    if any(word in node.scheduler_state.upper() for word in BUSY):
        return f"The scheduler has work on {node.name} ({node.scheduler_state.lower()}); a check would disturb it."
    if how.kind == CheckKind.COMMAND and node.name.startswith("-"):
        return f"“{node.name}” would be taken for an option by the command; give the machine another name first."
    return ""


def check_last(node_id: int) -> NoteRow | None:
    """Return a node's newest check, None if it never had one."""
    rows = notes_of_node(node_id, kinds=CHECKS, limit=1)
    return rows[0] if rows else None


def check_words(last: NoteRow | None, *, now: datetime) -> str:
    """Return in a few words what a node's newest check is worth."""
    if last is None:
        return "it was never checked"
    if last.kind != NoteKind.PASSED:
        return f"the check of {_at(last.at)} did not pass"
    if last.until_at is not None and last.until_at <= now:
        return f"the check of {_at(last.at)} passed, and counted until {_at(last.until_at)}"
    return f"the check of {_at(last.at)} passed" + (f", counts until {_at(last.until_at)}" if last.until_at else "")


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%d %b %H:%M} UTC"


def check_guard(node: NodeRow, *, now: datetime) -> GuardRow | None:
    """Return the condition of taking a node back where its cluster asks for a passed check; None where it asks for none.

    A check counts that passed since the node was put out, was not followed by one that did not, and has not expired.
    """
    how = check_of(node.cluster_id)
    if how is None or not how.required:
        return None
    line = next(iter(exclusions_of(node_id=node.id, open_only=True)), None)
    if line is None or line.origin != ExclusionOrigin.OURS:
        return None
    last = check_last(node.id)
    said = check_words(last, now=now)
    if last is not None and last.at < line.began_at:
        return GuardRow(name="check", holds=False, text=f"a passed check is asked for; {said}, before it was put out")
    if last is not None and last.kind == NoteKind.PASSED and (last.until_at is None or last.until_at > now):
        return GuardRow(name="check", holds=True, text=said)
    return GuardRow(name="check", holds=False, text=f"a passed check is asked for; {said}")
