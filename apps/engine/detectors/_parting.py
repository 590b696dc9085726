"""Who did not take its leave when all others did: the one that an attempt lost although nobody was left to see its exit.

With one rank a machine, its reporting dies with it; the others notice, stand a few seconds, and end the attempt before
any silence is long enough to mean something by itself.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from apps.engine.detection import Certainty, Evidence, Phase, SubjectKind, Window, ranks_in_words
from apps.engine.detection.arrays import Flags, Ints
from apps.engine.detectors._culprit import subject_of
from apps.engine.detectors._presence import Presence, left
from apps.engine.detectors._words import in_words, plural

PARTING = "parting"
"""The word for how it is known."""

FLIGHT_S = 1.0
"""A report may be under way this long past its interval; sooner, a rank that has not taken its leave still may."""

WITNESSES = 2
"""Other nodes that must have taken their leave before the one that did not is more than likely: one alone may be cut off
itself."""


def parted(window: Window, who: Presence) -> dict[str, Any] | None:
    """Return the ranks of one node that fell silent before the others took their leave of a failed attempt, else None.

    Nobody is named where those who took no leave are on several nodes (what ended them came from outside, or cut them
    all off), where they were heard as late as the others, or where Paceline could not hear all the while.
    Cost: O(ranks). Source: ours; the culprit of a failure is who its victims outlive (case 29 of public reports).
    """
    beats, placement = window.beats, window.placement
    if not len(beats.step) or _hung(window):
        return None
    gone = left(window, failures=True)
    heard = np.isfinite(beats.heard_at)
    mute = np.flatnonzero(heard & ~gone).astype(np.int32)
    went = heard & gone & (placement.node >= 0)
    nodes = set(placement.node[mute].tolist())
    if len(nodes) != 1 or -1 in nodes or not went.any():
        return None
    interval_s = who.limit_s / 3
    last, parting = float(beats.heard_at[mute].max()), float(beats.heard_at[went].min())
    lead_s = parting - last
    if window.watch_began_at > last or window.now - last < interval_s + FLIGHT_S or lead_s <= 0:
        return None
    elsewhere = len(set(placement.node[went].tolist()) - nodes)
    signs = (elsewhere >= WITNESSES) + (lead_s > interval_s)
    return _found(window, mute, went, last=last, lead_s=lead_s, sure=signs == 2) if elsewhere and signs else None


def _hung(window: Window) -> bool:
    """Whether the attempt was ended because it hung: then one that took no leave is one that could not."""
    own = [one for one in window.chain if one.number == window.attempt.number]
    return bool(own) and own[-1].outcome == "HUNG"


def _found(window: Window, mute: Ints, went: Flags, *, last: float, lead_s: float, sure: bool) -> dict[str, Any]:
    beats = window.beats
    subject = subject_of(window, mute)
    on_node = window.placement.ranks_on(int(window.placement.node[mute[0]]))
    return {
        "how": PARTING,
        "subject": {
            "key": subject.key,
            "kind": str(subject.kind),
            "rank": subject.rank,
            "node": subject.node,
            "gpu": subject.gpu,
            "nodes": list(subject.nodes),
        },
        "origins": mute.tolist(),
        "outside": False,
        "whole": subject.kind is SubjectKind.NODE and len(on_node) == len(mute),
        "lead_s": lead_s,
        "went": int(went.sum()),
        "phases": sorted({Phase(int(phase)).word for phase in beats.phase[mute]}),
        "since": last,
        "step": int(beats.step.max()) if beats.step.max() >= 0 else None,
        "own_step": int(beats.step[mute].max()),
        "certainty": str(Certainty.CONFIRMED if sure else Certainty.SUSPECTED),
    }


def parting_says(found: Mapping[str, Any]) -> str:
    """Return the verdict's sentence."""
    who = ranks_in_words(found["origins"])
    on = f" on {found['subject']['node']}" if found["subject"]["node"] else ""
    others = "the other rank" if found["went"] == 1 else f"the {plural(found['went'], 'other rank')}"
    return f"Lost: {who}{on}, silent before {others} ended."


def parting_why(found: Mapping[str, Any]) -> str:
    """Return what the verdict rests on, and how sure that is."""
    many = len(found["origins"]) > 1
    last = (
        f"Last heard in {', '.join(found['phases'])}, {in_words(found['lead_s'])} before the first of the others left"
    )
    seen = f"; nobody could see how {'they' if many else 'it'} ended."
    if found["certainty"] == Certainty.CONFIRMED:
        return f"{last}{seen} All others took their leave: it is the one they lost."
    return f"{last}{seen} Likely, not proven: a last word that got lost on its way looks the same."


def parting_next(found: Mapping[str, Any]) -> str:
    """Return what to do."""
    node = found["subject"]["node"]
    if found["certainty"] != Certainty.CONFIRMED:
        return f"Look at {node}; read the last lines of {ranks_in_words(found['origins'])} before it is tried again."
    if found["whole"]:
        return f"Exclude {node} and restart."
    return f"Read its last lines and the kernel log of {node}, then restart from the newest trusted checkpoint."


def parting_evidence(found: Mapping[str, Any]) -> tuple[Evidence, ...]:
    """Return the numbers: when it was last heard, and who took their leave."""
    return (
        Evidence("silent before the others left", round(found["lead_s"], 3), "s"),
        Evidence("ranks that took no leave", len(found["origins"])),
        Evidence("ranks that took their leave", found["went"]),
        Evidence("last heard in step", found["own_step"], "", found["step"]),
    )
