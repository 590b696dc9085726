"""The confirm page and an action's own page: columns of moments, the words of the button, the stepper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.console import words
from apps.console.selectors.suspects import act_label, cheapest
from apps.remediation.choices import ACTION_TOKENS, AT_A_SAVE, ActionKind, ActionState, Moment, Requeued
from apps.remediation.selectors import ActionRow, DowntimeFrom, Milestone, Preview, Price, QueuedJob, job_waits_words
from apps.remediation.selectors.prices import choice_needed, resume_step_default

ORDER = (Moment.CHECKPOINT_FIRST, Moment.NOW, Moment.NEXT_CHECKPOINT)
BAD = frozenset({"failed", "wrong_step", "refused", "uncertain", "expired", "cancelled", "dismissed"})


@dataclass(frozen=True, slots=True)
class MomentColumn:
    """One choice of when to act, with what the last button then says."""

    price: Price
    moment: str
    head: str
    small: str
    button: str
    pace_at: datetime | None
    chosen: bool
    cheapest: bool = False
    spread: str = ""


@dataclass(frozen=True, slots=True)
class ConfirmPage:
    """A preview as the confirm page shows it. `shown` are fields of its form: the checkpoint that is gone on from unless
    somebody chooses, and per moment what the page says that is lost, so that what is pressed is what was shown. `queued`
    are the choices about a job that waits, each as value, words, small print and whether it is chosen."""

    preview: Preview
    title: str
    sentence: str
    columns: tuple[MomentColumn, ...]
    waits: tuple[tuple[str, str], ...]
    when: str
    button: str
    downtime: str
    saves: tuple[tuple[str, str, bool], ...]
    must_choose: bool
    unmeasured: bool
    shown: tuple[tuple[str, str], ...] = ()
    queued: tuple[tuple[str, str, str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class StepLine:
    """One line of the stepper; `tone` is done, now, bad or nothing."""

    text: str
    small: str
    at: datetime | None
    tone: str


def confirm_page(preview: Preview, *, when: str, now: datetime, from_step: int | None = None) -> ConfirmPage:
    """Return what the confirm page shows for a preview, with `when` and `from_step` chosen where that is possible.

    Without `when` the cheapest moment of a restart is chosen.
    """
    by_moment = {price.moment: price for price in preview.prices}
    moments = [moment for moment in ORDER if moment in by_moment]
    best = cheapest(preview.prices)
    usual = Moment(best.moment) if best is not None and preview.kind == ActionKind.RESTART_RUN else Moment.NOW
    chosen = when if when in moments else usual if usual in moments or not moments else moments[0]
    columns = tuple(
        _column(by_moment[m], preview, chosen=m == chosen, now=now, least=best if len(moments) > 1 else None)
        for m in moments
    )
    waits = _waits(preview)
    if waits:
        chosen = when if when in dict(waits) else Moment.NOW
    return ConfirmPage(
        preview=preview,
        title=_title(preview),
        sentence=_sentence(preview),
        columns=columns,
        waits=waits,
        when=str(chosen),
        downtime=_downtime(preview),
        saves=_saves(preview, from_step, by_moment.get(Moment(chosen)) if columns else None),
        must_choose=_must_choose(preview),
        unmeasured=any(_unmeasured(column.price) for column in columns),
        shown=_shown(preview, columns, from_step),
        queued=_queued(preview),
        button=next((column.button for column in columns if column.chosen), _button(preview, str(chosen))),
    )


def _shown(preview: Preview, columns: Sequence[MomentColumn], from_step: int | None) -> tuple[tuple[str, str], ...]:
    if preview.kind != ActionKind.RESTART_RUN or preview.run is None:
        return ()
    default = resume_step_default(preview.run)
    costs = (
        [] if from_step is not None else [(f"shown_{column.moment}", lost_words(column.price)) for column in columns]
    )
    return (("shown_step", "" if default is None else str(default)), *costs)


def _queued(preview: Preview) -> tuple[tuple[str, str, str, bool], ...]:
    """Return what can be done with a job that waits in the queue, where a restart has that choice."""
    queued = preview.queued
    if queued is None or preview.kind != ActionKind.RESTART_RUN:
        return ()
    lines = {
        Requeued.RELEASE: (
            f"Release job {queued.job.job_id} now",
            "It keeps its place in the queue, and the program chooses its checkpoint by itself.",
        ),
        Requeued.RESUBMIT: (
            f"Cancel job {queued.job.job_id} and submit anew",
            "It goes on from the checkpoint chosen here; the new job has to queue again.",
        ),
    }
    return tuple((value, *lines[Requeued(value)], value == queued.chosen) for value in queued.may)


def queued_words(queued: QueuedJob) -> str:
    """Return in a sentence that a scheduler put a job back, and what it waits for."""
    waits = job_waits_words(queued.job)
    return f"Slurm put job {queued.job.job_id} back into its queue by itself (restart {queued.job.restarts}); {waits}."


def lost_words(price: Price | None) -> str:
    """Return what is lost at a price: the steps to do again and the GPU-hours, as far as they are known."""
    if price is None or price.steps is None:
        return words.about_gpu_hours(price.gpu_hours) if price is not None and price.gpu_hours is not None else ""
    cost = f" ({words.about_gpu_hours(price.gpu_hours)})" if price.gpu_hours is not None else ""
    return words.count(price.steps, "step") + cost


def moved_words(facts: Mapping[str, Any], *, page: ConfirmPage, shown: str) -> str:
    """Return the sentence that asks again where another checkpoint than was shown would be gone on from.

    `facts`: of the error; `page`: how things stand now; `shown`: what the page said that is lost, empty if nothing.
    """
    step = facts.get("from_step")
    what = (
        "A newer save completed while this stood open"
        if facts.get("newer")
        else ("The save that stood here can no longer be trusted")
    )
    where = f": step {words.whole(step)}" if step is not None else ""
    price = page.preview.price_at(page.when)
    now = lost_words(price)
    if price is not None and price.moment in AT_A_SAVE and price.from_step is not None:
        where += f"; the next one is about step {words.whole(price.from_step)}"
    lost = f", lost now {now}" + (f" instead of {shown}" if shown else "") if now else ""
    return f"{what}{where}{lost}. Look again and confirm."


def _unmeasured(price: Price) -> bool:
    parts = (
        price.steps,
        price.redo_gpu_hours,
        price.save_gpu_hours,
        price.downtime_s,
        price.gpu_hours,
        price.full_pace_s,
    )
    return any(part is None for part in parts)


def _must_choose(preview: Preview) -> bool:
    run = preview.run
    return preview.kind == ActionKind.RESTART_RUN and run is not None and bool(choice_needed(run, None))


def _saves(preview: Preview, from_step: int | None, price: Price | None) -> tuple[tuple[str, str, bool], ...]:
    """Return what can be gone on from as options: value, words, chosen. Nothing where there is nothing to choose.

    Who waits for a save goes on from it: there is no other choice then.
    """
    if preview.kind != ActionKind.RESTART_RUN or preview.run is None or not preview.checkpoints:
        return ()
    if preview.queued is not None and preview.queued.releases:
        return ()  # a job that goes on cannot be told
    if price is not None and price.moment in AT_A_SAVE:
        where = f", about step {words.whole(price.from_step)}" if price.from_step is not None else ""
        return (("", f"the save it waits for{where}", True),)
    default = resume_step_default(preview.run)
    first = f"step {words.whole(default)}, the newest that can be trusted" if default is not None else "choose …"
    if default is None and not _must_choose(preview):
        first = "what the program chooses"
    options = [("", first, from_step is None)]
    for row in preview.checkpoints:
        doubt = ": saved after a finding began" if row.trust == "SUSPECT" else ""
        if row.step != default and str(row.step) not in [value for value, _, _ in options]:
            label = f"step {words.whole(row.step)}, {row.trust.lower()}{doubt}"
            options.append((str(row.step), label, row.step == from_step))
    options.append(("0", "the beginning, step 0", from_step == 0))
    return tuple(options)


def _downtime(preview: Preview) -> str:
    """Return whose downtime the prices reckon with."""
    price = preview.price
    source = price.downtime_from if price is not None else ""
    if price is None or not source:
        return ""
    restarts = words.count(price.downtime_n, "restart")
    return {
        DowntimeFrom.OWN: f", this run's median of {restarts}",
        DowntimeFrom.CLUSTER: f": first restart of this run, estimated from {restarts} of other runs here",
        DowntimeFrom.START: ": first restart of this run, estimated from how long its own start took",
    }[DowntimeFrom(source)]


def _column(price: Price, preview: Preview, *, chosen: bool, now: datetime, least: Price | None) -> MomentColumn:
    told = preview.queued is None or not preview.queued.releases
    head, small = {
        Moment.NOW: (
            "Right now",
            f"back to {words.whole(price.from_step)}" if told and price.from_step is not None else "",
        ),
        Moment.CHECKPOINT_FIRST: (
            "Checkpoint first",
            f"stop at about {words.whole(price.stop_step)}" if price.stop_step is not None else "",
        ),
        Moment.NEXT_CHECKPOINT: (
            f"After {words.whole(price.from_step)}" if price.from_step is not None else "After the next save",
            "the scheduled save",
        ),
    }[Moment(price.moment)]
    return MomentColumn(
        price=price,
        moment=price.moment,
        head=head,
        small=small,
        button=_button(preview, price.moment),
        pace_at=now + timedelta(seconds=price.full_pace_s) if price.full_pace_s is not None else None,
        chosen=chosen,
        cheapest=price is least and price.gpu_hours is not None,
        spread=_spread(price),
    )


def _spread(price: Price) -> str:
    """Return between what a downtime lay, nothing where that is one figure."""
    low, high = words.minutes(price.downtime_low_s), words.minutes(price.downtime_high_s)
    return f"{low} to {high}" if low != high else ""


def _waits(preview: Preview) -> tuple[tuple[str, str], ...]:
    if preview.kind == ActionKind.EXCLUDE_NODE and preview.run is not None and preview.run.attempt_state == "OPEN":
        return (
            (str(Moment.NOW), "now"),
            (str(Moment.RUN_END), f"when the attempt of {preview.run.slug} ends by itself"),
        )
    return ()


def _button(preview: Preview, moment: str) -> str:
    if preview.kind == ActionKind.RESTART_RUN and preview.queued is not None:
        first = "Exclude and release" if preview.exclude else "Release"
        again = "Exclude, cancel and submit anew" if preview.exclude else "Cancel and submit anew"
        return first + f" job {preview.queued.job.job_id}" if preview.queued.releases else again
    if preview.kind == ActionKind.RESTART_RUN:
        return act_label(moment, excludes=bool(preview.exclude)).removesuffix("…")
    later = "" if preview.kind != ActionKind.STOP_RUN else " now" if moment == Moment.NOW else " after the save"
    return f"{_title(preview)}{later}"


def _title(preview: Preview) -> str:
    return _what(
        preview.kind,
        run=preview.run.slug if preview.run else "",
        node=preview.node.name if preview.node else "",
        names=[row.name for row in preview.exclude],
    )


def action_title(action: ActionRow) -> str:
    """Return what an action does, in the words of the button it was asked for with."""
    names = [name for _, name in action.nodes]
    return _what(action.kind, run=action.run or "", node=action.node or ", ".join(names), names=names)


def _what(kind: str, *, run: str, node: str, names: Sequence[str]) -> str:
    if kind == ActionKind.RESTART_RUN:
        return f"Exclude {', '.join(names)} and restart {run}" if names else f"Restart {run}"
    plain = {
        ActionKind.STOP_RUN: f"Stop {run}",
        ActionKind.CHECKPOINT_NOW: "Save a checkpoint now",
        ActionKind.EXCLUDE_NODE: f"Exclude {node}",
        ActionKind.READMIT_NODE: f"Take {node} back",
        ActionKind.CHECK_NODE: f"Check {node}",
        ActionKind.RECORD_DONE: "Record what was done by hand",
    }
    return plain[ActionKind(kind)]


def _sentence(preview: Preview) -> str:
    run = preview.run
    if run is None or preview.kind not in {ActionKind.RESTART_RUN, ActionKind.STOP_RUN}:
        return preview.happens[0].small if preview.happens else ""
    size = f"{words.count(run.world_size, 'GPU')} stop. " if run.world_size and run.attempt_state == "OPEN" else ""
    if preview.kind == ActionKind.STOP_RUN:
        return f"{size}The run stays stopped until somebody starts it."
    without = f" without {', '.join(preview.exclude_names)}" if preview.exclude_names else ""
    spare = (
        f"; {', '.join(preview.spares[:3])} {'is' if len(preview.spares) == 1 else 'are'} free to take its place"
        if preview.spares
        else ""
    )
    return f"{size}The run comes back as attempt {run.attempt_number + 1}{without}{spare}."


def stepper(action: ActionRow) -> list[StepLine]:
    """Return an action's milestones in order, and what is awaited now."""
    lines = [_step(one) for one in action.milestones]
    waiting = {
        ActionState.PROPOSED: "Waits for somebody to accept or dismiss it",
        ActionState.REQUESTED: _awaited(action.options.get("when", Moment.NOW)),
        ActionState.RUNNING: "Under way",
        ActionState.UNCERTAIN: "We don't know if it was done; it is read back and not repeated by itself",
    }.get(ActionState(action.state))
    if waiting:
        lines.append(StepLine(text=waiting, small="", at=None, tone="now"))
    return lines


def _awaited(moment: str) -> str:
    return {
        Moment.CHECKPOINT_FIRST: "Waits for the next complete save",
        Moment.NEXT_CHECKPOINT: "Waits for the next complete save",
        Moment.RUN_END: "Waits for the attempt to end by itself",
    }.get(Moment(moment), "Waits for a worker to take it in hand")


def _step(one: Milestone) -> StepLine:
    name = one.name.replace("_", " ")
    return StepLine(
        text=name[0].upper() + name[1:], small=one.text, at=one.at, tone="bad" if one.name in BAD else "done"
    )


def action_token(action: ActionRow) -> str:
    """Return the colour token of an action's state."""
    token = ACTION_TOKENS[ActionState(action.state)]
    return "idle" if token == "info" else token  # noqa: S105 - a colour


def action_label(action: ActionRow) -> str:
    """Return what an action does, in a few words: of a restart, whom it leaves out and whether something ran before."""
    if action.kind != ActionKind.RESTART_RUN:
        return ActionKind(action.kind).label
    ran = action.expected_state not in {"QUEUED", "STOPPED", "GAVE_UP", "FINISHED"}
    names = ", ".join(name for _, name in action.nodes)
    return (f"exclude {names} and " if names else "") + ("restart run" if ran else "start run")


def action_word(action: ActionRow) -> str:
    """Return an action's state in a word. What ends before its time was not waited out: it was taken back."""
    if action.state == ActionState.EXPIRED and action.ended_at is not None and action.ended_at < action.expires_at:
        return "taken back"
    return ActionState(action.state).label


def actions_listed(rows: Sequence[ActionRow]) -> list[tuple[ActionRow, str, str, str]]:
    """Return actions with their token, what they do and their state in a word, in the order given."""
    return [(row, action_token(row), action_label(row), action_word(row)) for row in rows]
