"""Saves take long because their shards wait for the store, not because the store writes slowly.

More bandwidth does not help then; fewer that write at once do. What counts is the time for which training stood: a
save that waits while training goes on costs nothing here.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from apps.engine.detection import (
    Answer,
    Certainty,
    Class,
    CloseReason,
    Coverage,
    Delay,
    Detector,
    Evidence,
    Healthy,
    Level,
    Limit,
    Minimum,
    Needs,
    State,
    Subject,
    SubjectKind,
    Trigger,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors._saves import Save, grows, queue_by_writers, saves_ended, saves_in
from apps.engine.detectors._words import in_words, plural

CAUSE = "checkpoint_queue"

SHARE = Limit(
    "checkpoint_queue_share",
    0.5,
    "share",
    "Waiting is the main cause of a slow save once it is more than half of it. Where a store of 504 GPUs was measured, "
    "0.93 of a write was queue; the alert that stands there begins at 0.9.",
    "figures §5 (M ≥ 0.5 is the main cause), §6 (queue share 0.931 measured, rule > 0.9)",
    least=0.1,
    most=1.0,
)
COST = Limit(
    "checkpoint_queue_cost",
    0.01,
    "share of time",
    "Below a hundredth of the run's time a queue is not worth anybody's night: saving after every step was made to cost "
    "less than 0.9 %.",
    "figures §7.4 (checkpoint each step < 0.9 % overhead)",
    least=0.001,
    most=1.0,
)
CRITICAL = Limit(
    "checkpoint_queue_critical",
    0.10,
    "share of time",
    "A tenth of the time lost is what a straggling run loses.",
    "figures §5: straggling = S ≥ 1.1",
    least=0.01,
    most=1.0,
)

JUMP, USUAL_SAVES = 3.0, 3
"""One save is enough if it takes three times the median of at least three that did not wait. Source: ours; saves of one
run are alike, and a person who watches should not wait for a second one."""
BAD, OF = 2, 3
"""Without that, two of the last three must have waited: one may have met somebody else's."""
CALM = 2
"""Saves in a row that no longer wait close it."""
MOST_SAVES = 8
"""Saves of the streak that the numbers are taken from: the present, not the first hour."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after one look, and whether waiting for the store makes saves slow (see `Detector`).

    A save counts if at least `checkpoint_queue_share` of it was waiting and that stopped training for at least
    `checkpoint_queue_cost` of the time since the save before. Judged by the spread over ranks alone it stays suspected:
    shards of different size spread as well.
    Cost: O(saves · log saves).
    Source: figures §6 (the store's bandwidth at 16 %, its queue at 93 %: "the queue is saturated"); counts are ours.
    """
    saves = saves_in(window)
    own = [save for save in saves if save.own]
    step = int(window.beats.step.max()) if len(window.beats.step) else -1
    entry: dict[str, Any] | None = dict(state.values["open"]) if state.values.get("open") else None
    if not own or step < 0:
        lack = "a step" if step < 0 else "a save with queue_s, or with the times of two shards (WRITTEN of two ranks)"
        words = "How long saves wait for the store is not known."
        return _state(entry), (Undecided(CAUSE, (plural(len(own), "measured save"),), (lack,), words),)
    bad = [_bad(save, window) for save in own]
    answers: list[Answer] = []
    if entry is None and _opens(own, bad, [save for save in saves if not _bad(save, window)]):
        first = own[_streak(bad)]
        entry = {"since": first.step, "began_at": first.at - first.took_s, "found": step}
        entry |= {"confirmed": False, "critical": False}
    elif entry is not None and len(bad) >= CALM and not any(bad[-CALM:]):
        answers.append(_verdict(window, own[-CALM:], saves, entry, CloseReason.RECOVERED))
        entry = None
    if entry is not None:
        streak = [save for save, is_bad in zip(own, bad, strict=True) if is_bad and save.step >= entry["since"]]
        streak = streak[-MOST_SAVES:] or own[-1:]
        _weigh(entry, bad, streak, window)
        answers.append(_verdict(window, streak, saves, entry))
    elif not answers:
        last = own[-1]
        words = f"{in_words(last.queue_s)} of the {in_words(last.took_s)} that the newest save took was waiting."
        answers.append(Healthy(CAUSE, (plural(len(own), "measured save"),), words))
    return _state(entry), tuple(answers)


def _state(entry: dict[str, Any] | None) -> State:
    return State(CAUSE, DETECTOR.state_version, {"open": entry})


def _bad(save: Save, window: Window) -> bool:
    return save.share >= SHARE.of(window.limits) and save.lost_share >= COST.of(window.limits)


def _opens(own: Sequence[Save], bad: Sequence[bool], usual: Sequence[Save]) -> bool:
    if not bad[-1]:
        return False
    jump = len(usual) >= USUAL_SAVES and own[-1].took_s >= JUMP * median(save.took_s for save in usual)
    return jump or sum(bad[-OF:]) >= BAD


def _streak(bad: Sequence[bool]) -> int:
    """Return where the waiting began: before it come at least two saves in a row that did not wait, or none."""
    first = len(bad) - 1
    for at in range(len(bad) - 1, -1, -1):
        if bad[at]:
            first = at
        elif at == 0 or not bad[at - 1]:
            break
    return first


def _weigh(entry: dict[str, Any], bad: Sequence[bool], streak: Sequence[Save], window: Window) -> None:
    # Once confirmed or critical it stays so: what flaps around a limit is news without news.
    told = not any(save.by_spread for save in streak)
    entry["confirmed"] = bool(entry["confirmed"] or (told and sum(bad[-OF:]) >= BAD))
    grave = median(save.lost_share for save in streak) >= CRITICAL.of(window.limits)
    entry["critical"] = bool(entry["critical"] or (entry["confirmed"] and grave))


def _verdict(
    window: Window,
    streak: Sequence[Save],
    saves: Sequence[Save],
    entry: dict[str, Any],
    closed: CloseReason | None = None,
) -> Verdict:
    share = median(save.share for save in streak)
    costs = [save.lost_s / save.gap_steps for save in streak if save.gap_steps]
    return Verdict(
        cause=CAUSE,
        class_=Class.RECOVERY,
        level=Level.CRITICAL if entry["critical"] else Level.WARNING,
        certainty=Certainty.CONFIRMED if entry["confirmed"] else Certainty.SUSPECTED,
        subject=Subject(SubjectKind.RUN),
        score=share,
        score_meaning="time the slowest shard waited for the store ÷ time the save took, median over recent saves",
        verdict=_says(streak, closed),
        why=_why(streak, share),
        next="Nothing to do." if closed else _next(streak),
        coverage=Coverage(sum(save.own for save in saves), saves_ended(window)),
        since_step=entry["since"],
        found_step=entry["found"],
        began_at=entry["began_at"],
        evidence=_evidence(window, streak, saves, share),
        cost_s=median(costs) if costs else None,
        closed=closed,
    )


def _says(streak: Sequence[Save], closed: CloseReason | None) -> str:
    if closed:
        return "Saves no longer wait for the store."
    queue_s, took_s = median(save.queue_s for save in streak), median(save.took_s for save in streak)
    return f"Checkpoints queue at the store: of {in_words(took_s)} a save takes, {in_words(queue_s)} is waiting."


def _why(streak: Sequence[Save], share: float) -> str:
    lost = median(save.lost_share for save in streak)
    how = (
        "The shards of one save differ that much, which stands for the queue here: ranks do not tell queue_s"
        if any(save.by_spread for save in streak)
        else "The shards wait their turn, they are not written slowly"
    )
    trend = f" Each of the last {len(streak)} saves waited longer than the one before." if grows(streak) else ""
    return f"{how}. {share:.0%} of a save is waiting, which takes {lost:.0%} of the run's time.{trend}"


def _next(streak: Sequence[Save]) -> str:
    look = " Tell queue_s to be sure." if any(save.by_spread for save in streak) else ""
    return (
        "Let fewer ranks write at once (in turns, or one for each node), save to the nodes' own disks first and copy from there, "
        f"or let training go on meanwhile. More bandwidth does not shorten a queue.{look}"
    )


def _evidence(window: Window, streak: Sequence[Save], saves: Sequence[Save], share: float) -> tuple[Evidence, ...]:
    usual = [save.took_s for save in saves if not _bad(save, window)]
    writers = max(save.shards for save in streak)
    name = "waiting, by the spread over ranks" if any(save.by_spread for save in streak) else "waiting"
    found = [
        Evidence(f"share of a save that is {name}", share, "share", SHARE.of(window.limits)),
        Evidence(name, median(save.queue_s for save in streak), "s"),
        Evidence("a save takes", median(save.took_s for save in streak), "s", median(usual) if usual else None),
        Evidence(
            "the run's time lost to it", median(save.lost_share for save in streak), "share", COST.of(window.limits)
        ),
        Evidence("saves that waited", len(streak)),
    ]
    if len(streak) > 1:
        found.append(Evidence("waiting, newest save", streak[-1].queue_s, "s", streak[0].queue_s))
    if writers:
        found.append(Evidence("ranks that write", writers))
    fewer = queue_by_writers(saves, fewer_than=writers)
    if fewer is not None:
        found.append(Evidence(f"waiting when {fewer[0]} ranks wrote", fewer[1], "s"))
    return tuple(found)


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.RECOVERY,
    title="Checkpoints queue at the store",
    trigger=Trigger.CLOCK,
    needs=Needs(beats=True, checkpoints=True),
    minimum=Minimum(ranks=1),
    delay=Delay(seconds=10.0),
    false_alarm_p=0.0,
    limits=(SHARE, COST, CRITICAL),
    evaluate=evaluate,
)
