"""The confirm page and an action's own page: columns of moments, the words of the button, the stepper."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.console import words
from apps.console.selectors.suspects import act_label, cheapest
from apps.remediation.choices import ACTION_TOKENS, ActionKind, ActionState, Moment
from apps.remediation.selectors import ActionRow, DowntimeFrom, Milestone, Preview, Price
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


@dataclass(frozen=True, slots=True)
class ConfirmPage:
    """A preview as the confirm page shows it."""

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
        saves=_saves(preview, from_step),
        must_choose=_must_choose(preview),
        button=next((column.button for column in columns if column.chosen), _button(preview, str(chosen))),
    )


def _must_choose(preview: Preview) -> bool:
    run = preview.run
    return preview.kind == ActionKind.RESTART_RUN and run is not None and bool(choice_needed(run, None))


def _saves(preview: Preview, from_step: int | None) -> tuple[tuple[str, str, bool], ...]:
    """Return what can be gone on from as options: value, words, chosen. Nothing where there is nothing to choose."""
    if preview.kind != ActionKind.RESTART_RUN or preview.run is None or not preview.checkpoints:
        return ()
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
    head, small = {
        Moment.NOW: ("Right now", f"back to {words.whole(price.from_step)}" if price.from_step is not None else ""),
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
    )


def _waits(preview: Preview) -> tuple[tuple[str, str], ...]:
    if preview.kind == ActionKind.EXCLUDE_NODE and preview.run is not None and preview.run.attempt_state == "OPEN":
        return (
            (str(Moment.NOW), "now"),
            (str(Moment.RUN_END), f"when the attempt of {preview.run.slug} ends by itself"),
        )
    return ()


def _button(preview: Preview, moment: str) -> str:
    if preview.kind == ActionKind.RESTART_RUN:
        return act_label(moment, excludes=bool(preview.exclude)).removesuffix("…")
    node = preview.node.name if preview.node else ""
    slug = preview.run.slug if preview.run else ""
    plain = {
        ActionKind.STOP_RUN: f"Stop {slug}" + (" now" if moment == Moment.NOW else " after the save"),
        ActionKind.CHECKPOINT_NOW: "Save a checkpoint now",
        ActionKind.EXCLUDE_NODE: f"Exclude {node}",
        ActionKind.READMIT_NODE: f"Take {node} back",
        ActionKind.CHECK_NODE: f"Check {node}",
    }
    return plain.get(ActionKind(preview.kind), "Go on")


def _title(preview: Preview) -> str:
    slug = preview.run.slug if preview.run else ""
    names = ", ".join(row.name for row in preview.exclude)
    if preview.kind == ActionKind.RESTART_RUN:
        return f"Exclude {names} and restart {slug}" if names else f"Restart {slug}"
    return (
        _button(preview, "")[: -len(" after the save")] if preview.kind == ActionKind.STOP_RUN else _button(preview, "")
    )


def _sentence(preview: Preview) -> str:
    run = preview.run
    if run is None or preview.kind not in {ActionKind.RESTART_RUN, ActionKind.STOP_RUN}:
        return preview.happens[0].small if preview.happens else ""
    size = f"{words.count(run.world_size, 'GPU')} stop. " if run.world_size and run.attempt_state == "OPEN" else ""
    if preview.kind == ActionKind.STOP_RUN:
        return f"{size}The run stays stopped until somebody starts it."
    without = f" without {', '.join(preview.exclude_names)}" if preview.exclude_names else ""
    spare = (
        f"; {', '.join(preview.spares[:3])} {'stands' if len(preview.spares) == 1 else 'stand'} free"
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
