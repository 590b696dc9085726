"""A node's sender, or everybody, can no longer be heard: nothing can be said about them, and that is said."""

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
    State,
    Subject,
    SubjectKind,
    Trigger,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors._presence import Presence, left, presence
from apps.engine.detectors._words import in_words, plural

CAUSE = "no_telemetry"

SEVERAL = 3
"""From this many silent nodes on it is one finding about what they share. Source: CONTRACT, Findings."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after one look, and who is silent (see `Detector`).

    Silence counts from the last word on the receiver's clock, and never from before Paceline could hear.
    Cost: O(ranks + senders).
    """
    found: dict[str, dict[str, Any]] = dict(state.values.get("open", {}))
    who = presence(window)
    known = np.isfinite(who.node_s)
    if not known.any():
        lack = ("a word from any sender",)
        return state, (Undecided(CAUSE, (), lack, "Nothing has been heard of this attempt yet."),)
    silent = who.silent_nodes & ~_all_left(window)
    now = _silent_now(window, who, silent, known)
    closed = []
    for key, entry in found.items():
        if key not in now:
            reason = CloseReason.MERGED if now and _covered(entry, now) else CloseReason.RECOVERED
            closed.append(_verdict(entry, window, who, reason))
    opened = {key: {**entry, "since": found.get(key, entry)["since"]} for key, entry in now.items()}
    verdicts = [_verdict(entry, window, who) for entry in opened.values()]
    answers: tuple[Answer, ...] = (*closed, *verdicts)
    if not verdicts:
        words = f"Every node was heard within {in_words(who.limit_s)}."
        answers = (*answers, Healthy(CAUSE, (f"{plural(int(known.sum()), 'node')} heard",), words))
    return State(CAUSE, DETECTOR.state_version, {"open": opened}), answers


def _all_left(window: Window) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the nodes all of whose ranks are known to have ended, well or not: their silence is no news."""
    placement = window.placement
    placed = placement.node >= 0
    ranks = np.bincount(placement.node[placed], minlength=len(placement.nodes))
    gone = np.bincount(placement.node[placed & left(window, failures=True)], minlength=len(placement.nodes))
    ended: np.ndarray[Any, np.dtype[np.bool_]] = (ranks > 0) & (gone == ranks)
    return ended


def _silent_now(window: Window, who: Presence, silent: Any, known: Any) -> dict[str, dict[str, Any]]:
    nodes = [window.placement.nodes[int(i)] for i in np.flatnonzero(silent)]
    if not nodes:
        return {}
    step = int(window.beats.step.max()) if len(window.beats.step) else -1
    since = [float(window.now - who.node_s[i]) for i in np.flatnonzero(silent)]
    everybody = len(nodes) == int(known.sum())
    if everybody or len(nodes) >= SEVERAL:
        entry = {"node": None, "nodes": sorted(nodes), "since": min(since), "step": step, "everybody": everybody}
        return {str(SubjectKind.RUN if everybody else SubjectKind.CLUSTER): entry}
    return {
        f"{SubjectKind.NODE}:{node}": {"node": node, "nodes": [node], "since": at, "step": step, "everybody": False}
        for node, at in zip(nodes, since, strict=True)
    }


def _covered(entry: dict[str, Any], now: dict[str, dict[str, Any]]) -> bool:
    """Whether the finding lives on under another subject: one of its nodes is still silent."""
    still = {node for other in now.values() for node in other["nodes"]}
    return bool(still & set(entry["nodes"]))


def _verdict(entry: dict[str, Any], window: Window, who: Presence, closed: CloseReason | None = None) -> Verdict:
    heard = int((who.node_s <= who.limit_s).sum())
    known = int(np.isfinite(who.node_s).sum())
    silence_s = max(window.now - entry["since"], 0.0)
    everybody, nodes = entry["everybody"], entry["nodes"]
    shared = SubjectKind.RUN if everybody else SubjectKind.CLUSTER
    kind = SubjectKind.NODE if entry["node"] else shared
    subject = Subject(kind, node=entry["node"], nodes=() if entry["node"] else tuple(nodes))
    ranks = [int(r) for node in nodes for r in window.placement.ranks_on(list(window.placement.nodes).index(node))]
    return Verdict(
        cause=CAUSE,
        class_=Class.WATCHING,
        level=Level.CRITICAL if everybody else Level.WARNING,
        certainty=Certainty.CONFIRMED,
        subject=subject,
        score=silence_s / who.limit_s,
        score_meaning="seconds of silence ÷ how long a sender may be silent",
        verdict=_says(entry, silence_s, known, closed),
        why=f"{plural(heard, 'node')} of {known} heard within {in_words(who.limit_s)}, by this server's clock.",
        next=_next(entry, closed),
        coverage=Coverage(heard, known),
        since_step=entry["step"] if entry["step"] >= 0 else None,
        found_step=entry["step"] if entry["step"] >= 0 else None,
        began_at=entry["since"],
        victims=tuple(sorted(ranks)) if len(ranks) <= 1024 else (),
        evidence=(
            Evidence("silent for", round(silence_s, 3), "s", who.limit_s),
            Evidence("silent nodes", len(nodes), "", known),
        ),
        closed=closed,
    )


def _says(entry: dict[str, Any], silence_s: float, known: int, closed: CloseReason | None) -> str:
    if closed:
        return (
            f"{entry['node'] or 'The run'} is heard again."
            if closed is CloseReason.RECOVERED
            else "More is silent now."
        )
    if entry["everybody"]:
        return (
            f"Nothing has been heard from this run for {in_words(silence_s)}: all {plural(known, 'node')} are silent."
        )
    if entry["node"]:
        return f"{entry['node']} has not been heard for {in_words(silence_s)}."
    return f"{len(entry['nodes'])} of {known} nodes have not been heard, the first for {in_words(silence_s)}."


def _next(entry: dict[str, Any], closed: CloseReason | None) -> str:
    if closed:
        return "Nothing to do; they are heard again." if closed is CloseReason.RECOVERED else "See the newer finding."
    if entry["everybody"]:
        return "No other verdict is made while nobody is heard: look at the scheduler, and at the way from the nodes to here."
    return "Look whether the node is up and can reach this server; its ranks are drawn hatched, not healthy."


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.WATCHING,
    title="Not heard",
    trigger=Trigger.CLOCK,
    needs=Needs(beats=True, exits=True),
    minimum=Minimum(ranks=1),
    delay=Delay(seconds=NO_TELEMETRY_S.default + 7),
    false_alarm_p=0.0,
    limits=(NO_TELEMETRY_S,),
    evaluate=evaluate,
)
