"""The newest complete checkpoint is old: what a failure now would cost grows by the minute."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from apps.engine.detection import (
    Answer,
    Attempt,
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
from apps.engine.detectors._words import in_words, plural

CAUSE = "checkpoint_stale"

WARN = Limit(
    "stale_warn_factor",
    1.5,
    "× interval",
    "A save half an interval late is late, not slow.",
    "figures §8, staleness alert",
    least=1.0,
    most=1000.0,
)
PAGE = Limit(
    "stale_page_factor",
    3.0,
    "× interval",
    "Two saves in a row are missing: a failure now costs three times what was planned for.",
    "figures §8, staleness alert",
    least=1.0,
    most=1000.0,
)

MOST_KEPT = 64
"""Saves that are remembered; older ones cannot be the newest."""
LEAST_SAVES = 3
"""Saves from which the run's own interval is taken when nothing was set: two gaps, the smaller one."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after one look, and whether the newest complete checkpoint is too old (see `Detector`).

    Only SAVED counts; a FAILED word beats SAVED of the same save, and a DELETED checkpoint is none. A step that is saved
    again by a later attempt is a new save, and what an earlier one saved past the step this one went on from is abandoned.
    Time in which Paceline could not hear does not count, nor time before the attempt began.
    Cost: O(checkpoints).
    Source: figures §8, staleness alert; cases 38 and 39 of public reports.
    """
    saves = _saves(window, state.values.get("saves", {}))
    newest = max(int(window.beats.step.max()) if len(window.beats.step) else -1, int(state.values.get("newest", -1)))
    began: dict[str, float] = dict(state.values.get("began", {}))
    watch = _watch(window, newest, state.values.get("watch"))
    interval = _interval(window.attempt, saves)
    # Where nobody told from which step it went on, an earlier attempt may have saved further ones than it has reached.
    good = {int(step): one for step, one in saves.items() if one["state"] == "SAVED" and int(step) <= newest}
    last = max(good) if good else None
    facts = _facts(window, newest, good, last, saves, seen_from=int(watch["step"]))
    late, of = _lateness(facts, interval)
    kept: dict[str, Any] = {"saves": saves, "newest": newest, "began": began, "watch": watch}
    if interval is None or newest < 0:
        lack = "the run's checkpoint interval, or three saves" if interval is None else "a step"
        have = (plural(len(good), "complete checkpoint"),)
        words = "How often this run means to save is not known."
        return _state(kept), (Undecided(CAUSE, have, (lack,), words),)
    answers: list[Answer] = []
    if late >= WARN.of(window.limits):
        began.setdefault("at", window.now)
        began.setdefault("step", newest)
        answers.append(_verdict(window, facts, late, of, began, closed=None))
    elif began:
        answers.append(_verdict(window, facts, late, of, began, closed=CloseReason.RECOVERED))
        began.clear()
    if not began:
        words = f"{late:.1f} of the interval has passed since the newest complete checkpoint."
        answers.append(Healthy(CAUSE, (plural(len(good), "complete checkpoint"), of), words))
    return _state(kept), tuple(answers)


def _watch(window: Window, newest: int, before: Mapping[str, float] | None) -> dict[str, float]:
    """Return since when Paceline could hear, and the newest step at the first look after that.

    Steps made while it was blind do not count: beats are heard at once, the saves of that time come with the spool.
    """
    if before and before["at"] == window.watch_began_at:
        return dict(before)
    blind = before is not None or window.watch_began_at > window.attempt.started_at
    return {"at": window.watch_began_at, "step": float(newest if blind else -1)}


def _state(kept: dict[str, Any]) -> State:
    return State(CAUSE, DETECTOR.state_version, kept)


def _saves(window: Window, before: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what is known of each save by its step: a word that ends it beats one that does not, FAILED beats SAVED.

    A later attempt's word beats all of an earlier one's: it wrote that step anew.
    """
    weight = {"STARTED": 0, "QUEUED": 0, "WRITTEN": 1, "SAVED": 2, "FAILED": 3, "DELETED": 4}
    saves = {step: dict(one) for step, one in before.items()}
    for word in window.checkpoints:
        if word.kind != "save" or word.state not in weight:
            continue
        known = saves.get(str(word.step))
        said = (word.attempt or 0, weight[word.state])
        if known is None or said > (known.get("attempt") or 0, weight[known["state"]]):
            saves[str(word.step)] = {"state": word.state, "heard_at": word.heard_at, "attempt": word.attempt}
    # Of a long abandoned tail nothing need be kept: it would push out what this attempt saves at lower steps.
    kept = [step for step, one in saves.items() if not _is_abandoned(window.attempt, int(step), one)]
    return {step: saves[step] for step in sorted(kept, key=int)[-MOST_KEPT:]}


def _is_abandoned(attempt: Attempt, step: int, save: Mapping[str, Any]) -> bool:
    """Return whether an earlier attempt made the save past the step from which this one went on."""
    maker, resumed = save.get("attempt"), attempt.resumed_from_step
    return maker is not None and maker < attempt.number and resumed is not None and step > resumed


def _interval(attempt: Attempt, saves: Mapping[str, Mapping[str, Any]]) -> tuple[str, float] | None:
    """Return ("s" or "steps", how much) as set for the run, else as advised, else as the run itself does it."""
    if attempt.checkpoint_interval_steps:
        return "steps", float(attempt.checkpoint_interval_steps)
    if attempt.checkpoint_interval_s:
        return "s", attempt.checkpoint_interval_s
    if attempt.checkpoint_advised_s:
        return "s", attempt.checkpoint_advised_s
    steps = sorted(int(step) for step, one in saves.items() if one["state"] in ("SAVED", "DELETED"))
    if len(steps) < LEAST_SAVES:
        return None
    return "steps", float(min(later - earlier for earlier, later in pairwise(steps[-LEAST_SAVES:])))


def _facts(
    window: Window,
    newest: int,
    good: Mapping[int, Mapping[str, Any]],
    last: int | None,
    saves: Mapping[str, Mapping[str, Any]],
    *,
    seen_from: int,
) -> dict[str, Any]:
    attempt = window.attempt
    start = attempt.resumed_from_step or 0
    floor = max(attempt.started_at, window.watch_began_at)
    since = max(float(good[last]["heard_at"]), floor) if last is not None else floor
    failed = [int(step) for step, one in saves.items() if one["state"] == "FAILED" and int(step) > (last or -1)]
    return {
        "last": last,
        "steps": max(newest - max(last if last is not None else start, seen_from), 0),
        "age_s": max(window.now - since, 0.0),
        "failed": len(failed),
        "newest": newest,
    }


def _lateness(facts: Mapping[str, Any], interval: tuple[str, float] | None) -> tuple[float, str]:
    """Return the age of the newest checkpoint in intervals, and the interval in words."""
    if interval is None:
        return 0.0, ""
    unit, much = interval
    if unit == "steps":
        return facts["steps"] / much, f"an interval of {plural(int(much), 'step')}"
    return facts["age_s"] / much, f"an interval of {in_words(much)}"


def _verdict(
    window: Window,
    facts: Mapping[str, Any],
    late: float,
    of: str,
    began: Mapping[str, float],
    closed: CloseReason | None,
) -> Verdict:
    page = late >= PAGE.of(window.limits)
    fails = f" {plural(facts['failed'], 'save')} failed since." if facts["failed"] else ""
    return Verdict(
        cause=CAUSE,
        class_=Class.RECOVERY,
        level=Level.CRITICAL if page else Level.WARNING,
        certainty=Certainty.CONFIRMED,
        subject=Subject(SubjectKind.RUN),
        score=late,
        score_meaning="age of the newest complete checkpoint ÷ the interval meant",
        verdict=_says(facts, closed),
        why=f"That is {late:.1f}× {of}.{fails}",
        next="Nothing to do."
        if closed
        else "Ask for a checkpoint now, and look at the last save: storage, space, queue.",
        coverage=Coverage(1, 1),
        since_step=facts["last"],
        found_step=int(began["step"]),
        began_at=began["at"],
        evidence=(
            Evidence("steps at risk", facts["steps"], "steps"),
            Evidence("age", round(facts["age_s"], 1), "s"),
            Evidence("intervals passed", round(late, 3), "×", WARN.of(window.limits)),
            Evidence("failed saves in a row", facts["failed"], "", 0),
            Evidence("newest complete checkpoint", "none" if facts["last"] is None else facts["last"]),
        ),
        closed=closed,
    )


def _says(facts: Mapping[str, Any], closed: CloseReason | None) -> str:
    if closed:
        return f"A checkpoint of step {facts['last']} is complete."
    risk = f"{plural(facts['steps'], 'step')} would be lost by a failure now"
    if facts["last"] is None:
        return f"This attempt has not completed a checkpoint in {in_words(facts['age_s'])}: {risk}."
    return f"The newest complete checkpoint is step {facts['last']}, {in_words(facts['age_s'])} old: {risk}."


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.RECOVERY,
    title="Stale checkpoint",
    trigger=Trigger.CLOCK,
    needs=Needs(beats=True, checkpoints=True),
    minimum=Minimum(ranks=1),
    delay=Delay(seconds=10.0),
    false_alarm_p=0.0,
    limits=(WARN, PAGE),
    evaluate=evaluate,
)
