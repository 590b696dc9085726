"""What an action would do, cost and need, before anybody presses: the confirm page and `dry_run` read it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from apps.common.errors import BadRequest
from apps.fleet.selectors import NodeRow, node_by_code
from apps.remediation.choices import AT_A_SAVE, ActionKind, LauncherKind, Moment
from apps.remediation.selectors.actions import action_holding, launch_of_attempt
from apps.remediation.selectors.checks import check_guard, check_of, check_why_not
from apps.remediation.selectors.commands import Plan, commands_of, names_short, orders_of
from apps.remediation.selectors.guards import Blast, GuardRow, confirmation_needed, guards_of_exclusion
from apps.remediation.selectors.pool import PoolNode, exclude_names, pool_of, spare_names
from apps.remediation.selectors.prices import (
    Price,
    choice_needed,
    choice_words,
    pace_of,
    prices_of,
    resume_step_default,
    saves_to_come,
)
from apps.remediation.selectors.room import Room, start_of
from apps.remediation.selectors.rows import ActionRow, LaunchRow
from apps.remediation.selectors.schedulers import scheduler_of
from apps.remediation.selectors.slurm import QueuedJob, queued_job, slurm_happens, slurm_why_not
from apps.remediation.selectors.stops import stops_first
from apps.runs.choices import AttemptState, Trust
from apps.runs.launcher import LauncherSetting, launcher_of
from apps.runs.selectors import CheckpointRow, RunRow, attempt_by_id, checkpoints_of, run_by_id

EXPIRY = timedelta(minutes=10)
"""A look is worth acting on for this long; then somebody looks again."""

LONGEST_EXPIRY = timedelta(days=30)
CHECKPOINTS_SHOWN = 12
MOST_EXCLUDED = 64
"""Nodes that one restart leaves out: more than any guard lets through, and still looked up within a moment."""


@dataclass(frozen=True, slots=True)
class HappensRow:
    """One step of what happens, with its small print."""

    text: str
    small: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """An action before it is asked for. `can` and `why_not` say whether Paceline could carry it out itself;
    `confirm` is the text to type, None where none is asked for; `spares` are nodes that stand free; `choose` asks for the
    checkpoint where none can be trusted, empty where there is no need; `unsure` says that no save of the step is known;
    `short` that a scheduler has too few nodes for the start; `confirm_why` is why the text is asked for, empty where the
    run's size is; `queued` is the job that a scheduler put back by itself, and what becomes of it."""

    kind: str
    run: RunRow | None
    node: NodeRow | None
    exclude: tuple[NodeRow, ...]
    exclude_names: tuple[str, ...]
    expected_state: dict[str, Any]
    seen_step: int | None
    from_step: int | None
    checkpoints: tuple[CheckpointRow, ...]
    prices: tuple[Price, ...]
    loss_per_hour: float | None
    guards: tuple[GuardRow, ...]
    blast: Blast | None
    happens: tuple[HappensRow, ...]
    launcher: str
    orders: tuple[str, ...]
    commands: tuple[str, ...]
    spares: tuple[str, ...]
    confirm: str | None
    expires_s: float
    can: bool
    why_not: str
    setting: LauncherSetting | None = field(repr=False)
    launch: LaunchRow | None = field(repr=False)
    held_by: ActionRow | None = None
    choose: str = ""
    unsure: str = ""
    short: str = ""
    confirm_why: str = ""
    queued: QueuedJob | None = None

    @property
    def price(self) -> Price | None:
        """Return the price of acting now."""
        return self.prices[0] if self.prices else None

    @property
    def holds(self) -> bool:
        """Return whether no guard is closed."""
        return all(guard.holds for guard in self.guards)

    def price_at(self, moment: str) -> Price | None:
        """Return the price of a moment."""
        return next((price for price in self.prices if price.moment == moment), None)


def restart_preview(
    run_id: int, *, now: datetime, exclude_nodes: Sequence[str] = (), from_step: int | None = None
) -> Preview:
    """Return what restarting a run would do and cost; see `action_preview`."""
    run = run_by_id(run_id)
    return action_preview(
        kind=ActionKind.RESTART_RUN, run=run, node=None, exclude_nodes=exclude_nodes, from_step=from_step, now=now
    )


def action_preview(
    *,
    kind: str,
    run: RunRow | None,
    node: NodeRow | None,
    now: datetime,
    exclude_nodes: Sequence[str] = (),
    from_step: int | None = None,
    reason: str = "",
    moment: str = Moment.NOW,
    requeued: str = "",
) -> Preview:
    """Return what an action would do, cost and need. `requeued`: what is to become of a job that waits, a `Requeued`.

    Raises:
        NotFound, Ambiguous: a node that is to be put out is unknown.
        BadRequest: `from_step` is no checkpoint that could be used, or too many nodes are to be put out.
    """
    cluster_id = run.cluster_id if run is not None else node.cluster_id if node is not None else 0
    exclude = _excluded(kind, node, exclude_nodes, cluster_id)
    checkpoints = _checkpoints(run) if kind == ActionKind.RESTART_RUN else ()
    step = _from_step(run, kind, from_step)
    unsure = _unsure(run, kind, from_step)
    setting, wrong = _setting(run)
    stops = run is not None and setting is not None and stops_first(kind, run, setting, requeued=requeued)
    queued = _queued(kind, run, setting, requeued)
    launch = launch_of_attempt(run.attempt_id) if run is not None and run.attempt_id is not None else None
    pool = pool_of(cluster_id)
    adding = [row.id for row in exclude]
    out_names = exclude_names(pool, setting, adding=adding)
    start_asks, room = start_of(kind, run, setting, pool, adding=adding, queued=queued, now=now)
    confirm_why = _confirm_why(unsure, room, moment)
    adds = kind in (ActionKind.EXCLUDE_NODE, ActionKind.RESTART_RUN)
    guards, blast = guards_of_exclusion(
        cluster_id=cluster_id, run=run, adding=adding if adds else [], pool=pool, now=now
    )
    held_by = action_holding(run_id=run.id if run else None, node_ids=adding)
    if kind == ActionKind.READMIT_NODE and node is not None and (asked := check_guard(node, now=now)) is not None:
        guards = [*guards, asked]
    how = check_of(cluster_id) if kind == ActionKind.CHECK_NODE else None
    can, why_not = _can(kind, run, setting, launch, exclude, stops=stops)
    if kind == ActionKind.CHECK_NODE and node is not None:
        why_not = check_why_not(node, how)
        can = not why_not
    why_not = wrong if not can and wrong else why_not
    prices = _prices(kind, run, step)
    start = _start_words(run, kind, moment, prices)
    plan = Plan(
        kind=kind,
        run=run,
        setting=setting,
        launch=launch if stops else None,
        drains=scheduler_of(cluster_id) is not None,
        start=start,
        attempt_key=attempt_by_id(run.attempt_id).key if run is not None and run.attempt_id is not None else "",
        nodes=tuple(row.name for row in exclude),
        exclude_nodes=out_names,
        resume_step=step,
        reason=reason,
        check=how.command if how is not None else (),
        stops=stops,
        queued=queued,
    )
    return Preview(
        kind=kind,
        run=run,
        node=node,
        exclude=exclude,
        exclude_names=out_names,
        expected_state=expected_state(run),
        seen_step=run.step if run is not None else None,
        from_step=step,
        checkpoints=checkpoints,
        prices=tuple(prices),
        loss_per_hour=pace_of(run).loss_per_hour if run is not None else None,
        guards=(_held_guard(held_by, run), *guards),
        blast=blast if adds else _taken_back(blast, pool, adding) if kind == ActionKind.READMIT_NODE else None,
        happens=tuple(
            _happens(kind, run, exclude, start or step, setting, launch, moment, unsure, queued, room, stops=stops)
        ),
        launcher=setting.kind if setting is not None else "",
        orders=tuple(orders_of(plan)),
        commands=tuple(commands_of(plan)),
        spares=spare_names(pool, setting, now=now, adding=adding, partitions=start_asks.partitions),
        confirm=run.slug if run is not None and kind in _STOPS and (confirm_why or confirmation_needed(run)) else None,
        expires_s=expiry_of(moment, prices).total_seconds(),
        can=can,
        why_not=why_not,
        setting=setting,
        launch=launch,
        held_by=held_by,
        choose=_choose(run, kind, step, moment),
        unsure=unsure,
        short=room.short if room is not None else "",
        confirm_why=confirm_why,
        queued=queued,
    )


def _queued(kind: str, run: RunRow | None, setting: LauncherSetting | None, requeued: str) -> QueuedJob | None:
    if run is None or setting is None or setting.kind != LauncherKind.SLURM or kind not in _STOPS:
        return None
    return queued_job(run, setting, wanted=requeued)


def _confirm_why(unsure: str, room: Room | None, moment: str) -> str:
    """Return why the run's name has to be typed, besides its size: what runs would be stopped for a start that cannot be."""
    stops_it = room is not None and room.runs and moment != Moment.RUN_END
    return "; ".join(why for why in (unsure, room.short if room is not None and stops_it else "") if why)


def _choose(run: RunRow | None, kind: str, step: int | None, moment: str) -> str:
    if run is None or kind != ActionKind.RESTART_RUN or (moment in AT_A_SAVE and saves_to_come(run)):
        return ""
    suspects = choice_needed(run, step)
    return choice_words(run, suspects) if suspects else ""


def expected_state(run: RunRow | None) -> dict[str, Any]:
    """Return what a caller gives back as `expected_state`: the attempt (None = none ever) and the state seen."""
    if run is None:
        return {}
    return {"attempt": run.attempt_id, "state": run.state}


def expiry_of(moment: str, prices: Sequence[Price]) -> timedelta:
    """Return after which time an action that has not begun is off: ten minutes, longer where it waits for a save."""
    if moment == Moment.RUN_END:
        return LONGEST_EXPIRY
    price = next((price for price in prices if price.moment == moment), None)
    if price is None or price.wait_s is None or moment == Moment.NOW:
        return EXPIRY
    return EXPIRY + timedelta(seconds=2 * price.wait_s)


_STOPS = (ActionKind.RESTART_RUN, ActionKind.STOP_RUN)


def _excluded(kind: str, node: NodeRow | None, names: Sequence[str], cluster_id: int) -> tuple[NodeRow, ...]:
    if kind != ActionKind.RESTART_RUN:
        return (node,) if node is not None else ()
    wanted = list(dict.fromkeys(names))
    if len(wanted) > MOST_EXCLUDED:
        raise BadRequest(f"exclude_nodes: at most {MOST_EXCLUDED} nodes at once; {len(wanted):,} were named.")
    rows = [node_by_code(name, cluster_id=cluster_id) for name in wanted]
    if node is not None:
        rows.append(node)
    return tuple({row.id: row for row in rows}.values())


def _setting(run: RunRow | None) -> tuple[LauncherSetting | None, str]:
    """Return the run's launcher, or none and what is wrong with it."""
    try:
        return (launcher_of(run.launcher) if run is not None else None), ""
    except BadRequest as error:
        return None, f"The run's launcher cannot be used: {error}"


def _checkpoints(run: RunRow | None) -> tuple[CheckpointRow, ...]:
    if run is None:
        return ()
    shown = [row for row in checkpoints_of(run_id=run.id, limit=200) if row.trust not in (Trust.PENDING, Trust.DELETED)]
    newest_first = sorted(shown, key=lambda row: (row.attempt_id, row.step), reverse=True)
    return tuple(newest_first[:CHECKPOINTS_SHOWN])


def _from_step(run: RunRow | None, kind: str, wanted: int | None) -> int | None:
    if run is None or kind != ActionKind.RESTART_RUN:
        return None
    if wanted is None:
        return resume_step_default(run)
    if wanted < 0:
        raise BadRequest("from_step: must be 0 or more.")
    states = {row.trust for row in checkpoints_of(run_id=run.id, step=wanted)}
    if states and states <= {Trust.FAILED, Trust.DELETED, Trust.PENDING}:
        words = names_short(sorted(Trust(state).label for state in states))
        raise BadRequest(f"from_step: the checkpoint of step {wanted:,} cannot be used: {words}.", from_step=wanted)
    return wanted


def _unsure(run: RunRow | None, kind: str, wanted: int | None) -> str:
    """Say that nobody told of a save of the step asked for: the program may know more saves than Paceline does."""
    if (
        run is None
        or kind != ActionKind.RESTART_RUN
        or not wanted
        or checkpoints_of(run_id=run.id, step=wanted, limit=1)
    ):
        return ""
    return f"no save of step {wanted:,} was ever reported; the program must know it by itself, or it begins elsewhere"


def _can(
    kind: str,
    run: RunRow | None,
    setting: LauncherSetting | None,
    launch: LaunchRow | None,
    exclude: Sequence[NodeRow],
    *,
    stops: bool,
) -> tuple[bool, str]:
    """Return whether Paceline could do it itself, and if not, why."""
    if kind in (ActionKind.EXCLUDE_NODE, ActionKind.READMIT_NODE, ActionKind.RECORD_DONE, ActionKind.CHECK_NODE):
        return True, ""
    if run is None or setting is None:
        return False, "No launcher is set for this run, so Paceline may not start or stop it. Copy the command instead."
    words = LauncherKind(setting.kind).label
    if setting.kind not in (LauncherKind.LOCAL, LauncherKind.WEBHOOK, LauncherKind.SLURM):
        return False, f"Paceline cannot order {words} to do this. Copy the command instead."
    if kind == ActionKind.CHECKPOINT_NOW:
        return False, f"The launcher “{words}” cannot ask a program for a save; choose “at the next save” instead."
    is_open = run.attempt_state == AttemptState.OPEN
    if kind == ActionKind.STOP_RUN and not (is_open or stops):
        return False, "Nothing runs that could be stopped."
    if setting.kind == LauncherKind.SLURM and (why := slurm_why_not(kind, run, setting)):
        return False, why
    if setting.kind == LauncherKind.LOCAL:
        if is_open and launch is None:
            return False, (
                f"Attempt {run.attempt_number} was not started by Paceline, so it cannot stop it. "
                "Stop it yourself, then restart here."
            )
        if kind == ActionKind.RESTART_RUN and setting.nodes:
            gone = {name for row in exclude for name in (row.name, *row.aliases)}
            if not [name for name in setting.nodes if name not in gone]:
                return False, "Every node that this run may use would be out."
    return True, ""


def _prices(kind: str, run: RunRow | None, step: int | None) -> list[Price]:
    if run is None or kind not in _STOPS:
        return []
    if kind == ActionKind.STOP_RUN:
        return prices_of(run, from_step=resume_step_default(run), goes_on=False)
    return prices_of(run, from_step=step)


def _start_words(run: RunRow | None, kind: str, moment: str, prices: Sequence[Price]) -> str:
    """Return from where a restart goes on that waits for a save; empty for one that does not wait."""
    price = next((price for price in prices if price.moment == moment), None)
    if run is None or kind != ActionKind.RESTART_RUN or moment not in AT_A_SAVE or price is None:
        return ""
    return "from the save it waits for" + (f", about step {price.from_step:,}" if price.from_step is not None else "")


def _taken_back(blast: Blast, pool: Sequence[PoolNode], nodes: Collection[int]) -> Blast:
    """Return how far it reaches to take nodes back in: so many fewer are out."""
    fewer = sum(node.is_out and node.id in nodes for node in pool)
    return replace(blast, out_after=max(0, blast.out_now - fewer))


def _held_guard(held_by: ActionRow | None, run: RunRow | None) -> GuardRow:
    what = "run" if run is not None else "node"
    if held_by is None:
        return GuardRow(name="one_open_action", holds=True, text=f"no other action on this {what}")
    text = f"{held_by.requested_by} asked for “{held_by.kind}”, which is not over yet"
    return GuardRow(name="one_open_action", holds=False, text=text)


def _happens(
    kind: str,
    run: RunRow | None,
    exclude: Sequence[NodeRow],
    step: int | str | None,
    setting: LauncherSetting | None,
    launch: LaunchRow | None,
    moment: str,
    unsure: str,
    queued: QueuedJob | None,
    room: Room | None,
    *,
    stops: bool,
) -> list[HappensRow]:
    names = names_short([row.name for row in exclude]) if exclude else ""
    if kind == ActionKind.EXCLUDE_NODE:
        busy = any(row.open_runs for row in exclude)
        small = "what runs there goes on; it counts from the next start" if busy else "it counts from the next start"
        return [HappensRow(f"Put {names} out of service in the ledger", small)]
    if kind == ActionKind.READMIT_NODE:
        return [HappensRow(f"Take {names} back into service in the ledger", "it can be used from the next start on")]
    if kind == ActionKind.CHECK_NODE:
        return [HappensRow(f"Check {names}", "the result and until when it counts go into the ledger")]
    if run is None or kind not in _STOPS:
        return []
    rows = []
    if setting is not None and setting.kind == LauncherKind.SLURM and (doing := slurm_happens(run)):
        rows.append(HappensRow(*doing))
    if moment in AT_A_SAVE:
        rows.append(HappensRow("Wait for the next complete save", "gives up if none comes before it expires"))
    if moment == Moment.RUN_END:
        rows.append(HappensRow("Wait until the attempt ends by itself", "a run that finished is not started again"))
    if exclude:
        rows.append(HappensRow(f"Put {names} out of service", "in the ledger, marked as ours"))
    if stops and queued is not None:
        rows.append(HappensRow(f"Cancel job {queued.job.job_id}", "it has no nodes yet; reads back that it is gone"))
    elif stops or run.attempt_state == AttemptState.OPEN:
        grace = f"{setting.stop_grace_s:g} s to leave, then it is killed" if setting is not None else ""
        small = f"{grace}; reads back that it is gone" if launch is not None else "by the launcher"
        left = "" if run.attempt_state == AttemptState.OPEN else "what is left of "
        rows.append(HappensRow(f"Stop {left}attempt {run.attempt_number}", small))
    if kind == ActionKind.RESTART_RUN:
        start = f"from step {step:,}" if isinstance(step, int) else step or "the program chooses its checkpoint"
        start += f": {unsure}" if unsure else ""
        if queued is not None and queued.releases:
            start = "the program chooses its checkpoint: a job that goes on cannot be told one"
            rows.append(HappensRow(f"Release job {queued.job.job_id}", "it keeps its place in the queue"))
        if room is not None:
            rows.append(HappensRow(*room.happens))
        rows.append(HappensRow(f"Start attempt {run.attempt_number + 1}", start))
        rows.append(HappensRow("Watch until it reports", "reads back from which step it went on"))
    return rows
