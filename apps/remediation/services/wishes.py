"""What somebody asks for, and everything that is checked before anything of it is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from apps.common.access import OPERATE, Principal
from apps.common.errors import BadRequest, Conflict, Forbidden, PacelineError
from apps.common.ids import id_write
from apps.fleet.choices import AtUntil
from apps.fleet.selectors import ExclusionRow, NodeRow, exclusions_of
from apps.remediation.choices import AT_A_SAVE, LEDGER, ActionKind, Decision, Moment, Requeued
from apps.remediation.selectors.preview import LONGEST_EXPIRY, Preview, action_preview
from apps.remediation.selectors.prices import newest_save
from apps.remediation.selectors.rows import ActionRow
from apps.runs.choices import AttemptState, EndReason, Trust
from apps.runs.selectors import RunRow
from apps.runs.services import StateChanged

SHORTEST_REASON = 10
LONGEST_OUT = timedelta(days=366)
LONGEST_REASON = 2000

OF_RUN = (ActionKind.RESTART_RUN, ActionKind.STOP_RUN, ActionKind.CHECKPOINT_NOW)
OF_NODE = (ActionKind.EXCLUDE_NODE, ActionKind.READMIT_NODE, ActionKind.CHECK_NODE)


class ActionOpen(Conflict):
    """An action that is not over holds the run or one of the nodes; the facts name it."""

    code = "action_open"


class GuardClosed(PacelineError):
    """A limit on what may be done at a stretch is reached; the facts hold its figures."""

    code = "guard_closed"
    http_status = 422


class ConfirmationNeeded(PacelineError):
    """The run is large: its name must be typed."""

    code = "confirmation_needed"
    http_status = 422


class CheckpointChoice(PacelineError):
    """No checkpoint can be trusted: a person says from which one to go on, or from the beginning."""

    code = "checkpoint_choice"
    http_status = 422


class CheckpointMoved(Conflict):
    """A restart would go on from another checkpoint than the one that the caller saw; the facts name it and its price."""

    code = "checkpoint_moved"


class NoSaveToCome(PacelineError):
    """A save is to be awaited, but none will come that a restart could take."""

    code = "no_save_to_come"
    http_status = 422


class NotOurs(PacelineError):
    """Somebody else put the node out; Paceline never lifts another's decision."""

    code = "not_ours"
    http_status = 422


class NodeStateDiffers(Conflict):
    """The node is out already, or in service already."""

    code = "node_state"


@dataclass(frozen=True, slots=True)
class Options:
    """How an action is to be done. `done` says for RECORD_DONE what was done by hand, `command` with which command, and
    `passed` what came of a check. A node stays out until `until_at`; then `at_until` happens. `decision` is what somebody
    decided about a difference (`drifts.py`); no caller of REST sets it."""

    from_step: int | None = None
    exclude_nodes: tuple[str, ...] = ()
    when: str = Moment.NOW
    confirm: str = ""
    done: str = ""
    command: str = ""
    passed: bool | None = None
    until_at: datetime | None = None
    at_until: str = ""
    decision: str = ""
    requeued: str = ""

    def stored(self) -> dict[str, Any]:
        """Return what the action keeps; the typed name is not worth keeping."""
        kept = {
            "when": str(self.when),
            "from_step": self.from_step,
            "exclude_nodes": list(self.exclude_nodes),
            "done": self.done,
            "command": self.command,
            "passed": self.passed,
            "until_at": self.until_at.isoformat() if self.until_at is not None else None,
            "at_until": self.at_until,
            "decision": self.decision,
            "requeued": self.requeued,
        }
        return {name: value for name, value in kept.items() if value not in (None, [], "")}


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for, checked as far as that goes without looking at anything else."""

    kind: str
    run: RunRow | None
    node: NodeRow | None
    reason: str
    options: Options
    expected: Mapping[str, Any] | None
    expires_at: datetime | None
    finding_id: int | None = None
    incident_id: int | None = None


def options_read(given: Mapping[str, Any]) -> Options:
    """Return the options of a request.

    Raises:
        BadRequest: one of them makes no sense.
    """
    when = given.get("when") or Moment.NOW
    if when not in Moment.values:
        raise BadRequest(f"options.when: must be one of {', '.join(Moment.values)}.")
    step = given.get("from_step")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= 2**53):
        raise BadRequest("options.from_step: must be a step, a whole number from 0.")
    names = given.get("exclude_nodes") or ()
    if not isinstance(names, list | tuple) or any(not isinstance(name, str) or not name for name in names):
        raise BadRequest("options.exclude_nodes: must be a list of names of nodes.")
    done = given.get("done") or ""
    if done and done not in ActionKind.values:
        raise BadRequest(f"options.done: must be one of {', '.join(ActionKind.values)}.")
    passed = given.get("passed")
    if passed not in (None, True, False):
        raise BadRequest("options.passed: must be true or false.")
    at_until = given.get("at_until") or ""
    if at_until and at_until not in AtUntil.values:
        raise BadRequest(f"options.at_until: must be one of {', '.join(AtUntil.values)}.")
    requeued = given.get("requeued") or ""
    if requeued and requeued not in Requeued.values:
        raise BadRequest(f"options.requeued: must be one of {', '.join(Requeued.values)}.")
    if requeued == Requeued.RELEASE and step is not None:
        raise BadRequest("options.from_step: a job that is released chooses its checkpoint by itself; use RESUBMIT.")
    return Options(
        requeued=str(requeued),
        passed=passed,
        until_at=_until(given.get("until_at")),
        at_until=str(at_until),
        decision=str(given.get("decision") or ""),
        from_step=step,
        exclude_nodes=tuple(dict.fromkeys(names)),
        when=str(when),
        confirm=str(given.get("confirm") or ""),
        done=str(done),
        command=str(given.get("command") or "")[:LONGEST_REASON],
    )


def _until(given: Any) -> datetime | None:
    if not given:
        return None
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError as error:
        raise BadRequest("options.until_at: must be a time such as 2026-11-30T12:00:00Z.") from error
    if moment.tzinfo is None:
        raise BadRequest("options.until_at: must say its offset from UTC.")
    return moment


def wish_checked(wish: Wish, *, now: datetime) -> Preview:
    """Check a wish against what is so now; return what it would do. Used by a request and by accepting a proposal.

    Raises:
        StateChanged, CheckpointMoved, ActionOpen, NodeStateDiffers, NotOurs, GuardClosed, CheckpointChoice,
        NoSaveToCome, ConfirmationNeeded: see `action_request`.
    """
    _check_expected(wish)
    preview = action_preview(
        kind=wish.kind,
        run=wish.run,
        node=wish.node,
        exclude_nodes=wish.options.exclude_nodes,
        from_step=wish.options.from_step,
        reason=wish.reason,
        moment=wish.options.when,
        requeued=wish.options.requeued,
        now=now,
    )
    if wish.kind == ActionKind.RECORD_DONE:
        _check_by_hand(wish, now=now)
        return preview
    _check_requeued(wish, preview)
    _check_save(wish, preview)
    if preview.held_by is not None:
        raise open_already(preview.held_by)
    if wish.node is not None:
        _check_node(wish.kind, wish.node, wish.options.decision)
    if not preview.can:
        return preview
    stays_out = wish.options.decision == Decision.TAKE  # as the site's: nothing to ask a check for
    if not stays_out:
        _check_guards(preview)
    if wish.run is not None and wish.options.when in AT_A_SAVE and wish.run.suspect_from_step is not None:
        raise NoSaveToCome(
            f"Every save since step {wish.run.suspect_from_step:,} is suspect, so none that could be awaited would be "
            "taken. Restart now, from a checkpoint before it.",
            suspect_from_step=wish.run.suspect_from_step,
        )
    if preview.choose:
        raise CheckpointChoice(
            preview.choose, suspect=[row.step for row in preview.checkpoints if row.trust == Trust.SUSPECT]
        )
    if preview.confirm is not None and wish.options.confirm != preview.confirm:
        ranks = f"{preview.confirm} has {wish.run.world_size or 0 if wish.run else 0:,} ranks"
        why = preview.confirm_why[:1].upper() + preview.confirm_why[1:]
        raise ConfirmationNeeded(
            f"{why or ranks}: type {preview.confirm} in options.confirm to go on.",
            confirm=preview.confirm,
        )
    return preview


_GUARD_HELP = {
    "exclusions_per_window": "Take a node back in the ledger, or change the limit under Settings, Guards.",
    "check": "Check the node first; what is asked for stands under Settings, Checks.",
}
"""What helps where a condition does not hold."""


def open_already(action: ActionRow) -> ActionOpen:
    """Return the error that names the action in the way."""
    words = ActionKind(action.kind).label
    return ActionOpen(
        f"{action.requested_by} asked for “{words}”, which is not over yet ({action.state.lower()}).",
        action=id_write("act", action.id),
        state=action.state,
    )


def may_act(principal: Principal, cluster_id: int | None) -> None:
    """Refuse a caller who may not act in this cluster.

    Raises:
        Forbidden: the scope is missing, or a token belongs to another cluster.
    """
    if not principal.may(OPERATE):
        raise Forbidden(f"This needs the scope “{OPERATE}”. Nothing was changed.")
    if principal.cluster_id is not None and cluster_id != principal.cluster_id:
        raise Forbidden("This token belongs to another cluster.")


def wish_read(principal: Principal, wish: Wish, *, now: datetime) -> Wish:
    """Check a wish by itself and return it in its one form: nodes that a restart leaves out stand in its options.

    Raises:
        Forbidden, BadRequest: see `action_request`.
    """
    if wish.kind not in ActionKind.values:
        raise BadRequest(f"kind: must be one of {', '.join(ActionKind.values)}.")
    if wish.kind in OF_RUN and wish.run is None:
        raise BadRequest("run: this kind of action needs a run.")
    if wish.kind in OF_NODE and wish.node is None:
        raise BadRequest("node: this kind of action needs a node.")
    if wish.run is None and wish.node is None:
        raise BadRequest("run, node: say what this is about.")
    if wish.run is not None and wish.node is not None and wish.run.cluster_id != wish.node.cluster_id:
        raise BadRequest(f"node: {wish.node.name} is not a node of the run's cluster.")
    about = wish.run or wish.node
    may_act(principal, about.cluster_id if about is not None else None)
    if len(wish.reason) < SHORTEST_REASON:
        raise BadRequest(f"reason: say why in at least {SHORTEST_REASON} characters; it goes into the timeline.")
    if len(wish.reason) > LONGEST_REASON:
        raise BadRequest(f"reason: at most {LONGEST_REASON:,} characters.")
    if wish.options.exclude_nodes and wish.kind != ActionKind.RESTART_RUN:
        raise BadRequest("options.exclude_nodes: belongs to RESTART_RUN; use EXCLUDE_NODE for a node alone.")
    check_moment(wish, now=now)
    if wish.expires_at is not None and not now < wish.expires_at <= now + LONGEST_EXPIRY:
        raise BadRequest(f"expires_at: must lie ahead, at most {LONGEST_EXPIRY.days} days.")
    if wish.kind == ActionKind.CHECK_NODE and wish.run is not None:
        return replace(wish, run=None)  # it is about the node alone, and holds no run
    if wish.kind == ActionKind.RESTART_RUN and wish.node is not None:
        names = tuple(dict.fromkeys((*wish.options.exclude_nodes, wish.node.name)))
        return replace(wish, options=replace(wish.options, exclude_nodes=names))
    return wish


def check_moment(wish: Wish, *, now: datetime) -> None:
    """Refuse a moment, or a time, that makes no sense for what is asked for.

    Raises:
        BadRequest: see `action_request`.
    """
    when, run = wish.options.when, wish.run
    if wish.options.until_at is not None and not now < wish.options.until_at <= now + LONGEST_OUT:
        raise BadRequest(f"options.until_at: must lie ahead, at most {LONGEST_OUT.days} days.")
    if when == Moment.NOW:
        return
    if run is None or wish.kind not in (*OF_RUN, ActionKind.EXCLUDE_NODE):
        raise BadRequest("options.when: only what concerns a run can wait for a moment of it; name the run.")
    if wish.kind == ActionKind.EXCLUDE_NODE and when != Moment.RUN_END:
        raise BadRequest("options.when: excluding a node alone happens now or at RUN_END.")
    if run.attempt_state != AttemptState.OPEN:
        raise BadRequest(f"options.when: {run.slug} has no attempt whose {when} could be awaited; use NOW.")
    if wish.options.from_step is not None and when in AT_A_SAVE:
        raise BadRequest("options.from_step: cannot be chosen together with waiting for a save.")


def _check_expected(wish: Wish) -> None:
    seen, run = wish.expected, wish.run
    if not seen or run is None:
        return
    moved = ("attempt" in seen and seen["attempt"] != run.attempt_id) or (
        bool(seen.get("state")) and seen["state"] != run.state
    )
    if moved:
        raise StateChanged(
            "The run moved on since you looked; nothing was done. Look again.",
            attempt=id_write("att", run.attempt_id) if run.attempt_id is not None else None,
            state=run.state,
        )


def _check_save(wish: Wish, preview: Preview) -> None:
    """Refuse a restart whose checkpoint nobody chose where another one than was seen would be taken by now."""
    seen = wish.expected or {}
    if wish.kind != ActionKind.RESTART_RUN or wish.options.from_step is not None or "from_step" not in seen:
        return
    if seen["from_step"] == preview.from_step:
        return
    newer = preview.from_step is not None and (seen["from_step"] is None or preview.from_step > seen["from_step"])
    what = "A newer save completed since you looked" if newer else "The newest save that can be trusted is another one"
    where = f": step {preview.from_step:,}" if preview.from_step is not None else ""
    price = preview.price_at(wish.options.when) or preview.price
    raise CheckpointMoved(
        f"{what}{where}; nothing was done. Look again.",
        from_step=preview.from_step,
        newer=newer,
        steps=price.steps if price is not None else None,
        gpu_hours=price.gpu_hours if price is not None else None,
    )


def _check_requeued(wish: Wish, preview: Preview) -> None:
    """Refuse a choice about a waiting job where there is none any more, or where it could not be followed."""
    wanted, queued = wish.options.requeued, preview.queued
    if not wanted:
        return
    if wish.kind != ActionKind.RESTART_RUN:
        raise BadRequest("options.requeued: belongs to RESTART_RUN.")
    if queued is None:
        raise StateChanged("No job of this run waits in the queue any more; nothing was done. Look again.")
    if wanted not in queued.may:
        raise BadRequest(
            f"options.requeued: the run's launcher has no command that could be submitted instead of job "
            f"{queued.job.job_id}; it can only be released."
        )


def _check_by_hand(wish: Wish, *, now: datetime) -> None:
    if wish.options.done == ActionKind.CHECK_NODE and (wish.options.passed is None or wish.node is None):
        raise BadRequest("options.passed: say of which node the check was, and whether it passed.")
    if wish.node is None or wish.options.done not in LEDGER:
        return
    # What is written into the ledger by hand counts from the next start on, as if Paceline had been asked to.
    preview = action_preview(kind=wish.options.done, run=None, node=wish.node, now=now)
    if preview.held_by is not None:
        raise open_already(preview.held_by)
    line = next(iter(exclusions_of(node_id=wish.node.id, open_only=True)), None)
    if wish.options.done == ActionKind.READMIT_NODE and line is not None and line.origin != "OURS":
        raise _not_ours(wish.node, line)
    _check_guards(preview)


def _not_ours(node: NodeRow, line: ExclusionRow) -> NotOurs:
    return NotOurs(
        f"{node.name} was put out by {line.by_name}: “{line.reason}”. Ask there; Paceline lifts only its own.",
        exclusion=id_write("exc", line.id),
    )


def _check_guards(preview: Preview) -> None:
    for guard in preview.guards:
        if not guard.holds:
            help_ = _GUARD_HELP.get(guard.name, _GUARD_HELP["exclusions_per_window"])
            raise GuardClosed(
                f"{guard.text[:1].upper()}{guard.text[1:]}. {help_}",
                guard=guard.name,
                after=guard.have,
                limit=guard.most,
            )


def _check_node(kind: str, node: NodeRow, decision: str = "") -> None:
    if decision in (Decision.DRAIN, Decision.LIFT):
        if (node.exclusion_id is not None) != (decision == Decision.DRAIN):
            words = "out" if node.exclusion_id is not None else "in service"
            raise NodeStateDiffers(f"{node.name} is {words} by now; look again.", node=node.name)
        return
    if kind == ActionKind.EXCLUDE_NODE and node.exclusion_id is not None:
        line = exclusions_of(node_id=node.id, open_only=True)[0]
        if line.origin != "OURS":
            return  # the site's drain stays the site's; that we want it out as well is a line of our own
        raise NodeStateDiffers(
            f"{node.name} is out already: {line.by_name}, “{line.reason}”. The first reason is kept.",
            exclusion=id_write("exc", line.id),
        )
    if kind != ActionKind.READMIT_NODE:
        return
    if node.exclusion_id is None:
        raise NodeStateDiffers(f"{node.name} is in service already.", node=node.name)
    line = exclusions_of(node_id=node.id, open_only=True)[0]
    if line.origin != "OURS":
        raise _not_ours(node, line)


def wish_fields(wish: Wish, preview: Preview, *, now: datetime) -> dict[str, Any]:
    """Return the fields of an action that a request, or accepting a proposal, sets."""
    run = wish.run
    price = preview.price_at(wish.options.when) or preview.price
    hung = run is not None and run.hang == "CONFIRMED"
    return {
        "reason": wish.reason,
        "expires_at": wish.expires_at or now + timedelta(seconds=preview.expires_s),
        "expected_attempt_id": run.attempt_id if run is not None else None,
        "expected_state": run.state if run is not None else "",
        # CONTRACT: an order taken while a hang is confirmed ends HUNG, else PLANNED.
        "ends_as": EndReason.HUNG if hung else EndReason.PLANNED,
        "options": _options_stored(wish, preview),
        "price": price.stored() if price is not None else {},
        "finding_id": wish.finding_id,
        "incident_id": wish.incident_id,
    }


def _options_stored(wish: Wish, preview: Preview) -> dict[str, Any]:
    stored = wish.options.stored()
    if preview.queued is not None and wish.kind == ActionKind.RESTART_RUN:
        stored["requeued"] = preview.queued.chosen
    if wish.options.exclude_nodes:
        stored["exclude_nodes"] = [row.name for row in preview.exclude]
    if wish.options.when in AT_A_SAVE and wish.run is not None and wish.run.attempt_id is not None:
        stored["after_step"] = newest_save(wish.run.attempt_id)
    return stored
