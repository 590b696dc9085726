"""The run stands still though its ranks are alive: no rank gets a step further for longer than its phase allows."""

from dataclasses import replace
from typing import Any

import numpy as np

from apps.engine.detection import (
    NO_TELEMETRY_S,
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
    Minimum,
    Needs,
    Phase,
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
from apps.engine.detectors._culprit import Culprit, culprit_of, subject_of, victims_of
from apps.engine.detectors._pace import HANG_FACTOR, HANG_FLOOR_S, HANG_PHASE_S, HANG_START_S, Pace
from apps.engine.detectors._presence import Presence, failed, left, presence
from apps.engine.detectors._stacks import OddOnes, odd_ones
from apps.engine.detectors._words import in_words, plural

CAUSE = "hang"

CONFIRM = 2.0
"""A hang is confirmed at this many limits. Source: DESIGN §5."""

HOW = {
    "missing": "can no longer be heard while the others wait",
    "left": "has ended while the others go on waiting for it",
    "behind": "is in an earlier step than the others",
    "outside": "never came to the collective in which the others wait",
    "stacks": "stands elsewhere in the program than the others, which wait in the collective",
}


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after one look, and the hang if there is one (see `Detector`).

    Limits are learnt per phase from this attempt; time in which Paceline could not hear does not count.
    Cost: O(ranks).
    Source: figures §11.5 and DESIGN §5; who is named: figures §11.2.
    """
    pace = Pace(state.values)
    found: dict[str, Any] | None = state.values.get("open")
    who = presence(window)
    if not who.fresh.any():
        return _kept(pace, found), (_held(found) or _unheard(window),)
    newest = pace.newest
    moved = pace.take(
        window.beats, who.fresh, window.watch_began_at, learn=not (found and found["certainty"] == Certainty.CONFIRMED)
    )
    stood_s = window.now - max(pace.since or window.now, window.watch_began_at)
    answers: list[Answer] = []
    over = window.attempt.stopping or window.attempt.ended or _crashed(window, pace)
    # A hanging rank that is killed goes into another phase, too: that it ends is no recovery, a step is one.
    if found and (pace.newest > newest or (moved and not over and pace.phase != Phase.SHUTDOWN.word)):
        answers.append(_verdict(found, CloseReason.RECOVERED))
        found = None
    if over:
        if found and _is_of_the_lost(window, found, who):
            answers.append(_verdict(found, CloseReason.MERGED))
            found = None
        return _kept(pace, found), (*answers, _held(found) or _ended(window))
    limit_s = pace.limit_s(window.limits)
    if stood_s >= limit_s:
        fresh = _found(window, pace, who, stood_s, limit_s)
        if found and found["subject"]["key"] != fresh["subject"]["key"]:
            answers.append(_verdict(found, CloseReason.MERGED))
        fresh["found"] = found["found"] if found else fresh["found"]
        found = fresh
    held = _held(found)
    answers.append(held or _moving(window, pace, who, stood_s, limit_s))
    return _kept(pace, found), tuple(answers)


def _crashed(window: Window, pace: Pace) -> bool:
    """Whether a rank failed and the run has not gone on without it: then that is why it stands."""
    return any(
        fact.current and failed(fact) and not pace.outlived(fact.heard_at, window.limits) for fact in window.facts
    )


def _is_of_the_lost(window: Window, found: dict[str, Any], who: Presence) -> bool:
    """Whether what was only suspected says no more than that ranks are gone: then their loss is the finding."""
    if found["certainty"] == Certainty.CONFIRMED:
        return False
    gone = who.missing | left(window, failures=True)
    return all(bool(gone[rank]) for rank in found["ranks"])


def _node_is_lost(window: Window, who: Presence, culprit: Culprit) -> bool:
    """Whether who is named went silent with its whole node: that the node is lost is for `rank_lost` to confirm."""
    nodes = window.placement.node[culprit.ranks]
    silent = who.silent_nodes
    return culprit.how == "missing" and all(node >= 0 and bool(silent[node]) for node in nodes.tolist())


def _kept(pace: Pace, found: dict[str, Any] | None) -> State:
    return State(CAUSE, DETECTOR.state_version, {**pace.values(), "open": found})


def _found(window: Window, pace: Pace, who: Presence, stood_s: float, limit_s: float) -> dict[str, Any]:
    """Return everything the verdict says, as it is kept in the state."""
    since = max(pace.since or window.now, window.watch_began_at)
    culprit = culprit_of(window, who, stood_at=since + 2 * who.limit_s / 3 + (pace.step_s() or 0.0))
    odd = odd_ones(window, culprit.stood) if not len(culprit.ranks) else None
    if odd is not None:
        culprit = replace(culprit, ranks=odd.ranks, how="stacks")
    sure = stood_s >= CONFIRM * limit_s and not _node_is_lost(window, who, culprit)
    subject = subject_of(window, culprit.ranks)
    ranks = [int(rank) for rank in culprit.ranks]
    phases = sorted({Phase(int(p)).word for p in window.beats.phase[culprit.ranks]}) if ranks else []
    return {
        "certainty": str(Certainty.CONFIRMED if sure else Certainty.SUSPECTED),
        "subject": {
            "key": subject.key,
            "kind": str(subject.kind),
            "rank": subject.rank,
            "node": subject.node,
            "gpu": subject.gpu,
            "nodes": list(subject.nodes),
        },
        "how": culprit.how,
        "stacks": _stacks_kept(odd),
        "ranks": ranks,
        "phases": phases,
        "step": pace.newest,
        "found": pace.newest,
        "since": since,
        "stood_s": stood_s,
        "limit_s": limit_s,
        "phase": pace.phase,
        "step_s": pace.step_s(),
        "counts": _counts(culprit, who),
        "world": window.attempt.world_size,
    }


def _stacks_kept(odd: OddOnes | None) -> dict[str, Any] | None:
    if odd is None:
        return None
    return {"sent": odd.sent, "alike": odd.alike, "where": odd.where, "others": odd.others}


def _counts(culprit: Culprit, who: Presence) -> dict[str, int]:
    """Return how many report, are missing, and wait: who is named does not wait, wherever it says that it is."""
    waits = culprit.inside.copy()
    waits[culprit.ranks] = False
    return {
        "reporting": int(who.fresh.sum()),
        "missing": int(culprit.missing.sum()),
        "inside": int(waits.sum()),
    }


def _held(found: dict[str, Any] | None) -> Verdict | None:
    return _verdict(found) if found else None


def _verdict(found: dict[str, Any], closed: CloseReason | None = None) -> Verdict:
    confirmed = found["certainty"] == Certainty.CONFIRMED
    counts, named = found["counts"], found["subject"]
    kind = SubjectKind(named["kind"])
    subject = Subject(kind, rank=named["rank"], node=named["node"], gpu=named["gpu"], nodes=tuple(named["nodes"]))
    stood = in_words(found["stood_s"])
    act = confirmed and not closed
    return Verdict(
        cause=CAUSE,
        class_=Class.COORDINATION,
        level=Level.CRITICAL if confirmed else Level.WARNING,
        certainty=Certainty(found["certainty"]),
        subject=subject,
        score=found["stood_s"] / found["limit_s"],
        score_meaning="time without a step ÷ how long this phase may last",
        verdict=_says(found, stood, closed),
        why=_why(found),
        next=_next(found, closed),
        coverage=Coverage(counts["reporting"], found["world"]),
        since_step=found["step"] if found["step"] >= 0 else None,
        found_step=found["found"] if found["found"] >= 0 else None,
        began_at=found["since"],
        victims=victims_of(found["ranks"], found["world"]),
        evidence=_evidence(found),
        proposal=Proposal(ProposalKind.RESTART_RUN) if act else Proposal(),
        closed=closed,
    )


def _says(found: dict[str, Any], stood: str, closed: CloseReason | None) -> str:
    if closed is CloseReason.RECOVERED:
        return f"The run moves again after it stood in step {found['step']} for {stood}."
    still = f"step {found['step']} has not ended for {stood}" if found["step"] >= 0 else f"no step in {stood}"
    if not found["ranks"] and found["certainty"] == Certainty.SUSPECTED:
        return f"The run may hang: {still}, and which rank holds it up is not known yet."
    if not found["ranks"]:
        return f"The run hangs: {still}, and no single rank stands out."
    many = len(found["ranks"]) > 1
    words = HOW[found["how"]]
    if many:
        for one, more in (("is in", "are in"), ("has ended", "have ended"), ("stands else", "stand else")):
            words = words.replace(one, more, 1)
    who = ranks_in_words(found["ranks"])
    on = f" on {found['subject']['node']}" if found["subject"]["node"] else ""
    return f"The run hangs: {still}; {who}{on} {words}."


def _why(found: dict[str, Any]) -> str:
    counts = found["counts"]
    rest = f"{counts['inside']} of {counts['reporting']} reporting ranks wait in a collective, {counts['missing']} are missing"
    allowed = f"this phase ({found['phase']}) may last {in_words(found['limit_s'])}"
    usual = f", a step usually takes {in_words(found['step_s'])}" if found["step_s"] else ""
    if found["stacks"]:
        said = found["stacks"]
        who = ranks_in_words(found["ranks"]).capitalize()
        return (
            f"{said['alike']} of {said['sent']} ranks that sent their stacks wait alike, in {said['others']}. {who} stood "
            f"in {said['where']}: likely the one they wait for, not proven. {rest}; {allowed}{usual}."
        )
    if found["how"] == "inside" and found["certainty"] == Certainty.SUSPECTED:
        return f"{rest}; whom they wait for is not known yet; {allowed}{usual}."
    if found["how"] == "inside":
        return f"All reporting ranks are inside the collective: look at the network. {rest}; {allowed}{usual}."
    where = f" The named ranks say: {', '.join(found['phases'])}." if found["phases"] else ""
    return f"{rest}; {allowed}{usual}.{where}"


def _next(found: dict[str, Any], closed: CloseReason | None) -> str:
    if closed:
        return "Nothing to do; the run moves again." if closed is CloseReason.RECOVERED else "See the newer finding."
    restart = "restart from the newest trusted checkpoint"
    if found["certainty"] == Certainty.CONFIRMED:
        if not found["ranks"]:
            return f"Look at the network and at where the stacks differ, if there is time, then {restart}."
        if found["how"] in ("missing", "left"):
            named = found["subject"]["node"]
            where = named or "their nodes"
            return f"Look at {where} if there is time, then {restart}."
        return f"Look at the stacks of {ranks_in_words(found['ranks'])} if there is time, then {restart}."
    if found["how"] == "missing" and found["stood_s"] >= CONFIRM * found["limit_s"]:
        return "Wait whether they are heard again; if their node is lost, that is a finding of its own."
    return f"Wait: it is confirmed after {in_words(CONFIRM * found['limit_s'])} without a step. Look at the ranks now."


def _evidence(found: dict[str, Any]) -> tuple[Evidence, ...]:
    counts = found["counts"]
    rows = [
        Evidence("time without a step", round(found["stood_s"], 3), "s", round(found["limit_s"], 3)),
        Evidence("last step", found["step"]),
        Evidence("phase", found["phase"]),
        Evidence("ranks reporting", counts["reporting"], "", found["world"]),
        Evidence("ranks missing", counts["missing"], "", 0),
        Evidence("ranks inside a collective", counts["inside"], "", counts["reporting"]),
    ]
    if found["step_s"] is not None:
        rows.append(Evidence("usual step", found["step_s"], "s"))
    if found["stacks"]:
        rows.append(Evidence("ranks whose stacks are alike", found["stacks"]["alike"], "", found["stacks"]["sent"]))
        rows.append(Evidence("stack of the named ranks", found["stacks"]["where"]))
    if found["phases"]:
        rows.append(Evidence("phase of the named ranks", ", ".join(found["phases"])))
    return tuple(rows)


def _unheard(window: Window) -> Undecided:
    limit = in_words(NO_TELEMETRY_S.of(window.limits))
    heard = int(np.isfinite(window.beats.heard_at).sum())
    have = (f"beats of {heard} of {plural(window.attempt.world_size, 'rank')}",)
    return Undecided(CAUSE, have, (f"a beat within {limit}",), "Nobody can be heard, so nobody can be said to hang.")


def _ended(window: Window) -> Undecided:
    words = "A rank has exited; that is the finding."
    if window.attempt.ended:
        words = "The attempt is over: nothing in it hangs any more."
    elif window.attempt.stopping:
        words = "An order to stop is under way."
    return Undecided(CAUSE, ("exits",), ("ranks that should be running",), words)


def _moving(window: Window, pace: Pace, who: Presence, stood_s: float, limit_s: float) -> Undecided | Healthy:
    fresh = int(who.fresh.sum())
    have = (
        f"beats of {fresh} of {plural(window.attempt.world_size, 'rank')}",
        f"step {pace.newest}",
        f"phase {pace.phase}",
    )
    words = f"Last moved {in_words(stood_s)} ago; this phase may last {in_words(limit_s)}."
    if pace.step_s() is None:
        lack = (f"{plural(3, 'step')} seen, to learn how long one takes",)
        return Undecided(CAUSE, have, lack, words)
    return Healthy(CAUSE, have, words)


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.COORDINATION,
    title="Hang",
    trigger=Trigger.CLOCK,
    needs=Needs(beats=True, exits=True, stacks=True),
    minimum=Minimum(ranks=1),
    delay=Delay(seconds=2 * HANG_FLOOR_S.default + 9),
    false_alarm_p=0.0,
    limits=(HANG_FLOOR_S, HANG_FACTOR, HANG_START_S, HANG_PHASE_S, NO_TELEMETRY_S),
    evaluate=evaluate,
    state_version=2,
)
