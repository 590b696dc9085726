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
    Source: DESIGN §1, "silence is a signal".
    """
    found: dict[str, dict[str, Any]] = dict(state.values.get("open", {}))
    who = presence(window)
    heard = _voices(window, who)
    if not heard and len(window.placement) and left(window, failures=True).all():
        everybody = plural(len(window.placement), "rank")
        ended = Healthy(CAUSE, (f"the ends of {everybody}",), f"All {everybody} have ended: nobody has to speak now.")
        return State(CAUSE, DETECTOR.state_version, {"open": {}}), (ended,)
    if not heard:
        lack = ("a word from any sender",)
        return state, (Undecided(CAUSE, (), lack, "Nothing has been heard of this attempt yet."),)
    now = _silent_now(window, who, heard)
    closed = []
    for key, entry in found.items():
        if key not in now:
            again = any(heard.get(node, np.inf) <= who.limit_s for node in entry["nodes"])
            reason = CloseReason.RECOVERED if again and not _covered(entry, now) else CloseReason.MERGED
            closed.append(_verdict({**entry, "ended": not again}, window, who, heard, reason))
    opened = {key: {**entry, "since": found.get(key, entry)["since"]} for key, entry in now.items()}
    verdicts = [_verdict(entry, window, who, heard) for entry in opened.values()]
    answers: tuple[Answer, ...] = (*closed, *verdicts)
    if not verdicts:
        words = f"Every node was heard within {in_words(who.limit_s)}."
        answers = (*answers, Healthy(CAUSE, (f"{plural(len(heard), 'node')} heard",), words))
    return State(CAUSE, DETECTOR.state_version, {"open": opened}), answers


def _voices(window: Window, who: Presence) -> dict[str, float]:
    """Return node → seconds of silence, of all that were ever heard and have not ended; a sender without a node is one.

    A node all of whose ranks are known to have ended, well or not, is silent by right.
    """
    placement, beats = window.placement, window.beats
    placed = placement.node >= 0
    ranks = np.bincount(placement.node[placed], minlength=len(placement.nodes))
    gone = np.bincount(placement.node[placed & left(window, failures=True)], minlength=len(placement.nodes))
    voices = {
        name: float(who.node_s[i])
        for i, name in enumerate(placement.nodes)
        if np.isfinite(who.node_s[i]) and (ranks[i] == 0 or gone[i] < ranks[i])
    }
    for name, node, heard_at in zip(beats.senders, beats.sender_node, beats.sender_heard_at, strict=True):
        if node < 0 and np.isfinite(heard_at):
            voices[name] = float(window.now - max(heard_at, window.watch_began_at))
    return voices


def _silent_now(window: Window, who: Presence, heard: dict[str, float]) -> dict[str, dict[str, Any]]:
    silent = {node: silence_s for node, silence_s in heard.items() if silence_s > who.limit_s}
    if not silent:
        return {}
    step = int(window.beats.step.max()) if len(window.beats.step) else -1
    ended = int(np.isfinite(who.node_s).sum()) - sum(name in heard for name in window.placement.nodes)
    everybody = len(silent) == len(heard) and not ended  # where others have ended, the silence is of who is left
    if everybody or len(silent) >= SEVERAL:
        since = window.now - max(silent.values())
        entry = {"node": None, "nodes": sorted(silent), "since": since, "step": step, "everybody": everybody}
        return {str(SubjectKind.RUN if everybody else SubjectKind.CLUSTER): entry}
    return {
        f"{SubjectKind.NODE}:{node}": {
            "node": node,
            "nodes": [node],
            "since": window.now - silence_s,
            "step": step,
            "everybody": False,
        }
        for node, silence_s in silent.items()
    }


def _covered(entry: dict[str, Any], now: dict[str, dict[str, Any]]) -> bool:
    """Whether the finding lives on under another subject: one of its nodes is still silent."""
    still = {node for other in now.values() for node in other["nodes"]}
    return bool(still & set(entry["nodes"]))


def _verdict(
    entry: dict[str, Any], window: Window, who: Presence, heard: dict[str, float], closed: CloseReason | None = None
) -> Verdict:
    known, fresh = len(heard), sum(silence_s <= who.limit_s for silence_s in heard.values())
    silence_s = max(window.now - entry["since"], 0.0)
    everybody, nodes = entry["everybody"], entry["nodes"]
    shared = SubjectKind.RUN if everybody else SubjectKind.CLUSTER
    kind = SubjectKind.NODE if entry["node"] else shared
    subject = Subject(kind, node=entry["node"], nodes=() if entry["node"] else tuple(nodes))
    index = {name: i for i, name in enumerate(window.placement.nodes)}
    ranks = [int(r) for node in nodes if node in index for r in window.placement.ranks_on(index[node])]
    return Verdict(
        cause=CAUSE,
        class_=Class.WATCHING,
        level=Level.CRITICAL if everybody else Level.WARNING,
        certainty=Certainty.CONFIRMED,
        subject=subject,
        score=silence_s / who.limit_s,
        score_meaning="seconds of silence ÷ how long a sender may be silent",
        verdict=_says(entry, silence_s, known, closed),
        why=f"{plural(fresh, 'node')} of {known} heard within {in_words(who.limit_s)}, by this server's clock.",
        next=_next(entry, closed),
        coverage=Coverage(fresh, known),
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
    who = entry["node"] or ("The run" if entry["everybody"] else plural(len(entry["nodes"]), "node"))
    if closed is CloseReason.RECOVERED:
        return f"{who} {'are' if len(entry['nodes']) > 1 and not entry['everybody'] else 'is'} heard again."
    if closed:
        return f"{who} went silent, then its ranks ended." if entry["ended"] else "More is silent now."
    if entry["everybody"]:
        silent = f"all {known} nodes are" if known > 1 else "its only node is"
        return f"Nothing has been heard from this run for {in_words(silence_s)}: {silent} silent."
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
