"""From what detectors propose to proposals that people take up or turn down. Nothing is ever carried out from here."""

from datetime import UTC, datetime, timedelta

from django.db import IntegrityError, transaction

from apps.common.access import SYSTEM
from apps.common.errors import NotFound
from apps.common.sweeps import sweeping
from apps.diagnosis.choices import FindingState
from apps.diagnosis.selectors import (
    FindingRow,
    finding_by_id,
    findings_of,
    findings_to_reconsider,
    findings_unconsidered,
    start_said,
)
from apps.diagnosis.services import finding_considered
from apps.engine.estimates.retry_chains import Decision, Next, retry_decision
from apps.fleet.selectors import NodeRow, exclusions_of, node_by_code
from apps.incidents.services import SHARED, TOGETHER, nodes_down_together
from apps.journal.choices import Source, StreamKey
from apps.journal.selectors import events_latest
from apps.journal.services import Log, recording
from apps.remediation.choices import ActionKind, ActionState, Moment
from apps.remediation.models import Action
from apps.remediation.selectors.actions import findings_proposed, proposal_in_hand, proposal_settled, runs_acted_on
from apps.remediation.selectors.commands import names_short
from apps.remediation.selectors.preview import action_preview
from apps.remediation.services.moving import action_lock, action_log, action_move, action_words, milestone, nodes_name
from apps.runs.choices import AttemptState, Mode
from apps.runs.limits import limit_value
from apps.runs.selectors import RunRow, chain_newest, run_by_id
from apps.telemetry.selectors import door_state

PROPOSAL_LIFE = timedelta(hours=6)
"""Evidence that is older than a shift has to be looked at anew."""

AT_ONCE = 200

AGAIN = timedelta(seconds=60)
"""So long what came of a look stands where nothing shows that another would end otherwise: what a look costs at most."""

AGAIN_AT_ONCE = 50
"""Findings that one sweep looks at again: what is left over is the first that the next one looks at."""

HELD_BY = (ActionKind.RESTART_RUN, ActionKind.STOP_RUN)
"""Open actions of a run beside which nothing is proposed: what comes of them decides whether it is called for."""

WITHHELD = "proposal.withheld"
EACH_ITS_OWN = frozenset({"compute_straggler"})
"""Causes that several nodes have each for itself, however close together they are found: after a start, all at once."""

LOOP = "restart_loop"
"""The cause that says that trying again is in vain."""


def findings_consider(*, now: datetime) -> int:
    """Consider every finding that changed since it was last considered; return how many."""
    with sweeping("some findings could not be considered") as each:
        return len(each(findings_unconsidered(limit=AT_ONCE), lambda row: finding_consider(finding_id=row.id, now=now)))


def findings_reconsider(*, now: datetime) -> int:
    """Consider again what may end otherwise than when it was looked at, though the finding is the same; return how many.

    The run was set to propose, a snooze ended, a proposal expired, another action is out of the way: looked at with the
    next sweep. What else may have changed (an exclusion, who else is down) is found within AGAIN.
    """
    since = now - AGAIN
    with sweeping("some findings could not be considered again") as each:
        rows = findings_to_reconsider(
            now=now,
            looked_before=since,
            run_ids=runs_acted_on(since=since),
            without=findings_proposed(),
            limit=AGAIN_AT_ONCE,
        )
        return len(each(rows, lambda row: finding_consider(finding_id=row.id, now=now)))


def finding_consider(*, finding_id: int, now: datetime) -> None:
    """Propose what a confirmed finding calls for, where the run's mode allows it; take back what no longer holds."""
    with recording(now=now) as log:
        finding = finding_by_id(finding_id)
        if just_blind(run_by_id(finding.run_id), now=now):
            return  # considered with a later sweep, when what was missed has been heard
        # Written first: of two who consider it as it was looked at last one goes on.
        looked_at = finding.considered_at
        if not finding_considered(finding_id=finding_id, version=finding.version, looked_at=looked_at, now=now):
            return
        run = run_by_id(finding.run_id)
        wanted = _wanted(finding, run, now=now)
        if wanted is not None and wanted[1] is not None and (together := _together(finding, run, wanted[1])):
            _withhold(log, finding, run, together, now=now)
            wanted = None
        key = "" if wanted is None else _key(finding, wanted[1])
        for old in Action.objects.filter(finding_id=finding_id, state=ActionState.PROPOSED).exclude(proposal_key=key):
            _take_back(log, old.pk, finding, now=now)
        if finding.cause == LOOP and finding.state == "OPEN" and not finding.muted(now):
            _retries_take_back(log, finding, now=now)
        if wanted is not None:
            _propose(log, finding, run, *wanted, key=key, now=now)


def just_blind(run: RunRow, *, now: datetime) -> bool:
    """Return whether Paceline hears nothing, or has heard again for so short a time that much may still be on its way.

    What was found before must not be acted on as if it were so now.
    """
    door = door_state(now)
    if door.last_beat_at is None:
        return False  # no door has ever served here: nothing was missed
    return (now - door.accepting_since).total_seconds() < limit_value(run.limits, "no_telemetry_s")


def _together(finding: FindingRow, run: RunRow, node: NodeRow) -> list[str]:
    """Return the nodes that share a cause with this one, itself included; none where its fault is its own (case 17)."""
    names = {node.name}
    if finding.cause not in EACH_ITS_OWN:
        for row in findings_of(cluster_id=run.cluster_id, cause=finding.cause, state=FindingState.OPEN, limit=1000):
            if row.proposal_kind == "EXCLUDE_NODE" and row.proposal_node and _near(row, finding):
                names.add(row.proposal_node)
    down = nodes_down_together(run.cluster_id, at=finding.began_at or finding.found_at)
    if {node.name, *node.aliases} & down:
        names |= down
    return sorted(names) if len(names) >= SHARED else []


def _near(row: FindingRow, finding: FindingRow) -> bool:
    return abs((row.began_at or row.found_at) - (finding.began_at or finding.found_at)) <= TOGETHER


def _withhold(log: Log, finding: FindingRow, run: RunRow, names: list[str], *, now: datetime) -> None:
    """Propose to exclude none of many nodes that went at once, take back what was, and say so once."""
    why = f"{len(names)} nodes at once share a cause"
    # Names are one machine's within a cluster only.
    nodes = {"node__cluster_id": run.cluster_id, "node__name__in": names}
    rows = Action.objects.filter(state=ActionState.PROPOSED, finding_id__isnull=False, **nodes)
    for action_id, finding_id in rows.order_by("pk").values_list("pk", "finding_id"):
        other = finding_by_id(int(finding_id or 0))
        if other.cause == finding.cause and _near(other, finding):
            _take_back(log, action_id, other, now=now, why=why)
    said = events_latest(StreamKey.run(run.id), limit=1, kinds=[WITHHELD])
    if said and said[0].recorded_at >= min(now - TOGETHER, finding.found_at):
        return
    shown = names_short(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])
    text = f"No node is proposed to be excluded: {why} ({finding.cause}: {shown}). Look for what they have in common."
    log.add(StreamKey.run(run.id), kind=WITHHELD, text=text, source=Source.RULE, subject=finding.subject)


def mode_of(run: RunRow, cause: str) -> str:
    """Return how far Paceline may go for a cause of a run."""
    return run.modes.get(cause, run.mode)


def retry_of(run: RunRow, *, now: datetime) -> Decision:
    """Return whether a run may be tried again as it is: not what loops or cannot start, and not before its turn."""
    if run.attempt_id is not None:
        for row in findings_of(attempt_id=run.attempt_id, state=FindingState.OPEN):
            if row.cause == LOOP and not row.muted(now):
                return Decision(Next.ASK, None, row.verdict)
    chain = chain_newest(run.id)
    newest = chain[-1].attempt if chain else None
    said = start_said(newest) if newest is not None and newest.state == AttemptState.ENDED else {}
    return retry_decision(
        [row.launched(**(said if row is chain[-1] else {})) for row in chain],
        now=now.timestamp(),
        quick_s=limit_value(run.limits, "restart_quick_s"),
        most=int(limit_value(run.limits, "restart_limit")),
        backoff_s=limit_value(run.limits, "restart_backoff_s"),
    )


def _wanted(finding: FindingRow, run: RunRow, *, now: datetime) -> tuple[str, NodeRow | None] | None:
    """Return the kind of action and the node to propose, None if there is nothing to propose."""
    if finding.state != "OPEN" or finding.certainty != "CONFIRMED" or finding.muted(now):
        return None
    if mode_of(run, finding.cause) not in (Mode.PROPOSE, Mode.ACT) or finding.attempt_id != run.attempt_id:
        return None
    if finding.proposal_kind == "RESTART_RUN":
        return None if retry_of(run, now=now).next == Next.ASK else (ActionKind.RESTART_RUN, None)
    if finding.proposal_kind != "EXCLUDE_NODE" or not finding.proposal_node:
        return None
    try:
        node = node_by_code(finding.proposal_node, cluster_id=run.cluster_id)
    except NotFound:
        return None
    runs_there = run.attempt_state == AttemptState.OPEN and run.id in node.open_runs
    if node.exclusion_id is not None and not runs_there:
        return None
    # The run goes on without the node only after a restart: both are one action.
    return (ActionKind.RESTART_RUN if runs_there else ActionKind.EXCLUDE_NODE), node


def _propose(
    log: Log, finding: FindingRow, run: RunRow, kind: str, node: NodeRow | None, *, key: str, now: datetime
) -> None:
    if Action.objects.filter(proposal_key=key, state=ActionState.PROPOSED).exists():
        return
    if (
        run.open_action_kind in HELD_BY
        or proposal_in_hand(run_id=run.id, key=key)
        or _settled(finding, kind, node, key)
    ):
        return
    names = [node.name] if node is not None and kind == ActionKind.RESTART_RUN else []
    preview = action_preview(kind=kind, run=run, node=node, exclude_nodes=names, now=now)
    action = Action(
        kind=kind,
        state=ActionState.PROPOSED,
        run_id=run.id,
        node_id=node.id if node is not None else None,
        reason=f"{finding.cause}: {finding.verdict}"[:2000],
        requested_by=SYSTEM.name,
        requested_by_key=SYSTEM.key,
        source=Source.RULE,
        requested_at=now,
        expires_at=now + PROPOSAL_LIFE,
        expected_attempt_id=run.attempt_id,
        expected_state=run.state,
        options={"when": str(Moment.NOW), **({"exclude_nodes": names} if names else {})},
        price=preview.price.stored() if preview.price is not None else {},
        finding_id=finding.id,
        incident_id=finding.incident_id,
        proposal_key=key,
    )
    text = f"Proposed to {action_words(action)}{f' without {names[0]}' if names else ''}: {finding.verdict}"
    turn = retry_of(run, now=now) if kind == ActionKind.RESTART_RUN and node is None else None
    if turn is not None and turn.next == Next.WAIT and turn.not_before is not None:
        text += f" Its turn is at {datetime.fromtimestamp(turn.not_before, UTC):%H:%M:%S} UTC: {turn.why}."
    if mode_of(run, finding.cause) == Mode.ACT:
        text += " The mode is ACT, but this version never acts by itself."
    action.milestones = [milestone("proposed", now, text)]
    try:
        # A savepoint: the constraint decides when two considerers propose the same at once.
        with transaction.atomic():
            action.save()
            nodes_name(action, [row.id for row in preview.exclude], holds=False)
    except IntegrityError:
        return
    action_log(log, action, kind="action.proposed", text=text, finding=finding.id, cause=finding.cause)


def _settled(finding: FindingRow, kind: str, node: NodeRow | None, key: str) -> bool:
    """Return whether people have decided about this since it was found: turned it down, had it done, put the node back."""
    if proposal_settled(key=key, kind=kind, since=finding.found_at):
        return True
    if node is None or kind != ActionKind.EXCLUDE_NODE:
        return False
    newest = exclusions_of(node_id=node.id, limit=1)
    return any(row.ended_at is not None and row.ended_at >= finding.found_at for row in newest)


def _retries_take_back(log: Log, finding: FindingRow, *, now: datetime) -> None:
    """Take back what would only try the same again: it was proposed before the loop was known."""
    plain = Action.objects.filter(
        run_id=finding.run_id, state=ActionState.PROPOSED, kind=ActionKind.RESTART_RUN, node=None
    )
    for action_id in plain.order_by("pk").values_list("pk", flat=True):
        action = action_lock(action_id)
        if action.state == ActionState.PROPOSED:
            text = f"The proposal to {action_words(action)} is taken back. {finding.verdict}"
            action_move(log, action, ActionState.EXPIRED, text=text, now=now)


def _take_back(log: Log, action_id: int, finding: FindingRow, *, now: datetime, why: str = "") -> None:
    action = action_lock(action_id)
    if action.state != ActionState.PROPOSED:
        return
    if not why:
        why = "the finding closed" if finding.state != "OPEN" else "the finding changed"
        if finding.state == "OPEN" and finding.muted(now):
            why = "the finding was set quiet"
    text = f"The proposal to {action_words(action)} is taken back: {why}."
    action_move(log, action, ActionState.EXPIRED, text=text, now=now)


def _key(finding: FindingRow, node: NodeRow | None) -> str:
    return f"{finding.run_id}:{finding.cause}:{node.id if node is not None else '-'}"
