"""A rank produced NaN or Inf: alone, then it may be its machine; with everybody at once, then it is data or model.

One such event keeps the node. What does not stop is no batch and no skipped update: it is confirmed, and a restart is
proposed, because nothing is learnt meanwhile. Only if the same node shows it again (at another step, or without end in
another attempt) while the others stay finite, is silent corruption suspected and the node proposed for exclusion; the
same step on another node is the data.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apps.engine.detection import (
    Answer,
    Cells,
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
    NonfiniteKind,
    Proposal,
    ProposalKind,
    State,
    Subject,
    SubjectKind,
    Trigger,
    Undecided,
    Verdict,
    Window,
    ranks_in_words,
)
from apps.engine.detectors._culprit import subject_of
from apps.engine.detectors._words import plural

CAUSE = "numeric_fault"

FEW = Limit(
    "numeric_few_share",
    0.25,
    "share of the reporting ranks",
    "What a quarter of the ranks or more show in one step has gone through a collective: it says nothing about one rank.",
    "ours; an all-reduce carries one NaN to everybody within the step",
    most=0.5,
)
HEAL_STEPS = Limit(
    "numeric_heal_steps",
    50,
    "steps",
    "A NaN in the weights stays for ever; 50 finite steps are the design's measure of a healthy run.",
    "DESIGN §1",
    least=1,
    most=1_000_000,
)

WORD = {NonfiniteKind.NAN: "NaN", NonfiniteKind.PLUS_INF: "Inf", NonfiniteKind.MINUS_INF: "-Inf"}

WAVE_STEPS = 10
"""Steps after the first fault in which everybody's NaN is taken for its spread through the weights. Source: ours."""
LASTING_STEPS = 3
"""So many steps with nothing but NaN are no skipped update (loss scaling skips one or two) but a broken run."""
MOST_STEPS = 32
"""Steps remembered per finding."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after the window's columns, and who produced values that are not finite (see `Detector`).

    Cost: O(columns · ranks · metrics).
    Source: case 37 of public reports; what counts as few is ours.
    """
    found: dict[str, dict[str, Any]] = {key: _copied(one) for key, one in state.values.get("open", {}).items()}
    seen = int(state.values.get("columns", 0))
    episodes: list[list[Any]] = [list(one) for one in state.values.get("episodes", [])]
    closed: list[Verdict] = []
    by_step = _by_step(window)
    for at, step in enumerate(window.columns.steps.tolist()):
        seen += _reported(window, at) or step in by_step
        _column_take(window, at, step, by_step.get(step, {}), found, episodes)
        for key in [key for key, one in found.items() if _healed(window, one, step)]:
            closed.append(_verdict(window, found.pop(key), episodes, CloseReason.RECOVERED))
    verdicts = [_verdict(window, one, episodes) for one in found.values()]
    answers: tuple[Answer, ...] = (*closed, *verdicts)
    if not verdicts:
        answers = (*answers, _nothing(seen))
    kept = {"open": found, "columns": seen, "episodes": episodes[-MOST_STEPS:]}
    return State(CAUSE, DETECTOR.state_version, kept), answers


def _reported(window: Window, at: int) -> bool:
    return any(bool(np.isfinite(values[:, at]).any()) for values in window.columns.values.values())


def _by_step(window: Window) -> dict[int, dict[str, dict[int, int]]]:
    """Return step → metric → rank → kind of the value that is not finite."""
    table: dict[int, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    bad = window.nonfinite
    for metric, step, rank, kind in zip(
        bad.metrics, bad.step.tolist(), bad.rank.tolist(), bad.kind.tolist(), strict=True
    ):
        table[step][metric][rank] = kind
    return table


def _column_take(
    window: Window,
    at: int,
    step: int,
    metrics: Mapping[str, Mapping[int, int]],
    found: dict[str, dict[str, Any]],
    episodes: list[list[Any]],
) -> None:
    """Count one column: whose values were not finite, and who of the same metric stayed finite."""
    for metric in sorted(metrics, key=lambda name: len(metrics[name])):
        if metric not in window.columns.values:
            continue
        ranks = sorted(metrics[metric])
        finite = int(np.isfinite(window.columns.values[metric][:, at]).sum())
        few = finite > 0 and len(ranks) <= max(1, FEW.of(window.limits) * (finite + len(ranks)))
        subject = subject_of(window, np.array(ranks, np.int32)) if few else Subject(SubjectKind.RUN)
        if subject.kind is SubjectKind.RUN and _spread(found, step):
            _spread_take(found, step, ranks)
            continue
        one = found.get(subject.key)
        if one is None:
            kinds = sorted({WORD[NonfiniteKind(kind)] for kind in metrics[metric].values()})
            received = float(window.columns.received_at[at])
            one = found[subject.key] = {
                "kind": str(subject.kind),
                "rank": subject.rank,
                "node": subject.node,
                "gpu": subject.gpu,
                "metric": metric,
                "kinds": kinds,
                "ranks": ranks if few else [],
                "bad": len(ranks),
                "finite": finite,
                "since": step,
                "began_at": received if np.isfinite(received) else None,
                "steps": [],
                "count": 0,
                "everybody": 0,
            }
            if subject.node:
                episodes.append([step, subject.node])
        if not one["steps"] or one["steps"][-1] != step:
            one["steps"] = [*one["steps"], step][-MOST_STEPS:]
            one["count"] += 1
        one["last"] = step


def _spread(found: Mapping[str, Mapping[str, Any]], step: int) -> bool:
    return any(one["kind"] != SubjectKind.RUN and step - one["last"] <= WAVE_STEPS for one in found.values())


def _spread_take(found: dict[str, dict[str, Any]], step: int, ranks: Sequence[int]) -> None:
    """Everybody's NaN after one rank's is its doing: note it with the one that was first."""
    for one in found.values():
        if one["kind"] != SubjectKind.RUN and step - one["last"] <= WAVE_STEPS:
            one["everybody"] = max(one["everybody"], len(ranks))
            one["last"] = step


def _healed(window: Window, one: Mapping[str, Any], step: int) -> bool:
    return step - int(one["last"]) >= HEAL_STEPS.of(window.limits)


def _history(window: Window, one: Mapping[str, Any], episodes: Sequence[Sequence[Any]]) -> tuple[int, bool]:
    """Return how often the same node showed it before, and whether another node did at this step.

    At the same step it counts only if it lasts: one batch is one step.
    """
    node, since = one["node"], one["since"]
    past = [(fault.step, fault.node) for fault in window.attempts if fault.cause == CAUSE and fault.node]
    denied = {(fault.step, fault.node) for fault in window.dismissed if fault.cause == CAUSE}
    own = [(int(step), str(where)) for step, where in episodes if step != since and (step, where) not in denied]
    again = {step for step, where in [*past, *own] if where == node and (step != since or _lasts(one))}
    moved = any(where != node and step == since for step, where in past)
    return len(again), moved


def _lasts(one: Mapping[str, Any]) -> bool:
    return bool(one["count"] >= LASTING_STEPS or one["everybody"] > 0)


def _verdict(
    window: Window,
    one: Mapping[str, Any],
    episodes: Sequence[Sequence[Any]],
    closed: CloseReason | None = None,
) -> Verdict:
    again, moved = _history(window, one, episodes) if one["node"] else (0, False)
    alone = one["kind"] != SubjectKind.RUN and not moved
    steps = one["steps"]
    lasting = _lasts(one)
    sure = lasting or (alone and again > 0) or (one["kind"] == SubjectKind.RUN and one["bad"] > 1)
    act = alone and again > 0 and not closed
    kind = SubjectKind(one["kind"]) if alone else SubjectKind.RUN
    subject = Subject(kind, rank=one["rank"], node=one["node"], gpu=one["gpu"]) if alone else Subject(kind)
    rows = [
        Evidence("not finite", one["bad"], "ranks", one["bad"] + one["finite"]),
        Evidence("value", f"{one['metric']} = {', '.join(one['kinds'])}"),
        Evidence("steps with it", one["count"]),
    ]
    if again:
        rows.append(Evidence("times this node showed it before", again))
    if one["everybody"]:
        rows.append(Evidence("ranks it spread to", one["everybody"]))
    return Verdict(
        cause=CAUSE,
        class_=Class.COMPUTE,
        level=_level(one, lasting=lasting, sure=act),
        certainty=Certainty.CONFIRMED if sure else Certainty.SUSPECTED,
        subject=subject,
        score=one["bad"] / (one["bad"] + one["finite"]),
        score_meaning="share of the ranks that reported the metric in that step whose value was not finite",
        verdict=_says(one, alone=alone),
        why=_why(one, again, moved=moved),
        next=_next(one, closed, alone=alone, again=again, moved=moved),
        coverage=Coverage(one["bad"] + one["finite"], window.attempt.world_size),
        since_step=one["since"],
        found_step=one["since"],
        began_at=one["began_at"],
        victims=(),
        evidence=tuple(rows),
        proposal=_proposal(one, act=act, lasting=lasting and not closed and not moved),
        cells=(Cells(one["metric"], tuple(one["ranks"]), tuple(steps)),),
        closed=closed,
    )


def _proposal(one: Mapping[str, Any], *, act: bool, lasting: bool) -> Proposal:
    if act and one["node"]:
        return Proposal(ProposalKind.EXCLUDE_NODE, one["node"])
    return Proposal(ProposalKind.RESTART_RUN) if lasting else Proposal()


def _level(one: Mapping[str, Any], *, lasting: bool, sure: bool) -> Level:
    if lasting or sure:
        return Level.CRITICAL
    # One skipped update with an infinite gradient everywhere is what loss scaling does.
    skipped = one["kind"] == SubjectKind.RUN and one["metric"] == "grad_norm"
    return Level.INFO if skipped else Level.WARNING


def _says(one: Mapping[str, Any], *, alone: bool) -> str:
    when = f"in step {one['since']}"
    if one["count"] > 1:
        when = f"in {plural(one['count'], 'step')} from step {one['since']} to {one['steps'][-1]}"
    what = f"{one['metric']} was {' and '.join(one['kinds'])} {when}"
    if one["kind"] == SubjectKind.RUN:
        where = f"on {ranks_in_words(one['ranks'])}" if one["ranks"] else "wherever it was reported"
        return f"{what} {where}."
    who = f"{ranks_in_words(one['ranks']).capitalize()}{' on ' + one['node'] if one['node'] else ''}"
    tail = "all others stayed finite" if alone else "and on another node in an earlier attempt at the same step"
    return f"{who}: {what}; {tail}."


def _why(one: Mapping[str, Any], again: int, *, moved: bool) -> str:
    if one["kind"] == SubjectKind.RUN:
        return "Everybody at once points to the data of that step or to the model, not to a machine."
    if moved:
        return "It comes back at the same step wherever the step runs: the data or the model."
    counted = f"{one['bad']} of {one['bad'] + one['finite']} ranks that reported it"
    if again:
        return f"{counted}, and this node showed it {plural(again, 'time')} before: silent corruption is suspected."
    if _lasts(one):
        spread = " It has spread to all." if one["everybody"] else ""
        return f"{counted}, and it does not stop, so nothing is learnt meanwhile.{spread} It is no proof against the node yet."
    return f"{counted}; once is no proof against the node."


def _next(one: Mapping[str, Any], closed: CloseReason | None, *, alone: bool, again: int, moved: bool) -> str:
    if closed:
        return "Nothing to do; values are finite again."
    if not alone:
        return (
            "Look at the batch of that step; restart from a checkpoint before it and skip the batch if it comes again."
        )
    if again:
        return f"Exclude {one['node']} and restart from a checkpoint before step {one['since']}."
    if _lasts(one) and not moved:
        return (
            f"Restart from a checkpoint before step {one['since']}. If the node shows it again then, it will be proposed for "
            "exclusion."
        )
    return "Keep the node. If it shows it again at another step, it will be proposed for exclusion."


def _nothing(seen: int) -> Undecided | Healthy:
    have = (plural(seen, "step"),)
    if not seen:
        return Undecided(CAUSE, have, ("a settled step with values",), "No step with values has settled yet.")
    return Healthy(CAUSE, have, "Every value was finite.")


def _copied(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in one.items()}


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.COMPUTE,
    title="NaN or Inf",
    trigger=Trigger.COLUMNS,
    needs=Needs(useful=("loss", "grad_norm"), nonfinite=True, past=True),
    minimum=Minimum(ranks=1, columns=1),
    delay=Delay(columns=1),
    false_alarm_p=0.0,
    limits=(FEW, HEAL_STEPS),
    evaluate=evaluate,
    state_version=2,
)
