"""Who can still be heard, by the receiver's clock alone."""

from dataclasses import dataclass

import numpy as np

from apps.engine.detection import NO_TELEMETRY_S, Fact, Phase, Window
from apps.engine.detection.arrays import Flags, Times

SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""The signals that end ranks in practice, by number as Linux has them."""


@dataclass(frozen=True, eq=False, slots=True)
class Presence:
    """Silence of ranks and nodes at `now`.

    rank_s: float64 [ranks], seconds since the rank's last beat, NaN = never heard.
    node_s: float64 [nodes], seconds since anything was heard from the node, NaN = never.
    fresh, missing: bool [ranks]: heard within the limit; heard of (placed, or once heard) but not within it.
    """

    rank_s: Times
    node_s: Times
    fresh: Flags
    missing: Flags
    limit_s: float

    @property
    def silent_nodes(self) -> Flags:
        """Nodes that were heard once and are silent past the limit, bool [nodes]."""
        silent: Flags = self.node_s > self.limit_s
        return silent


def presence(window: Window) -> Presence:
    """Return who is heard. Silence counts only from when Paceline could hear: after a blind period it starts anew.

    Cost: O(ranks + senders).
    """
    beats, placement = window.beats, window.placement
    limit_s = NO_TELEMETRY_S.of(window.limits)
    ranks, nodes = len(placement), len(placement.nodes)
    heard = beats.heard_at if len(beats.heard_at) else np.full(ranks, np.nan)
    node_heard = np.full(nodes, -np.inf)
    placed = (placement.node >= 0) & np.isfinite(heard)
    np.maximum.at(node_heard, placement.node[placed], heard[placed])
    known = (beats.sender_node >= 0) & np.isfinite(beats.sender_heard_at)
    np.maximum.at(node_heard, beats.sender_node[known], beats.sender_heard_at[known])
    node_heard[np.isinf(node_heard)] = np.nan
    rank_s, node_s = _silence(window, heard), _silence(window, node_heard)
    # Freshness asks for a real word since the watch began; a rank from before a blind period is neither fresh nor missing.
    fresh = (rank_s <= limit_s) & (heard >= window.watch_began_at)
    missing = (rank_s > limit_s) | (np.isnan(rank_s) & (placement.node >= 0))
    if window.now - window.watch_began_at <= limit_s:
        missing[:] = False
    return Presence(rank_s, node_s, fresh, missing, limit_s)


def _silence(window: Window, heard_at: Times) -> Times:
    silence: Times = window.now - np.maximum(heard_at, window.watch_began_at)
    silence[np.isnan(heard_at)] = np.nan
    return silence


def signal_of(fact: Fact) -> int | None:
    """Return the signal that ended the process, None if it ended by itself.

    >>> signal_of(Fact("exit", 0.0, code=-9)), signal_of(Fact("exit", 0.0, code=1)), signal_of(Fact("exit", 0.0, code=137))
    (9, None, 9)
    """
    if fact.signal:
        return fact.signal
    code = fact.code or 0
    if code < 0:
        return -code
    return code - 128 if 128 < code <= 128 + 64 else None


def failed(fact: Fact) -> bool:
    """Return whether the fact is the exit of a rank that did not end well.

    >>> failed(Fact("exit", 0.0, rank=1, code=0)), failed(Fact("exit", 0.0, rank=1, code=1))
    (False, True)
    """
    return fact.kind == "exit" and fact.rank is not None and bool(fact.code or fact.signal)


def left(window: Window, *, failures: bool = False) -> Flags:
    """Return the ranks that ended or are ending by themselves, with `failures` those that failed too. bool [ranks]."""
    gone = np.zeros(len(window.placement), np.bool_)
    if len(window.beats.phase):
        gone |= window.beats.phase == Phase.SHUTDOWN
    for fact in window.facts:
        if (
            fact.kind == "exit"
            and fact.rank is not None
            and 0 <= fact.rank < len(gone)
            and (failures or not failed(fact))
        ):
            gone[fact.rank] = True
    return gone


def exit_in_words(code: int | None, signal: int | None) -> str:
    """Return how a process ended, for a sentence.

    >>> exit_in_words(-9, 9), exit_in_words(1, None)
    ('was killed by SIGKILL', 'exited with code 1')
    """
    if signal:
        return f"was killed by {SIGNALS.get(signal, f'signal {signal}')}"
    return f"exited with code {code}"
