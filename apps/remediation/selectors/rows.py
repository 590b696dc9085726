"""The frozen rows that leave this room, and how they are made."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apps.common.ids import id_write
from apps.remediation.choices import OF_NODES, OPEN, ActionState, OrderKind, OrderState
from apps.remediation.models import Action, Launch, Order
from apps.remediation.selectors.schedulers import SchedulerRow
from apps.runs.launcher import LauncherSetting


def order_key(order_id: int) -> str:
    """Return the attempt key that what an order starts is given; no other launch ever has it."""
    return f"order:{id_write('ord', order_id)}"


@dataclass(frozen=True, slots=True)
class OrderRow:
    """One thing handed to a launcher."""

    id: int
    kind: str
    launcher: str
    state: str
    attempt_id: int | None
    tries: int
    claimed_at: datetime | None
    asked_at: datetime | None
    not_before: datetime
    settled_at: datetime | None
    receipt: dict[str, Any]
    error: str


@dataclass(frozen=True, slots=True)
class Milestone:
    """A row of an action's stepper: what happened when."""

    name: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class ActionRow:
    """What somebody wants done and how far it has come. `nodes` are (row, name) of every node it names."""

    id: int
    kind: str
    state: str
    run_id: int | None
    run: str | None
    node_id: int | None
    node: str | None
    cluster_id: int
    nodes: tuple[tuple[int, str], ...]
    reason: str
    requested_by: str
    requested_by_key: str
    source: str
    requested_at: datetime
    expires_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    expected_attempt_id: int | None
    expected_state: str
    ends_as: str
    options: dict[str, Any]
    price: dict[str, Any]
    attempt_id: int | None
    resume_step: int | None
    incident_id: int | None
    finding_id: int | None
    decided_by: str
    outcome: str
    milestones: tuple[Milestone, ...]
    orders: tuple[OrderRow, ...]

    @property
    def waits_for_report(self) -> bool:
        """Whether all of it was carried out, and it only waits for what it started to report."""
        return self.state == ActionState.RUNNING and launch_is_last(self.orders)

    @property
    def is_open(self) -> bool:
        """Return whether it holds its run and its nodes."""
        return self.state in OPEN


def launch_is_last(orders: Iterable[OrderRow | Order]) -> bool:
    """Return whether an action with these orders, the oldest first, did all it had to do: what it started is only watched."""
    of_run = [order for order in orders if order.kind not in OF_NODES]
    done = all(order.state == OrderState.DONE for order in of_run)
    return bool(of_run) and done and of_run[-1].kind == OrderKind.LAUNCH


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """A process, or a job elsewhere, that an order started."""

    id: int
    order_id: int
    run_id: int
    run: str
    practice: bool
    attempt_id: int
    launcher: str
    state: str
    directory: str
    boot_id: str
    pid_namespace: str
    pid: int | None
    start_ticks: int | None
    external_id: str
    token_id: int | None
    started_at: datetime
    ended_at: datetime | None
    exit_status: int | None
    exit_signal: int | None
    last_words: str
    cluster_id: int = 0
    running_at: datetime | None = None
    exit_note: str = ""

    @property
    def key(self) -> str:
        """Return the attempt key that it was given."""
        return order_key(self.order_id)


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """A node that a scheduler is to be told about: every name of it, the line of our ledger, and the words for it.

    `marks`: of all our lines about it, the present one's `mark` included; a drain with any of them is ours.
    """

    name: str
    names: frozenset[str]
    exclusion_id: int
    mark: str
    reason: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """A node that is to be checked, and how."""

    node: str
    cluster: str
    names: tuple[str, ...]
    kind: str
    command: tuple[str, ...]
    url: str
    secret: str = field(repr=False)
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderInHand:
    """Everything a launcher needs to carry an order out. `launch` is what is to be stopped, where Paceline started it.

    For a scheduler: `mark` names the order there and nowhere else; `job_id`, `job_name` and `restarts` are the job, and the start of
    it, that is to be stopped or followed; `releases` says that this job goes on though the launcher could submit another
    one; `exclude_known` every name of each node that is out, `excluded_before` those
    that earlier orders kept this job from; `targets` the nodes of an order about nodes. `check`: the node to be checked.
    """

    id: int
    code: str
    kind: str
    tries: int
    claim: str
    claimed_at: datetime
    asked_at: datetime | None
    action: str
    action_kind: str
    run: str
    setting: LauncherSetting
    attempt_key: str
    resume_step: int | None
    nodes: tuple[str, ...]
    exclude_nodes: tuple[str, ...]
    launch: LaunchRow | None
    token: str = field(default="", repr=False)
    scheduler: SchedulerRow | None = None
    mark: str = ""
    job_id: int | None = None
    job_name: str = ""
    restarts: int | None = None
    releases: bool = False
    exclude_known: tuple[frozenset[str], ...] = ()
    excluded_before: tuple[str, ...] = ()
    targets: tuple[NodeTarget, ...] = ()
    check: CheckTarget | None = None


@dataclass(frozen=True, slots=True)
class HeldOrder:
    """An order that a process has in hand: to carry it out (`state` CLAIMED), or to read it back (UNCERTAIN)."""

    id: int
    state: str
    claim: str
    holder: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of handing an order out.

    `kind` is DONE, GOING_ON (taken, look again), REFUSED (never will), UNAVAILABLE (nothing happened, try again),
    NOT_DONE (read back: it never began and never will) or UNCERTAIN. `process` names what was started.
    """

    kind: str
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchFact:
    """What a look at a launch found: whether it is gone, and as far as known how and when it ended.

    `reason` is why the attempt ended, where a scheduler says so: it knows better than an exit status. `note` is what
    else is known of the end, in words.
    """

    gone: bool
    ended_at: datetime | None = None
    status: int | None = None
    signal: int | None = None
    asked: bool = False
    last_words: str = ""
    reason: str = ""
    note: str = ""


def order_row(row: Order) -> OrderRow:
    """Return the frozen form of an order."""
    return OrderRow(
        id=row.pk,
        kind=row.kind,
        launcher=row.launcher,
        state=row.state,
        attempt_id=row.attempt_id,
        tries=row.tries,
        claimed_at=row.claimed_at,
        asked_at=row.asked_at,
        not_before=row.not_before,
        settled_at=row.settled_at,
        receipt=row.receipt,
        error=row.error,
    )


def action_row(row: Action, *, orders: Iterable[Order], nodes: Iterable[tuple[int, str]]) -> ActionRow:
    """Return the frozen form of an action."""
    cluster_id = row.run.cluster_id if row.run is not None else row.node.cluster_id  # type: ignore[union-attr]
    return ActionRow(
        id=row.pk,
        kind=row.kind,
        state=row.state,
        run_id=row.run_id,
        run=row.run.slug if row.run is not None else None,
        node_id=row.node_id,
        node=row.node.name if row.node is not None else None,
        cluster_id=cluster_id,
        nodes=tuple(nodes),
        reason=row.reason,
        requested_by=row.requested_by,
        requested_by_key=row.requested_by_key,
        source=row.source,
        requested_at=row.requested_at,
        expires_at=row.expires_at,
        began_at=row.began_at,
        ended_at=row.ended_at,
        expected_attempt_id=row.expected_attempt_id,
        expected_state=row.expected_state,
        ends_as=row.ends_as,
        options=row.options,
        price=row.price,
        attempt_id=row.attempt_id,
        resume_step=row.resume_step,
        incident_id=row.incident_id,
        finding_id=row.finding_id,
        decided_by=row.decided_by,
        outcome=row.outcome,
        milestones=tuple(
            Milestone(name=step["name"], at=datetime.fromisoformat(step["at"]), text=step["text"])
            for step in row.milestones
        ),
        orders=tuple(order_row(order) for order in orders),
    )


def launch_row(row: Launch) -> LaunchRow:
    """Return the frozen form of a launch."""
    return LaunchRow(
        id=row.pk,
        order_id=row.order_id,
        run_id=row.run_id,
        run=row.run.slug,
        practice=row.run.practice,
        attempt_id=row.attempt_id,
        launcher=row.launcher,
        state=row.state,
        directory=row.directory,
        boot_id=row.boot_id,
        pid_namespace=row.pid_namespace,
        pid=row.pid,
        start_ticks=row.start_ticks,
        external_id=row.external_id,
        token_id=row.token_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        exit_status=row.exit_status,
        exit_signal=row.exit_signal,
        last_words=row.last_words,
        cluster_id=row.run.cluster_id,
        running_at=row.running_at,
        exit_note=row.exit_note,
    )
