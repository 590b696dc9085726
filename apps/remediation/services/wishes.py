"""What somebody asks for, and everything that is checked before anything of it is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from apps.common.access import OPERATE, Principal
from apps.common.errors import BadRequest, Conflict, Forbidden, PacelineError
from apps.common.ids import id_write
from apps.fleet.selectors import NodeRow, exclusions_of
from apps.remediation.choices import AT_A_SAVE, ActionKind, Moment
from apps.remediation.selectors.preview import LONGEST_EXPIRY, Preview, action_preview
from apps.remediation.selectors.prices import newest_save
from apps.remediation.selectors.rows import ActionRow
from apps.runs.choices import AttemptState, EndReason, Trust
from apps.runs.selectors import RunRow
from apps.runs.services import StateChanged

SHORTEST_REASON = 10
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
    """How an action is to be done. `done` says for RECORD_DONE what was done by hand, `command` with which command."""

    from_step: int | None = None
    exclude_nodes: tuple[str, ...] = ()
    when: str = Moment.NOW
    confirm: str = ""
    done: str = ""
    command: str = ""

    def stored(self) -> dict[str, Any]:
        """Return what the action keeps; the typed name is not worth keeping."""
        kept = {
            "when": str(self.when),
            "from_step": self.from_step,
            "exclude_nodes": list(self.exclude_nodes),
            "done": self.done,
            "command": self.command,
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
    return Options(
        from_step=step,
        exclude_nodes=tuple(dict.fromkeys(names)),
        when=str(when),
        confirm=str(given.get("confirm") or ""),
        done=str(done),
        command=str(given.get("command") or "")[:LONGEST_REASON],
    )


def wish_checked(wish: Wish, *, now: datetime) -> Preview:
    """Check a wish against what is so now; return what it would do. Used by a request and by accepting a proposal.

    Raises:
        StateChanged, ActionOpen, NodeStateDiffers, NotOurs, GuardClosed, CheckpointChoice, NoSaveToCome,
        ConfirmationNeeded: see `action_request`.
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
        now=now,
    )
    if wish.kind == ActionKind.RECORD_DONE:
        return preview
    if preview.held_by is not None:
        raise open_already(preview.held_by)
    if wish.node is not None:
        _check_node(wish.kind, wish.node)
    if not preview.can:
        return preview
    for guard in preview.guards:
        if not guard.holds:
            raise GuardClosed(
                f"{guard.text}. Take a node back in the ledger, or change the limit under Settings, Guards.",
                guard=guard.name,
                after=guard.have,
                limit=guard.most,
            )
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
        why = preview.unsure[:1].upper() + preview.unsure[1:]
        raise ConfirmationNeeded(
            f"{why or ranks}: type {preview.confirm} in options.confirm to go on.",
            confirm=preview.confirm,
        )
    return preview


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
    _check_moment(wish)
    if wish.expires_at is not None and not now < wish.expires_at <= now + LONGEST_EXPIRY:
        raise BadRequest(f"expires_at: must lie ahead, at most {LONGEST_EXPIRY.days} days.")
    if wish.kind == ActionKind.RESTART_RUN and wish.node is not None:
        names = tuple(dict.fromkeys((*wish.options.exclude_nodes, wish.node.name)))
        return replace(wish, options=replace(wish.options, exclude_nodes=names))
    return wish


def _check_moment(wish: Wish) -> None:
    when, run = wish.options.when, wish.run
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


def _check_node(kind: str, node: NodeRow) -> None:
    if kind == ActionKind.EXCLUDE_NODE and node.exclusion_id is not None:
        line = exclusions_of(node_id=node.id, open_only=True)[0]
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
        raise NotOurs(
            f"{node.name} was put out by {line.by_name}: “{line.reason}”. Ask there; Paceline lifts only its own.",
            exclusion=id_write("exc", line.id),
        )


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
    if wish.options.exclude_nodes:
        stored["exclude_nodes"] = [row.name for row in preview.exclude]
    if wish.options.when in AT_A_SAVE and wish.run is not None and wish.run.attempt_id is not None:
        stored["after_step"] = newest_save(wish.run.attempt_id)
    return stored
