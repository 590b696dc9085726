"""A rank crashed, or a whole node was lost: seen from an exit that a survivor reports, from a node's silence, or from
who took no leave when all others did."""

from collections.abc import Mapping
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
from apps.engine.detectors._culprit import MOST_VICTIMS, subject_of
from apps.engine.detectors._exits import REVISE_S, Exits, origins_of
from apps.engine.detectors._pace import HANG_FLOOR_S, Pace
from apps.engine.detectors._parting import (
    PARTING,
    parted,
    parting_evidence,
    parting_next,
    parting_says,
    parting_why,
)
from apps.engine.detectors._presence import Presence, exit_in_words, left, presence
from apps.engine.detectors._words import in_words, plural

CAUSE = "rank_lost"

SURE_NODES = 3
"""So many other nodes must have told of their ranks' exits before the one that told nothing is surely the origin."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after one look, and the rank or node that was lost (see `Detector`).

    Cost: O(ranks + facts).
    Source: DESIGN §5; cases 29, 34 and 36 of public reports.
    """
    exits = Exits(window.attempt.world_size, state.values, state.arrays)
    pace = Pace(state.values.get("pace", {}))
    who = presence(window)
    if who.fresh.any():
        pace.take(window.beats, who.fresh, window.watch_began_at, learn=True)
    known: dict[str, Any] | None = state.values.get("open")
    answers: list[Answer] = []
    if known and _survived(window, pace, known):
        answers.append(_verdict(known, window, exits, CloseReason.RECOVERED))
        exits.survive()
        known = None
    exits.take(window.facts)
    # Who took no leave is asked anew at each look: a last word that was late takes it back.
    before = None if known and known["how"] == PARTING and not window.attempt.stopping else known
    now = before if window.attempt.stopping else _found(window, exits, who, pace, before)
    if window.attempt.ended:
        now = _at_the_end(window, now or before)
        now = now if window.attempt.stopping or before else _who_parted(window, who, now, known)
    if known and (now is None or now["subject"]["key"] != known["subject"]["key"]):
        answers.append(_verdict(known, window, exits, CloseReason.MERGED if now else CloseReason.RECOVERED))
    answers.append(_verdict(now, window, exits) if now else _nothing(window, who))
    kept = {**exits.values(), "pace": pace.values(), "open": now}
    return State(CAUSE, DETECTOR.state_version, kept, exits.arrays()), tuple(answers)


def _survived(window: Window, pace: Pace, found: Mapping[str, Any]) -> bool:
    """Whether the run went on after a crash."""
    return bool(found["how"] == "crash" and pace.outlived(found["since"], window.limits))


def _at_the_end(window: Window, found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what is known for good once the attempt is over: nothing in it can recover any more.

    A node that nobody heard of again before the attempt failed is lost for sure.
    """
    if found is None:
        return None
    failed_with_it = found["how"] == "silence" and not window.attempt.stopping
    return {**found, "certainty": str(Certainty.CONFIRMED)} if failed_with_it else found


def _who_parted(
    window: Window, who: Presence, found: dict[str, Any] | None, known: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return who took no leave, where nothing was found before the end. The others' exits, told later, are its wave."""
    if found is None or found["how"] == "silence":
        return parted(window, who) or found
    if known and known["since"] <= found["since"] and not {*known["origins"]} & {*found["origins"]}:
        return known
    return found


def _found(
    window: Window, exits: Exits, who: Presence, pace: Pace, before: dict[str, Any] | None
) -> dict[str, Any] | None:
    crashed = bool(exits.moment)
    silent = _lost_nodes(window, exits, who, pace, before, crashed=crashed)
    if not crashed:
        return silent
    first = exits.first_at()
    if silent and silent["since"] <= first:
        return silent
    if before and before["how"] == "silence" and before["since"] <= first:
        return before  # the others' exits are the lost node's wave
    if before and before["how"] == "crash" and window.now > first + REVISE_S:
        return before
    origins, outside = origins_of(exits.moment), exits.from_outside()
    subject = Subject(SubjectKind.RUN) if outside else subject_of(window, np.array(origins, np.int32))
    one = exits.moment[str(origins[0])]
    return {
        "how": "crash",
        "subject": _named(subject),
        "origins": origins,
        "outside": outside,
        "code": one["code"],
        "signal": one["signal"],
        "since": first,
        "step": _newest(window),
        "certainty": str(Certainty.CONFIRMED),
    }


def _lost_nodes(
    window: Window, exits: Exits, who: Presence, pace: Pace, before: dict[str, Any] | None, *, crashed: bool
) -> dict[str, Any] | None:
    """Return the nodes that fell silent with their ranks while others are heard and stand, None without any."""
    if not who.fresh.any() and not crashed:
        return before
    placement = window.placement
    running = placement.node[~left(window) & ~exits.gone & (placement.node >= 0)]
    silent = [int(i) for i in np.flatnonzero(who.silent_nodes) if (running == i).any()]
    lost, sure = _untold(window, exits, who, silent) if crashed else _standing(window, who, pace, silent)
    lost = _together(window, who, lost, before)
    if not lost:
        return before if _is_still_lost(window, who, pace, before) else None
    ranks = np.flatnonzero(np.isin(placement.node, lost)).astype(np.int32)
    named = Subject(SubjectKind.NODE, node=placement.nodes[lost[0]]) if len(lost) == 1 else subject_of(window, ranks)
    silent_s = float(who.node_s[lost].max())
    same = before is not None and before["subject"]["key"] == named.key
    return {
        "how": "silence",
        "subject": _named(named),
        "origins": [int(rank) for rank in ranks],
        "outside": False,
        "silent_s": silent_s,
        "since": before["since"] if before and same else float(window.now - silent_s),
        "step": _newest(window),
        "certainty": str(Certainty.CONFIRMED if sure else Certainty.SUSPECTED),
    }


def _is_still_lost(window: Window, who: Presence, pace: Pace, before: Mapping[str, Any] | None) -> bool:
    """Return whether a node found before is silent as ever and nobody got a step further: that the others end their
    part, or fall silent as well, is no sign of life."""
    if before is None or before["how"] != "silence":
        return False
    nodes = window.placement.node[np.array(before["origins"], np.int64)]
    ended_well = left(window)[np.array(before["origins"], np.int64)].all()
    step = -1 if before["step"] is None else int(before["step"])
    return bool(who.silent_nodes[nodes].all()) and not ended_well and pace.newest <= step


def _together(window: Window, who: Presence, lost: list[int], before: dict[str, Any] | None) -> list[int]:
    """Return the nodes that fell silent with the first one: those that follow later are its wave (case 29).

    Two report intervals apart is together: a node's last word may be that much older than its end.
    """
    if not lost:
        return []
    began = {i: window.now - float(who.node_s[i]) for i in lost}
    first = min(began.values())
    if before and before["how"] == "silence":
        first = min(first, float(before["since"]))
    return [i for i in lost if began[i] <= first + 2 * who.limit_s / 3]


def _untold(window: Window, exits: Exits, who: Presence, silent: list[int]) -> tuple[list[int], bool]:
    """After exits, the lost node is the one that was silent before them and told nothing though all others did."""
    node = window.placement.node
    told = set(node[exits.wave() & (node >= 0)].tolist())
    quiet = [i for i in silent if i not in told and window.now - who.node_s[i] <= exits.first_at()]
    alone = len(quiet) == 1 and len(told) == int(np.isfinite(who.node_s).sum()) - 1
    return (quiet if alone else []), len(told) >= SURE_NODES


def _standing(window: Window, who: Presence, pace: Pace, silent: list[int]) -> tuple[list[int], bool]:
    """Without exits, silence alone is no lost node: while the others get on, its ranks must be computing.

    The others' last step may be heard two report intervals and a step after the node's last word, no later; and they
    must have stood for longer than a step takes before anything is said, three steps before it is sure.
    """
    interval_s = who.limit_s / 3
    step_s = pace.step_s() or HANG_FLOOR_S.of(window.limits) / 3
    advanced_at = pace.advanced_at if pace.advanced_at is not None else window.now
    stood_s = window.now - max(pace.since or window.now, window.watch_began_at)
    if stood_s < interval_s + 1.5 * step_s:
        return [], False
    lost = [i for i in silent if advanced_at <= window.now - who.node_s[i] + 2 * interval_s + step_s]
    return lost, stood_s >= max(who.limit_s, 3 * step_s)


def _newest(window: Window) -> int | None:
    step = int(window.beats.step.max()) if len(window.beats.step) else -1
    return step if step >= 0 else None


def _named(subject: Subject) -> dict[str, Any]:
    return {
        "key": subject.key,
        "kind": str(subject.kind),
        "rank": subject.rank,
        "node": subject.node,
        "gpu": subject.gpu,
        "nodes": list(subject.nodes),
    }


def _verdict(found: Mapping[str, Any], window: Window, exits: Exits, closed: CloseReason | None = None) -> Verdict:
    named, origins = found["subject"], found["origins"]
    confirmed = found["certainty"] == Certainty.CONFIRMED
    own = set(origins)
    wave = [int(rank) for rank in np.flatnonzero(exits.wave()) if int(rank) not in own]
    return Verdict(
        cause=CAUSE,
        class_=Class.COORDINATION,
        level=Level.CRITICAL if confirmed else Level.WARNING,
        certainty=Certainty(found["certainty"]),
        subject=Subject(
            SubjectKind(named["kind"]), named["rank"], named["node"], named["gpu"], nodes=tuple(named["nodes"])
        ),
        score=float(len(origins) + len(wave)),
        score_meaning="ranks that are gone",
        verdict=_says(found),
        why=_why(found, wave, is_over=window.attempt.ended),
        next=_next(found, closed),
        coverage=Coverage(window.attempt.world_size - len(origins) - len(wave), window.attempt.world_size),
        since_step=found["step"],
        found_step=found["step"],
        began_at=found["since"],
        victims=tuple(wave) if len(wave) <= MOST_VICTIMS else (),
        evidence=_evidence(found, wave),
        proposal=_proposal(found) if confirmed and not closed else Proposal(),
        closed=closed,
    )


def _proposal(found: Mapping[str, Any]) -> Proposal:
    node = found["subject"]["node"]
    if node and (found["how"] == "silence" or found.get("whole")):
        return Proposal(ProposalKind.EXCLUDE_NODE, node)
    return Proposal() if found["outside"] else Proposal(ProposalKind.RESTART_RUN)


def _says(found: Mapping[str, Any]) -> str:
    node, origins = found["subject"]["node"], found["origins"]
    on = f" on {node}" if node else ""
    if found["how"] == PARTING:
        return parting_says(found)
    if found["how"] == "silence":
        who = node or plural(len(found["subject"]["nodes"]), "node")
        return f"Lost: {who}. Nothing is heard of its {ranks_in_words(origins)}, and the others stand."
    if found["outside"]:
        return f"The job was stopped from outside: {plural(len(origins), 'rank')} got SIGTERM at the same moment."
    who, ended = ranks_in_words(origins), exit_in_words(found["code"], found["signal"])
    if len(origins) == 1:
        return f"{who.capitalize()}{on} {ended}."
    return f"One of {who}{on} was first to fail; one {ended}."


def _why(found: Mapping[str, Any], wave: list[int], *, is_over: bool) -> str:
    if found["how"] == PARTING:
        return parting_why(found)
    if found["how"] == "silence":
        ended = f" {ranks_in_words(wave).capitalize()} ended after it." if wave else ""
        return f"Silent for {in_words(found['silent_s'])} while other nodes were heard.{ended}"
    if wave:
        return f"Its exit was seen first; {ranks_in_words(wave)} ended in its wave and did not cause it."
    if is_over:
        return "Its exit was reported; no other rank failed before the attempt was over."
    return "Its exit was reported; no other rank has ended yet."


def _next(found: Mapping[str, Any], closed: CloseReason | None) -> str:
    if closed:
        return "Nothing to do." if closed is CloseReason.RECOVERED else "See the newer finding."
    if found["how"] == PARTING:
        return parting_next(found)
    if found["how"] == "silence":
        node = found["subject"]["node"] or "the silent nodes"
        sure = found["certainty"] == Certainty.CONFIRMED
        return f"Exclude {node} and restart." if sure else f"Look at {node}; wait whether the others get further."
    if found["outside"]:
        return "Look at the scheduler: a time limit, a cancellation, a preemption, or a lack of memory."
    return "Read its last lines and its node's kernel log, then restart from the newest trusted checkpoint."


def _evidence(found: Mapping[str, Any], wave: list[int]) -> tuple[Evidence, ...]:
    if found["how"] == PARTING:
        return parting_evidence(found)
    after = Evidence("ranks that ended after it", len(wave))
    if found["how"] == "silence":
        silent = Evidence("silent for", round(found["silent_s"], 3), "s")
        return silent, Evidence("ranks on it", len(found["origins"])), after
    rows = [Evidence("exit code", found["code"])] if found["code"] is not None else []
    if found["signal"]:
        rows.append(Evidence("signal", found["signal"]))
    if len(found["origins"]) > 1:
        rows.append(Evidence("one of", ranks_in_words(found["origins"])))
    return (*rows, after)


def _nothing(window: Window, who: Presence) -> Undecided | Healthy:
    fresh, world = int(who.fresh.sum()), window.attempt.world_size
    have = (f"beats of {fresh} of {plural(world, 'rank')}",)
    if not fresh:
        return Undecided(
            CAUSE, have, ("a beat from anybody",), "Nobody can be heard, so nobody can be said to be lost."
        )
    return Healthy(CAUSE, have, "No rank has failed.")


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.COORDINATION,
    title="Crash or lost node",
    trigger=Trigger.CLOCK,
    needs=Needs(beats=True, exits=True),
    minimum=Minimum(ranks=1),
    delay=Delay(seconds=NO_TELEMETRY_S.default + 7),
    false_alarm_p=0.0,
    limits=(NO_TELEMETRY_S, HANG_FLOOR_S),
    evaluate=evaluate,
)
